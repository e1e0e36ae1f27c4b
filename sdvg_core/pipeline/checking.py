"""What models can be loaded and fit together, as the headers of their files tell. No weight is read here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..causal_wan.backends import AttentionBackend, choose_attention
from ..causal_wan.build import WanShape
from ..causal_wan.checkpoint import WanCheckpoint, open_wan
from ..causal_wan.presets import Preset, notes_by_name
from ..checkpoints.dictionaries import Choice, note_on
from ..checkpoints.model_files import ModelFiles
from ..decoders.vae_files import VaeHeader, open_vae
from ..devices.device import check_device, parse_dtype
from ..devices.execution import AUTO, check_compile
from ..engine.roles import Roles
from ..errors import BadInput
from ..report.assemble import FAST_NOTE, JUDGE_NOTE, swapped_note
from ..scorers.image_reward import check_reward_dtype
from ..text.umt5 import check_text_dtype
from .options import LoadOptions, ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checked:
    """Models that can be loaded and fit together, as their headers tell; no weight has been read.

    `drafter`, `target`: None if it is not there, but one of them is. `judge`: None if the VAE decodes drafts too.
    """

    drafter: CheckedWan | None
    target: CheckedWan | None
    vae: VaeHeader
    judge: VaeHeader | None = None
    overlap: bool = False

    @property
    def there(self) -> tuple[CheckedWan, ...]:
        """The models that are there, the target first."""
        return tuple(model for model in (self.target, self.drafter) if model)

    @property
    def shapes(self) -> tuple[WanShape, WanShape]:
        """What the engine needs to know of drafter and target before a run; an absent one is like the other."""
        drafter, target = self.drafter or self.there[0], self.target or self.there[0]
        return (
            WanShape.of("drafter", drafter.found.config, drafter.preset),
            WanShape.of("target", target.found.config, target.preset),
        )

    @property
    def identities(self) -> tuple[str | None, str | None]:
        """What the results of drafter and target depend on besides their files; None for one that is not there."""
        drafter, target = self.drafter, self.target
        return drafter.identity if drafter else None, target.identity if target else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of these models."""
        decoders = [*([FAST_NOTE] if self.vae.is_tae else []), *([JUDGE_NOTE] if self.judge else [])]
        models = [model for model in (self.drafter, self.target) if model]
        of_files = dict.fromkeys(note for model in models for note in model.notes)
        if not (self.drafter and self.target):
            return (*of_files, *decoders)
        return (*of_files, *decoders, *swapped_note(self.drafter.found.config, self.target.found.config))

    @property
    def is_one_file(self) -> bool:
        """Whether drafter and target are one model, perhaps with two schedules. It is then loaded once.

        The two dictionaries of one file are two models.
        """
        files = [model.found.weights for model in self.there]
        return len({(file.path.resolve(), file.dictionary) for file in files}) < len(files)

    def only(self, asked: Roles) -> Checked:
        """Return it without the models that a run will not ask for."""
        return replace(
            self,
            drafter=self.drafter if asked.drafter else None,
            target=self.target if asked.target else None,
            judge=self.judge if asked.scorer else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedWan:
    """A transformer's file, as its header tells, and how it will be run. `options`: as they were asked for."""

    found: WanCheckpoint
    preset: Preset
    options: ModelOptions

    @property
    def identity(self) -> str:
        """What its results depend on besides the file: the dictionary that was taken, and the preset."""
        return repr((self.found.weights.dictionary, self.preset.identity))

    @property
    def choice(self) -> Choice:
        """Which of its dictionaries was asked for."""
        return self.options.choice(self.found.weights.path)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the dictionary that was taken, and of the file by its name."""
        file = self.found.weights
        taken = note_on(file.path.name, file.dictionary, file.dictionaries, self.choice)
        stated, beside = self.options.preset != AUTO, ", ".join(self.found.unused[:3])
        unused = f"{file.path.name} has tensors beside the transformer, which are not used: {beside}"
        told = (*([taken] if taken else []), *([unused] if beside else []))
        return (*told, *notes_by_name(file.path, self.found.config, stated=stated))


def check_models(files: ModelFiles, options: LoadOptions) -> Checked:
    """Check from the files' headers that the models can be loaded and fit together. Raises `BadInput` if not."""
    device = check_device(options.device)
    parse_dtype(options.vae_dtype)
    check_text_dtype(parse_dtype(options.text_dtype))
    check_reward_dtype(parse_dtype(options.reward_dtype))
    check_compile(options.execution.compile, device)
    drafter = _check_wan(files.drafter, options.drafter, options, device)
    target = _check_wan(files.target, options.target, options, device)
    if drafter and target:
        _check_pair(drafter.found, target.found)
    elif not (drafter or target):
        raise BadInput("a run needs a drafter or a target, but there is neither; give at least one")
    vae = open_vae(files.vae, tae_kind=options.tae_kind)
    _check_encoder(vae, files.vae, (drafter, target))
    judge = _check_judge(files, vae, options) if files.judge_vae else None
    return Checked(drafter=drafter, target=target, vae=vae, judge=judge, overlap=options.execution.overlap)


def _check_wan(
    path: Path | None, model: ModelOptions, options: LoadOptions, device: torch.device
) -> CheckedWan | None:
    if path is None:
        return None
    found = open_wan(path, model.choice(path))
    attention_for(found, options, device)
    return CheckedWan(found=found, preset=model.resolve(found, options.schedule), options=model)


def _check_pair(drafter: WanCheckpoint, target: WanCheckpoint) -> None:
    names = {"in_dim": "latent channels", "text_dim": "text channels", "patch_size": "patches"}
    for field, words in names.items():
        small, large = getattr(drafter.config, field), getattr(target.config, field)
        if small != large:
            raise BadInput(
                f"drafter and target must have the same {words}, but {drafter.weights.path.name} (drafter) has "
                f"{small} and {target.weights.path.name} (target) has {large}; load two models that share one VAE "
                "and text encoder"
            )


def _check_encoder(vae: VaeHeader, path: Path, models: Iterable[CheckedWan | None]) -> None:
    encoding = [model for model in models if model and model.preset.policy == "recompute"]
    if encoding and not vae.encodes:
        raise BadInput(
            f"the context of {encoding[0].found.weights.path.name} is encoded from pixels, but {path.name} holds a "
            f"decoder alone; give the Wan 2.1 VAE with --vae, and {path.name} with --judge-vae"
        )


def _check_judge(files: ModelFiles, vae: VaeHeader, options: LoadOptions) -> VaeHeader:
    assert files.judge_vae is not None
    if files.judge_vae.resolve() == files.vae.resolve():
        raise BadInput(
            f"the judge must be another decoder than the VAE, but both are {files.vae.name}; leave --judge-vae "
            "out, or give a faster one"
        )
    judge = open_vae(files.judge_vae, tae_kind=options.tae_kind)
    if vae.is_tae and not judge.is_tae:
        raise BadInput(
            f"the judge should be the faster decoder, but {files.vae.name} (--vae) is a TAEHV and "
            f"{files.judge_vae.name} (--judge-vae) a Wan VAE; swap the two"
        )
    names = {
        "latent_channels": "latent channels",
        "temporal_stride": "pixel frames per latent frame",
        "spatial_stride": "pixels per latent pixel",
    }
    for field, words in names.items():
        ours, theirs = getattr(vae, field), getattr(judge, field)
        if ours != theirs:
            raise BadInput(
                f"VAE and judge must decode the same latents, but {files.vae.name} has {ours} {words} and "
                f"{files.judge_vae.name} has {theirs}; give a judge of Wan 2.1's latents"
            )
    return judge


def attention_for(found: WanCheckpoint, options: LoadOptions, device: torch.device) -> AttentionBackend:
    """Return the kernel for a checkpoint. Raises `BadInput` if the requested one is not available."""
    dtype = parse_dtype(options.dtype) if options.dtype else found.dtype
    name = options.execution.attention
    return choose_attention(name, device=device, dtype=dtype, head_dim=found.config.head_dim)

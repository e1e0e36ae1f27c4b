"""From files to the parts of a run. Everything is checked before the first weight is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..causal_wan.attention import TorchOps
from ..causal_wan.backends import AttentionBackend, choose_attention
from ..causal_wan.build import Wan, WanShape, build_engine
from ..causal_wan.by_name import notes_by_name
from ..causal_wan.checkpoint import WanCheckpoint, load_wan, open_wan
from ..causal_wan.presets import Preset
from ..causal_wan.stages import compiled_stages
from ..checkpoints.dictionaries import Choice, note_on
from ..checkpoints.model_files import ModelFiles
from ..checkpoints.weights import check_finite_weights, weight_digest
from ..decoders import TaehvCodec, VaeHeader, WanCodec, load_vae, open_vae
from ..devices.compiling import check_compile, compiler_of
from ..devices.device import check_device
from ..devices.dtypes import dtype_name, parse_dtype
from ..devices.execution import AUTO
from ..engine.keys import Identities
from ..engine.parts import Engine, Scorer, VideoCodec
from ..engine.roles import Roles
from ..errors import BadInput
from ..report.assemble import FAST_NOTE, JUDGE_NOTE, ModelSettings, PartSettings, swapped_note
from ..scorers.image_reward import ImageRewardScorer, check_reward_dtype, load_image_reward
from ..text import load_umt5
from ..text.umt5 import check_text_dtype
from .options import LoadOptions, ModelOptions
from .parts import identify_parts

EVERYTHING = Roles(drafter=True, target=True, scorer=True)


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
        """What the results of drafter and target depend on beside their files; None for one that is not there."""
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
        """What its results depend on beside the file: the dictionary that was taken, and the preset."""
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
        stated = self.options.preset != AUTO
        return (*([taken] if taken else []), *notes_by_name(file.path, self.found.config, stated=stated))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """The parts of a run in memory.

    `build`: makes the engine for one video; takes the callback before every forward pass, and `asked`, the parts
    that the video may ask for. `device`: of the
    transformers; `side`: of text encoder, VAE and scorer. `by_files`: what the parts' results depend on, as far as
    the files tell; `identify`: the same with a hash of every weight, taken at the first call. `notes`: what a
    reader of the report must know of the models and their kernels.
    """

    build: Callable[..., Engine]
    scorer: ImageRewardScorer | None
    parts: PartSettings
    device: torch.device
    side: torch.device
    by_files: Identities
    identify: Callable[[], Identities]
    notes: tuple[str, ...] = ()


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
    _attention(found, options, device)
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


def encode_prompts(files: ModelFiles, texts: Iterable[str], options: LoadOptions) -> dict[str, Tensor]:
    """Return the embedding `(1, 512, c)` of each text. The encoder is in memory only while this runs.

    Raises `BadInput` if the encoder returns NaN or infinity.
    """
    encode = load_encoder(files, options)
    return {text: encode(text) for text in dict.fromkeys(texts)}


def load_encoder(files: ModelFiles, options: LoadOptions) -> Callable[[str], Tensor]:
    """Load the text encoder; return what makes an embedding `(1, 512, c)` of a text, on the transformers' device.

    It raises `BadInput` if the encoder returns NaN or infinity.
    """
    encoder = load_umt5(
        files.text_encoder,
        tokenizer=files.tokenizer,
        device=options.side,
        dtype=parse_dtype(options.text_dtype),
    )
    device = check_device(options.device)

    def encode(text: str) -> Tensor:
        embedding = encoder.encode(text).to(device)
        if not bool(torch.isfinite(embedding).all()):
            raise BadInput(
                f"the text encoder {files.text_encoder.name} made NaN or infinity of {text[:60]!r}; check its "
                "file, and try a wider --text-dtype"
            )
        return embedding

    return encode


def load_models(files: ModelFiles, options: LoadOptions, checked: Checked) -> Loaded:
    """Load the VAE, those of drafter and target that were checked, and the scorer if `files` has one."""
    options = options.settled()
    device, side, execution = check_device(options.device), options.side, options.execution
    codec = _load_vae(files.vae, options)
    judge = _load_vae(files.judge_vae, options) if files.judge_vae else None
    scorer = _load_scorer(files, options) if files.reward else None
    drafter = _load_wan(checked.drafter, options, device) if checked.drafter else None
    shared = drafter if checked.is_one_file else None
    target = _load_wan(checked.target, options, device, shared) if checked.target else None
    models = [model for model in (drafter, target) if model]
    by_files = identify_parts(files, options, *checked.identities)
    kernel_notes = tuple(filter(None, dict.fromkeys(model.kernel.note for model in models)))
    return Loaded(
        build=partial(
            _build,
            drafter.wan if drafter else None,
            target.wan if target else None,
            codec,
            scorer,
            judge,
            overlap=execution.overlap,
        ),
        scorer=scorer,
        parts=PartSettings(
            drafter=drafter.settings if drafter else None,
            target=target.settings if target else None,
            vae=_vae_settings(files.vae, checked.vae, options),
            judge=_vae_settings(files.judge_vae, checked.judge, options)
            if files.judge_vae and checked.judge
            else None,
            text_encoder={"file": files.text_encoder.name, "dtype": options.text_dtype},
            device=options.device,
            side_device=options.side_device or options.device,
            execution=execution,
        ),
        device=device,
        side=side,
        by_files=by_files,
        identify=cache(partial(_identify, by_files, drafter, target, scorer)),
        notes=(*checked.notes, *kernel_notes),
    )


def _build(
    drafter: Wan | None,
    target: Wan | None,
    codec: VideoCodec,
    scorer: Scorer | None,
    judge: VideoCodec | None,
    *,
    asked: Roles = EVERYTHING,
    **options: Any,
) -> Engine:
    """Return the engine for one video. What it does not ask for is left out, as if it had not been loaded."""
    return build_engine(
        drafter if asked.drafter else None,
        target if asked.target else None,
        codec,
        scorer if asked.scorer else None,
        judge=judge if asked.scorer else None,
        **options,
    )


def _load_vae(path: Path, options: LoadOptions) -> WanCodec | TaehvCodec:
    execution = options.execution
    return load_vae(
        path,
        tae_kind=options.tae_kind,
        device=options.side,
        dtype=parse_dtype(options.vae_dtype),
        layers=execution.vae_layers,
        compiler=compiler_of(execution.compile),
    )


def _vae_settings(path: Path, header: VaeHeader, options: LoadOptions) -> dict[str, Any]:
    layers = options.execution.vae_layers
    return {"file": path.name, "dtype": options.vae_dtype, "layers": layers, "tae_kind": header.tae_kind}


def _identify(
    by_files: Identities, drafter: _LoadedWan | None, target: _LoadedWan | None, scorer: ImageRewardScorer | None
) -> Identities:
    trees = {id(model.wan.tree): model.wan.tree for model in (drafter, target) if model}
    digests = {number: weight_digest(tree) for number, tree in trees.items()}

    def whole(of_file: str, model: _LoadedWan | None) -> str:
        return f"{of_file} {digests[id(model.wan.tree)]}" if model else of_file

    return replace(
        by_files,
        drafter=whole(by_files.drafter, drafter),
        target=whole(by_files.target, target),
        scorer=f"{by_files.scorer} {weight_digest(scorer.model)}" if scorer else by_files.scorer,
    )


def _load_scorer(files: ModelFiles, options: LoadOptions) -> ImageRewardScorer:
    assert files.reward is not None
    scorer = load_image_reward(
        files.reward,
        vocabulary=files.vocabulary,
        device=options.side,
        dtype=parse_dtype(options.reward_dtype),
        crop=options.crop,
    )
    check_finite_weights(scorer.model, files.reward.name)
    return scorer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LoadedWan:
    wan: Wan
    kernel: AttentionBackend
    settings: ModelSettings


def _load_wan(
    checked: CheckedWan, options: LoadOptions, device: torch.device, shared: _LoadedWan | None = None
) -> _LoadedWan:
    """Load a transformer. `shared`: the same file, already loaded for the other role."""
    found, preset = checked.found, checked.preset
    if shared:
        settings = replace(shared.settings, preset=preset)
        return _LoadedWan(wan=replace(shared.wan, preset=preset), kernel=shared.kernel, settings=settings)
    path: Path = found.weights.path
    dtype = parse_dtype(options.dtype) if options.dtype else None
    wan = load_wan(path, device=device, dtype=dtype, choice=checked.choice)
    check_finite_weights(wan.tree, path.name)
    kernel = _attention(found, options, device)
    stages = compiled_stages(compiler_of(options.execution.compile))
    ops, kv_fp8 = TorchOps(wan.dtype, kernel), options.execution.kv_fp8
    return _LoadedWan(
        wan=Wan(tree=wan.tree, ops=ops, preset=preset, device=device, kv_fp8=kv_fp8, stages=stages),
        kernel=kernel,
        settings=ModelSettings(
            file=path.name,
            dictionary=found.weights.dictionary or None,
            size=found.config.size,
            preset=preset,
            dtype=options.dtype or dtype_name(found.dtype),
            attention=kernel.name,
            quantisation=found.quantisation.label,
            bytes=sum(tensor.nbytes for tensor in wan.tree.state_dict().values()),
        ),
    )


def _attention(found: WanCheckpoint, options: LoadOptions, device: torch.device) -> AttentionBackend:
    """Return the kernel for a checkpoint. Raises `BadInput` if the requested one is not available."""
    dtype = parse_dtype(options.dtype) if options.dtype else found.dtype
    name = options.execution.attention
    return choose_attention(name, device=device, dtype=dtype, head_dim=found.config.head_dim)

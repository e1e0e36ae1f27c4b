"""What a run needs of memory, counted on real sizes without memory (meta tensors), and what is asked of ComfyUI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.sd
import pytest
import torch
from comfy.ldm.wan.vae import AttentionBlock, WanVAE
from host_tiny import CONFIG, SIZE, load_model, load_vae
from sdvg_pack.nodes.host import residency
from sdvg_pack.nodes.host.model import comfy_generator
from sdvg_pack.nodes.host.progress import NodeProgress
from sdvg_pack.nodes.host.residency import Needs, Room, Weights
from sdvg_pack.nodes.host.vae import ComfyCodec
from sdvg_pack.sdvg_core.causal_wan.attention import TorchOps
from sdvg_pack.sdvg_core.causal_wan.cache import KVCache, Place
from sdvg_pack.sdvg_core.causal_wan.config import WAN_1_3B, WAN_14B, WanConfig
from sdvg_pack.sdvg_core.causal_wan.context import Incremental
from sdvg_pack.sdvg_core.causal_wan.forward import denoise_pass, project_text, token_grid
from sdvg_pack.sdvg_core.causal_wan.modules import WanTree
from sdvg_pack.sdvg_core.history import History
from sdvg_pack.sdvg_core.noise import KeyedNoise
from sdvg_pack.sdvg_core.schedule import get_schedule
from sdvg_pack.sdvg_core.spans import plan_spans
from sdvg_pack.sdvg_core.types import Condition
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.comfyui

FULL = (60, 104)  # latents of 480 x 832
META, CPU, GPU = torch.device("meta"), torch.device("cpu"), torch.device("cuda", 0)
GB = 10**9


def empty_tree(config: WanConfig) -> WanTree:
    with META:
        tree = WanTree(config).to(torch.bfloat16)
        tree.patch_embedding.float()
    return tree


class FlashOps(TorchOps):
    """Attention as an accelerator's kernel does it: nothing but its result."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.empty_like(q).flatten(2)


class Peak(TorchDispatchMode):
    """Counts the most bytes alive at once among the tensors made while it is on."""

    def __init__(self, *there_before: Tensor) -> None:
        super().__init__()
        self._before = {t.untyped_storage()._cdata for t in there_before}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if torch.is_tensor(t) and t.untyped_storage()._cdata not in self._before:
                storage = t.untyped_storage()
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._alive = {key: (ref, n) for key, (ref, n) in self._alive.items() if not ref.expired()}
        self.bytes = max(self.bytes, sum(n for _, n in self._alive.values()))
        return out


def pass_peak(tree: WanTree, cache: KVCache, block_frames: int, size: tuple[int, int]) -> int:
    ops, x = FlashOps(torch.bfloat16), torch.empty(1, 16, block_frames, *size, device=META)
    with torch.inference_mode():
        text = project_text(tree, torch.empty(1, 512, 4096, device=META), ops)
        rope = ops.rope(tree, 0, token_grid(tree, x.shape[2:]), META)
        there = [*tree.parameters(), x, *rope, *tree_leaves(text), *tree_leaves(cache._layers)]
        with Peak(*there) as peak:
            denoise_pass(tree, x, 500.0, text, cache, Place(0, tuple(range(block_frames)), block_frames), rope, ops)
    return peak.bytes


@pytest.mark.parametrize("config", [WAN_1_3B, WAN_14B], ids=["1.3B", "14B"])
@pytest.mark.parametrize(("block_frames", "size"), [(3, FULL), (1, FULL), (3, (90, 160))])
def test_the_estimates_are_what_caches_and_passes_of_the_real_sizes_take(
    config: WanConfig, block_frames: int, size: tuple[int, int]
) -> None:
    tree = empty_tree(config)
    needs = residency.model_needs(tree, cache_frames=6, block_frames=block_frames, size=size, dtype=torch.bfloat16)
    cache = KVCache(tree, 6, size[0] * size[1] // 4, torch.bfloat16, META)
    assert needs.keys_values == sum(t.nbytes for t in tree_leaves(cache._layers))
    peak = pass_peak(tree, cache, block_frames, size)
    assert peak <= needs.working <= 1.1 * peak


def test_a_latent_frame_of_keys_and_values_of_the_14b_is_1278_megabytes() -> None:
    needs = residency.model_needs(
        empty_tree(WAN_14B), cache_frames=1, block_frames=3, size=FULL, dtype=torch.bfloat16
    )
    assert needs.keys_values == 819_200 * 1560
    assert needs.text == 2 * 819_200 * 512


class EmptyVae:
    """The real Wan VAE's decoder without numbers in it."""

    device, vae_dtype = META, torch.bfloat16

    def __init__(self) -> None:
        layout = {"dim_mult": [1, 2, 4, 4], "temperal_downsample": [False, True, True]}
        with META:
            self.first_stage_model = WanVAE(dim=96, z_dim=16, **layout).to(torch.bfloat16)
        for module in self.first_stage_model.modules():
            if isinstance(module, AttentionBlock):
                module.optimized_attention = lambda q, k, v: v

    def process_output(self, video: Tensor) -> Tensor:
        return video


@pytest.mark.parametrize("size", [FULL, (90, 160)])
def test_the_decode_state_of_the_real_vae_has_the_size_that_is_counted(size: tuple[int, int]) -> None:
    _, state = ComfyCodec(EmptyVae()).decode(torch.empty(1, 16, 3, *size, device=META))
    values = sum(entry.numel() for entry in state if torch.is_tensor(entry))
    assert values == residency.VAE_STATE_VALUES_PER_PIXEL * size[0] * size[1] * 64


def test_a_vae_in_float32_needs_twice_as_much_state_as_one_in_bf16() -> None:
    vae = load_vae()
    wide = residency.vae_needs(vae, block_frames=3, size=FULL)
    vae.vae_dtype = torch.bfloat16
    narrow = residency.vae_needs(vae, block_frames=3, size=FULL)
    assert wide.vae_state == 2 * narrow.vae_state == 2 * 2 * 944_286_720 * 2
    assert 1.7 * GB < narrow.working < wide.working


def test_what_is_held_adds_up_and_working_memory_is_used_again() -> None:
    one = Needs(keys_values=1, text=2, working=10) + Needs(keys_values=3, vae_state=4, working=5)
    assert one == Needs(keys_values=4, text=2, vae_state=4, working=10)
    assert one.total == 20


class Patcher:
    def __init__(self, device: torch.device) -> None:
        self.load_device, self.told = device, []

    def pre_run(self) -> None:
        self.told.append("pre_run")

    def cleanup(self) -> None:
        self.told.append("cleanup")


def test_each_device_is_asked_once_for_its_models_in_order_and_for_its_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches a request for each model (they would push one another out), and memory asked of the wrong device."""
    asked: list[tuple[Any, Any]] = []
    monkeypatch.setattr(comfy.model_management, "load_models_gpu", lambda p, **k: asked.append((p, k)))
    reward, vae, target, drafter = (Patcher(d) for d in (CPU, GPU, GPU, GPU))
    residency.load_together([reward, vae, target, drafter], {GPU: Needs(keys_values=7, working=2)})
    assert asked == [
        ([reward], {"memory_required": 0, "minimum_memory_required": 0}),
        ([vae, target, drafter], {"memory_required": 9, "minimum_memory_required": 9}),
    ]


def test_models_loaded_together_are_all_loaded(tmp_path: Path) -> None:
    drafter, target, vae = load_model(tmp_path), load_model(tmp_path), load_vae()
    patchers = [vae.patcher, target, drafter]
    residency.load_together(patchers, {CPU: Needs(keys_values=1000)})
    loaded = comfy.model_management.loaded_models()
    assert all(any(p is known for known in loaded) for p in patchers)


def test_patchers_are_told_that_a_run_is_over_however_it_ends() -> None:
    patchers = [Patcher(CPU), Patcher(CPU)]
    with pytest.raises(KeyboardInterrupt), residency.in_use(patchers):
        raise KeyboardInterrupt
    assert [p.told for p in patchers] == [["pre_run", "cleanup"]] * 2


@pytest.mark.parametrize("call", ["pre_run", "cleanup"])
def test_a_patcher_whose_callbacks_fail_does_not_keep_the_others_from_being_told(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other packs hang callbacks on a MODEL. Catches a plain loop over the patchers: it ends at the first error."""
    patchers = [Patcher(CPU), Patcher(CPU), Patcher(CPU)]

    def fail() -> None:
        raise RuntimeError("theirs")

    monkeypatch.setattr(patchers[1], call, fail)
    with pytest.raises(RuntimeError, match="theirs"), residency.in_use(patchers):
        pass
    assert patchers[0].told == ["pre_run", "cleanup"]
    assert patchers[2].told == (["pre_run", "cleanup"] if call == "cleanup" else [])


NEEDS = Needs(keys_values=3 * GB, text=GB, vae_state=2 * GB, working=4 * GB)
MODELS = [
    Weights(name="target", bytes=28 * GB, device=GPU),
    Weights(name="drafter", bytes=3 * GB, device=GPU),
    Weights(name="reward", bytes=2 * GB, device=CPU),
]


def plan(usable: int) -> str:
    return "\n".join(residency.describe_plan(MODELS, NEEDS, Room(total=80 * GB, usable=usable * GB), GPU))


def test_a_plan_says_that_everything_fits() -> None:
    assert plan(41).splitlines() == [
        "cuda:0: 10.0 GB of 41.0 GB for keys and values (4.0 GB), the VAE's state (2.0 GB) and working memory "
        "(4.0 GB)",
        "cuda:0: drafter, stays there, 3.0 GB",
        "cuda:0: target, stays there, 28.0 GB",
        "cuda:0: everything fits",
    ]


def test_a_plan_says_what_is_copied_over_the_hottest_model_last() -> None:
    assert "drafter, stays there, 3.0 GB" in plan(24)
    assert "target, 11.0 GB stay there, 17.0 GB are copied over in every pass" in plan(24)
    assert plan(24).endswith("it runs, slowed down by the copying")


def test_a_plan_says_that_it_does_not_fit() -> None:
    assert plan(8).endswith("cuda:0: it does not fit, 2.0 GB are missing before any weights")


def test_a_plan_for_the_cpu_says_so() -> None:
    (line,) = residency.describe_plan(MODELS, NEEDS, Room(total=64 * GB, usable=30 * GB), CPU)
    assert line.startswith("cpu: 2.0 GB of weights and 10.0 GB for keys and values")
    assert line.endswith("of which 30.0 GB are free; nothing is moved")


def test_the_cpus_room_is_what_is_free() -> None:
    room = residency.read_room(CPU)
    assert 0 < room.usable <= room.total


def test_out_of_memory_names_the_numbers_and_three_settings() -> None:
    message = str(residency.out_of_memory(MODELS, NEEDS, Room(total=24 * GB, usable=22 * GB), GPU))
    for part in ("10.0 GB", "31.0 GB of weights", "24.0 GB", "22.0 GB", "width and height", "fp8_e4m3fn", "window"):
        assert part in message


@pytest.mark.parametrize(
    ("error", "expected"),
    [(torch.OutOfMemoryError("CUDA"), True), (RuntimeError("shape"), False), (KeyboardInterrupt(), False)],
)
def test_out_of_memory_is_told_from_other_errors(error: BaseException, *, expected: bool) -> None:
    assert residency.is_out_of_memory(error) is expected


def test_stop_is_heard_before_a_pass_and_leaves_a_usable_generator(tmp_path: Path) -> None:
    """Catches a run that leaves stopping to ComfyUI's progress bar, which only denoising steps move."""
    passes: list[str] = []

    def press_stop_at_the_third(kind: str) -> None:
        passes.append(kind)
        comfy.model_management.interrupt_current_processing(len(passes) == 3)

    def make(then: Callable[[str], None]) -> Any:
        progress = NodeProgress(None, blocks=1, steps=4)

        def before_pass(kind: str) -> None:
            progress.before_pass(kind)
            then(kind)

        return comfy_generator(
            patcher,
            name="model",
            context=Incremental(window=6),
            schedule=get_schedule("four-step"),
            block_frames=3,
            before_pass=before_pass,
        )

    patcher = load_model(tmp_path)
    residency.load_together([patcher], {})
    noise = KeyedNoise(seed=1, channels=CONFIG.in_dim, height=SIZE[0], width=SIZE[1])
    block = (History(), plan_spans(1, 3, 0)[0], noise, Condition(torch.zeros(1, 512, CONFIG.text_dim), "a", "a"))
    generator = make(press_stop_at_the_third)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        generator.generate(*block)
    assert passes == ["denoise"] * 3
    again = generator.generate(*block).latents
    assert torch.equal(again, make(lambda _: None).generate(*block).latents)

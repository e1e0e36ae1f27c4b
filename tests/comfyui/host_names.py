"""Every name of ComfyUI that the nodes use, and whether a checkout has it, with the parameters that are passed.

    python tests/comfyui/host_names.py [COMFYUI]

with the Python of that checkout, by default COMFYUI_PATH. It lists the names, and with exit code 1 what is missing.
The names of modules come from the code of `nodes`, those of objects stand in `MEMBERS`. Nothing of ours is loaded.

The package comfy-import-guard (1.3.0) does the same for `comfy.*`, from the sources of two versions. It was not
taken: it fetches ComfyUI by itself, and looks at neither `comfy_api`, `folder_paths` nor what objects have.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOST = {"comfy", "comfy_api", "comfy_execution", "comfyui_version", "folder_paths", "server"}
CALL = tuple[int, tuple[str, ...]]
"""How many arguments a call passes by position, and the names of the others."""

MEMBERS: Mapping[str, str] = {
    "patcher": "model model_options load_device offload_device patches patches_uuid wrappers hook_patches "
    "object_patches cached_patcher_init get_attachment set_attachments get_model_object model_size loaded_size "
    "is_dynamic model_dtype add_patches clone pre_run cleanup",
    "dynamic patcher": "_vbar_get",
    "base": "diffusion_model get_dtype manual_cast_dtype process_latent_in process_latent_out",
    "wan": "patch_embedding text_embedding time_embedding time_projection rope_encode forward model_type "
    "patch_size dim ffn_dim num_heads num_layers in_dim out_dim text_dim freq_dim eps blocks head.head head.norm "
    "head.modulation",
    "layer": "norm1 norm2 norm3 ffn modulation self_attn.q self_attn.k self_attn.v self_attn.o self_attn.norm_q "
    "self_attn.norm_k self_attn.num_heads cross_attn.q cross_attn.k cross_attn.v cross_attn.o "
    "cross_attn.norm_q cross_attn.norm_k cross_attn.num_heads",
    "control block": "before_proj after_proj",
    "vae": "first_stage_model patcher device vae_dtype latent_channels process_input process_output "
    "throw_exception_if_invalid",
    "wan vae": "encode decode conv2 decoder.dim decoder.head encoder.conv1.in_channels",
}
"""An object of ComfyUI -> what we read of it and call on it; `examples` makes the objects."""


def used_names() -> dict[str, set[CALL]]:
    """Return every name of a module of ComfyUI's that the nodes use, and the calls of each."""
    names: dict[str, set[CALL]] = {}
    for file in (ROOT / "nodes").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        aliases = dict(_aliases(tree))
        names |= {name: names.get(name, set()) for name in aliases.values() if name}
        inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if node not in inner and (name := _dotted(node, aliases)):
                names.setdefault(name, set())
            if isinstance(node, ast.Call) and (name := _dotted(node.func, aliases)):
                plain = not any(isinstance(value, ast.Starred) for value in node.args)
                keywords = [word.arg for word in node.keywords]
                if plain and None not in keywords:
                    names.setdefault(name, set()).add((len(node.args), tuple(sorted(map(str, keywords)))))
    return names


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names under which a file knows ComfyUI's modules and what is in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in HOST:
                    yield alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else ""
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in HOST:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _dotted(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """Return the full name that an expression states; empty if it is none of ComfyUI's."""
    if isinstance(node, ast.Name) and node.id in aliases:
        return aliases[node.id] or node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value, aliases)):
        return f"{owner}.{node.attr}"
    return ""


def missing(names: Mapping[str, set[CALL]], objects: Mapping[str, Any]) -> list[str]:
    """Return what the ComfyUI in the path lacks, one sentence each."""
    faults = []
    for name, calls in sorted(names.items()):
        try:
            value, bound = resolve(name)
        except (ImportError, AttributeError) as error:
            faults.append(f"{name} is not there ({error})")
            continue
        faults += [
            f"{name} does not take {_words(call)}" for call in sorted(calls) if not takes(value, call, bound)
        ]
    for what, members in MEMBERS.items():
        for member in members.split():
            try:
                value = objects[what]
                for part in member.split("."):
                    value = getattr(value, part)
            except AttributeError:
                faults.append(f"{what}: {member} is not there")
    return faults


def resolve(name: str) -> tuple[Any, bool]:
    """Return what a name stands for, and whether it is taken of a class for want of a running server's instance."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        break
    bound = False
    for part in parts[count:]:
        if part == "instance":
            bound = True
        elif not (
            bound and inspect.isclass(value) and part in ("routes", "last_node_id")
        ):  # which only objects have
            value = getattr(value, part)
    return value, bound


def takes(value: Callable[..., Any], call: CALL, bound: bool) -> bool:
    """Whether a function or class takes a call."""
    try:
        signature = inspect.signature(value)
        signature.bind(*[None] * (call[0] + bound), **dict.fromkeys(call[1]))
    except ValueError:  # none is known of it
        return True
    except TypeError:
        return False
    return True


def _words(call: CALL) -> str:
    return ", ".join((f"{call[0]} by position", *call[1]))


def examples() -> dict[str, Any]:
    """Return one of each of `MEMBERS`, as small as can be."""
    import comfy.model_base
    import comfy.model_patcher
    import comfy.ops
    import comfy.sd
    import torch
    from comfy.ldm.wan.model import VaceWanAttentionBlock, WanModel
    from comfy.ldm.wan.vae import WanVAE

    cpu = torch.device("cpu")
    settings: dict[str, Any] = {"operations": comfy.ops.disable_weight_init, "device": cpu, "dtype": torch.float32}
    wan = WanModel(dim=16, ffn_dim=16, num_heads=1, num_layers=1, text_dim=8, freq_dim=8, **settings)
    vae = WanVAE(4, 16, [1, 2, 4, 4], 2, [], [False, True, True])
    sizes = ("t2v_cross_attn", 16, 16, 1, (-1, -1), True, True)
    base = comfy.model_base.BaseModel.__new__(comfy.model_base.BaseModel)
    torch.nn.Module.__init__(base)
    base.diffusion_model, base.manual_cast_dtype = wan, None
    return {
        "patcher": comfy.model_patcher.ModelPatcher(wan, cpu, cpu),
        "dynamic patcher": comfy.model_patcher.ModelPatcherDynamic,
        "base": base,
        "wan": wan,
        "layer": wan.blocks[0],
        "control block": VaceWanAttentionBlock(*sizes, operation_settings=settings),
        "vae": comfy.sd.VAE(sd=vae.state_dict()),
        "wan vae": vae,
    }


def start(checkout: Path) -> None:
    """Put a checkout into the path, as ComfyUI is started, on the CPU."""
    from conftest import define_missing_ops

    sys.path[:] = [str(checkout), *(place for place in sys.path if Path(place or ".").resolve() != ROOT)]
    sys.argv = ["comfy", "--cpu"]
    define_missing_ops()
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.sd
    import utils.install_util  # noqa: F401  before ComfyUI's nodes.py puts another `utils` first in the path


def main() -> int:
    """List the names, and what is missing."""
    from conftest import find_comfyui

    checkout = Path(sys.argv[1]) if len(sys.argv) > 1 else find_comfyui()
    if checkout is None:
        raise SystemExit("name a checkout of ComfyUI")
    start(checkout)
    import comfyui_version

    names = used_names()
    faults = missing(names, examples())
    lines = [*sorted(names), *(f"{what}: {members}" for what, members in MEMBERS.items()), "", *faults]
    lines.append(f"ComfyUI {comfyui_version.__version__}: {len(faults)} of {len(names)} names and of these missing")
    sys.stdout.write("\n".join((*lines, "")))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

"""Make `image_reward.json`: what the original `image-reward` package says of our frames and prompts.

The package needs an environment of its own, Python 3.11:

    pip install torch==2.13.0 "numpy<2" pillow transformers==4.55.4 setuptools wheel
    pip install --no-build-isolation timm==0.6.13 fairscale ftfy regex
    pip install --no-deps image-reward==1.5 torchvision==0.28.0
    python tests/golden/make_image_reward_golden.py

Weights are random, from a seed; the full case takes about 4 GB of memory and a few minutes. The package is
asked as its users ask it: PIL images, made from frames by truncation to 8 bits, and prompts as text.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from image_reward_cases import BLOCKS, CASES, PROMPTS, block_frames, fingerprint, random_weights, vocabulary
from PIL import Image

GOLDEN = Path(__file__).with_name("image_reward.json")


def declare_operators() -> torch.library.Library:
    """Let a torchvision built for CUDA be imported beside a torch built for the CPU, while the result lives."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def import_package() -> tuple[Any, Any, Any]:
    """Import the package's model, its BLIP and its ViT, with stubs for what scoring does not use.

    Missing on a clean install: `clip`, which is not on PyPI, and the trainer's libraries.
    """
    for stub in ("clip", "ImageReward.ReFL"):
        sys.modules[stub] = ModuleType(stub)
    from ImageReward.models.BLIP import blip_pretrain, vit

    return sys.modules["ImageReward.ImageReward"], blip_pretrain, vit


def build(package: tuple[Any, Any, Any], case: str, folder: Path) -> torch.nn.Module:
    """Build the package's own model, smaller where the case says so, in a folder with the vocabulary."""
    model_module, blip_module, vit_module = package
    sizes = CASES[case]
    tokenizer = folder / "bert-base-uncased"
    tokenizer.mkdir()
    (tokenizer / "vocab.txt").write_text("\n".join(vocabulary(case)) + "\n", encoding="utf-8")
    (folder / "med.json").write_text(json.dumps(med_config(case)), encoding="utf-8")
    with contextlib.ExitStack() as undo:
        undo.enter_context(contextlib.chdir(folder))
        if sizes:
            width = sizes["vision_width"]
            side = sizes["image_size"]
            tower = vit_module.VisionTransformer(
                img_size=side,
                patch_size=sizes["patch_size"],
                embed_dim=width,
                depth=sizes["vision_layers"],
                num_heads=sizes["vision_heads"],
                mlp_ratio=sizes["vision_mlp"] / width,
            )
            head = model_module.MLP
            transform = model_module._transform
            undo.enter_context(patch.object(blip_module, "create_vit", lambda *_: (tower, width)))
            undo.enter_context(patch.object(model_module, "MLP", lambda _: head(sizes["text_width"])))
            undo.enter_context(patch.object(model_module, "_transform", lambda _: transform(side)))
        return model_module.ImageReward(med_config=str(folder / "med.json"), device="cpu").eval()


def med_config(case: str) -> dict[str, Any]:
    """Return the text tower's configuration: the published values, smaller where the case says so."""
    sizes = CASES[case]
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "attention_probs_dropout_prob": 0.1,
        "hidden_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_size": sizes.get("text_width", 768),
        "initializer_range": 0.02,
        "intermediate_size": sizes.get("text_mlp", 3072),
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": sizes.get("positions", 512),
        "num_attention_heads": sizes.get("text_heads", 12),
        "num_hidden_layers": sizes.get("text_layers", 12),
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "vocab_size": len(vocabulary(case)) + 2,
        "encoder_width": 768,
        "add_cross_attention": True,
    }


def load_random(model: torch.nn.Module) -> int:
    """Give every weight its random value, by the model's own names; return the fingerprint."""
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items() if t.is_floating_point()}
    weights = random_weights(shapes)
    model.load_state_dict({name: torch.from_numpy(w) for name, w in weights.items()}, strict=False)
    return fingerprint(weights)


def images(block: str) -> list[Image.Image]:
    frames = (255 * block_frames(block)).clip(0, 255).astype(np.uint8)
    return [Image.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0))) for frame in frames]


def golden_case(package: tuple[Any, Any, Any], case: str) -> dict[str, Any]:
    """Score every prompt on every frame: `scores[block][prompt][frame]`."""
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        model = build(package, case, Path(folder))
        mark = load_random(model)
        ids = [model.blip.tokenizer(p, truncation=True, max_length=35).input_ids for p in PROMPTS]
        scores = {b: [[model.score(p, im) for im in images(b)] for p in PROMPTS] for b in BLOCKS}
    return {"weights": mark, "ids": ids, "scores": scores}


def main() -> None:
    operators = declare_operators()
    package = import_package()
    packages = ("image-reward", "transformers", "timm", "torch", "numpy", "pillow")
    golden = {
        "made_with": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "cases": {case: golden_case(package, case) for case in CASES},
    }
    del operators
    GOLDEN.write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

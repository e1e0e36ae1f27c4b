"""Text files, spoiled: prompts, scripts, reports, blocks with a record, tokenizers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache, partial
from random import Random
from typing import Any

from .files import Entry, Files, changed_bytes, changed_file, changed_json, odd_text, safetensors, to_json
from .models import REWARD_WORDS, piece_model

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "shift_jis", "utf-7")
BREAKS = ("\n", "\n", "\r\n", "\r", "\n\n", "\x0b", "\x0c", "\x85", "\u2028")


def encoded(random: Random, text: str) -> bytes:
    coding = random.choice(ENCODINGS) if random.random() < 0.3 else "utf-8"
    errors = "surrogatepass" if coding.startswith("utf") and coding != "utf-7" else "replace"
    data = text.encode(coding, errors)
    return changed_bytes(random, data) if random.random() < 0.4 else data


def prompt_list(random: Random) -> Files:
    lines = [random.choice(("a red ball", odd_text(random), "a sea" * 5)) for _ in range(random.randrange(5))]
    return {"prompts.txt": encoded(random, random.choice(BREAKS).join(lines))}


@cache
def report_seed() -> dict[str, Any]:
    names = ("draft", "decode", "score", "target", "context")
    block = {
        **{"index": 0, "start": 0, "latent_frames": 3, "pixel_frames": 9, "prompt": "a red ball"},
        **{"accepted": False, "reason": "forced", "score": None, "threshold": None, "frame_scores": []},
        **{
            "take": 1,
            "decodes": 1,
            "draft": None,
            "handover": 0,
            "refined": 0,
            "left_out": 0,
            "reused": False,
            "drift": None,
        },
        "target": {"denoising_passes": 4, "context_passes": 0, "encodes": 0, "context_seconds": 0.0},
        "seconds": dict.fromkeys(names, 0.5),
    }
    judged = {
        **block,
        **{"index": 1, "start": 3, "pixel_frames": 12, "accepted": True, "reason": "reached", "score": 0.1},
        **{"threshold": -0.7, "frame_scores": [0.1, 0.2, None], "draft": block["target"], "target": None},
    }
    return {
        **{"schema_version": 1, "request": {"kind": "VideoRequest", "seed": 1}, "load": {"kind": "LoadOptions"}},
        **{"settings": {"seed": 1, "route": {"tau": -0.7}}, "versions": {"sdvg": "0.1.0"}},
        **{"fps": 16.0, "notes": ["a note"]},
        "blocks": [block, judged],
    }


def report(random: Random) -> Files:
    content: Any = report_seed()
    for _ in range(random.randrange(1, 4)):
        content = changed_json(random, content)
    data = to_json(content)
    return {"report.json": changed_bytes(random, data) if random.random() < 0.15 else data}


def results(random: Random) -> Files:
    """Return a block of an earlier run with its record, sealed, sound or not."""
    keys = [f"{number:064x}" for number in (1, 2)]
    dtype = random.choice(("F32", "BF16", "F16", "F8_E4M3", "I64"))
    entries: Sequence[Entry] = [(keys[0], dtype, (2, 1, 4, 3, 2, 2)), (keys[1], "F32", (1, 9))]
    record = random.choice(report_seed()["blocks"])
    metadata = {"sdvg": json.dumps({"digest": "0" * 64, "drafter": keys[0], "record": record})}
    make = safetensors if random.random() < 0.2 else partial(changed_file, random)
    data = make(entries, metadata)
    return {"000001.safetensors": data.replace(b"0" * 64, hashlib.sha256(data).hexdigest().encode(), 1)}


def pieces(random: Random) -> Files:
    return {"spiece.model": changed_bytes(random, piece_model()) if random.random() < 0.95 else piece_model()}


def vocabulary(random: Random) -> Files:
    words = changed_json(random, list(REWARD_WORDS))
    lines = [word for word in words if isinstance(word, str)] if isinstance(words, list) else [odd_text(random)]
    return {"vocab.txt": encoded(random, random.choice(("\n", "\r\n")).join(lines))}

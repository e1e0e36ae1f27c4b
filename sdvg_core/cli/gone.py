"""Options of earlier versions, by command, and what to give instead."""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS = dict(study="python3 dev.py study", bench="python3 dev.py bench", queue="the example in docs/headless.md")

ROLES, GENERATE = ("drafter", "target"), "generate --models pocket has it"
OWN = ("cache", "window", "sink", "context-frames", "block-frames", "schedule", "first-schedule", "weights")

MODELS = {
    **{f"--{role}-{name}": f"give --{role}-settings {name}=VALUE" for role in ROLES for name in OWN},
    **{f"--{role}-recache": f"give --{role}-settings recache=yes" for role in ROLES},
    **{f"--no-{role}-recache": f"give --{role}-settings recache=no" for role in ROLES},
}
NO_OVERLAP = {"--overlap": "blocks are made one after the other; leave it out"}
GONE: Mapping[str, Mapping[str, str]] = {
    "generate": {
        **MODELS,
        **NO_OVERLAP,
        "--draft-share": "give --budget SHARE, or --policy random --rate SHARE",
        "--quantile": "give it to --aggregation, such as --aggregation 0.1",
        "--whole-blocks": "the clip's first block is never handed over, and all others may be",
    },
    "demo": {
        **NO_OVERLAP,
        **dict.fromkeys(("--fps", "--drafter-context", "--prompt-in-report", "--aggregation"), GENERATE),
        **dict.fromkeys(("--rate", "--router-seed", "--bail-out", "--gate-prompt", "--attention"), GENERATE),
        **dict.fromkeys(("--kv-dtype", "--compile", "--policy", "--forced-blocks", "--budget"), GENERATE),
        **dict.fromkeys(("--takes", "--reuse", "--judge-vae", "--handover", "--device", "--resume"), GENERATE),
        "--json": "report.json lies beside the video",
        "--draft-share": "give --budget SHARE",
        "--quantile": "generate has --aggregation",
        "--script": "give --directions, which has the same letters",
        "--strict": "a prompt outside the small world is said",
        "--whole-blocks": "the clip's first block is never handed over, and all others may be",
    },
    "plan": {
        **NO_OVERLAP,
        **dict.fromkeys(("--forced-blocks", "--handover"), "give a --preset or a --budget"),
        **dict.fromkeys(("--drafter-size", "--target-size"), "the preset says the size"),
        **dict.fromkeys(("--vae-dtype", "--reward-dtype", "--vae-layers", "--compile"), "the usual one is planned"),
        "--steps": "the presets' steps are planned",
        "--rejected": "the paper's share is planned",
        "--rates": "the published speed of the GPU most like this machine's is taken",
        **dict.fromkeys(("--drafter-preset", "--target-preset"), "generate plans for its own files"),
        "--judge-vae": "it saves no memory; leave it out",
        "--pcie": "20 GB per second is planned",
    },
}

"""Runs of the miniature beside their forecast, and what they may start from."""

from running_server import SAMPLER, node

LOADED = "4"


def clip_start(file, **how):
    """Return a start with a clip: inputs of the sampler, and further nodes."""
    nodes = {LOADED: node("LoadVideo", file=file), "5": node("SDVGStart", video=[LOADED, 0], **how)}
    return {"start": ["5", 0]}, nodes


STARTS = {
    "nothing": ({}, {}),
    "picture": ({"start_image": [LOADED, 0]}, {LOADED: node("LoadImage", image="example.png")}),
    "clip": clip_start("clip.mp4", use_as="extend"),
    "clip of no whole blocks": clip_start("odd_clip.mp4", use_as="extend"),
    "restyled clip": clip_start("long_clip.mp4", **{"use_as": "restyle", "use_as.strength": "medium"}),
}
"""What a video starts from: inputs of its sampler, and further nodes."""


def forecast_of(server, prompt, run):
    """Return the server's answer for each block of the next run, after a run that is shown."""
    return server.ask("/sdvg/runs", prompt)["forecast"][SAMPLER][run]


def events_of(server, prompt):
    """Run a prompt, and return what its sampler tells of it and the events of its blocks."""
    done = server.make(prompt).outputs[SAMPLER]
    return done["sdvg_run"][-1], done["sdvg_route"]


def starting(prompt, start):
    """Return a prompt whose video starts from one of `STARTS`."""
    inputs, nodes = STARTS[start]
    prompt[SAMPLER]["inputs"] |= inputs
    return prompt | nodes


def run_as_forecast(server, prompt, shown, asked):
    """Run a prompt as forecast beside the run that is shown; return the new run and the answers."""
    answers = forecast_of(server, prompt, shown)["blocks"]
    info, events = events_of(server, prompt)
    made = [info["run"] != shown and not event["reused"] for event in events]  # else ComfyUI ran nothing
    wrong = [
        (number, answer, made[number])
        for number, answer in enumerate(answers)
        if (answer == "s" and made[number]) or (answer == "c" and not made[number])
    ]
    assert wrong == [], (asked, answers, made)
    return info["run"], answers

"""Headless use: a prompt with a bad value is refused in one sentence, by ComfyUI or by our node."""

from __future__ import annotations

from typing import Any

import pytest
from running_server import Refused, Server
from sdvg_pack.sdvg_core import __version__
from server_prompts import EXTRA, GONE, POCKET, SAMPLER, node, pocket

pytestmark = pytest.mark.comfyui


def loader(kind: str, file: str, preset: str = "self-forcing-1.3b") -> dict[str, Any]:
    return node(kind, file=file, weight_dtype="default", preset=preset)


def empty_clip(width: int, height: int) -> dict[str, Any]:
    return node("EmptyHunyuanLatentVideo", width=width, height=height, length=9, batch_size=1)


PICTURE = node("EmptyLatentImage", width=64, height=64, batch_size=1)
BOTH = node("ConditioningCombine", conditioning_1=[POCKET, 2], conditioning_2=[POCKET, 2])

REFUSED_BEFORE = [
    ("tau above the slider", {"router__policy__tau": 5.0}, "Value 5.0 bigger than max of 3.0: policy.tau"),
    ("no blocks", {"sampler__blocks": 0}, "Value 0 smaller than min of 1: blocks"),
    ("a seed below zero", {"sampler__seed": -1}, "Value -1 smaller than min of 0: seed"),
    ("a schedule there is not", {"sampler__schedule": "fast"}, "Value not in list: schedule: 'fast' not in"),
    (
        "keys and values in what there is not",
        {"sampler__kv_dtype": "int4"},
        "Value not in list: kv_dtype: 'int4' not in",
    ),
    (
        "a file there is not",
        {"extra": loader("SDVGDrafterLoader", "gone.pt"), "sampler__drafter": [EXTRA, 0]},
        "Value not in list: file: 'gone.pt' not in",
    ),
]
REFUSED_BY_US = [
    (
        "tau is NaN",
        {"router__policy__tau": float("nan")},
        "policy.tau must be a number from -3.0 to 3.0, but is nan",
    ),
    ("width 833", {"sampler__width": 833}, "width must be a multiple of 16, but is 833; use 832 or 848"),
    ("one model twice", {"sampler__target": [POCKET, 0]}, "drafter and target are one model with one schedule"),
    ("nothing to score with", {"router__scorer": None}, "this policy needs a reward model, but none is chosen"),
    (
        "a script of other letters",
        {"router__policy": "scripted", "router__policy__script": "rax"},
        "a script uses only the letters a, r, d, t, but this one is 'rax'",
    ),
    (
        "another family's VAE",
        {"extra": node("VAELoader", vae_name="pixel_space"), "sampler__vae": [EXTRA, 0]},
        "vae must be the VAE of Wan 2.1 or its TAEHV, but got a VAE of another family",
    ),
    (
        "a clip of another size",
        {"extra": empty_clip(32, 32), "sampler__continue_from": [EXTRA, 0]},
        "a clip to continue must be one video's latents, 1 x 16 x frames x 8 x 8, but these are 1 x 16 x 3 x 4 x 4",
    ),
    (
        "a picture's latent",
        {"extra": PICTURE, "sampler__continue_from": [EXTRA, 0]},
        "a clip to continue must be one video's latents, 1 x 16 x frames x 8 x 8, but these are 1 x 4 x 8 x 8",
    ),
    (
        "an input that only a newer version has",
        {"router__margin": 0.2},
        "this node has no input margin, but the workflow sets it; remove it, or update SDVG, "
        f"which is {__version__}, if the workflow is from a newer version",
    ),
    (
        "an input of an option that only a newer version has",
        {"router__policy__margin": 0.2},
        "this node has no input policy.margin, but",
    ),
    (
        "a socket that only a newer version has",
        {"sampler__negative": [POCKET, 2]},
        "this node has no input negative, but",
    ),
    (
        "two prompts combined",
        {"extra": BOTH, "sampler__positive": [EXTRA, 0]},
        "positive takes the conditioning of one prompt, but got 2 entries",
    ),
    (
        "models of two text widths",
        {"extra": loader("SDVGTargetLoader", "wide_a.safetensors"), "sampler__target": [EXTRA, 0]},
        "drafter and target must have the same text channels, but the drafter has 128 and the target 4096",
    ),
]


@pytest.mark.parametrize(("changes", "says"), [c[1:] for c in REFUSED_BEFORE], ids=[c[0] for c in REFUSED_BEFORE])
def test_a_value_that_a_widget_would_not_take_is_refused_before_anything_runs(
    changes: dict[str, Any], says: str, server: Server
) -> None:
    with pytest.raises(Refused) as refused:
        server.queue(pocket(**changes))
    [errors] = refused.value.errors.values()
    assert any(error.startswith(says) for error in errors)


@pytest.mark.parametrize(("changes", "says"), [c[1:] for c in REFUSED_BY_US], ids=[c[0] for c in REFUSED_BY_US])
def test_what_only_a_node_can_see_is_refused_in_its_own_sentence(
    changes: dict[str, Any], says: str, server: Server
) -> None:
    assert_refused(server, pocket(**changes), says)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("alone/ImageReward.pt", "ImageReward needs its vocabulary, but none of bert-base-uncased/vocab.txt, "),
        ("gone.pt", "this policy needs the reward model 'gone.pt', but there is no such file; "),
        ("none", "this policy needs a reward model, but none is chosen; "),
    ],
)
def test_a_missing_reward_file_is_named_with_folder_and_source_before_anything_loads(
    file: str, says: str, server: Server
) -> None:
    alone = server.folder / "models" / "image_reward" / "alone"
    alone.mkdir(exist_ok=True)
    (alone / "ImageReward.pt").touch()
    prompt = pocket(router__reward_file=file, router__scorer=GONE)
    with pytest.raises(Refused) as refused:
        server.queue(prompt)
    [[error]] = refused.value.errors.values()
    assert error.startswith(f"Exception when validating inner node: {says}")
    assert "image_reward" in error
    assert "google-bert/bert-base-uncased" in error


def test_a_web_page_under_the_vocabularys_name_is_called_one_before_anything_loads(server: Server) -> None:
    folder = server.folder / "models" / "image_reward" / "page"
    folder.mkdir()
    (folder / "ImageReward.pt").touch()
    (folder / "vocab.txt").write_text("<!DOCTYPE html>", encoding="ascii")
    with pytest.raises(Refused) as refused:
        server.queue(pocket(router__reward_file="page/ImageReward.pt", router__scorer=GONE))
    [[error]] = refused.value.errors.values()
    assert "vocab.txt should be a vocabulary, but is a web page, " in error
    assert "google-bert/bert-base-uncased" in error


def test_a_policy_that_scores_nothing_needs_no_reward_file_to_be_there(server: Server) -> None:
    changes = {"router__reward_file": "gone.pt", "router__scorer": GONE, "router__policy": "always-draft"}
    assert server.run(pocket(blocks=1, **changes)).status == "success"


def test_conditioning_of_another_width_is_refused(server: Server) -> None:
    prompt = pocket(sampler__drafter=["a", 0], sampler__target=["b", 0])
    prompt |= {"a": loader("SDVGDrafterLoader", "wide_a.safetensors")}
    prompt |= {"b": loader("SDVGTargetLoader", "wide_b.safetensors")}
    assert_refused(server, prompt, "the models take text embeddings of 4096 channels, but got 128")


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("policy", {"router__policy": "best"}),
        (
            "preset",
            {"extra": loader("SDVGDrafterLoader", "tiny_self_forcing.pt", "best"), "sampler__drafter": [EXTRA, 0]},
        ),
    ],
    ids=["policy", "preset"],
)
def test_an_option_that_a_dynamic_combo_lacks_is_refused_in_a_sentence(
    what: str, changes: dict[str, Any], server: Server
) -> None:
    error = assert_refused(server, pocket(**changes), f"{what} must be one of ")
    assert ", but is 'best'; choose one of them, or update SDVG, which is" in error


def test_a_policy_of_earlier_versions_is_refused_with_what_to_choose_instead(server: Server) -> None:
    with pytest.raises(Refused) as refused:
        server.queue(pocket(router__policy="percentile", router__policy__draft_share=0.5))
    [[error]] = refused.value.errors.values()
    assert "the policy percentile was taken out; choose a budget, which spends a share" in error


def test_a_refusal_names_the_newer_version_that_saved_the_workflow(server: Server) -> None:
    """The browser sends the workflow along, in which pack_version.js noted the version on every node of ours."""
    nodes = [{"type": "SaveVideo", "properties": {"cnr_id": "comfy-core", "ver": "99.0.0"}}]
    nodes += [
        {"type": SAMPLER, "properties": {"cnr_id": "sdvg", "ver": ver}} for ver in ("0.1.0", "9.10.0", "9.9.0")
    ]
    known = {"extra_pnginfo": {"workflow": {"nodes": nodes}}}
    error = assert_refused(server, pocket(router__margin=0.2), "this node has no input margin", known)
    assert error.endswith(f"or update SDVG: the workflow was saved by version 9.10.0, and this is {__version__}")


def test_what_another_extension_of_the_page_adds_is_left_out(server: Server) -> None:
    """Such as a switch below every text. A page that knows this version's inputs sent it, so it is none of ours."""
    prompt = pocket(blocks=1, router__policy="always-draft", sampler__speak={"__value__": [False, True]})
    nodes = [{"type": SAMPLER, "properties": {"cnr_id": "sdvg", "ver": __version__}}]
    known = {"extra_pnginfo": {"workflow": {"nodes": nodes}}}
    assert server.wait(server.queue(prompt, extra_data=known)).status == "success"
    assert "left out the input speak" in (server.folder / "log").read_text(encoding="utf-8", errors="replace")


def assert_refused(
    server: Server, prompt: dict[str, Any], says: str, extra_data: dict[str, Any] | None = None
) -> str:
    """The run ends with our sentence as the message, whatever stack trace comes with it. Returns the sentence."""
    done = server.wait(server.queue(prompt, extra_data=extra_data))
    error = done.message("execution_error")
    assert done.status == "error"
    assert error is not None
    assert error["exception_type"] == "BadInput"
    assert error["exception_message"].startswith(says)
    sentence = error["exception_message"].strip()
    assert "\n" not in sentence
    return sentence

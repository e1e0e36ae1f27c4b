"""`generate --learned`: who gets more first blocks, what is not loaded for it, and which files are refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runs import generate, latents, options, refused, report, without
from learned_routes import SHAPE, a_route, models_of, written
from safetensors.torch import load_file, save_file

from sdvg_core.checkpoints.weights import open_weights
from sdvg_core.errors import BadInput
from sdvg_core.pipeline import loading
from sdvg_core.pipeline.learned import open_learned, pooled

WIDTH, MODELS = 128, ("draft", "target")
POOR, RICH, MIDDLE = "a small red ball", "a big blue ring over the sea", "a green box"
GAINS = {POOR: 0.0, RICH: 4.0, MIDDLE: 1.0}


def best(gain: float, price: float, blocks: int = 9) -> int:
    """By the formula, one m after the other."""
    values = {m: gain * SHAPE[m - 1] - price * (m - 1) for m in range(1, blocks + 1)}
    return min(m for m, value in values.items() if value == max(values.values()))


# --- the choice


def test_the_blocks_are_the_fewest_with_the_largest_gain_less_their_price():
    route = a_route()
    for gain in (-1.0, 0.0, 0.3, 1.0, 3.0):
        for price in (0.0, 0.01, 0.1, 0.3, 2.0):
            assert route.blocks_for(gain, price, 9) == best(gain, price)


@pytest.mark.parametrize("mean", [1, 2.5, 4, 7, 9])
def test_a_budget_over_prompts_is_never_exceeded_and_hardly_left_over(mean):
    """Catches: a price of the wrong sign, which takes more blocks the dearer they are."""
    route, gains = a_route(), [*np.random.default_rng(2).normal(1.5, 1.0, 60)]
    price = route.price_for(gains, mean, 9)
    chosen = [route.blocks_for(gain, price, 9) for gain in gains]
    assert chosen == route.choose(gains, mean, 9, together=True)
    assert np.mean(chosen) <= mean
    assert price < 1e-9 or np.mean([route.blocks_for(gain, price - 1e-3, 9) for gain in gains]) >= mean - 0.2
    order = np.argsort(gains)
    assert (np.diff(np.array(chosen)[order]) >= 0).all(), "who gains more never gets less"


def test_a_video_of_another_length_takes_the_same_share():
    route = a_route(prices=np.array([[0.0, 0.5], [8.0, 0.0]]))
    short, long = (route.choose([3.0], mean, blocks, together=False)[0] for mean, blocks in ((4, 9), (7, 17)))
    assert 1 < short < 9
    assert (long - 1) / 16 == pytest.approx((short - 1) / 8, abs=1 / 16)
    assert route.choose([3.0], 1, 1, together=False) == [1]


def test_an_embedding_is_read_up_to_the_end_of_its_prompt():
    """Catches a mean over the zeros after it, by which all prompts would be alike."""
    rows = torch.randn(1, 7, WIDTH)
    padded = torch.cat([rows, torch.zeros(1, 505, WIDTH)], dim=1)
    assert np.allclose(pooled(padded), rows[0].mean(dim=0).numpy(), atol=1e-6)
    assert a_route(WIDTH).gain_of("", padded) == pytest.approx(1 + float(rows.mean()))
    assert (pooled(torch.zeros(1, 4, 3)) == 0).all()
    with pytest.raises(BadInput, match="takes embeddings of 4 channels"):
        a_route(4).gain_of("", padded)


# --- on the command line


@pytest.fixture(scope="module")
def route(files, tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("route"), a_route(WIDTH, gains=GAINS, models=models_of(files)))


@pytest.fixture
def base(files) -> list[str]:
    """Without the reward model, which no learned route needs."""
    return [*without(options(files), "reward"), "--blocks", "5"]


def first_blocks(folder: Path) -> int:
    router: dict[str, Any] = report(folder)["settings"]["router"]
    assert router["policy"] == "first"
    return int(router["forced_blocks"])


def test_prompts_that_gain_more_get_more_blocks_within_one_budget_and_nothing_is_scored_or_drafted_in_vain(
    base, route, tmp_path, monkeypatch
):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(GAINS), encoding="utf-8")
    monkeypatch.setattr(loading, "_load_scorer", None)
    more = ["--learned", str(route), "--prompt-file", str(prompts), "--budget", "0.99"]
    assert generate(base, tmp_path / "out", *more) == 0
    folders = [tmp_path / "out" / f"{number:04d}" for number in (1, 2, 3)]
    few, many, some = map(first_blocks, folders)
    assert few == 1 < some < many
    note = "Of a budget of 0.99 over 3 prompts, by route.safetensors, the target makes the first 1 of 5 blocks."
    assert note in report(folders[0])["notes"]
    assert "route.safetensors was learned on videos of 9 blocks; this one has 5." in report(folders[0])["notes"]
    alone = [*base, "--preset", "fast", "--forced-blocks", str(many), "--handover", "1"]
    assert generate(alone, tmp_path / "alone", "--prompt", RICH) == 0
    assert latents(tmp_path / "alone").equal(latents(folders[1])), "the same bits, and so handover works with it"
    ours, theirs = (
        [
            (block["author"], block["handover"], *((block[made] or {}).get("denoising_passes") for made in MODELS))
            for block in report(folder)["blocks"]
        ]
        for folder in (folders[1], tmp_path / "alone")
    )
    assert ours == theirs, "no more passes than the first blocks need"
    assert ours[1][2:] == (1, 1), "handed over after one step"


def test_a_single_prompt_goes_by_the_table_around_the_presets_blocks_and_the_encoder_is_read_once(
    base, route, tmp_path, monkeypatch
):
    """Catches: a prompt that was measured and is predicted all the same; a text encoder that is loaded twice."""
    encoded = []
    load = loading.load_encoder

    def counted(*given: Any) -> Any:
        encoded.append(given)
        return load(*given)

    monkeypatch.setattr(loading, "load_encoder", counted)
    learned = ["--learned", str(route), "--forced-blocks", "3", "--handover", "1"]
    for number, (prompt, at_least) in enumerate({POOR: 1, RICH: 4}.items()):
        assert generate(base, tmp_path / f"{number}", *learned, "--prompt", prompt) == 0
        assert first_blocks(tmp_path / f"{number}") >= at_least
    assert first_blocks(tmp_path / "0") == 1
    assert generate(base, tmp_path / "new", *learned, "--prompt", "a cube") == 0
    assert len(encoded) == 3
    assert generate(base, tmp_path / "0", *learned, "--prompt", POOR, "--resume") == 0


def test_a_stated_prompt_keeps_its_blocks(base, route, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"[first 2] {RICH}\n{RICH}\n", encoding="utf-8")
    more = ["--learned", str(route), "--prompt-file", str(prompts)]
    assert generate(base, tmp_path / "out", *more) == 0
    stated, learned = (tmp_path / "out" / number for number in ("0001", "0002"))
    assert first_blocks(stated) == 2 < first_blocks(learned)
    assert "As its prompt states, the target makes the first 2 of 5 blocks." in report(stated)["notes"]


@pytest.mark.parametrize("role", ["drafter", "target", "text_encoder"])
def test_a_route_of_other_models_is_refused(base, files, tmp_path, capsys, role):
    other = a_route(WIDTH, models={**models_of(files), role: "0" * 64})
    given = [*base, "--learned", str(written(tmp_path, other)), "--output", str(tmp_path / "out"), "--prompt", RICH]
    assert f"was learned with another {role.replace('_', ' ')}" in refused(capsys, given)
    assert not (tmp_path / "out").exists()


def test_models_that_cannot_be_known_and_an_interval_with_0_are_said():
    route = a_route(gain=(0.1, -0.1, 0.3), models={"drafter": "a" * 64})
    assert route.notes({"drafter": None, "target": None}, 9) == (
        "Whether route.safetensors was learned with this drafter, target is not known.",
        "route.safetensors is not recommended, because it may gain nothing: +0.10 [-0.10, +0.30] of reward_mean on "
        "prompts it had not seen.",
    )
    assert a_route(models={"drafter": "a" * 64}).notes({"drafter": "a" * 64}, 9) == ()


@pytest.mark.parametrize(
    "more, sentence",
    [
        (["--gate", "-0.5"], "--learned allows no policy, gate or script"),
        (["--policy", "random"], "--learned allows no policy, gate or script"),
        (["--preset", "paper"], "the policy reward takes no learned route"),
    ],
)
def test_a_learned_route_beside_another_policy_is_refused(files, route, tmp_path, capsys, more, sentence):
    given = [*options(files), "--learned", str(route), "--prompt", RICH, "--output", str(tmp_path / "out"), *more]
    assert sentence in refused(capsys, given)


def test_a_learned_route_of_a_clip_that_goes_on_counts_the_clips_blocks_too(base, route, tmp_path):
    assert generate(base, tmp_path / "clip", "--prompt", RICH, "--preset", "fast", "--blocks", "1") == 0
    clip = str(tmp_path / "clip" / "latents.safetensors")
    more = ["--learned", str(route), "--forced-blocks", "3", "--handover", "1", "--continue-from", clip]
    for number, prompt in enumerate((POOR, RICH)):
        assert generate(base, tmp_path / f"{number}", *more, "--blocks", "4", "--prompt", prompt) == 0
    assert first_blocks(tmp_path / "0") == 1 < first_blocks(tmp_path / "1")
    assert "of 5 blocks." in report(tmp_path / "1")["notes"][-1]
    assert {block["author"] for block in report(tmp_path / "0")["blocks"]} == {"drafter"}


# --- the file


BAD_TENSORS: list[dict[str, Any]] = [
    {"weights": torch.full((4,), torch.nan)},
    {"mean": torch.full((4,), torch.inf)},
    {"deviation": torch.zeros(4)},
    {"weights": torch.full((4,), 1e20)},
    {"weights": torch.zeros(5)},
    {"weights": None},
    {"extra": torch.zeros(1)},
    {"shape": torch.ones(9)},
    {"shape": torch.zeros(1)},
    {"shape": torch.zeros(5000)},
    {"prices": torch.tensor([[0.0, 1.0], [8.0, -1.0]])},
    {"prices": torch.tensor([[8.0, 1.0], [0.0, 1.0]])},
    {"prices": torch.zeros(3, 3)},
    {"weights": torch.zeros(4, dtype=torch.int64)},
]
BAD_WORDS = [
    *("", "[]", "{}", "[" * 5000, '{"bias": 1}'),
    *(f'{{{text}, "metric": "q"}}' for text in ('"bias": NaN', '"gain": [1, 2]', '"models": {"drafter": 1}')),
]


@pytest.mark.parametrize("change", [*BAD_TENSORS, *({"sdvg": words} for words in BAD_WORDS)])
def test_a_file_with_tensors_or_words_that_no_route_has_is_refused(tmp_path, change):
    path = written(tmp_path, a_route())
    open_learned(path)
    there = {**load_file(path), **open_weights(path).metadata, **change}
    words = {name: value for name, value in there.items() if isinstance(value, str)}
    save_file({name: value for name, value in there.items() if torch.is_tensor(value)}, path, words)
    with pytest.raises(BadInput):
        open_learned(path)


@pytest.mark.parametrize(
    "change",
    [
        {"bias": 1e9},
        {"gain": (0.5, 0.6, 0.7)},
        {"gain": (0.5, 0.4)},
        {"metric": "../x"},
        {"metric": "x" * 99},
        {"models": {"drafter": "zz"}},
        {"measured": {"0" * 16: True}},
        {"measured": {"name": 1.0}},
        {"measured": {"0" * 16: "1"}},
    ],
    ids=str,
)
def test_a_file_with_numbers_that_no_route_has_is_refused(tmp_path, change):
    with pytest.raises(BadInput, match="has values that no learned route has"):
        open_learned(written(tmp_path, replace(a_route(), **change)))


def test_a_pickle_is_never_opened(tmp_path):
    for name in ("route.pt", "route.safetensors"):
        path = tmp_path / name
        path.write_bytes(pickle.dumps({"mean": 1}))
        with pytest.raises(BadInput):
            open_learned(path)

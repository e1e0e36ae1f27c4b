"""The small world: what a prompt says is rendered, and how its clips are judged."""

import hashlib
import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from lab.research.metrics import BestMoment, ColourDrift, SeamChange, qualities
from lab.research.world import draw_scene, held_out_prompts, is_held_out
from sdvg_core.errors import BadInput
from sdvg_core.pocket.grammar import GRAMMAR, parse, understand
from sdvg_core.pocket.oracle import BEST, judge
from sdvg_core.pocket.renderer import centre, render_scene, render_with_mask
from sdvg_core.pocket.world import (
    COLOURS,
    DIRECTIONS,
    GROUNDS,
    PACES,
    PLACES,
    RADII,
    SHAPES,
    SIZE,
    Scene,
    Thing,
)

BALL = Thing("big", "red", "ball", "left", "runs", "right")


def some_scenes(count: int, seed: int = 0) -> list[Scene]:
    generator = random.Random(seed)
    return [draw_scene(generator, held_out=bool(i % 2)) for i in range(count)]


def test_prompt_and_scene_state_the_same():
    for scene in some_scenes(300):
        assert parse(scene.text) == scene


def test_world_is_as_the_models_learned_it():
    """Catches: a colour or a pace that is another by a shade, and is scored as if the models had seen it."""
    words = (SIZE, RADII, COLOURS, SHAPES, PACES, DIRECTIONS, PLACES, GROUNDS)
    assert hashlib.sha256(repr(words).encode()).hexdigest().startswith("aa9acf965992933b")


def test_training_and_held_out_prompts_are_disjoint():
    generator = random.Random(3)
    trained = {draw_scene(generator, held_out=False).text for _ in range(3000)}
    assert not trained & set(held_out_prompts(500))
    assert all(is_held_out(parse(prompt)) for prompt in held_out_prompts(50))


def test_held_out_prompts_are_those_of_earlier_figures():
    assert held_out_prompts(2) == (
        "a big blue ball runs right from the left beside a big red diamond "
        "drifts up from the bottom left over snow",
        "a big orange cross drifts up from the bottom right behind a big black diamond at the right over grass",
    )


def test_thing_moves_as_its_words_say():
    mask = render_with_mask(Scene(BALL, "night"), torch.tensor([0.0, 10.0]))[1][:, 0]
    columns = (mask.sum(dim=1) * torch.arange(SIZE)).sum(dim=1) / mask.sum(dim=(1, 2))
    rows = (mask.sum(dim=2) * torch.arange(SIZE)).sum(dim=1) / mask.sum(dim=(1, 2))
    assert columns[0] == pytest.approx(9.5, abs=0.1)
    assert columns[1] - columns[0] == pytest.approx(10, abs=0.1)
    assert rows[0] == pytest.approx(rows[1])


def test_things_never_leave_the_picture():
    for scene in some_scenes(40):
        for thing in scene.things:
            for axis in centre(thing, torch.arange(0, 2000, 0.5)):
                assert axis.min() >= 5.9
                assert axis.max() <= SIZE - 5.9


def test_things_bounce_at_the_border():
    across, _ = centre(BALL, torch.tensor([0.0, 44.0, 50.0, 88.0]))
    assert across.tolist() == pytest.approx([10, 54, 48, 10])


@pytest.mark.parametrize(("relation", "in_front"), [("in front of", "red"), ("behind", "white")])
def test_thing_in_front_hides_the_other(relation, in_front):
    mover = Thing("big", "red", "box", "middle", "crawls", "right")
    other = Thing("big", "white", "box", "middle")
    red, green, _ = render_scene(Scene(mover, "sea", relation, other), torch.tensor([0]))[0, :, 32, 32]
    assert (green < 0.3) == (in_front == "red")
    assert red > 0.6


def test_scene_shows_both_its_things():
    """Catches: the ground, drawn over the first one; the demo would judge its clips by that."""
    mover = Thing("big", "red", "box", "left", "crawls", "right")
    other = Thing("big", "white", "box", "right")
    frame = render_scene(Scene(mover, "night", "beside", other), torch.tensor([0]))[0]
    red, green, _ = frame[:, 32, 9]
    assert red > 0.6 > 0.3 > green
    assert frame[:, 32, 54].min() > 0.6


def test_prompt_outside_the_grammar_names_the_nearest():
    with pytest.raises(BadInput) as refusal:
        parse("a small red ball rums left from the top over sea")
    assert "'a small red ball runs left from the top over sea'" in str(refusal.value)
    assert GRAMMAR in str(refusal.value)


def test_direction_is_understood_by_itself():
    """Catches: a word that counts only beside other words of the small world."""
    assert understand("a bird goes up")[0].mover.direction == "up"


def test_nearest_prompt_is_in_the_grammar():
    generator = random.Random(7)
    words = [word for line in GRAMMAR.splitlines() for word in line.split()] + ["söx", "ball.", "rde"]
    for _ in range(300):
        text = " ".join(generator.choices(words, k=generator.randint(0, 40)))
        close, _ = understand(text or "x")
        assert parse(close.text) == close


FRAMES = torch.arange(105)
SEAMS = tuple(range(9, 105, 12))
SCENES = [draw_scene(random.Random(seed), held_out=True) for seed in range(4)]
RUNNER = Scene(Thing("big", "red", "ball", "left", "runs", "right"), "night")


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.text)
def test_exact_clip_is_perfect(scene):
    verdict = judge(render_scene(scene, FRAMES), scene)
    assert verdict.quality.tolist() == [BEST] * 105
    assert verdict.lag.abs().max() == 0


@pytest.mark.parametrize("late", [-5, 8])
def test_late_clip_is_late_and_clear(late):
    verdict = judge(render_scene(RUNNER, (FRAMES - late).clamp(min=0)), RUNNER)
    assert verdict.quality[10:].min() == BEST
    # Around a bounce a moment before it and one after it look alike.
    assert set(verdict.lag[10:30].tolist()) == {-late}


def faults() -> dict[str, Tensor]:
    clip = render_scene(RUNNER, FRAMES)
    elsewhere = render_scene(Scene(Thing("small", "red", "ball", "top left"), "night"), FRAMES)
    noise = torch.randn(clip.shape, generator=torch.Generator().manual_seed(0))
    return {
        "a little noise": clip + 0.02 * noise,
        "more noise": clip + 0.1 * noise,
        "blur": avg_pool2d(clip, 5, 1, 2, count_include_pad=False),
        "elsewhere": elsewhere,
    }


def test_worse_faults_score_lower():
    clips = faults()
    means = {name: judge(clip, RUNNER).quality.mean().item() for name, clip in clips.items()}
    assert BEST > means["a little noise"] > means["more noise"] > means["elsewhere"]
    assert means["a little noise"] > means["blur"] > means["elsewhere"]


def test_wrong_prompt_scores_far_below():
    for scene, other in pairwise(SCENES):
        assert judge(render_scene(scene, FRAMES), other).quality.mean() < 15


def test_jump_at_borders_is_seam_change():
    clip = render_scene(RUNNER, FRAMES)
    jumping = clip.clone()
    for number, seam in enumerate(SEAMS):
        jumping[seam:] = clip[seam:] + 0.05 * (number % 2)
    assert SeamChange().measure(jumping, "", SEAMS)["seam_change"] > 3


def test_flicker_everywhere_is_no_seam_change():
    clip = render_scene(RUNNER, FRAMES)
    flicker = clip + 0.05 * (FRAMES % 2).view(-1, 1, 1, 1)
    assert SeamChange().measure(flicker, "", SEAMS)["seam_change"] < 0.5


PROMPT = "a big blue ball drifts right from the left over sand"


def test_late_video_is_clear_at_another_moment():
    """Catches: moments of one way alone, and a reach that knows no end."""
    scene = parse(PROMPT)
    moments = torch.tensor([8, 100])
    assert qualities(render_scene(scene, moments + 5), moments, scene)[0] == [BEST, BEST]
    due, clear = qualities(render_scene(scene, moments + 40), moments, scene)
    assert max(due) < 15
    assert min(clear) > 25, "it stands between two frames of the first way"


def test_last_blocks_count_at_their_best_moment():
    """Catches: earlier blocks in the mean, a clip's own moments in place of the best."""
    scene = parse(PROMPT)
    seams = range(9, 9 + 12 * 9, 12)
    late = render_scene(scene, torch.arange(117) + 40)
    late[: seams[1]] = 0.5
    clear = BestMoment().measure(late, PROMPT, seams)["late_clearness"]
    assert clear > 30
    late[seams[1] : seams[2]] = 0.5
    assert BestMoment().measure(late, PROMPT, seams)["late_clearness"] < clear - 2


def test_colour_drift_is_of_the_last_blocks():
    """In levels, over the three channels. Catches: a mean over the clip, a change inside a block."""
    seams = range(9, 9 + 12 * 9, 12)
    frames = torch.full((117, 3, 4, 4), 0.5)
    frames[seams[1] :, 0] += 0.3
    assert ColourDrift().measure(frames, "", seams)["late_drift"] == pytest.approx(0.3 * 255 / 3**0.5, rel=1e-5)
    frames[seams[1] :, 0, :2] += 0.1
    frames[seams[1] :, 0, 2:] -= 0.1
    assert ColourDrift().measure(frames, "", seams)["late_drift"] == pytest.approx(0.3 * 255 / 3**0.5, rel=1e-5)
    frames[: seams[1]] = frames[-1]
    assert ColourDrift().measure(frames, "", seams)["late_drift"] == pytest.approx(0, abs=1e-3)

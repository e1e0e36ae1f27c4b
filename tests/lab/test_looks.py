"""What is measured into docs/rows, and that it goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lab.research import looks
from lab.research.cells import table_of
from lab.research.looks import (
    CHOSEN,
    MEASURED,
    ONE_MORE,
    ROWS,
    TWO_MORE,
    Look,
    add_row,
    at,
    routes_of_one_cost,
    rows_in,
    training_prompts,
)
from lab.research.routers import seeded
from lab.research.tables import CHOOSING, best_placed
from lab.research.variants import with_fast_decoder, with_files
from lab.research.videos import StudyOptions
from lab.research.world import held_out_prompts, is_held_out
from sdvg_core.errors import BadInput
from sdvg_core.pocket.grammar import parse
from sdvg_core.pocket.trained_set import pocket_fast_vae, pocket_options, trained_set
from sdvg_core.settings.route import At, First, Route, route_preset
from sdvg_core.weights.weight_file import open_weights

Q = "blocks.0.self_attn.q.weight"
HEAD = "way,prompt,seed,route,cost,quality,last_block_quality,at_its_place,last_block_at_its_place\n"


def row(way, prompt, seed=42):
    names = HEAD.strip().split(",")
    return dict(zip(names, [way, prompt, seed, "Fd", "1.2", "15.0", "14.0", "1.0", ""], strict=True))


def test_training_prompts_are_not_held_out():
    """Catches: choosing a route by the prompts that then judge it."""
    assert not any(is_held_out(parse(text)) for text in training_prompts(200))
    assert len({*training_prompts(200)}) == 200
    assert MEASURED["places"].texts() == training_prompts(200)
    assert MEASURED["presets"].texts() == held_out_prompts(200)


def test_places_keep_the_first_block():
    policies = [way.route.policy for way in (*ONE_MORE, *TWO_MORE)]
    made = [[policy.decide_early(place, ()).accepted for place in range(9)] for policy in policies]
    assert not any(kept[0] for kept in made)
    assert {kept[1:].count(False) for kept in made} == {1, 2}
    assert at((4, 7), 3).route == Route(At((4, 7)), handover=3)
    assert len({*map(tuple, made)}) == len(made)


def test_rows_survive_a_cut_line(tmp_path):
    """Catches: a half row read as one, or a new row on its line."""
    file = tmp_path / "rows.csv"
    add_row(file, row("a", 0))
    with file.open("a") as lines:
        lines.write("a,1,42,F")
    assert [one["prompt"] for one in rows_in(file)] == ["0"]
    add_row(file, row("b", 0))
    assert file.read_text() == f"{HEAD}a,0,42,Fd,1.2,15.0,14.0,1.0,\nb,0,42,Fd,1.2,15.0,14.0,1.0,\n"


def test_other_columns_are_refused(tmp_path):
    """Catches: rows under a head that is not theirs."""
    add_row(tmp_path / "rows.csv", row("a", 0))
    with pytest.raises(BadInput, match="has other columns than way,prompt,late_clearness; move it away"):
        add_row(tmp_path / "rows.csv", {"way": "a", "prompt": 0, "late_clearness": 1})


def test_long_routes_cost_the_same():
    """Catches: a stride whose control has more or fewer blocks of the target's."""
    for blocks in (21, 42):
        balanced, *others = (seeded(way.route, "", 42) for way in routes_of_one_cost(blocks))
        made = [[route.policy.decide_early(place, ()).accepted for place in range(blocks)] for route in others]
        assert {line.count(False) for line in made} == {-(-blocks // 6)}
        assert not any(line[0] for line in made)
        assert balanced == route_preset("balanced"), "the look's winner is what the product has"


def test_long_look_keeps_one_thing():
    texts = MEASURED["memories-21"].texts()
    assert len({*texts}) == 60
    assert not any(parse(text).relation for text in texts)


def test_long_look_makes_each_memory(tmp_path, monkeypatch):
    """Of two names the first is the drafter's. Catches: one memory's rows under another's name."""
    names = ("recompute", "deep-sink", "recompute+deep-sink", "deep-sink+recompute")
    look = replace(MEASURED["memories-21"], ways=(looks.ENDS[0],), prompts=1, seeds=(42,), blocks=5, variants=names)
    monkeypatch.setitem(MEASURED, "memories-21", look)
    assert looks.main(["memories-21", "--folder", str(tmp_path)]) == 0
    rows = rows_in(tmp_path / "memories-21.csv")
    assert [one["way"] for one in rows] == [f"draft-only/{name}" for name in names]
    recompute, deep_sink, *both = (one["quality"] for one in rows)
    assert recompute != deep_sink
    assert both == [recompute, deep_sink]
    assert all(float(one["late_clearness"]) > 0 for one in rows)


def test_look_makes_only_missing_rows(tmp_path, monkeypatch):
    """Catches: a second run that makes every row again, or none of another way."""
    drafts = looks.Configuration("draft-only", "ends", Route(First(0)))
    fast = looks.Configuration("anchor-only", "ends", Route(First(1)))
    monkeypatch.setitem(MEASURED, "presets", Look((drafts, fast), prompts=2, blocks=1))
    run = ("presets", "--folder", str(tmp_path))
    assert looks.main([*run, "--prompts", "1", "--ways", "draft-only"]) == 0
    first = rows_in(tmp_path / "presets.csv")
    assert [(one["way"], one["prompt"], one["route"]) for one in first] == [("draft-only", "0", "d")]
    assert looks.main(run) == 0
    rows = rows_in(tmp_path / "presets.csv")
    assert rows[:1] == first
    made = [(one["way"], one["prompt"], one["route"]) for one in rows[1:]]
    assert made == [("anchor-only", "0", "F"), ("draft-only", "1", "d"), ("anchor-only", "1", "F")]
    assert float(rows[1]["quality"]) > float(rows[0]["quality"])


def test_look_skips_the_first_prompts(tmp_path, monkeypatch):
    """Catches: a part of the work whose prompts are counted from its own first one."""
    monkeypatch.setitem(MEASURED, "presets", Look((looks.ENDS[0],), prompts=3, blocks=1))
    assert looks.main(["presets", "--folder", str(tmp_path), "--skip", "2"]) == 0
    assert [one["prompt"] for one in rows_in(tmp_path / "presets.csv")] == ["2"]


def test_unknown_way_is_refused(capsys):
    assert looks.main(["presets", "--ways", "other"]) == 2
    assert "has no way other; choose among draft-only" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["other", "recompute+other", "recompute+"])
def test_unknown_variant_is_refused(capsys, name):
    assert looks.main(["memories-21", "--variants", name]) == 2
    assert "is no variant; choose among recompute, window" in capsys.readouterr().err


def test_variant_of_a_look_without_any_is_refused(capsys):
    assert looks.main(["presets", "--variants", "recompute"]) == 2
    assert "'recompute' is no variant; choose among none" in capsys.readouterr().err


def test_each_model_is_loaded_in_its_own_format(tmp_path):
    """Catches: a pair that is measured in another format than its name says, a file that is made twice."""
    pytest.importorskip("comfy_kitchen")
    shipped = StudyOptions(files=trained_set(), load=pocket_options())
    assert with_files(shipped, "bf16", tmp_path) == shipped
    mixed = with_files(shipped, "int8+w4a8", tmp_path).files
    assert (mixed.drafter.name, mixed.target.name) == (
        "pocket_self_forcing_int8.safetensors",
        "pocket_krea_w4a8.safetensors",
    )
    drafter, target = (open_weights(path).info[Q] for path in (mixed.drafter, mixed.target))
    assert target.shape[1] * 2 == target.shape[0], "two weights a byte"
    assert (drafter.dtype, drafter.shape[0]) == (torch.int8, drafter.shape[1])
    before = mixed.target.stat().st_mtime_ns
    assert with_files(shipped, "w4a8", tmp_path).files.target == mixed.target
    assert mixed.target.stat().st_mtime_ns == before


def test_look_decodes_with_the_decoder_of_its_name():
    """Catches: the VAE's figures under the name of the TAEHV."""
    shipped = StudyOptions(files=trained_set(), load=pocket_options())
    assert with_fast_decoder(shipped, "vae") == shipped
    assert with_fast_decoder(shipped, "taehv").files == replace(shipped.files, vae=pocket_fast_vae())


def test_hold_reaches_the_run(tmp_path, monkeypatch):
    """Catches: rows of a hold that no run gets, or without their figures."""
    look = replace(MEASURED["holds-21"], ways=(looks.ENDS[0],), prompts=1, blocks=5, variants=("0", "1"))
    monkeypatch.setitem(MEASURED, "holds-21", look)
    assert looks.main(["holds-21", "--folder", str(tmp_path)]) == 0
    free, held = rows_in(tmp_path / "holds-21.csv")
    assert (free["way"], held["way"]) == ("draft-only/0", "draft-only/1")
    assert float(held["late_drift"]) != float(free["late_drift"]) > 0
    assert float(held["late_clearness"]) > 0


def test_table_takes_whole_seeds(tmp_path):
    """Catches: prompts that lack a way, or a seed that lacks prompts."""
    file = tmp_path / "rows.csv"
    for made in (row("a", 0), row("b", 0), row("a", 1), row("b", 1), row("a", 2), row("a", 0, 43), row("b", 0, 43)):
        add_row(file, made)
    assert (table_of(file).prompts, table_of(file).seeds) == (("0", "1"), (42,))
    add_row(file, row("a", 1, 43))
    add_row(file, row("b", 1, 43))
    assert (table_of(file).prompts, table_of(file).seeds) == (("0", "1"), (42, 43))
    assert table_of(file, ["a"]).prompts == ("0", "1", "2")


def test_empty_table_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"lacks rows of any way; docs/rows/README\.md says which command makes"):
        table_of(tmp_path / "presets.csv")


def test_best_placed_are_near_first_two(tmp_path):
    """Catches: a route that pays for its last block with the clip, the lowest in place of the highest."""
    file = tmp_path / "rows.csv"
    made = {
        "handover-2@2": (15.0, 0.3),
        "near": (14.9, 0.4),
        "edge": (14.8, 0.5),
        "far": (14.7, 0.9),
        "poor": (16.0, 0.2),
    }
    for way, (quality, placed) in made.items():
        for prompt in range(3):
            add_row(file, row(way, prompt) | {"quality": quality + prompt, "last_block_at_its_place": placed})
    assert best_placed(table_of(file), 2) == ["edge", "near"]
    assert best_placed(table_of(file), 5) == ["edge", "near", "poor"]


def test_places_were_chosen_by_the_rule():
    """Catches: routes that go on, or a winner, by another figure than the rule's."""
    file = ROWS / "places.csv"
    everything = table_of(file, [way.name for way in MEASURED["places"].ways], CHOOSING)
    assert {*best_placed(everything, 3)} == {way.name for way in CHOSEN}
    whole = table_of(file, ["handover-2@2", *(way.name for way in CHOSEN)])
    assert len(whole.prompts) == 200
    assert best_placed(whole, 1) == ["at-3@2+5"]

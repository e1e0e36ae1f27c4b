"""From samples to numbers: medians, ratios, limits, shares."""

from statistics import median

from bench_parts import case
from speed_results import sample

from benchmarks.results import summarise_cases
from benchmarks.variants import AS_PUBLISHED


def test_ratios_limits_and_shares_follow_from_the_medians():
    target, one, published = case("target-only"), case("r=1"), case("r=1", AS_PUBLISHED)
    found = summarise_cases(
        {
            target: [sample(1, 10), sample(1, 90), sample(1, 12)],
            one: [sample(1, 4, decode=3, peak=7), sample(2, 3, decode=1, peak=9), sample(3, 6, decode=2, peak=8)],
            published: [sample(2, 8)],
            case("r=2"): [],
        }
    )
    base, fast, slow = found
    assert [entry["route"] for entry in found] == ["target-only", "r=1", "r=1"]
    assert base["seconds"]["video"] == median([10, 90, 12])
    assert base["ratio_to_target_only"] == base["share_of_limit"] == 1
    assert (fast["seconds"]["video"], fast["seconds"]["decode"], fast["peak_bytes"]) == (4, 2, 9)
    assert fast["ratio_to_target_only"] == 12 / 4
    assert (fast["limit"], fast["share_of_limit"]) == (4.5, 3 / 4.5)
    assert fast["ratio_to_as_published"] == 8 / 4
    assert fast["block_seconds"] == [2, 3]
    assert fast["first_frame_seconds"] == 2
    assert fast["frames_per_second"] == 105 / 4
    # No target-only was made as published, and nobody is measured against himself.
    assert slow["ratio_to_target_only"] is slow["ratio_to_as_published"] is None

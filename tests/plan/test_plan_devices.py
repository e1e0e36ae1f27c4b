"""A plan for two devices."""

from dataclasses import replace

from sdvg_core.plan.choose import plan
from sdvg_core.plan.layout import most
from sdvg_core.plan.request import PlanRequest
from sdvg_core.plan.text import plan_text

FULL = PlanRequest()


def test_a_plan_for_two_devices_fits_the_first_and_tells_what_the_second_holds():
    one, two = plan(48, FULL), plan(48, replace(FULL, side=True))
    assert two.peak < one.peak
    assert "vae" not in two.parts["decode"]
    assert two.beside["decode"]["vae state"] == one.parts["decode"]["vae state"]
    assert most(one.beside) == 0
    assert "second device holds VAE and scorer, with a peak while decoding, 8.0 GB" in plan_text(two)
    assert "second device" not in plan_text(one)

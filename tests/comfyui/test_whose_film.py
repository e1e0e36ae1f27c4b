"""Whose film the strip shows, and that its forecast is true or not there, in ComfyUI's page (see comfy_page.py)."""

from __future__ import annotations

from typing import Any

import pytest
from comfy_page import ROUTE, browse
from running_server import Server

pytestmark = pytest.mark.comfyui

EMPTY = [None] * 9
EVERYTHING, AT_MOST, NOTHING = (
    f"next run: {what}" for what in ("everything again", "at most everything again", "nothing to do")
)


@pytest.fixture(scope="module", params=["canvas", pytest.param("nodes 2.0", marks=pytest.mark.exhaustive)])
def page(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What was seen in one of the two renderers, each with seeds of its own."""
    vue = request.param == "nodes 2.0"
    return browse(server, tmp_path_factory.mktemp("page"), "whose.js", vue=vue, seed=320 if vue else 300)


def test_a_copy_of_a_workflow_shows_no_film_but_that_of_its_own_settings(page: dict[str, Any]) -> None:
    """Catches a run that is found by the ids of workflow and node alone, which every copy of a template has."""
    opened = page["opened"]
    assert opened["other"]["fates"] == opened["elsewhere"]["fates"] == EMPTY
    assert (opened["other"]["next"], opened["other"]["picture"]) == ("", False)
    assert (opened["same"]["fates"], opened["same"]["next"]) == (ROUTE, NOTHING)


def test_the_tab_of_a_run_shows_it_though_its_settings_were_changed(page: dict[str, Any]) -> None:
    assert (page["opened"]["own"]["fates"], page["opened"]["own"]["next"]) == (ROUTE, EVERYTHING)
    assert (page["opened"]["reloaded"]["fates"], page["opened"]["reloaded"]["next"]) == (ROUTE, NOTHING)


def test_a_run_that_goes_on_is_shown_in_its_own_tab_alone(page: dict[str, Any]) -> None:
    live = page["live"]
    assert live["going"]["stop"]
    assert live["copy"]["fates"] == live["later"]["fates"] == EMPTY
    assert not live["copy"]["stop"]
    assert live["back"]["stop"]
    made = [sum(map(bool, live[name]["fates"])) for name in ("going", "back", "done")]
    assert 2 <= made[0] < made[1] <= made[2]


def test_a_changed_setting_means_everything_again(page: dict[str, Any]) -> None:
    """Of the router at most, for it may decide as it did; takes and directions do not count beside another seed."""
    assert page["made"]["next"] == NOTHING
    assert page["changed"] == [AT_MOST, NOTHING, EVERYTHING, EVERYTHING, EVERYTHING]
    assert page["back"] == NOTHING


def test_a_seed_that_is_about_to_change_means_everything_again(page: dict[str, Any]) -> None:
    assert page["before"] == EVERYTHING


def test_nothing_is_foretold_of_a_run_that_the_server_has_forgotten(page: dict[str, Any]) -> None:
    assert page["forgotten"] == ""


def test_nothing_went_wrong_meanwhile(page: dict[str, Any]) -> None:
    assert page["errors"] == []

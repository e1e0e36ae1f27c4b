"""A live session whose server is killed, as the page sees it. What the page needs is said in comfy_page.py."""

import pytest
from comfy_page import browse
from running_server import returning_server

pytestmark = pytest.mark.comfyui


@pytest.fixture(scope="module", params=["canvas", pytest.param("nodes 2.0", marks=pytest.mark.exhaustive)])
def page(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lost")
    with returning_server(folder) as server:
        vue = request.param == "nodes 2.0"
        seen = browse(server, folder, "lost.js", vue=vue, seed=1900, pid=str(folder / "pid"))
    assert seen["hosts"] == []
    return seen


@pytest.mark.parametrize("case", ["stayed", "left"])
def test_recording_outlives_its_server(page, case):
    """Its words, seed, takes and length came with its blocks. Catches: a session that is lost with the server."""
    lost = page[case]
    graph = lost["graph"]
    first, *steered = graph["prompt"].splitlines()
    assert first == page["before"]["prompt"].splitlines()[0]
    assert steered == [f"{lost['block']}: {lost['text']}"]
    assert graph["blocks"] in (lost["blocks"], lost["blocks"] + 1), "one may come as the server is killed"
    assert graph["blocks"] >= lost["block"]
    assert not graph["live"]
    assert graph["seed"] == page["before"]["seed"]
    assert lost["says"] == "ComfyUI was stopped during the session; what was made until then is kept."


def test_lost_recording_is_offered_by_the_menu(page):
    items = page["stayed"]["items"]
    assert "live recording as text…" in items
    assert [item for item in items if item.startswith("finish the live recording")]


@pytest.mark.parametrize("case", ["stayed", "left"])
def test_lost_recording_is_undone_in_one_step(page, case):
    """Catches: one that is written while ComfyUI opens the workflow, which is no step."""
    assert page[case]["undone"] == page["before"]


def test_graph_that_was_changed_meanwhile_is_left_alone(page):
    """Catches: a length that the user set after the server was gone, overwritten."""
    changed = page["changed"]
    assert changed["graph"]["blocks"] == 33
    assert changed["graph"]["prompt"] == page["before"]["prompt"]
    assert "changed meanwhile" in changed["dialog"][0]
    assert changed["dialog"][-1].splitlines()[-1] == f"{changed['block']}: {changed['text']}"

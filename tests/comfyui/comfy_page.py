"""ComfyUI's page in a headless Chromium, as an artist sees it. What that needs, tests/support/browser.py says."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from running_server import ROOT

from tests.support.browser import browse as run_page

HERE = Path(__file__).resolve().parent
NODES = (
    "SDVGDrafterLoader",
    "SDVGTargetLoader",
    "SDVGQualityRouter",
    "SDVGPrompt",
    "SDVGPromptSchedule",
    "SDVGStart",
    "SDVGSpeculativeSampler",
    "SDVGRouteReport",
    "SDVGPocketModels",
)
SCRIPT = "raaraarar"
ROUTE = ["forced", "kept", "kept", "remade", "kept", "kept", "remade", "kept", "remade"]
COUNTS = re.escape("large model, by rule: 1small model, checked: 5large model, remade: 3")
"""What the strip says of that route."""
WEAKEST = r"weakest frame \d+: -?\d+\.\d\d"
"""What it says of a scored block that a direction decided; a gate adds what the block needs."""


def inputs_of(spec, prefix=""):
    """Return name -> kind and options of all inputs, those that belong to a choice included, as `policy.tau`."""
    inputs = {}
    for name, given in {**spec.get("required", {}), **spec.get("optional", {})}.items():
        inputs[prefix + name] = given
        if given[0] == "COMFY_DYNAMICCOMBO_V3":
            for option in given[1]["options"]:
                inputs |= inputs_of(option["inputs"], f"{prefix}{name}.")
        if given[0] == "COMFY_AUTOGROW_V3":
            template = given[1]["template"]
            (grown,) = inputs_of(template["input"]).values()
            inputs |= {f"{prefix}{name}.{slot}": grown for slot in template["names"]}
    return inputs


def browse(server, folder, program, **options):
    """Run a program of the folder `browser` with a page of its own; returns what the page showed."""
    options = {"url": f"http://127.0.0.1:{server.port}", "script": SCRIPT, **options}
    return run_page(HERE / "browser" / program, profile=str(folder / "profile"), **options)


def page_of(program, *, seed):
    """A fixture: what a program saw in one renderer, with a seed of its own, so none re-uses another's run."""

    @pytest.fixture(scope="module", params=["canvas", pytest.param("nodes 2.0", marks=pytest.mark.exhaustive)])
    def page(request, server, tmp_path_factory):
        vue = request.param == "nodes 2.0"
        seen = browse(server, tmp_path_factory.mktemp("page"), program, vue=vue, seed=seed + 20 * vue)
        assert (seen["errors"], seen["hosts"]) == ([], []), "nothing goes wrong, and no other host is asked"
        return seen

    return page


# --- the page's JavaScript, run by node without a page


PURE = (
    "blocks.js",
    "live_text.js",
    "locks.js",
    "prompt_lines.js",
    "runs.js",
    "runs_account.js",
    "shot_changes.js",
    "shot_edits.js",
    "shot_pictures.js",
    "shots.js",
    "strip_model.js",
)
API = """export const api = {
  fetchApi: async (path) => ({ ok: true, blob: async () => path }),
  getCustomNodesI18n: async () => globalThis.i18n,
  addEventListener: () => {},
};"""
APP = "export const app = Object.assign({ registerExtension: () => {} }, globalThis.app);"


def write_modules(folder):
    """Write the modules where node takes them for ES modules, and return where; skip without node."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    ours = folder / "extensions" / "sdvg"
    theirs = folder / "scripts"
    ours.mkdir(parents=True)
    theirs.mkdir()
    for script in (ROOT / "nodes" / "web").glob("*.js"):
        shutil.copy(script, ours)
    (theirs / "api.js").write_text(API, encoding="ascii")
    (theirs / "app.js").write_text(APP, encoding="ascii")
    (folder / "package.json").write_text('{"type": "module"}', encoding="ascii")
    return ours


def call(modules, source, given):
    """Return what a JavaScript function makes of each of the things given; `js`: all that the modules export."""
    imports = "".join(f'import * as m{i} from "./{name}";\n' for i, name in enumerate(PURE))
    everything = ", ".join(f"...m{i}" for i in range(len(PURE)))
    program = f"{imports}const js = {{{everything}}};\nconst of = {source};\n"
    program += f"console.log(JSON.stringify({json.dumps(given)}.map((one) => of(one))));\n"
    return run_node(modules, program)


def run_node(modules, program):
    """Return what a program among the modules prints."""
    (modules / "program.js").write_text(program, encoding="utf-8")
    command = ["node", "program.js"]
    done = subprocess.run(command, cwd=modules, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Each value, and after every edit the board as the values written from it are read again.
PLAY = """({ values, before, edits }) => {
  let board = js.readBoard(values, before);
  const seen = [js.writeBoard(board)];
  for (const [name, ...given] of edits) {
    board = js[name](board, ...given);
    const written = js.writeBoard(board);
    const [again, was] = [js.readBoard(written, before), board].map((one) => JSON.stringify(one));
    if (again !== was) throw new Error(`${name} ${given}: ${was}`);
    seen.push(written);
  }
  return seen;
}"""

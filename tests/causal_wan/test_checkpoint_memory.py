import json
import subprocess
import sys
from pathlib import Path

import pytest
from wan_files import save_hollow

from sdvg_core.causal_wan.config import WanConfig

MIB = 1024 * 1024
CONFIG = WanConfig(dim=1536, ffn_dim=8960, num_layers=16, num_heads=12)  # the widths of the 1.3B

CHILD = """
import sys, torch
from pathlib import Path
from sdvg_core.causal_wan.checkpoint import load_wan

def anonymous():
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

before = anonymous()
loaded = load_wan(sys.argv[1], dtype=torch.bfloat16)
assert len(loaded.tree.blocks) == 16
print(anonymous() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_loading_never_holds_a_copy_of_the_model(tmp_path):
    """Catches reading the file whole, and cloning what could stay memory-mapped.

    The bound is a tenth of the file: 150 MB, and the largest tensor there is.
    """
    stated = {"config": json.dumps({"transformer": {"num_layers": CONFIG.num_layers}})}
    path = save_hollow(tmp_path / "wan.safetensors", CONFIG, stated)
    assert 1450 * MIB < path.stat().st_size < 1700 * MIB
    command = [sys.executable, "-c", CHILD, str(path)]
    grown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert int(grown.stdout) < 150 * MIB + 2 * 8960 * 1536

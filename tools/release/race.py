"""Make README's moving picture: the demo's race, as small as a page can take it.

    python3 -m tools.release.race docs/images/race.webp

Runs `demo` as a newcomer does, and keeps of its comparison.mp4 every third frame, three quarters as large. The
seconds in it are those of the machine it was made on.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import av
from PIL import Image

from sdvg_core.cli import main as run_command
from sdvg_core.cli.racing import COMPARISON

EVERY = 3
SHARE = 3 / 4
QUALITY = 40
LAST_SECONDS = 4
"""How long the last frame stays until the picture begins again."""


def write_picture(film: Path, picture: Path) -> None:
    """Write an mp4 as a WebP that moves, and begins again."""
    with av.open(str(film)) as container:
        stream = container.streams.video[0]
        fps = float(stream.average_rate)
        frames = [frame.to_image() for frame in container.decode(stream)]
    kept = [*frames[:-1:EVERY], frames[-1]]
    width, height = (round(SHARE * side) for side in frames[0].size)
    first, *others = (frame.resize((width, height), Image.Resampling.LANCZOS) for frame in kept)
    durations = [round(1000 * EVERY / fps)] * (len(kept) - 1) + [1000 * LAST_SECONDS]
    first.save(picture, save_all=True, append_images=others, duration=durations, loop=0, quality=QUALITY, method=6)


def main() -> None:
    """Make it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        race = Path(folder) / "race"
        if run_command(["demo", "--output", str(race)]):
            parser.exit(1, "the demo did not end\n")
        write_picture(race / COMPARISON, options.picture)
    print(f"{options.picture}: {options.picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

"""Run the README's first cell on a practice Colab, and draw what it shows as docs/cell.svg, a short animation.

`python -m scripts.draw_cell`

The cell runs unchanged, on real images in a simulated Drive; the frames and their pace are those of its progress. Text
and bars are SVG with a style sheet: a few kilobytes, sharp at every size, light or dark like the reader's page, and the
last frame where animation is off.
"""

from __future__ import annotations

import contextlib
import html
import io
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.io.display import Board, panel_text
from colabstage.io.report import COLOURS
from notebooks.practice import zip_digits
from simulated_drive.drive import SimulatedDrive
from tests.support.colab import simulated_colab

if TYPE_CHECKING:
    from colabstage.io.display import Row

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "cell.svg"
_SIDE = 128
_FRAME_S = 0.3
_LAST_S = 4.0
_STILL = 4
_WIDTH, _LINE, _LEFT = 900, 19, 18
_BAR = 130
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">
<style>
text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#1f2933}}
.paper{{fill:#f6f8fa}}.rail{{fill:#d7dce1}}
@media (prefers-color-scheme:dark){{text{{fill:#d7dce1}}.paper{{fill:#161b22}}.rail{{fill:#39414b}}}}
.f{{visibility:hidden;animation:shown {all}s step-end infinite}}
.f:last-of-type{{animation-name:last}}
@keyframes shown{{0%{{visibility:visible}}{part:.3f}%,100%{{visibility:hidden}}}}
@keyframes last{{0%{{visibility:visible}}{end:.3f}%,100%{{visibility:hidden}}}}
@media (prefers-reduced-motion:reduce){{.f{{animation:none}}.f:last-of-type{{visibility:visible}}}}
</style>
<rect class="paper" width="100%" height="100%" rx="8"/>
"""


def read_cell() -> str:
    """Return the first code of the README, without the installation."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[:1]
    return re.sub(r"^%pip.*\n", "", str(code), flags=re.MULTILINE)


def run_cell(code: str) -> tuple[list[tuple[float, tuple[Row, ...]]], str]:
    """Run it; returns the rows of its progress with the seconds after its start, and what it printed."""
    frames: list[tuple[float, tuple[Row, ...]]] = []
    with tempfile.TemporaryDirectory(prefix="colabstage-film-") as folder:
        home = Path(folder)
        drive = SimulatedDrive(home / "account")
        zip_digits(drive.cloud / "MyDrive" / "photos.zip", side=_SIDE)
        places = {
            "/content/": f"{home}/content/",
            "mount_drive()": f"mount_drive({str(home / 'content/drive')!r})",
            "224))": "224), local_dir=fast, progress=board)",
        }
        for written, meant in places.items():
            code = code.replace(written, meant)
        began = time.monotonic()
        board = Board(lambda rows: frames.append((time.monotonic() - began, rows)))
        with simulated_colab(home, drive=drive), contextlib.redirect_stdout(io.StringIO()) as printed:
            began = time.monotonic()
            exec(compile(code, "README.md", "exec"), {"board": board, "fast": home / "fast"})
        frames.append((time.monotonic() - began, board.rows()))
    return frames, printed.getvalue().strip().splitlines()[-1]


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x}" y="{y:.1f}">{html.escape(words, quote=False)}</text>\n'


def _row(row: Row, y: float) -> str:
    """One step: its mark and name, a bar, and what the panel says of it."""
    name, *figures = panel_text([row]).split("  ")
    colour = COLOURS["accent" if row.state == "running" else "ok"]
    drawn = _text(_LEFT, y, name)
    if row.fraction is not None:
        for width, look in ((1.0, 'class="rail"'), (row.fraction, f'fill="{colour}"')):
            drawn += f'<rect x="250" y="{y - 9}" width="{width * _BAR:.0f}" height="9" rx="4" {look}/>\n'
    return drawn + _text(400, y, "   ".join(figures))


def draw(code: str, frames: list[tuple[float, tuple[Row, ...]]], printed: str) -> str:
    """Return the animation."""
    lines = code.strip().splitlines()
    top = (len(lines) + 2.6) * _LINE
    most = max(len(rows) for _, rows in frames)
    height = top + (most + 2) * _LINE
    # At a constant pace; long times without a change are cut.
    staged = frames[:-1]
    began, ended = staged[0][0], staged[-1][0]
    moments = [began + number * _FRAME_S for number in range(-1, int((ended - began) / _FRAME_S) + 2)]
    shown = [next((rows for at, rows in reversed(staged) if at <= moment), ()) for moment in moments]
    shown = [rows for number, rows in enumerate(shown) if number < _STILL or rows != shown[number - _STILL]]
    all_s = len(shown) * _FRAME_S + _LAST_S
    drawn = _HEAD.format(
        width=_WIDTH,
        height=round(height),
        label="The cell at work: it copies a zip from Drive, packs it, publishes that, trains, and prints the loss",
        all=round(all_s, 2),
        part=100 * _FRAME_S / all_s,
        end=100 * _LAST_S / all_s,
    )
    for number, line in enumerate(lines):
        drawn += _text(_LEFT, (number + 1.7) * _LINE, line)
    drawn += f'<rect class="rail" x="{_LEFT}" y="{top - 1.6 * _LINE}" width="{_WIDTH - 2 * _LEFT}" height="1"/>\n'
    for number, rows in enumerate([*shown, frames[-1][1]]):
        delay = number * _FRAME_S - all_s
        drawn += f'<g class="f" style="animation-delay:{delay:.2f}s">\n'
        drawn += "".join(_row(row, top + place * _LINE) for place, row in enumerate(rows))
        if number == len(shown):
            words = f"{printed}   (1,797 images on a simulated Drive; two cores)"
            drawn += _text(_LEFT, top + (most + 0.5) * _LINE, words)
        drawn += "</g>\n"
    return drawn + "</svg>\n"


def main() -> None:
    """Run, draw and write."""
    code = read_cell()
    PICTURE.write_text(draw(code, *run_cell(code)), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

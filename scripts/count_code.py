"""Count the code of the package, and how many modules a newcomer meets when following two calls.

    python -m scripts.count_code

It only prints: a number is a reason to look, not a limit. The walks are traced while they happen. Each function counts
when it is first entered, because that is when a reader meets it; entering another function of an earlier module is a
return. Code that runs during imports (decorators, default values) does not count.
"""

from __future__ import annotations

import ast
import inspect
import io
import statistics
import subprocess
import sys
import tempfile
import threading
import tokenize
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.io.report import Row, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
_BUILD_S, _IMPORT_S, _TRIES = 120.0, 30.0, 5


def count(paths: list[Path]) -> tuple[str, ...]:
    """Return the modules, their lines, the median length of a function, and comments for 100 lines."""
    lines = comments = 0
    lengths = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        lines += len(text.splitlines())
        comments += sum(one.type == tokenize.COMMENT for one in tokenize.generate_tokens(io.StringIO(text).readline))
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        lengths += [(node.end_lineno or 0) - node.lineno + 1 for node in functions]
    median = statistics.median(lengths) if lengths else 0
    return f"{len(paths)}", f"{lines:,}", f"{median:.0f}", f"{100 * comments / max(lines, 1):.1f}"


@dataclass
class Walk:
    """The functions of a package that were entered, each once, by module and in order."""

    package: Path
    """The folder whose modules count."""
    visits: list[str] = field(default_factory=list)
    """The module of each function, in the order in which the calling thread entered them."""
    elsewhere: set[str] = field(default_factory=set)
    """The modules that other threads entered."""
    _seen: set[object] = field(default_factory=set)
    """The code of functions already entered."""

    @property
    def stays(self) -> int:
        """Return how often the calling thread changed to another module for a new function."""
        return sum(one != before for one, before in zip(self.visits, [None, *self.visits], strict=False))

    @property
    def returns(self) -> int:
        """Return how many of these changes led to a module already read."""
        return self.stays - len(set(self.visits))

    def _module_of(self, frame: FrameType) -> str | None:
        """Return the module of a function that is entered for the first time; `None` for everything else."""
        code = frame.f_code
        # A class body is not a function, and unnamed code belongs to the function entered before it.
        passed_by = not code.co_flags & inspect.CO_OPTIMIZED or code.co_name.startswith("<")
        if code in self._seen or passed_by or not code.co_filename.startswith(str(self.package)):
            return None
        self._seen.add(code)
        return Path(code.co_filename).relative_to(self.package).with_suffix("").as_posix()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the functions that this thread, and threads started meanwhile, enter."""

        # By thread, because each imports for itself.
        imports = threading.local()

        def is_step(frame: FrameType, event: str) -> bool:
            """Tell whether a function is entered other than by an import."""
            depth: int = getattr(imports, "depth", 0)
            if frame.f_code.co_name == "<module>":
                # A recording may begin inside a module, such as a script, and then sees only its end.
                imports.depth = max(0, depth + {"call": 1, "return": -1}.get(event, 0))
                return False
            return event == "call" and not depth

        def here(frame: FrameType, event: str, _argument: object) -> None:
            if is_step(frame, event) and (module := self._module_of(frame)):
                self.visits.append(module)

        def there(frame: FrameType, event: str, _argument: object) -> None:
            if is_step(frame, event) and (module := self._module_of(frame)):
                self.elsewhere.add(module)

        threading.setprofile(there)
        sys.setprofile(here)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def walk(package: Path, work: Callable[[], object]) -> Walk:
    """Return what `work` enters of a package."""
    found = Walk(package)
    with found.recorded():
        work()
    return found


def two_walks(folder: Path) -> dict[str, Walk]:
    """Return what `stage_dataset` enters for a zip of images, and `make_loader` up to its first batch."""
    import colabstage

    package = Path(colabstage.__file__).parent
    archive = folder / "pictures.zip"
    _write_pictures(archive)
    staged: list[colabstage.StagedDataset] = []

    def stage() -> None:
        staged.append(
            colabstage.stage_dataset(
                archive, image_size=(16, 16), local_dir=folder / "local", cache_dir=None, progress=False
            )
        )

    staging = walk(package, stage)
    train = staged[0]["train"]
    loading = walk(package, lambda: next(iter(colabstage.make_loader(train, batch_size=8))))
    return {"stage_dataset on a zip": staging, "make_loader to its first batch": loading}


def wheel_bytes(folder: Path) -> int:
    """Build colabstage's wheel in a folder, and return its length in bytes."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=_BUILD_S)
    (wheel,) = folder.glob("colabstage-*.whl")
    return wheel.stat().st_size


def import_s() -> float:
    """Return the seconds that `import colabstage` takes in a new process: the minimum of several tries."""
    # The minimum, because other work on the machine can only add to it.
    code = "import time; began = time.perf_counter(); import colabstage; print(time.perf_counter() - began)"
    command = [sys.executable, "-c", code]
    tries = (
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_IMPORT_S, cwd=ROOT)
        for _ in range(_TRIES)
    )
    return min(float(one.stdout) for one in tries)


def _write_pictures(archive: Path) -> None:
    """Write a zip of two classes of small photographs."""
    import zipfile

    from PIL import Image

    with zipfile.ZipFile(archive, "w") as made:
        for number in range(32):
            picture = io.BytesIO()
            Image.new("RGB", (32, 32), (number * 7, 90, 30)).save(picture, "JPEG")
            made.writestr(f"{'cats' if number % 2 else 'dogs'}/{number:02}.jpg", picture.getvalue())


def print_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows below their heads, with all but the first column at the right."""
    print(Table(tuple(map(Row, rows)), head, numbers=frozenset(range(1, len(head)))))


def main() -> int:
    """Print all of it."""
    package = ROOT / "colabstage"
    parts = {folder.name: sorted(folder.rglob("*.py")) for folder in sorted(package.iterdir()) if folder.is_dir()}
    rows = [(name, *count(paths)) for name, paths in parts.items() if paths]
    rows.append(("all", *count(sorted(package.rglob("*.py")))))
    print_table(("package", "modules", "lines", "of a function", "comments /100"), rows)
    with tempfile.TemporaryDirectory() as made:
        walks = two_walks(Path(made))
        wheel = wheel_bytes(Path(made))
    cells = [
        (name, f"{len({*one.visits, *one.elsewhere})}", f"{one.stays}", f"{one.returns}") for name, one in walks.items()
    ]
    print()
    print_table(("walk", "modules", "stays", "returns"), cells)
    print(f"\nwheel {wheel / 1000:,.0f} kB; import colabstage {1000 * import_s():.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())

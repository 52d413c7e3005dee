"""Count the code: its modules, their contents, and how many modules a newcomer meets when following two calls.

`count_code.py` counts colabstage, and each of its packages; `count_code.py PATH` counts another package, for
comparison. It only prints: a number is a reason to look, not a limit. For colabstage it also prints the size of the
wheel and the time of the import.

The walks are traced while they happen. Each function counts when it is first entered, because that is when a reader
meets it; entering another function of an earlier module is a return. Code that runs during imports (decorators, default
values) does not count.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
SHORT_LINES = 60
_BUILD_S, _IMPORT_S, _TRIES = 120.0, 30.0, 5
# Bases and decorators that make a class a record or an interface.
_RECORDS = {"dataclass", "NamedTuple", "Protocol"}
# Imperatives at the beginning of docstrings. A list is enough, because most other beginnings are "A …", "The …", "What
# …".
_VERBS = frozenset(
    """
    abandon abort accept account acquire act add adjust adopt advance agree align allocate allow answer append apply
    approve arrange ascertain ask assemble assert assign attach attempt augment average avoid await balance batch
    begin bind block bring build bundle cache calculate call cancel cast catch change check choose clamp claim classify
    clean clear clone close collect combine come compare compile complete compute concatenate configure confirm connect
    consider construct consume contain continue control convert copy correct count cover create crop cut deal decide
    declare decode decompress decorate define delay delegate delete deliver deny deprecate derive describe
    deserialize destroy detach detect determine discard dispatch display distribute divide do dot download draw drive
    drop dump emit empty emulate enable encode encrypt end enforce enqueue ensure enter enumerate escape estimate
    evaluate examine exchange exclude execute exit expand expect explain export expose extend extract fail feed
    fetch fill filter finalize find finish fit fix flatten flip flush fold follow force forget fork format forward free
    freeze gather generate get give go grant group grow guard guess halt hand handle hash have help hide hold identify
    ignore imitate implement import include increase index indicate infer inform init initialise initialize initiate
    insert inspect install instantiate interpolate interpret interrupt invoke iterate join judge keep kill know label
    launch leave lend let limit link list listen load locate lock log look loop lower make map mark mask match
    materialize measure merge mirror modify mount move multiply name narrow negotiate normalize note notice notify
    number obtain offer omit open order override overwrite pack pad parse partition pass patch pause peek perform pick
    plan play plot populate post predict prefetch prepare prepend preserve press prevent print process produce promise
    prompt prove provide prune publish pull put query queue quote raise rank reach read rearrange rebuild recall
    receive record recover reduce refer refill refresh refuse register reject release reload remember remove rename
    render repeat replace report represent request require rescale reserve reset resize resolve respond restart restore
    resume retrieve retry return reuse reverse rewrite rotate round run sample satisfy save say scale scan schedule
    seal search seek select send separate serialize serve set share shift show shuffle shut sign signal simulate skip
    sleep slice smooth solve sort specify speed spell split spread stack stage stamp stand start state stay step stop
    store stream strip submit subtract suggest sum summarize supply support swap sweep switch sync take tell terminate
    test throw tidy time trace track train transfer transform translate traverse treat trigger trim truncate try tune
    turn unlink unlock unmount unpack unpickle untie update upgrade upload use validate verify visit wait walk want
    warm warn watch widen work wrap write yield zip
    """.split()  # noqa: SIM905 - three hundred lines otherwise
)


@dataclass
class Counts:
    """The counts of some modules."""

    modules: int = 0
    """How many files of Python."""
    lines: int = 0
    """All their lines, including blank ones and comments."""
    code_lines: int = 0
    """Lines of code, without docstrings."""
    comments: int = 0
    """Lines with a comment on them."""
    short: int = 0
    """Modules under 60 lines."""
    docstrings: int = 0
    """Docstrings of functions and methods."""
    begin_with_verb: int = 0
    """Those of them whose first word is an imperative."""
    called_once: int = 0
    """Private module functions that are used in only one place."""
    records: int = 0
    """Dataclasses, named tuples and protocols."""
    names: Counter[str] = field(default_factory=Counter)
    """Top-level functions and classes, each with the number of modules that define it."""

    def add(self, other: Counts) -> None:
        """Add the counts of further modules."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def row(self) -> tuple[str, ...]:
        """Return the cells of a line of the table."""
        thousands = max(self.lines, 1) / 1000
        return (
            f"{self.modules}",
            f"{thousands:.1f}",
            f"{self.lines / max(self.modules, 1):.0f}",
            f"{self.called_once / thousands:.1f}",
            f"{self.records / thousands:.1f}",
            f"{100 * self.comments / max(self.code_lines, 1):.1f}",
            f"{100 * self.begin_with_verb / max(self.docstrings, 1):.0f} %",
            f"{sum(modules > 1 for modules in self.names.values())}",
            f"{self.short}",
        )


COLUMNS = (
    "modules",
    "thousand lines",
    "lines of a module",
    "private, one caller /k",
    "records /k",
    "comments /100 code",
    "verb first",
    "names twice",
    f"under {SHORT_LINES} lines",
)


def count_module(text: str) -> Counts:
    """Count one module."""
    tree = ast.parse(text)
    # Classes and modules are things, so theirs begin with a noun.
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    first_words = [re.match(r"\W*(\w+)", said) for node in functions if (said := ast.get_docstring(node))]
    code, comments = _code_and_comments(text, tree)
    lines = len(text.splitlines())
    defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return Counts(
        modules=1,
        lines=lines,
        code_lines=code,
        comments=comments,
        short=lines < SHORT_LINES,
        docstrings=len(first_words),
        begin_with_verb=sum(word is not None and word[1].lower() in _VERBS for word in first_words),
        called_once=_called_once(tree),
        records=sum(isinstance(node, ast.ClassDef) and _is_record(node) for node in ast.walk(tree)),
        names=Counter({node.name for node in tree.body if isinstance(node, defined)}),
    )


def _code_and_comments(text: str, tree: ast.Module) -> tuple[int, int]:
    """Return how many lines have code, and how many a comment; strings that are statements are neither."""
    prose: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    silent = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in silent:
            code |= {*range(token.start[0], token.end[0] + 1)}
    return len(code - prose), len(comments)


def _called_once(tree: ast.Module) -> int:
    """Return how many private functions of a module are used in exactly one place outside themselves."""
    private = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(r"_(?!_)", node.name)
    ]
    used = _names_used(tree)
    # A recursive call does not count as a use.
    return sum(used[function.name] - _names_used(function)[function.name] == 1 for function in private)


def _names_used(tree: ast.AST) -> Counter[str]:
    """Return how often each name is used."""
    return Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def _is_record(node: ast.ClassDef) -> bool:
    """Tell whether a class is a dataclass, a named tuple or a protocol."""
    said = [*node.decorator_list, *node.bases]
    parts = (part for one in said for part in ast.walk(one))
    return any(
        isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part).split(".")[-1] in _RECORDS for part in parts
    )


def count_package(folder: Path) -> tuple[Counts, dict[str, Counts]]:
    """Return the counts of a whole package, and of each of its sub-packages; its own modules are `(root)`."""
    whole, parts = Counts(), dict[str, Counts]()
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder).parts
        counts = count_module(path.read_text(encoding="utf-8"))
        whole.add(counts)
        parts.setdefault(inside[0] if len(inside) > 1 else "(root)", Counts()).add(counts)
    return whole, parts


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
    def modules(self) -> set[str]:
        """Return the modules that were entered, whichever thread it was."""
        return {*self.visits, *self.elsewhere}

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


def print_table(head: tuple[str, ...], rows: dict[str, tuple[str, ...]]) -> None:
    """Print rows of cells under their heads, aligned."""
    first = max(map(len, rows))
    widths = [max(map(len, column)) for column in zip(head, *rows.values(), strict=True)]
    for name, cells in {"": head, **rows}.items():
        print(name.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)), sep="  ")


def main(arguments: list[str]) -> int:
    """Print the counts of colabstage and its walks, or the counts of the package in the folder that is named."""
    folder = Path(arguments[0]) if arguments else ROOT / "colabstage"
    whole, parts = count_package(folder)
    if not whole.modules:
        print(f"There is no Python in {folder}: name the folder of a package.", file=sys.stderr)
        return 1
    rows = {name: counts.row() for name, counts in sorted(parts.items())}
    print_table(COLUMNS, {**rows, folder.resolve().name: whole.row()})
    if arguments:
        return 0
    with tempfile.TemporaryDirectory() as made:
        walks = two_walks(Path(made))
        wheel = wheel_bytes(Path(made))
    cells: dict[str, tuple[str, ...]] = {
        name: (f"{len(one.modules)}", f"{len(set(one.visits))}", f"{one.stays}", f"{one.returns}")
        for name, one in walks.items()
    }
    print()
    print_table(("modules", "of them in the caller's thread", "stays", "returns"), cells)
    print(f"\nwheel {wheel / 1000:,.0f} kB; import colabstage {1000 * import_s():.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

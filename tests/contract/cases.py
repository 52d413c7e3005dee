"""The public functions that change names on a disk, each a case of the matrices: a call on small data, and what a
reader may see at any time. A case is a line in `CASES`."""

import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import h5py

from colabstage import extract_archive, fetch_files, pack_dataset, publish_file, restore_file, stage_dataset
from colabstage.errors import ColabstageError, SourceAccessError, SourceNotFoundError, TargetExistsError
from tests.support.archives import stored_zip, write_archive
from tests.support.images import in_classes, make_tree, read_tree
from tests.support.invariants import contents

Call = Callable[[Path], object]
# What a reader sees; each entry is whole or not by itself.
Found = dict[str, object]

COUNT = 4
THEIRS = ["mine", "out/mine.txt"]


def stage(home: Path, name: str = "photos", **options: Any) -> Any:
    """Stage the folder, or an archive, with a cache. What is used though its source does not answer, with a note, is no
    success."""
    places = {"local_dir": home / "out/local", "cache_dir": home / "out/cache", "progress": False}
    data = stage_dataset(home / "mine" / name, **{**places, **options})
    unknown = "Whether the source has changed is not known"
    if unreached := [note for note in data.report.notes if note.startswith(unknown)]:
        raise SourceAccessError(unreached[0])
    return data


def stage_streaming(home: Path) -> None:
    """Stage the zip in the background, and wait for it."""
    stage_dataset(
        home / "mine/photos.zip", local_dir=home / "out/local", cache_dir=None, streaming=True, progress=False
    ).wait(60, progress=False)


def purge(home: Path) -> None:
    """Remove all datasets, as the command line does."""
    (command,) = metadata.entry_points(group="console_scripts", name="colabstage")
    places = ["--local-dir", str(home / "out/local"), "--cache-dir", str(home / "out/cache")]
    sys.argv = ["colabstage", "cache", "purge", "--all", "--yes", *places]
    try:
        command.load()()
    except SystemExit as ended:
        if ended.code:
            msg = f"exit code {ended.code}"
            raise ColabstageError(msg) from None


def pack(home: Path, **options: Any) -> None:
    """Pack the folder."""
    pack_dataset(home / "mine/photos", home / "out/it.h5", progress=False, **options)


def pack_again(home: Path, **options: Any) -> None:
    """Pack, and replace a finished pack, which is never replaced unasked."""
    try:
        pack(home, **options)
    except TargetExistsError:
        pack(home, overwrite=True, **options)


def append(home: Path) -> None:
    """Append the folder to what was packed of it."""
    pack_dataset(home / "mine/photos", append_to=home / "out/it.h5", progress=False)


def append_again(home: Path) -> None:
    """Append; first undo an append that already happened."""
    is_second = (home / "out/it-append-00001.h5.json").exists()
    append(home)
    for path in (home / "out").glob("it-append-00002.h5*") if is_second else ():
        path.unlink()


def publish(home: Path) -> None:
    """Publish the file."""
    publish_file(home / "mine/model.bin", home / "out/model.bin", progress=False)


def fetch(home: Path, name: str) -> None:
    """Fetch one of the user's files or folders. It is no success if the report says that the older copy stays."""
    report = fetch_files(home / "mine" / name, f"{home}/out/it", overwrite=True, progress=False)
    if others := [note for note in report.notes if not note.endswith(" unchanged.")]:
        raise SourceAccessError(others[0])


def fetch_url(home: Path) -> None:
    """Fetch a file from a web server."""
    fetch_files((home.parent / "address").read_text(encoding="utf-8"), f"{home}/out/it", progress=False)


def extract(home: Path, name: str) -> None:
    """Extract one of the user's archives."""
    extract_archive(home / "mine" / name, home / "out/it", overwrite=True, progress=False)


def restore(home: Path) -> None:
    """Restore what was published."""
    restore_file(home / "out/model.bin", f"{home}/out/it", overwrite=True, progress=False)


def change(home: Path) -> None:
    """Give the user newer data."""
    (home / "mine/model.bin").write_bytes(b"newer" * 1000)


def forget(home: Path) -> None:
    """Lose everything on this machine."""
    shutil.rmtree(home / "out/local")


def put_other(home: Path) -> None:
    """Put another file at the target."""
    (home / "out/it").write_text("other", encoding="utf-8")


def whole(home: Path) -> Found:
    """What is under the requested name; a folder counts as one thing."""
    it = home / "out/it"
    return {"it": contents(it) if it.is_dir() else it.read_bytes() if it.exists() else None}


def newest(home: Path) -> Found:
    """What `restore` gets of the published file."""
    with tempfile.TemporaryDirectory() as elsewhere:
        try:
            restore_file(home / "out/model.bin", f"{elsewhere}/it", progress=False)
        except SourceNotFoundError:
            return {}
        return {"model.bin": (Path(elsewhere) / "it").read_bytes()}


def rows(home: Path) -> Found:
    """What a pack, or all its shards together, is read as; nothing if it is refused."""
    import pytest  # late, because children that are killed import this module

    # Not before, because without torch a process is forked in half the time.
    pytest.importorskip("torch", reason="needs torch: pip install -c constraints.txt torch")
    from colabstage import dataset_h5

    try:
        dataset = dataset_h5(home / "out/it*.h5")
    except ColabstageError:
        return {}
    return {"it": [(x.tobytes(), int(y)) for x, y in (dataset[row] for row in range(len(dataset)))]}


def packs(home: Path, below: str = "") -> Found:
    """What the packs of a dataset hold, by path."""
    found: Found = {}
    for path in (home / "out" / below).rglob("*.h5"):
        name = path.relative_to(home / "out")
        if not any(part.startswith(".") for part in name.parts):
            with h5py.File(path) as file:
                found[name.parts[0]] = [*file["key_train"].asstr()[:], file["X_train"][()].tobytes()]
    return found


def plain(home: Path) -> Found:
    """The plain files of a dataset."""
    return {path.name: contents(path) for path in (home / "out/local").glob("[!.]*/files")}


class Case(NamedTuple):
    """One call: the state before it, and what a reader may see at any time."""

    call: Call
    found: Callable[[Path], Found] = whole
    before: tuple[Call, ...] = ()
    """Calls before it."""
    older: bool = False
    """Whether those used other data of the user's."""
    never_gone: bool = False
    """Whether a reader always sees either the older or the newer state, even during the exchange."""
    again: Call | None = None
    """The call after a kill, if it is another one."""
    optional: frozenset[str] = frozenset()
    """What may be missing after a success, because the report names it as missing."""


CACHE = frozenset({"cache"})
fetch_one, fetch_all = partial(fetch, name="model.bin"), partial(fetch, name="photos")
stage_zip, extract_zip = partial(stage, name="photos.zip"), partial(extract, name="photos.zip")
CASES = {
    "fetch a file": Case(fetch_one),
    "fetch a file over an older one": Case(fetch_one, before=(fetch_one,), older=True, never_gone=True),
    "fetch a folder": Case(fetch_all),
    "fetch a folder over an older one": Case(fetch_all, before=(fetch_all,), older=True, never_gone=True),
    "fetch an address": Case(fetch_url),
    "extract a zip": Case(extract_zip),
    "extract a tar": Case(partial(extract, name="photos.tar.gz")),
    "extract over an older one": Case(extract_zip, before=(extract_zip,), older=True, never_gone=True),
    "pack": Case(pack, rows, again=pack_again),
    "pack over an older one": Case(partial(pack, overwrite=True), rows, before=(pack,), older=True),
    "append to a pack": Case(append, rows, before=(pack,), again=append_again, never_gone=True),
    "pack shards": Case(partial(pack, shards=2), rows, again=partial(pack_again, shards=2)),
    "stage": Case(stage, packs, optional=CACHE),
    "stage a changed source": Case(stage, packs, before=(stage,), older=True, optional=CACHE),
    "stage from the cache": Case(stage, packs, before=(stage, forget)),
    "stage by the rows of another pack": Case(
        partial(stage_zip, splits=0.5), partial(packs, below="local"), before=(stage_zip, forget)
    ),
    "stage plain files": Case(partial(stage, keep="files", cache_dir=None), plain),
    "stage streaming": Case(stage_streaming, packs),
    "publish": Case(publish, newest),
    "publish over an older one": Case(publish, newest, before=(publish,), older=True, never_gone=True),
    "publish a third version": Case(publish, newest, before=(publish, change, publish), older=True, never_gone=True),
    "restore": Case(restore, before=(publish,)),
    "restore over another file": Case(restore, before=(publish, put_other), never_gone=True),
    "purge": Case(purge, packs, before=(stage,)),
}  # fmt: skip


def run(name: str, home: str, what: str = "call") -> None:
    """Make the call of a case, the calls before it, or the one after a kill."""
    case, place = CASES[name], Path(home)
    calls = {"call": [case.call], "before": case.before, "again": [case.again or case.call]}
    for call in calls[what]:
        call(place)


def make_mine(home: Path, first: int = 0) -> None:
    """Write the user's files: the same set in several forms, and a file."""
    shutil.rmtree(home / "mine", ignore_errors=True)
    mine = make_tree(home / "mine", {"model.bin": bytes([first]) * 5000})
    make_tree(mine / "photos", in_classes(COUNT, first=first))
    pack_archives(mine)


def pack_archives(mine: Path) -> None:
    """Write the archives of the photos."""
    photos = read_tree(mine / "photos")
    (mine / "photos.zip").write_bytes(stored_zip(photos))
    write_archive(mine / "photos.tar.gz", photos)


def make_home(home: Path, case: Case, address: str, run_before: Callable[[], object]) -> None:
    """Set up everything that exists before the case's call."""
    make_tree(home, {"out/mine.txt": "hours of work", "../address": address})
    make_mine(home, first=100 if case.older else 0)
    run_before()
    make_mine(home)


def rewrite(mine: str) -> None:
    """Rewrite the user's data in place, keeping names and sizes."""
    folder = Path(mine)
    (folder / "model.bin").write_bytes(bytes([77]) * 5000)
    make_tree(folder / "photos", {"cat/000.png": 77})
    pack_archives(folder)

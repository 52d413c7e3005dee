"""What a disk or a mount answers inside a public function leaves it as a typed error, whichever small call it was."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import fetch_files, pack_dataset, publish_file, stage_dataset
from colabstage.errors import (
    ColabstageError,
    DriveDisconnectedError,
    NotEnoughSpaceError,
    SourceReadError,
    TargetExistsError,
    TargetNotWritableError,
)
from tests.support.faulty_mount import FaultyMount, faulty_mount
from tests.support.verbs import SIZE, VERBS, Places, Verb, make_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WRITERS = [verb for verb in VERBS if verb.writes]
# A disk without room, an account without room, and a disk that fails.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_OF_MOUNTS = (errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.ENOTCONN, errno.EACCES)


class _OneFault:
    """Lets one opening, creation or renaming below a folder fail; a hook of Python's cannot be taken away again."""

    def __init__(self) -> None:
        self._below = ""
        self._left = -1
        self._number = 0
        sys.addaudithook(self._look)

    def set(self, below: Path, count: int, number: int) -> None:
        self._below, self._left, self._number = str(below), count, number

    @property
    def came(self) -> bool:
        """Whether there was such a call; ends the fault."""
        came, self._below = self._left <= 0, ""
        return came

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._below or event not in {"open", "os.mkdir", "os.rename", "os.link"}:
            return
        written = event != "open" or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if written and str(arguments[0]).startswith(self._below):
            self._left -= 1
            if self._left == 0:
                raise OSError(self._number, os.strerror(self._number), str(arguments[0]))


@pytest.fixture(scope="module")
def one_fault() -> _OneFault:
    """What lets a call of the system fail."""
    return _OneFault()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all verbs read."""
    folder = tmp_path_factory.mktemp("source")
    make_source(folder)
    return folder


def _run(verb: Verb, given: Places) -> str:
    """Call a verb; return the name of its typed error, or "" where it works. Any other error is the test's."""
    if verb.needs:
        pytest.importorskip(verb.needs, reason="needs torch: pip install torch")
    try:
        verb.call(given)
    except ColabstageError as error:
        return type(error).__name__
    return ""


@pytest.mark.parametrize("verb", WRITERS, ids=str)
def test_a_small_call_that_fails_is_a_typed_error(
    tmp_path: Path, source: Path, one_fault: _OneFault, verb: Verb
) -> None:
    """Whichever record, folder or renaming it is; and the same call works when there is room again."""
    count, failed = 0, 0
    while True:
        count += 1
        target = tmp_path / str(count)
        target.mkdir()
        one_fault.set(target, count, _FULL[count % len(_FULL)])
        try:
            ended = _run(verb, Places(source, target))
        finally:
            came = one_fault.came
        if not came:
            break
        if ended:
            failed += 1
            assert _run(verb, Places(source, target)) == ""
        shutil.rmtree(target)
    assert failed >= 2


@pytest.fixture(scope="module")
def mounted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultyMount, Path]]:
    """A mount with the source and an empty `target`, and the folder behind it."""
    folder = tmp_path_factory.mktemp("mounted")
    root = folder / "root"
    shutil.copytree(source, root / "source")
    (root / "target").mkdir()
    with faulty_mount(root, folder / "mount") as mount:
        yield mount, root


@pytest.mark.fuse
@pytest.mark.parametrize("operation", ["getattr", "readdir", "open", "create", "mkdir", "rename", "statfs"])
@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_a_mount_that_fails_is_a_typed_error(
    tmp_path: Path, source: Path, mounted: tuple[FaultyMount, Path], verb: Verb, operation: str
) -> None:
    """At the target, and at the source: for good, or from the second call on."""
    mount, root = mounted
    turn = VERBS.index(verb)
    for number, side in enumerate(("target", "source")):
        if (side == "target" and not verb.writes) or (side == "source" and operation in {"create", "mkdir", "rename"}):
            continue
        elsewhere = tmp_path / side
        elsewhere.mkdir()
        given = Places(source, mount.place / side) if side == "target" else Places(mount.place / side, elsewhere)
        mount.fail(operation, _OF_MOUNTS[(turn + number) % len(_OF_MOUNTS)], below=f"/{side}/", first=1 + turn % 2)
        try:
            _run(verb, given)
        finally:
            mount.heal()
            for left in (root / "target").iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("operation", "number", "side", "kind"),
    [
        ("create", errno.ENOSPC, "target", NotEnoughSpaceError),
        ("rename", errno.EDQUOT, "target", NotEnoughSpaceError),
        ("write", errno.ENOSPC, "target", NotEnoughSpaceError),
        ("fsync", errno.EIO, "target", TargetNotWritableError),
        ("readdir", errno.EACCES, "target", TargetNotWritableError),
        ("readdir", errno.ESTALE, "target", TargetNotWritableError),
        ("open", errno.EACCES, "source", SourceReadError),
        ("read", errno.ETIMEDOUT, "source", SourceReadError),
        ("readdir", errno.ENOTCONN, "target", DriveDisconnectedError),
        ("open", errno.ENOTCONN, "source", DriveDisconnectedError),
    ],
)
@pytest.mark.parametrize("call", ["pack_dataset", "extract_archive", "fetch_files"])
def test_the_error_fits_what_failed_and_where(
    tmp_path: Path,
    source: Path,
    mounted: tuple[FaultyMount, Path],
    operation: str,
    number: int,
    side: str,
    kind: type[Exception],
    call: str,
) -> None:
    """No room, no right, gone, dead; what is read and what is written."""
    mount, root = mounted
    verb = next(
        verb
        for verb in VERBS
        if verb.name == {"pack_dataset": "pack zip", "extract_archive": "extract"}.get(call, "fetch file")
    )
    given = Places(source, mount.place / "target") if side == "target" else Places(mount.place / "source", tmp_path)
    mount.fail(operation, number, below=f"/{side}")
    try:
        with pytest.raises(kind) as caught:
            verb.call(given)
    finally:
        mount.heal()
        for left in (root / "target").iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    assert str(mount.place) in str(caught.value)


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("gone", "left"),
    [
        (["model.bin.json"], "2"),  # nothing vouches for the file any more, so it stays
        (["model.bin.previous.json"], "2"),
        (["model.bin.previous", "model.bin.previous.json"], "3"),
        (["model.bin"], "3"),
        (["model.bin", "model.bin.json", "model.bin.previous", "model.bin.previous.json"], "3"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else None,
)
def test_a_mount_that_still_shows_what_is_gone(tmp_path: Path, gone: list[str], left: str) -> None:
    """What another machine has removed is listed for a while: until then a typed error, and then as without a mount."""
    file, root = tmp_path / "model.bin", tmp_path / "root"
    root.mkdir()
    with faulty_mount(root, tmp_path / "mount", subtype="drive", remembers_s=1.0) as mount:
        for version in "12":
            file.write_text(version * 9000)
            publish_file(file, mount.place / "model.bin", progress=False)
        for entry in mount.place.iterdir():
            entry.stat()
        for name in gone:
            (root / name).unlink()
        file.write_text("3" * 9000)
        with suppress(ColabstageError):
            publish_file(file, mount.place / "model.bin", progress=False)
        time.sleep(1.2)  # until the kernel has forgotten it
        with pytest.raises(TargetExistsError) if left == "2" else nullcontext():
            publish_file(file, mount.place / "model.bin", progress=False)
        assert (root / "model.bin").read_text() == left * 9000


class _Failing:
    """A progress display whose own code fails; as `Progress`."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def step(self, name: str, *, total: int | None, unit: str) -> _Failing:
        return self

    def advance(self, amount: int = 1) -> None:
        raise self._error

    def __enter__(self) -> _Failing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.ENOTCONN, errno.EACCES])
@pytest.mark.parametrize(
    "call",
    [
        lambda source, target, shown: stage_dataset(
            source / "images", local_dir=target, cache_dir=None, image_size=SIZE, progress=shown
        ),
        lambda source, target, shown: pack_dataset(source / "images", target / "p.h5", image_size=SIZE, progress=shown),
        lambda source, target, shown: fetch_files(source / "images.zip", target / "a.zip", progress=shown),
        lambda source, target, shown: publish_file(source / "model.bin", target / "m.bin", progress=shown),
    ],
    ids=["stage_dataset", "pack_dataset", "fetch_files", "publish_file"],
)
def test_what_the_callers_code_raises_stays_as_it_is(
    tmp_path: Path, source: Path, call: Callable[[Path, Path, Any], object], number: int
) -> None:
    """The log of a progress display is on a full disk of its own: that is not the dataset's disk."""
    error = OSError(number, os.strerror(number), "/elsewhere/progress.log")
    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as caught:
        call(source, tmp_path, _Failing(error))
    assert not isinstance(caught.value, ColabstageError)
    assert caught.value.filename == error.filename

"""Whatever is done to a source, and wherever a call dies: what is served is what the source holds."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from colabstage.errors import TargetExistsError
from colabstage.h5 import manifest
from colabstage.sources.fetching import fetch_files
from colabstage.stage import record as local
from colabstage.stage.run import stage_dataset

NAMES = [f"{kind}/{number}.bmp" for kind in "ab" for number in range(3)]
State = dict[str, int]


class KilledError(BaseException):
    """Stands in for a signal: nothing catches it as an error."""


def picture(value: int) -> bytes:
    """An image that no other number gives; all have one length."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(buffer, "BMP")
    return buffer.getvalue()


def shown(data: bytes) -> int:
    """The number of an image."""
    return int(np.asarray(Image.open(io.BytesIO(data))).flat[0])


def write(root: Path, name: str, value: int) -> None:
    """Put a file in its place, or write it anew."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(picture(value))


def make(root: Path, state: State, *, archive: bool) -> None:
    """Make the source be in a state, changing only what differs: by writing anew, adding, removing."""
    if archive:
        place = root / "source.zip"
        with zipfile.ZipFile(f"{place}.new", "w") as zipped:
            for name, value in sorted(state.items()):
                zipped.writestr(zipfile.ZipInfo(name), picture(value))
        os.replace(f"{place}.new", place)  # noqa: PTH105
        return
    folder = root / "source"
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        there = (folder / name).is_file()
        if name not in state and there:
            (folder / name).unlink()
        elif name in state and not (there and (folder / name).read_bytes() == picture(state[name])):
            write(folder, name, state[name])


def held(pack: Path) -> State:
    """What a pack holds, by the name of each row."""
    with h5py.File(pack) as file:
        return {key.decode(): int(x.flat[0]) for key, x in zip(file["key_train"][()], file["X_train"], strict=True)}


def brought(folder: Path) -> State:
    """What plain files hold."""
    return {str(path.relative_to(folder)): shown(path.read_bytes()) for path in folder.rglob("*.bmp")}


STATES = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), min_size=2).filter(
    lambda state: {name[0] for name in state} == {"a", "b"}
)
# What somebody, or a disk, does to what colabstage has made; where a call may die, by how often a record or a manifest
# has been written.
CALLS = st.tuples(
    st.sampled_from([None, None, None, "here/*/*.h5", "cache/*.h5", "here/*/*.h5.json", "here/*/stage.json"]),
    st.sampled_from(["pack", "files", "both", "fetch"]),
    st.sampled_from(["fast", "full"]),
    st.none() | st.integers(0, 2),
)


def call(source: Path, root: Path, keep: Any, verify: Any) -> State:
    """One call; what it serves."""
    if keep == "fetch":
        fetch_files(source, root / "fetched", verify=verify, progress=False)
        if source.suffix == ".zip":
            with zipfile.ZipFile(root / "fetched") as zipped:
                return {name: shown(zipped.read(name)) for name in zipped.namelist()}
        return brought(root / "fetched")
    places: dict[str, Any] = {"local_dir": root / "here", "cache_dir": root / "cache"}
    try:
        staged = stage_dataset(source, keep=keep, verify=verify, progress=False, **places)
    except TargetExistsError as error:
        # What a manifest that was spoilt stands beside may be somebody's: the error names it, and says to delete it.
        damaged = [path for path in root.glob("here/*/*.h5*") if path.name in str(error)]
        if not damaged:
            raise
        for path in damaged:
            path.unlink()
        staged = stage_dataset(source, keep=keep, verify=verify, progress=False, **places)
    if staged.files is not None:
        files = brought(staged.files)
        if staged.info is not None:
            assert held(staged.path) == files
        return files
    return held(staged.path)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    archive=st.booleans(),
    steps=st.lists(st.tuples(STATES, st.lists(CALLS, min_size=1, max_size=3), st.booleans()), min_size=2, max_size=4),
)
def test_what_is_served_is_what_the_source_holds(archive: bool, steps: list[tuple[State, list[Any], bool]]) -> None:
    """Edits that keep every size, files added, removed and swapped, new machines, packs and records that are damaged,
    and calls that die half-way."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        source = root / ("source.zip" if archive else "source")
        for state, calls, new_machine in steps:
            make(root, state, archive=archive)
            if new_machine:
                shutil.rmtree(root / "here", ignore_errors=True)
            for spoilt, keep, verify, dies_after in calls:
                for path in root.glob(spoilt or "nothing"):
                    spoil(path)
                if dies_after is None:
                    assert call(source, root, keep, verify) == state
                else:
                    die_in(source, root, keep, verify, dies_after)


def spoil(path: Path) -> None:
    """Change a byte in the middle of a file, as a disk does: nobody wrote to it, so its time stays."""
    content, found = bytearray(path.read_bytes()), path.stat()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def die_in(source: Path, root: Path, keep: str, verify: str, after: int) -> None:
    """One call that ends at the moment when it would write its next record or manifest; it may well get to its end."""
    left = after
    originals = {module: module.write_json for module in (local, manifest)}

    def dying(path: Path, value: Any) -> None:
        nonlocal left
        if not left:
            raise KilledError
        left -= 1
        originals[local](path, value)

    try:
        for module in originals:
            module.write_json = dying  # type: ignore[attr-defined]
        call(source, root, keep, verify)
    except KilledError:
        pass
    finally:
        for module, original in originals.items():
            module.write_json = original  # type: ignore[attr-defined]

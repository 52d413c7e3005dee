"""Nothing that is not ours, or not as we made it, is removed, emptied or replaced, whatever is called and killed."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from colabstage.diagnose.compare import compare_sources
from colabstage.errors import NotEnoughSpaceError, OptionError, TargetExistsError, TargetNotWritableError
from colabstage.io import ownership, workspace
from colabstage.io.files import make_folder
from colabstage.pack.run import pack_dataset
from colabstage.sources.extract.archive import extract_archive
from colabstage.sources.fetching import fetch_files
from colabstage.stage.publish import previous_path, publish_file, restore_file
from colabstage.stage.purge import list_datasets, purge_datasets
from colabstage.stage.run import stage_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def write(path: Path, text: str) -> Path:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def read(folder: Path) -> dict[str, str]:
    """Everything in a folder, hidden or not; a folder has no text."""
    return {
        str(path.relative_to(folder)): "" if path.is_dir() else path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
    }


def visible(folder: Path) -> list[str]:
    """What a person sees in a folder."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def write_zip(path: Path, files: dict[str, str]) -> Path:
    """An archive."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def publish(path: Path, to: object, **options: Any) -> Path:
    """In silence."""
    return publish_file(path, to, progress=False, **options).path  # type: ignore[arg-type]


def fetch(source: Path, target: object, **options: Any) -> Path:
    """In silence."""
    return fetch_files(source, target, progress=False, **options).path  # type: ignore[arg-type]


class TestPublish:
    """Versions of ours make room, and nothing else."""

    def test_a_link_and_what_it_leads_to_stay(self, tmp_path: Path) -> None:
        """A shortcut on Drive shows as one: it is refused, with the place to publish to instead."""
        best = write(tmp_path / "runs" / "best.pt", "precious")
        (tmp_path / "to").mkdir()
        (tmp_path / "to" / "model.pt").symlink_to(best)
        with pytest.raises(TargetExistsError, match="is a link"):
            publish(write(tmp_path / "model.pt", "new"), tmp_path / "to")
        assert best.read_text() == "precious"
        assert (tmp_path / "to" / "model.pt").is_symlink()

    def test_a_snapshot_by_hard_link_keeps_its_bytes(self, tmp_path: Path) -> None:
        """Two versions later the file that it shared its bytes with is gone, and they are there."""
        for number in range(4):
            publish(write(tmp_path / "model.pt", f"v{number}" * 50), tmp_path / "to" / "model.pt")
            if not number:
                os.link(tmp_path / "to" / "model.pt", tmp_path / "snapshot.pt")
        assert (tmp_path / "snapshot.pt").read_text() == "v0" * 50
        assert visible(tmp_path / "to") == [
            *("model.pt", "model.pt.json", "model.pt.previous", "model.pt.previous.json"),
        ]

    @pytest.mark.parametrize("keep_previous", [True, False])
    def test_somebodys_previous_stays(self, keep_previous: bool, tmp_path: Path) -> None:
        """A file that only has the name of a previous version is no version of ours."""
        mine = write(tmp_path / "to" / "model.pt.previous", "mine")
        first = write(tmp_path / "model.pt", "1")
        report = publish_file(first, tmp_path / "to" / "model.pt", keep_previous=keep_previous, progress=False)
        assert report.previous is None
        with pytest.raises(TargetExistsError, match=r"'.*model\.pt\.previous' is not a version"):
            publish(write(first, "22"), tmp_path / "to" / "model.pt", keep_previous=keep_previous)
        assert (mine.read_text(), (tmp_path / "to" / "model.pt").read_text()) == ("mine", "1")

    @pytest.mark.parametrize("text", ["of another length", "V1"])
    def test_a_version_that_somebody_wrote_to_stays(self, text: str, tmp_path: Path) -> None:
        """Whether its length tells that it was written to, or only its time and bytes."""
        target = publish(write(tmp_path / "model.pt", "v1"), tmp_path / "to" / "model.pt")
        write(target, text)
        later = target.with_name("model.pt.json").stat().st_mtime_ns + 10**9
        os.utime(target, ns=(later, later))
        with pytest.raises(TargetExistsError, match="as it is now"):
            publish(write(tmp_path / "model.pt", "v2"), target)
        assert target.read_text() == text
        assert not previous_path(target).exists()


class TestSlash:
    """A slash at the end means a folder, there or not."""

    def test_publish_and_restore(self, tmp_path: Path) -> None:
        """Three checkpoints into a new folder are three files."""
        for name in ("a.pt", "b.pt", "c.pt"):
            publish(write(tmp_path / name, name), f"{tmp_path}/drive/checkpoints/")
        assert [name for name in visible(tmp_path / "drive" / "checkpoints") if name.endswith(".pt")] == [
            *("a.pt", "b.pt", "c.pt"),
        ]
        restored = restore_file(tmp_path / "drive" / "checkpoints" / "a.pt", f"{tmp_path}/back/", progress=False)
        assert restored.path == tmp_path / "back" / "a.pt"
        assert restored.path.read_text() == "a.pt"

    def test_fetch(self, tmp_path: Path) -> None:
        """A file goes into the folder; a folder becomes it."""
        source = write(tmp_path / "source" / "a.txt", "a")
        assert fetch(source, f"{tmp_path}/files/") == tmp_path / "files" / "a.txt"
        assert fetch(source.parent, f"{tmp_path}/folder/") == tmp_path / "folder"
        assert read(tmp_path / "folder") == {"a.txt": "a"}


class TestFolders:
    """What was put in a place is replaced only while all of it, and nothing else, is there."""

    @pytest.mark.parametrize("mine", [".git/objects", ".ipynb_checkpoints/n.ipynb", "embeddings.npy", "a.gsheet"])
    def test_what_was_added_to_a_fetched_folder_stays(self, mine: str, tmp_path: Path) -> None:
        """Also what no dataset would count as a file of it."""
        fetch(write(tmp_path / "source" / "a.txt", "1").parent, tmp_path / "here")
        write(tmp_path / "here" / mine, "hours of work")
        write(tmp_path / "source" / "b.txt", "2")
        with pytest.raises(TargetExistsError, match=f"not from colabstage: '{mine.partition('/')[0]}"):
            fetch(tmp_path / "source", tmp_path / "here")
        assert (tmp_path / "here" / mine).read_text() == "hours of work"
        (tmp_path / "here" / mine).unlink()
        if "/" in mine:
            (tmp_path / "here" / mine).parent.rmdir()
        fetch(tmp_path / "source", tmp_path / "here")
        assert read(tmp_path / "here") == {"a.txt": "1", "b.txt": "2"}

    def test_an_edited_file_of_an_extracted_folder_stays(self, tmp_path: Path) -> None:
        """Whether the archive has changed or not; a member that was cut to nothing is not here already."""
        archive = write_zip(tmp_path / "a.zip", {"labels.csv": "a,0\n", "x/img.txt": "1"})
        extract_archive(archive, tmp_path / "out", progress=False)
        for name, text in (("labels.csv", "hours of relabelling"), ("x/img.txt", "")):
            write(tmp_path / "out" / name, text)
            for files in ({"labels.csv": "a,0\n", "x/img.txt": "1"}, {"new": "2"}):
                write_zip(archive, files)
                with pytest.raises(TargetExistsError, match=f"changed: .*'{name}'"):
                    extract_archive(archive, tmp_path / "out", progress=False)
            assert (tmp_path / "out" / name).read_text() == text

    @pytest.mark.parametrize("mine", ["embeddings.npy", "c.txt"], ids=["added", "edited"])
    def test_what_was_put_into_plain_files_stays(self, tmp_path: Path, mine: str) -> None:
        """`keep="files"` with a changed source stops before it replaces the folder; once moved away, it goes on."""
        source = write(tmp_path / "source" / "a.txt", "1").parent
        write(source / "c.txt", "3")
        options: dict[str, Any] = {
            "keep": "files",
            "local_dir": tmp_path / "local",
            "cache_dir": None,
            "progress": False,
        }
        files = stage_dataset(source, **options).files
        assert files is not None
        write(files / mine, "hours of work")
        write(source / "b.txt", "2")
        with pytest.raises(TargetExistsError, match=rf"{re.escape(mine)}.*stage again"):
            stage_dataset(source, **options)
        assert read(files) == {"a.txt": "1", "c.txt": "3", mine: "hours of work"}
        (files / mine).rename(tmp_path / mine)
        stage_dataset(source, **options)
        assert read(files) == {"a.txt": "1", "b.txt": "2", "c.txt": "3"}

    def test_purge_keeps_all_of_a_dataset_that_holds_anything_else(self, tmp_path: Path) -> None:
        """What it lists as kept is there, and what it lists as removed is not."""
        source = write(tmp_path / "source" / "a.txt", "1").parent
        local = tmp_path / "local"
        staged = stage_dataset(source, keep="files", local_dir=local, cache_dir=None, progress=False)
        assert staged.files is not None
        mine = write(staged.files / "embeddings.npy", "mine")
        before = read(local)
        report = purge_datasets(list_datasets(local_dir=local, cache_dir=None))
        assert [one.path for one in report.kept] == [staged.files.parent]
        assert "embeddings.npy" in report.reasons[0]
        assert read(local) == before
        mine.unlink()
        assert len(purge_datasets(list_datasets(local_dir=local, cache_dir=None)).removed) == 1
        assert visible(local) == []

    def test_the_source_does_not_go_with_its_target(self, tmp_path: Path) -> None:
        """`overwrite=True` is no licence to remove what is to be read; nothing suggests it either."""
        write(tmp_path / "data" / "sub" / "f", "1")
        archive = write_zip(tmp_path / "data" / "a.zip", {"k": "1"})
        for overwrite in (False, True):
            with pytest.raises(TargetExistsError, match=r"holds the archive.*Choose another target") as raised:
                extract_archive(archive, tmp_path / "data", overwrite=overwrite, progress=False)
            assert "overwrite" not in str(raised.value)
            with pytest.raises(TargetExistsError, match="holds the source"):
                fetch(tmp_path / "data" / "sub", tmp_path / "data", overwrite=overwrite)
            with pytest.raises(TargetExistsError, match="holds the source"):
                fetch(archive, tmp_path / "data", overwrite=overwrite)
        assert visible(tmp_path / "data") == ["a.zip", "sub"]


def snapshot(folder: Path) -> dict[str, bytes]:
    """Everything in a folder, by name, as it is."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestTargetInSource:
    """What is written never becomes a part of what is read, whatever the two are called."""

    @pytest.fixture
    def photos(self, tmp_path: Path) -> Path:
        """Two folders of images, with a link to them, and one from beside them back into them."""
        photos = tmp_path / "photos"
        for name in ("a", "b"):
            (photos / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(photos / name / "1.png")
        (tmp_path / "link").symlink_to("photos")
        (tmp_path / "into").symlink_to(photos / "a")
        return photos

    @pytest.mark.parametrize("where", ["photos/in", "photos/a/b/c", "link/in", "into/in", "x/../photos/in"])
    @pytest.mark.parametrize("source", ["photos", "link", "photos/../photos/"])
    def test_a_target_inside_its_source_is_refused(self, tmp_path: Path, photos: Path, source: str, where: str) -> None:
        """Before anything is written, and with a place that works."""
        read_from, target = f"{tmp_path}/{source}", f"{tmp_path}/{where}"
        before = snapshot(tmp_path)
        for refused in (
            lambda: fetch_files(read_from, target, progress=False),
            lambda: fetch_files([f"{tmp_path}/photos/b", read_from], target, overwrite=True, progress=False),
            lambda: pack_dataset(read_from, f"{target}.h5", progress=False),
            lambda: pack_dataset(read_from, f"{target}.h5", shards=2, overwrite=True, progress=False),
            lambda: compare_sources(read_from, local_dir=target, budget_s=0.1, progress=False),
        ):
            with pytest.raises(OptionError, match="is inside the source"):
                refused()
            assert snapshot(tmp_path) == before

    def test_the_place_that_is_suggested_works(self, tmp_path: Path, photos: Path) -> None:
        """It is taken from the message as it stands there."""
        with pytest.raises(OptionError) as raised:
            fetch_files(photos, photos / "in", progress=False)
        found = re.search(r"for example '(.*)'", str(raised.value))
        assert found is not None
        fetch_files(photos, found[1], progress=False)
        assert snapshot(Path(found[1])) == snapshot(photos)

    def test_a_target_that_its_pattern_fits_is_refused(self, tmp_path: Path, photos: Path) -> None:
        """The next call would fetch what this one made; a pattern that does not fit it takes nothing along."""
        before = snapshot(tmp_path)
        for pattern, target in (("*", "in"), ("*", "a"), ("a*", "a/in"), ("**/*.png", "x.png"), ("?", "c")):
            with pytest.raises(OptionError, match="is inside the source"):
                fetch_files(f"{photos}/{pattern}", photos / target, overwrite=True, progress=False)
            assert snapshot(tmp_path) == before
        fetch_files(f"{photos}/*/1.png", photos / "in", progress=False)
        assert snapshot(photos / "in")

    def test_what_is_appended_is_not_put_into_the_source(self, tmp_path: Path, photos: Path) -> None:
        """The dataset may be there from before."""
        pack_dataset(photos, tmp_path / "set.h5", progress=False)
        for name in ("set.h5", "set.h5.json"):
            (tmp_path / name).rename(photos / name)
        before = snapshot(photos)
        with pytest.raises(OptionError, match="is inside the source"):
            pack_dataset(photos, append_to=photos / "set.h5", progress=False)
        assert snapshot(photos) == before

    def test_a_file_is_not_published_over_itself(self, tmp_path: Path) -> None:
        """Neither by its folder nor by another name of the same file."""
        model = write(tmp_path / "model.pt", "weights")
        (tmp_path / "here").symlink_to(tmp_path)
        (tmp_path / "same.pt").hardlink_to(model)
        before = snapshot(tmp_path)
        for target in (tmp_path, model, f"{tmp_path}/here/", tmp_path / "here" / "model.pt", tmp_path / "same.pt"):
            with pytest.raises(OptionError, match="the very file"):
                publish_file(model, target, progress=False)
            assert snapshot(tmp_path) == before

    def test_a_set_of_shards_is_not_replaced_by_a_pack_of_one_of_them(self, tmp_path: Path, photos: Path) -> None:
        """All shards of the old set would be removed, the one that was read among them."""
        pack_dataset(photos, tmp_path / "set.h5", shards=2, progress=False)
        before = snapshot(tmp_path)
        one, target = tmp_path / "set-00000-of-00002.h5", tmp_path / "set.h5"
        for shards in (2, 3):
            with pytest.raises(OptionError, match="would be replaced by it"):
                pack_dataset(one, target, shards=shards, overwrite=True, progress=False)
            assert snapshot(tmp_path) == before

    def test_what_is_staged_in_its_source_through_a_link_is_no_part_of_it(self, tmp_path: Path, photos: Path) -> None:
        """Neither the files that are kept nor the cache; the second call finds nothing changed."""
        for name in ("local", "cache"):
            (photos / name).mkdir()
            (tmp_path / name).symlink_to(photos / name)
        for attempt in range(2):
            staged = stage_dataset(
                photos, keep="both", local_dir=tmp_path / "local", cache_dir=tmp_path / "cache", progress=False
            )
            assert staged.files is not None
            assert snapshot(staged.files).keys() == {"a/1.png", "b/1.png"}
            assert ("already staged" in str(staged.report)) is bool(attempt)


_KILLED_AT = """
import os, shutil, sys
from pathlib import Path
from colabstage.io import ownership, workspace
from colabstage.sources.fetching import fetch_files
source, target, step = sys.argv[1:]
if step == "removing":
    def rmtree(folder, **_):
        next(path for path in sorted(Path(folder).rglob("*")) if path.is_file()).unlink()
        os.kill(os.getpid(), 9)
    shutil.rmtree = rmtree
else:
    ownership._exchange = lambda one, other: False
    rename = Path.rename
    def dying(self, to):
        done = rename(self, to)
        if self == Path(target):
            os.kill(os.getpid(), 9)
        return done
    Path.rename = dying
fetch_files(source, target, progress=False)
"""


@pytest.mark.parametrize("step", ["removing", "between two renames"])
def test_a_kill_while_folders_change_places_loses_neither(step: str, tmp_path: Path) -> None:
    """What the source has lost does not come back, and what stood there is there as long as nothing follows it."""
    source, target = tmp_path / "source", tmp_path / "here" / "it"
    for name in ("a", "b", "c"):
        write(source / name, name)
    fetch(source, target)
    (source / "a").unlink()
    command = [sys.executable, "-c", _KILLED_AT, str(source), str(target), step]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    if step == "removing":
        assert read(target) == {"b": "b", "c": "c"}
    else:
        assert not target.exists()
        source.rename(tmp_path / "away")
        with contextlib.suppress(OSError):
            fetch(tmp_path / "nothing", target)
        # The one that made room or the one that was to follow: either is whole.
        assert read(target) in ({"a": "a", "b": "b", "c": "c"}, {"b": "b", "c": "c"})
        (tmp_path / "away").rename(source)
    fetch(source, target)
    assert read(target) == {"b": "b", "c": "c"}
    assert [path for path in target.parent.iterdir() if path.suffix in {".tmp", ".old", ".was"}] == []


class TestOursIsNoSource:
    """What colabstage leaves or makes in a folder is no part of a dataset that lies there."""

    def test_leftovers_and_records(self, tmp_path: Path) -> None:
        """Half of an extraction, its record and its inventory are left out."""
        source = tmp_path / "source"
        extract_archive(write_zip(tmp_path / "a.zip", {"cat/1.txt": "1"}), source / "train", progress=False)
        workspace.leave_for_next(
            write(workspace.temp_beside(source / "test") / "tree" / "dog" / "1.txt", "2").parents[2]
        )
        assert read(fetch(source, tmp_path / "here")) == {"train": "", "train/cat": "", "train/cat/1.txt": "1"}

    @pytest.mark.parametrize("local", [".", "staged"])
    def test_local_dir_and_cache(self, local: str, tmp_path: Path) -> None:
        """A source that holds both stays what it was: the second call uses what the first made."""
        source = write(tmp_path / "content" / "data" / "a.txt", "1").parents[1]
        options: dict[str, Any] = {
            "keep": "files",
            "local_dir": source / local,
            "cache_dir": source / "cache",
            "progress": False,
        }
        write(source / "cache" / "pack.h5", "pack")
        reports = [stage_dataset(source, **options) for _ in range(3)]
        assert [staged.report.origin for staged in reports] == ["source", "local", "local"]
        assert reports[0].files is not None
        assert read(reports[0].files) == {"data": "", "data/a.txt": "1"}
        assert "keeps what it makes was left out" in " ".join(reports[0].report.notes)

    def test_what_an_interrupted_refresh_left_goes_with_the_next_call(self, tmp_path: Path) -> None:
        """A partial copy of the source, up to its size, does not lie there for good."""
        from colabstage.sources.opening import copy_name

        source = write(tmp_path / "source" / "a.txt", "1").parent
        options: dict[str, Any] = {
            "keep": "files",
            "local_dir": tmp_path / "local",
            "cache_dir": None,
            "progress": False,
        }
        stage_dataset(source, **options)
        left = write(workspace.temp_beside(tmp_path / "local" / copy_name(str(source), "a.zip")) / "data", "half")
        workspace.leave_for_next(left.parent)
        stage_dataset(source, **options)
        assert list((tmp_path / "local").glob(".colabstage-*.tmp")) == []


class TestSharedMachine:
    """Where everybody can write, nobody's folder is taken for ours."""

    def test_a_planted_folder_is_refused(self, tmp_path: Path) -> None:
        """A link at the predictable name would have what is staged written where it leads."""
        source = write(tmp_path / "source" / "a.txt", "1").parent
        shared = tmp_path / "tmp"
        shared.mkdir()
        shared.chmod(0o1777)
        (tmp_path / "victim").mkdir()
        (shared / "colabstage").symlink_to(tmp_path / "victim")
        with pytest.raises(TargetNotWritableError, match="everybody can write"):
            stage_dataset(source, keep="files", local_dir=shared / "colabstage", cache_dir=None, progress=False)
        assert visible(tmp_path / "victim") == []
        (shared / "colabstage").unlink()
        stage_dataset(source, keep="files", local_dir=shared / "colabstage", cache_dir=None, progress=False)
        assert stat.S_IMODE((shared / "colabstage").stat().st_mode) == 0o700


class TestErrorsThatMatter:
    """Clearing up does not hide what went wrong, and a disk without inodes is a full one."""

    def test_a_disk_that_refuses_to_clear_up(self, tmp_path: Path) -> None:
        """As a file system does that has gone read-only."""

        def fail() -> None:
            with ownership.atomic_path(tmp_path / "it") as temp:
                temp.write_text("half")
                raise RuntimeError("what matters")

        refusing = mock.patch.object(Path, "unlink", side_effect=OSError(errno.EROFS, ""))
        with refusing, pytest.raises(RuntimeError, match="what matters"):
            fail()
        assert not (tmp_path / "it").exists()

    def test_no_inodes(self, tmp_path: Path) -> None:
        """There is room in bytes, and none for a folder."""
        with (
            mock.patch.object(Path, "mkdir", side_effect=OSError(errno.ENOSPC, "No space left on device")),
            pytest.raises(NotEnoughSpaceError, match="no room for the folder"),
        ):
            make_folder(tmp_path / "it")


class _KilledError(BaseException):
    """As far as Python can play a `kill -9`."""


class Killer:
    """Stands between ownership and the disk: the `at`-th step is the last one that is done, if it is done."""

    steps = ("rename", "replace", "unlink")

    def __init__(self, at: int, *, done: bool) -> None:
        self.left, self.done, self.dead = at, done, False

    def step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """`real`, until the kill; nothing after it."""

        def call(*args: Any, **options: Any) -> Any:
            if self.dead:
                raise _KilledError
            self.left -= 1
            if self.left:
                return real(*args, **options)
            self.dead = True
            if self.done:
                real(*args, **options)
            raise _KilledError

        return call

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Whatever is called in here may die, as a process of its own."""
        me = workspace.owner_token()
        token = f"{me}0{id(self)}"
        with contextlib.ExitStack() as stack:
            for name in self.steps:
                stack.enter_context(mock.patch.object(Path, name, self.step(getattr(Path, name))))
            for place, name in ((shutil, "rmtree"), (os, "truncate"), (ownership, "_exchange")):
                stack.enter_context(mock.patch.object(place, name, self.step(getattr(place, name))))
            alive = workspace.owner_is_alive
            for module in (workspace, ownership):
                stack.enter_context(mock.patch.object(module, "owner_token", return_value=token))
                stack.enter_context(mock.patch.object(module, "owner_is_alive", lambda one: one == token or alive(one)))
            with contextlib.suppress(_KilledError):
                yield


CALLS = st.tuples(st.just("call"), st.integers(0, 12), st.booleans())
EDITS = st.tuples(st.sampled_from(["source", "add", "edit", "delete", "hide"]), st.integers(0, 3), st.booleans())
# What is edited is at risk in a call that has something to bring, so often one follows.
EPISODES = st.one_of(
    CALLS.map(lambda one: [one]),
    EDITS.map(lambda one: [one]),
    st.tuples(EDITS, CALLS).map(lambda two: [("call", 0, True), two[0], ("source", 0, True), two[1]]),
)
STORIES = st.lists(EPISODES, min_size=2, max_size=5).map(lambda episodes: [one for some in episodes for one in some])
PURGES = st.tuples(st.just("purge"), st.integers(0, 12), st.booleans())
STAGED_STORIES = st.lists(st.one_of(CALLS, PURGES, EDITS), min_size=3, max_size=9)
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def outcome(call: Callable[[], object], at: int, *, done: bool) -> str:
    """How a call ends that dies at a step: "done", "refused" or "killed"."""
    killer = Killer(at or -1, done=done)
    ended = "killed"
    with killer.armed():
        try:
            call()
        except TargetExistsError:
            ended = "refused"
        else:
            ended = "done"
    return "killed" if killer.dead else ended


@pytest.mark.parametrize("verb", ["fetch", "extract", "stage"])
@QUICK
@given(story=STORIES)
def test_no_story_of_edits_kills_and_calls_loses_a_folder(
    verb: str, story: list[tuple[str, int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What somebody put, or changed, in a folder stays; else the folder is the one before, or the source's."""
    home = tmp_path_factory.mktemp("story")
    content = {"a": "a", "b/c": "c"}
    source = home / "source"
    target = home / "here" / "it"

    def call() -> object:
        if verb == "extract":
            return extract_archive(write_zip(home / "a.zip", content), target, progress=False)
        shutil.rmtree(source, ignore_errors=True)
        for name, text in content.items():
            write(source / name, text)
        if verb == "fetch":
            return fetch_files(source, target, progress=False, verify="full")
        return stage_dataset(
            *(source,), keep="files", local_dir=home / "local", cache_dir=None, verify="full", progress=False
        )

    if verb == "stage":
        target = stage_dataset(
            *(write(source / "a", "a").parent,), keep="files", local_dir=home / "local", cache_dir=None, progress=False
        ).path
    mine: dict[str, str] = {}
    for number, (what, choice, done) in enumerate(story):
        before = {name: text for name, text in read(target).items() if text} if target.is_dir() else {}
        if what == "source":
            content[f"s{number}"] = f"source {number}"
        elif what == "add" or (what == "hide" and target.is_dir()):
            mine[f".hidden{number}" if what == "hide" else f"mine{number}"] = f"mine {number}"
        elif before and what == "edit":
            mine[sorted(before)[choice % len(before)]] = f"edited {number}"
        elif before and what == "delete":
            gone = sorted(before)[choice % len(before)]
            (target / gone).unlink()
            mine.pop(gone, None)
        elif what == "call":
            ended = outcome(call, choice, done=done)
            workspace.put_back(target)
            now = {name: text for name, text in read(target).items() if text} if target.is_dir() else {}
            expected = [content] if ended == "done" else [before] if ended == "refused" else [before, content]
            assert now in expected
            if mine:
                assert ended != "done"
        for name, text in mine.items():
            if not (target / name).is_file() or (target / name).read_text(encoding="utf-8") != text:
                assert what != "call"
                write(target / name, text)


@QUICK
@given(story=STAGED_STORIES)
def test_no_story_with_purges_loses_what_is_not_ours(
    story: list[tuple[str, int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A purge takes a dataset whole or leaves it whole, and never with somebody's file in it; what it says it has
    removed is gone, what it says it has kept is there; and a call after it serves what the source holds."""
    home = tmp_path_factory.mktemp("purges")
    source, local = home / "source", home / "local"
    content, mine = {"a": "a", "b": "b"}, dict[str, str]()

    def stage() -> Path:
        shutil.rmtree(source, ignore_errors=True)
        for name, text in content.items():
            write(source / name, text)
        options: dict[str, Any] = {"local_dir": local, "cache_dir": None, "verify": "full", "progress": False}
        return stage_dataset(source, keep="files", **options).path

    reports: list[Any] = []

    def purge() -> None:
        reports.append(purge_datasets(list_datasets(local_dir=local, cache_dir=None)))

    target = stage()
    for number, (what, choice, done) in enumerate(story):
        before = read(target) if target.is_dir() else {}
        if what == "source":
            content[f"s{number}"] = f"source {number}"
        elif before and what in ("add", "hide"):
            mine[f".hidden{number}" if what == "hide" else f"mine{number}"] = f"mine {number}"
        elif before and what == "edit":
            mine[sorted(before)[choice % len(before)]] = f"edited {number}"
        elif before and what == "delete":
            gone = sorted(before)[choice % len(before)]
            (target / gone).unlink()
            mine.pop(gone, None)
        elif what == "call":
            ended = outcome(stage, choice, done=done)
            workspace.put_back(target)
            now = read(target) if target.is_dir() else {}
            assert now in ([content] if ended == "done" else [before] if ended == "refused" else [before, content])
        elif what == "purge":
            reports.clear()
            ended = outcome(purge, choice, done=done)
            now = read(target) if target.is_dir() else {}
            assert now in [before, {}]
            for report in reports:
                assert not any(one.path.exists() for one in report.removed)
                assert all(one.path.exists() for one in report.kept)
            if mine:
                assert now == before
        for name, text in mine.items():
            if what in ("call", "purge"):
                assert (target / name).read_text(encoding="utf-8") == text
            else:
                write(target / name, text)


@QUICK
@given(story=STORIES)
def test_no_story_of_edits_kills_and_calls_loses_a_version(
    story: list[tuple[str, int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What somebody wrote there, or linked to it, stays; else the last version, or the one before, is whole."""
    home = tmp_path_factory.mktemp("story")
    model, target = write(home / "model.pt", "v"), home / "to" / "model.pt"
    mine: dict[Path, str] = {}
    published: list[str] = []
    for number, (what, choice, done) in enumerate(story):
        there = sorted(path for path in home.glob("to/model.pt*") if not path.name.endswith(".json"))
        if what == "source":
            write(model, f"version {number}")
        elif what == "add":
            mine[previous_path(target)] = f"mine {number}"
        elif there and what == "hide":
            mine[home / f"link{number}"] = there[0].read_text()
            os.link(there[0], home / f"link{number}")
        elif there and what == "edit":
            edited = there[choice % len(there)]
            mine[edited] = f"edited {number}"
        elif there and what == "delete":
            there[choice % len(there)].unlink()
            mine.pop(there[choice % len(there)], None)
            published.clear()
        elif what == "call":
            ended = outcome(functools.partial(publish, model, target, keep_previous=done), choice, done=done)
            if ended == "done":
                assert target.read_text() == model.read_text()
                mine.pop(target, None)
                published = [model.read_text()]
            elif ended == "killed" and published and not mine.keys() & {target, previous_path(target)}:
                whole = restore_file(target, home / f"back{number}", progress=False).path.read_text()
                assert whole in {published[0], model.read_text()}
                published = [whole]
        for path, text in mine.items():
            if what == "call" or path.parent == home:
                assert path.read_text() == text
            elif not path.exists() or path.read_text() != text:
                path.unlink(missing_ok=True)  # or what is linked to it would change
                write(path, text)

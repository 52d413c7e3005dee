"""Workspaces and journals: however the work ends, what was recorded is true, and no remains are lost track of."""

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colabstage.io.workspace import Journal, Workspace, leave_for_next, open_workspace, read_journal, temp_beside

HEAD = {"work": "a", "size": 3}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


class TestJournal:
    @settings(max_examples=settings().max_examples // 2)
    @given(kept=st.lists(json_values, max_size=5), noted=st.lists(json_values, max_size=5), cut=st.integers(0, 400))
    def test_any_cut_leaves_a_beginning(
        self, tmp_path_factory: pytest.TempPathFactory, kept: list[object], noted: list[object], cut: int
    ) -> None:
        # One folder for all examples: `mktemp` searches those of all tests for the next number.
        folder = tmp_path_factory.getbasetemp() / "journals"
        folder.mkdir(exist_ok=True)
        path = temp_beside(folder / "work")
        with contextlib.closing(Journal(path, HEAD, kept)) as journal:
            for value in noted:
                journal.append(value)
        whole = path.read_bytes()
        assert read_journal(path, HEAD) == [*kept, *noted]
        path.write_bytes(whole[:cut])
        found = read_journal(path, HEAD)
        lines = whole[:cut].count(b"\n")
        assert found == (None if lines == 0 else [*kept, *noted][: lines - 1])

    def test_other_work_is_none(self, tmp_path: Path) -> None:
        path = temp_beside(tmp_path / "work")
        assert read_journal(path, HEAD) is None
        Journal(path, HEAD, [1]).close()
        assert read_journal(path, {**HEAD, "size": 4}) is None
        path.write_bytes(b"[" * 100_000 + b"\n")
        assert read_journal(path, HEAD) is None

    def test_a_failing_beginning_leaves_the_old_one(self, tmp_path: Path) -> None:
        """The old records remain until the new journal is complete."""
        path = temp_beside(tmp_path / "work")
        Journal(path, HEAD, [1, 2]).close()

        def interrupted() -> list[object]:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Journal(path, HEAD, (value for make in (lambda: [3], interrupted) for value in make()))
        assert read_journal(path, HEAD) == [1, 2]


class TestWorkspace:
    def test_what_does_not_fit_goes(self, tmp_path: Path) -> None:
        for name, size in (("old", 90_000), ("small", 10_000), ("large", 50_000)):
            folder = temp_beside(tmp_path / "target")
            folder.mkdir()
            (folder / name).write_bytes(bytes(size))
            leave_for_next(folder)
        with open_workspace(tmp_path / "target", accepts=lambda left: not (left / "old").exists()) as workspace:
            assert [path.name for path in workspace.path.iterdir()] == ["large"]
            assert list(tmp_path.iterdir()) == [workspace.path]

    @pytest.mark.parametrize(
        ("rule", "error", "kept"),
        [
            ({}, ValueError(), True),
            ({"keeps": (KeyboardInterrupt, OSError)}, KeyboardInterrupt(), True),
            ({"keeps": (KeyboardInterrupt, OSError)}, ValueError(), False),
            ({"keeps": ()}, KeyboardInterrupt(), False),
            ({"drops": (ValueError,)}, ValueError(), False),
        ],
    )
    def test_errors_decide_what_stays(
        self, tmp_path: Path, rule: dict[str, Any], error: BaseException, kept: bool
    ) -> None:

        def fail(workspace: Workspace) -> None:
            (workspace.path / "half").touch()
            raise error

        with pytest.raises(type(error)), open_workspace(tmp_path / "target", **rule) as workspace:
            fail(workspace)
        assert len(list(tmp_path.iterdir())) == kept
        with open_workspace(tmp_path / "target") as workspace:
            assert workspace.resumed == kept

    def test_it_may_go_while_others_begin_in_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is made again, and stays as long as anybody works in it."""
        place = tmp_path / "photos"
        place.mkdir()

        def sweep_late(*_: Any, **__: Any) -> None:
            place.rmdir()

        monkeypatch.setattr("colabstage.io.workspace.sweep_temporaries", sweep_late)
        with open_workspace(place / "photos.h5", in_own_folder=True) as workspace:
            with pytest.raises(OSError, match="not empty"):
                place.rmdir()
            assert list(place.iterdir()) == [workspace.path]

    def test_the_folder_that_it_is_in_is_not_made(self, tmp_path: Path) -> None:
        """If a mount is gone, that would be one on the disk below."""
        place = tmp_path / "mount" / "photos"
        with pytest.raises(FileNotFoundError), open_workspace(place / "photos.h5", in_own_folder=True):
            pass
        place.parent.mkdir()
        with pytest.raises(FileNotFoundError), open_workspace(place / "photos.h5"):
            pass
        assert list(place.parent.iterdir()) == []


class TestOnMounts:
    """A workspace may be where clean-up hangs, or where removed files still take space."""

    def test_what_does_not_answer_is_left_alone(self, tmp_path: Path) -> None:

        def fail() -> None:
            with open_workspace(tmp_path / "target", keeps=(), answers=lambda _: False) as workspace:
                (workspace.path / "data").write_text("half", encoding="utf-8")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        (left,) = tmp_path.iterdir()
        assert (left / "data").read_text(encoding="utf-8") == "half"

    def test_files_are_emptied_first_where_a_trash_counts_them(self, tmp_path: Path) -> None:
        (tmp_path / "kept").write_text("kept", encoding="utf-8")
        with open_workspace(tmp_path / "target", empty=True) as workspace:
            (workspace.path / "data").write_text("half", encoding="utf-8")
            (workspace.path / "link").hardlink_to(tmp_path / "kept")
            handle = os.open(workspace.path / "data", os.O_RDONLY)
        try:
            assert os.fstat(handle).st_size == 0
        finally:
            os.close(handle)
        assert [path.name for path in tmp_path.iterdir()] == ["kept"]
        assert (tmp_path / "kept").read_text(encoding="utf-8") == "kept"

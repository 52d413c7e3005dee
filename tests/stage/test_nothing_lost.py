"""Nothing that is not ours, or not as we made it, is removed, emptied or replaced, whatever is called and killed."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from colabstage import publish_file, stage_dataset
from colabstage.errors import TargetNotWritableError
from colabstage.io import workspace

if TYPE_CHECKING:
    from pathlib import Path


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


def publish(path: Path, to: object, **options: Any) -> Path:
    """In silence."""
    return publish_file(path, to, progress=False, **options).path  # type: ignore[arg-type]


def snapshot(folder: Path) -> dict[str, bytes]:
    """Everything in a folder, by name, as it is."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestTargetInSource:
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

    def test_what_is_staged_in_its_source_through_a_link_is_no_part_of_it(self, tmp_path: Path, photos: Path) -> None:
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


class TestOursIsNoSource:
    @pytest.mark.parametrize("local", [".", "staged"])
    def test_local_dir_and_cache(self, local: str, tmp_path: Path) -> None:
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

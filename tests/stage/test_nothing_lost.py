"""What colabstage keeps is no part of a source, whatever leads there; where everybody can write, nothing is trusted."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import stage_dataset
from colabstage.errors import TargetNotWritableError
from tests.support.images import image, make_tree
from tests.support.invariants import contents

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_staged_in_its_source_through_a_link_is_no_part_of_it(tmp_path: Path) -> None:
    photos = make_tree(tmp_path / "photos", {"a/1.png": 1, "b/1.png": 2})
    places: dict[str, Any] = {}
    for name in ("local", "cache"):
        (photos / name).mkdir()
        (tmp_path / name).symlink_to(photos / name)
        places[f"{name}_dir"] = tmp_path / name
    for origin in ("source", "local"):
        staged = stage_dataset(photos, keep="both", progress=False, **places)
        assert staged.files is not None
        assert contents(staged.files) == {"a/1.png": image(1), "b/1.png": image(2)}
        assert staged.report.origin == origin


@pytest.mark.parametrize("local", [".", "staged"])
def test_what_is_kept_below_a_source_is_left_out(local: str, tmp_path: Path) -> None:
    source = make_tree(tmp_path / "content", {"data/a.txt": "1", "cache/pack.h5": "pack"})
    places: dict[str, Any] = {"local_dir": source / local, "cache_dir": source / "cache"}
    staged = [stage_dataset(source, keep="files", progress=False, **places) for _ in range(3)]
    assert [one.report.origin for one in staged] == ["source", "local", "local"]
    assert staged[0].files is not None
    assert contents(staged[0].files) == {"data/a.txt": b"1"}
    assert "left out" in " ".join(staged[0].report.notes)


def test_a_folder_that_somebody_planted_is_refused(tmp_path: Path) -> None:
    """A link at the predictable name would have what is staged written where it leads."""
    source = make_tree(tmp_path / "source", {"a.txt": "1"})
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "victim").mkdir()
    local = shared / "colabstage"
    local.symlink_to(tmp_path / "victim")
    options: dict[str, Any] = {"keep": "files", "local_dir": local, "cache_dir": None, "progress": False}
    with pytest.raises(TargetNotWritableError, match="colabstage"):
        stage_dataset(source, **options)
    assert list((tmp_path / "victim").iterdir()) == []
    local.unlink()
    stage_dataset(source, **options)
    assert stat.S_IMODE(local.stat().st_mode) == 0o700

"""The safety rules for names: what passes stays inside, and what may be refused is named with its reason."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.errors import UnsafeArchiveError
from colabstage.trees.names import (
    ArchiveLimits,
    check_case_collisions,
    check_collisions,
    check_limits,
    clean_member_name,
    is_junk,
)

_COMPONENTS = st.text(st.sampled_from("ab.-_ é图:~"), min_size=1, max_size=6).filter(
    lambda text: text not in (".", "..")
)
_NASTY = st.lists(st.sampled_from(["..", ".", "", "a", "b", "C:", "/", "\\", "\0", "...", "~", "a.jpg"])).map("/".join)


@given(st.one_of(st.text(), _NASTY))
def test_a_name_that_passes_stays_inside_the_folder(raw: str) -> None:
    """Whatever an archive calls a member, the cleaned name is plain and relative, or the archive is refused."""
    try:
        name = clean_member_name("x.zip", raw)
    except UnsafeArchiveError:
        return
    components = name.split("/")
    assert "\0" not in name
    assert not {"", ".", ".."} & set(components)
    assert posixpath.normpath(posixpath.join("/root/target", name)).startswith("/root/target/")


@given(st.lists(_COMPONENTS, min_size=1, max_size=5).map("/".join).filter(lambda name: name[1:2] != ":"))
def test_an_ordinary_name_is_left_as_it_is(name: str) -> None:
    """Dots, blanks and letters of any script in a name are no reason to touch it."""
    assert clean_member_name("x.zip", name) == name


def test_a_folder_may_end_in_a_slash_but_not_climb() -> None:
    """Archives write folders with a final slash, and the root as './'."""
    assert clean_member_name("x.tar", "a/b/", folder=True) == "a/b"
    assert clean_member_name("x.tar", "./", folder=True) == "."
    with pytest.raises(UnsafeArchiveError, match="climbs"):
        clean_member_name("x.tar", "a/../../b/", folder=True)


@pytest.mark.parametrize(("files", "folders"), [(["a", "a/b"], []), (["a/b/c", "a"], []), (["a"], ["a"])])
def test_a_file_that_is_also_a_folder_is_refused(files: list[str], folders: list[str]) -> None:
    """No file system can hold both."""
    with pytest.raises(UnsafeArchiveError, match="also a folder"):
        check_collisions("x.zip", files, folders)


def test_neighbours_and_repeated_folders_are_fine() -> None:
    """A common beginning of names is no collision, and folders may be listed more than once."""
    check_collisions("x.zip", ["a", "ab", "b/a", "b/ab"], ["b", "b", ".", "c"])


@pytest.mark.parametrize("names", [["a/x.jpg", "a/X.jpg"], ["Cat/1.jpg", "cat/2.jpg"], ["a", "A/b"]])
def test_names_that_differ_in_case_only_are_refused_for_a_disk(names: list[str]) -> None:
    """Only extraction asks this: in an archive the two are different."""
    check_collisions("x.zip", names, [])
    with pytest.raises(UnsafeArchiveError, match="case only"):
        check_case_collisions("x.zip", names)


def test_case_check_passes_equal_folders() -> None:
    """Many files in one folder do not collide with themselves."""
    check_case_collisions("x.zip", ["Cat/1.jpg", "Cat/2.jpg", "dog/1.jpg"])


def test_limits_speak_of_what_is_exceeded() -> None:
    """Each limit has its own message, and what stays below all of them passes."""
    limits = ArchiveLimits(max_members=10, max_total_bytes=5000, max_ratio=10, ratio_from_bytes=1000)
    check_limits("x.zip", 10, 5000, 500, limits)
    check_limits("x.zip", 1, 999, 1, limits)
    with pytest.raises(UnsafeArchiveError, match="11 members"):
        check_limits("x.zip", 11, 1, 1, limits)
    with pytest.raises(UnsafeArchiveError, match="max_total_bytes"):
        check_limits("x.zip", 1, 5001, 5000, limits)
    with pytest.raises(UnsafeArchiveError, match="11 times"):
        check_limits("x.zip", 1, 1100, 100, limits)


@pytest.mark.parametrize(
    "name",
    [
        "__MACOSX/a/._x.jpg",
        "a/.DS_Store",
        "Thumbs.db",
        "b/THUMBS.DB",
        "desktop.ini",
        "a/._1.jpg",
        "x/.git/config",
        "a/.ipynb_checkpoints/1.jpg",
    ],
)
def test_junk_is_recognised(name: str) -> None:
    """What operating systems and notebooks leave is no part of a dataset."""
    assert is_junk(name)


@pytest.mark.parametrize(
    "name", ["a/.hidden.jpg", "git/x.jpg", ".gitignore", "MACOSX/x.jpg", "a/_x.jpg", "thumbs.db.jpg"]
)
def test_what_only_resembles_junk_is_kept(name: str) -> None:
    """A hidden file may be data."""
    assert not is_junk(name)

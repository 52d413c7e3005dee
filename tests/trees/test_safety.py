"""The safety rules for names: what passes stays inside, and what may be refused is named with its reason."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.errors import UnsafeArchiveError
from colabstage.trees.names import (
    check_case_collisions,
    check_collisions,
    clean_member_name,
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


@pytest.mark.parametrize("names", [["a/x.jpg", "a/X.jpg"], ["Cat/1.jpg", "cat/2.jpg"], ["a", "A/b"]])
def test_names_that_differ_in_case_only_are_refused_for_a_disk(names: list[str]) -> None:
    """Only extraction asks this: in an archive the two are different."""
    check_collisions("x.zip", names, [])
    with pytest.raises(UnsafeArchiveError, match="case only"):
        check_case_collisions("x.zip", names)


def test_case_check_passes_equal_folders() -> None:
    """Many files in one folder do not collide with themselves."""
    check_case_collisions("x.zip", ["Cat/1.jpg", "Cat/2.jpg", "dog/1.jpg"])

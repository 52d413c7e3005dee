"""Several trees as one: how their files are named, and that each is read from where it is."""

from __future__ import annotations

import pytest

from colabstage.trees.open import plan_joining


@pytest.mark.parametrize(
    ("stems", "names", "prefixes", "says"),
    [
        (["part-1", "part-2"], [["cat/1.png"], ["cat/2.png"]], ("", ""), "united"),
        (["part-1", "part-2"], [["cat/1.png"], ["cat/1.png"]], ("part-1", "part-2"), "'cat/1.png' is in more"),
        (["a", "a"], [["x"], ["x"]], ("a", "a-2"), "'a-2'"),
        (["A", "a"], [["x"], ["x"]], ("A", "a-2"), "'a-2'"),
        (["a", "b"], [["cat"], ["cat/1.png"]], ("a", "b"), "'cat' is in more"),
        (["train", "val"], [["cat/1.png"], ["cat/2.png"]], ("train", "val"), "splits"),
        (["train", "Test"], [["train/cat/1.png"], ["cat/2.png"]], ("", "Test"), "splits"),
        (["train", "extra"], [["cat/1.png"], ["cat/2.png"]], ("", ""), "united"),
        (["train", "train"], [["cat/1.png"], ["cat/2.png"]], ("", ""), "united"),
        (["train", "val"], [[], ["cat/2.png"]], ("train", "val"), "splits"),
        ([f"p{n}" for n in range(9)], [["x"]] * 9, tuple(f"p{n}" for n in range(9)), "and 5 more"),
    ],
)
def test_names_are_joined_so_that_nothing_is_lost(
    stems: list[str], names: list[list[str]], prefixes: tuple[str, ...], says: str
) -> None:
    """Parts are united unless a name would be there twice or they are splits; the reason says which."""
    joining = plan_joining(stems, names)
    assert joining.prefixes == prefixes
    assert says in joining.reason
    joined = [f"{prefix}/{name}" for prefix, part in zip(joining.prefixes, names, strict=True) for name in part]
    assert len(set(joined)) == sum(map(len, names))


@pytest.mark.parametrize(
    ("stems", "names", "is_told"),
    [
        (["cat", "dog"], [["1.jpg"], ["2.jpg"]], True),
        (["cat", "dog"], [["1.jpg"], ["1.jpg"]], False),
        (["cat", "dog"], [["1.jpg"], ["a/2.jpg"]], False),
        (["contest", "train"], [["train.csv"], ["1.jpg"]], False),
        (["train", "train"], [["1.jpg"], ["2.jpg"]], False),
        (["cat"], [["1.jpg"]], False),
        (["images_001", "images_002"], [["1.jpg"], ["2.jpg"]], False),
        (["0", "1"], [["1.jpg"], ["2.jpg"]], True),
        (["cat", "dog"], [["LABELS.CSV"], ["2.jpg"]], False),
    ],
    ids=["flat", "collide", "deeper", "with a table", "alike", "one", "counted", "numbers", "a table in capitals"],
)
def test_names_of_parts_that_are_lost_are_told_of(stems: list[str], names: list[list[str]], is_told: bool) -> None:
    """A pattern such as photos/* matches the folders of classes: whether names collide must not decide silently."""
    reason = plan_joining(stems, names).reason
    assert (f"called ('{stems[0]}', '{stems[-1]}') is lost" in reason) is is_told
    assert ("stage the folder" in reason) is is_told
    archives = plan_joining(stems, names, of_folders=False).reason
    assert ("extract each" in archives) is is_told

"""Descriptions in Croissant beside the data: what they state of labels and splits counts, or a refusal names them."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import LayoutError
from tests.layouts.known import WAV, coco, each, rows
from tests.layouts.readers import files, stated

CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "sc": "https://schema.org/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{
        term: f"cr:{term}"
        for term in (
            *("column", "extract", "field", "fileObject", "fileProperty", "fileSet", "includes", "jsonPath", "key"),
            *("md5", "recordSet", "references", "regex", "source", "transform"),
        )
    },
}


def describe(resources: list[dict[str, Any]], *sets: dict[str, Any]) -> dict[str, Any]:
    head = {"@type": "sc:Dataset", "name": "pets", "description": "Pets.", "license": "mit", "url": "https://e.org"}
    more = {"conformsTo": "http://mlcommons.org/croissant/1.0", "version": "1.0.0", "datePublished": "2026-01-01"}
    return {"@context": CONTEXT, **head, **more, "distribution": resources, "recordSet": list(sets)}


def file_object(name: str, kind: str = "text/csv") -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "encodingFormat": kind,
        "sha256": "0" * 64,
    }


def file_set(includes: str, kind: str = "image/jpeg") -> dict[str, Any]:
    one = {"@type": "cr:FileSet", "@id": "files", "name": "files", "containedIn": {"@id": "all.zip"}}
    return {**one, "encodingFormat": kind, "includes": includes}


ARCHIVE = file_object("all.zip", "application/zip")
IMAGES = [ARCHIVE, file_set("*.jpg")]


def field(key: str, *types: str, refers: str = "", **source: Any) -> dict[str, Any]:
    """A field: `of`, its resource, with a column or a regular expression over its path."""
    made: dict[str, Any] = {"@type": "cr:Field", "@id": key, "name": key.rpartition("/")[2], "dataType": [*types]}
    if refers:
        made["references"] = {"field": {"@id": refers}}
    if source:
        of, how = source.pop("of"), source
        made["source"] = {"fileSet" if of == "files" else "fileObject": {"@id": of}}
        made["source"]["extract"] = {"column": how["column"]} if "column" in how else {"fileProperty": "fullpath"}
        if "regex" in how:
            made["source"]["transform"] = {"regex": how["regex"]}
    return made


def record_set(key: str, *fields: dict[str, Any], kind: str = "", data: Any = None) -> dict[str, Any]:
    made: dict[str, Any] = {"@type": "cr:RecordSet", "@id": key, "name": key, "field": list(fields)}
    if kind:
        made |= {"dataType": kind, "key": {"@id": fields[0]["@id"]}}
    if data is not None:
        made["data"] = [{one["@id"]: cell for one, cell in zip(fields, row, strict=True)} for row in data]
    return made


def splits(*names: str, roles: bool = False) -> dict[str, Any]:
    kinds = ("cr:TrainingSplit", "cr:TestSplit")
    fields = [field("splits/name", "sc:Text"), *([field("splits/url", "sc:URL")] if roles else [])]
    data = [[name, *([kind] if roles else [])] for name, kind in zip(names, kinds, strict=False)]
    return record_set("splits", *fields, kind="cr:Split", data=data)


def classes(*names: str) -> dict[str, Any]:
    fields = field("classes/label", "sc:Integer"), field("classes/name", "sc:Text", "sc:name")
    return record_set("classes", *fields, kind="sc:Enumeration", data=enumerate(names))


SPLIT = field("images/split", "sc:Text", refers="splits/name", of="files", regex="(train|test)/.+jpg$")
BY_NAME = field("images/label", "sc:Text", "cr:Label", of="files", regex=r".*/(cat|dog)-\d+\.jpg$")
TABLE = rows("image,breed,colour", "{a,b,c,d}.jpg,{pug,owl},{red,blue,blue,red}")
BY_COLUMN = field("rows/breed", "sc:Text", "cr:Label", of="l.csv", column="breed")
LISTED = record_set(
    "rows",
    *(field("rows/file", "sc:Text"), field("rows/kind", "sc:Text", "cr:Label")),
    data=[["a.jpg", "x"], ["b.jpg", "y"], ["c.jpg", "x"], ["d.jpg", "y"]],
)
_FOUR = "{a,b,c,d}.jpg"

READ: dict[str, tuple[dict[str, bytes], dict[str, Any], str]] = {
    "labels and splits in the names of files": (
        files("set/{train,test}/{cat,dog}-{1..3}.jpg"),
        describe(IMAGES, splits("train", "test"), record_set("images", BY_NAME, SPLIT)),
        "croissant; train: cat 3, dog 3; test: cat 3, dog 3",
    ),
    "names of numbers, in their order": (
        files(_FOUR, {"l.csv": rows("image,kind", "{a,b,c,d}.jpg,{0,1,1,0}")}),
        describe(
            [file_object("l.csv")],
            classes("zebra", "ape", "yak"),
            record_set("rows", field("rows/k", "sc:Integer", refers="classes/label", of="l.csv", column="kind")),
        ),
        "croissant; ape 2, zebra 2",
    ),
    "rows in the description": (files(_FOUR), describe([ARCHIVE], LISTED), "croissant; x 2, y 2"),
    "clips of sound": (
        {**dict.fromkeys(each("{a,b,c,d}.wav"), WAV), "l.csv": TABLE.replace(".jpg", ".wav").encode()},
        describe([file_object("l.csv")], record_set("rows", BY_COLUMN)),
        "croissant; owl 2, pug 2",
    ),
    # What states splits alone, or nothing, beside other evidence.
    "splits beside folders": (
        files("cat/{train,test}_{1..2}.jpg dog/{train,test}_{3..4}.jpg"),
        describe(
            IMAGES,
            splits("train", "test"),
            record_set("images", {**SPLIT, "source": {**SPLIT["source"], "transform": {"regex": ".*/(train|test)_"}}}),
        ),
        "image_folder; train: cat 2, dog 2; test: cat 2, dog 2",
    ),
    "splits by their roles, in a column": (
        files(_FOUR, {"l.csv": rows("image,label,part", "{a,b,c,d}.jpg,{x,y},{one,one,two,two}")}),
        describe(
            [file_object("l.csv")],
            splits("one", "two", roles=True),
            record_set("rows", field("rows/part", "sc:Text", refers="splits/name", of="l.csv", column="part")),
        ),
        "table; train: x 1, y 1; test: x 1, y 1",
    ),
    "Kaggle's, which states no label": (files("{cat,dog}/{1..3}.jpg"), describe(IMAGES), "image_folder; cat 3, dog 3"),
}


def with_one(made: dict[str, bytes], description: dict[str, Any], name: str = "croissant.json") -> dict[str, bytes]:
    return made | {name: json.dumps(description).encode()}


@pytest.mark.parametrize("case", READ)
def test_a_description_counts(case: str) -> None:
    """Under the names that services give it, and those are accounted for."""
    made, description, expected = READ[case]
    assert stated(with_one(made, description)) == expected
    assert stated(with_one(made, description, "sub/pets-metadata.json")) == expected


def test_classes_are_numbered_as_described(tmp_path: Path) -> None:
    """Also those without a sample; otherwise a model's answer would be another class."""
    made, description, _ = READ["names of numbers, in their order"]
    (tmp_path / "set").mkdir()
    for name, content in with_one(made, description).items():
        (tmp_path / "set" / name).write_bytes(content)
    pack_dataset(tmp_path / "set", tmp_path / "pack.h5", progress=False)
    dataset = dataset_h5(tmp_path / "pack.h5")
    assert dataset.classes == ("zebra", "ape", "yak")
    assert sorted(int(dataset[row][1]) for row in range(4)) == [0, 0, 1, 1]


_NAMED = describe(IMAGES, record_set("images", BY_NAME))
REFUSED: dict[str, tuple[dict[str, bytes], dict[str, Any], tuple[str, ...]]] = {
    "a split that a folder contradicts": (
        files("train/{cat,dog}/{train,test}_{1..2}.jpg test/{cat,dog}/test_{1..2}.jpg"),
        READ["splits beside folders"][1],
        ("croissant.json", "'test'", "'train'"),
    ),
    "a split of some images": (
        files("{cat,dog}/{train,test,more}_{1..2}.jpg"),
        READ["splits beside folders"][1],
        ("croissant.json", "more_1.jpg"),
    ),
    "a label that a table contradicts": (
        files(_FOUR, {"l.csv": rows("image,label", "{a,b,c,d}.jpg,{x,y,y,x}")}),
        describe([ARCHIVE], LISTED),
        ("croissant.json", "l.csv"),
    ),
    "boxes beside labels": (files(_FOUR, {"a.json": coco(_FOUR)}), describe([ARCHIVE], LISTED), ("boxes",)),
    "a table that is not there": (
        files("{cat,dog}/{1..3}.jpg"),
        describe([*IMAGES, file_object("l.csv")], record_set("rows", BY_COLUMN)),
        ("'l.csv'", "not there"),
    ),
    "a column that is not there": (
        files(_FOUR, {"l.csv": rows("image,kind", "{a,b,c,d}.jpg,{x,y}")}),
        describe([file_object("l.csv")], record_set("rows", BY_COLUMN)),
        ("'breed'", "croissant.json"),
    ),
    "a class that is not in the enumeration": (
        files(_FOUR, {"l.csv": rows("image,kind", "{a,b,c,d}.jpg,{0,1,7}")}),
        READ["names of numbers, in their order"][1],
        ("'7'",),
    ),
    "two labels": (
        files("{cat,dog}/{1..3}.jpg", {"l.csv": TABLE}),
        describe(
            [file_object("l.csv")],
            record_set("rows", BY_COLUMN, field("rows/colour", "sc:Text", "cr:Label", of="l.csv", column="colour")),
        ),
        ("'breed'", "'colour'"),
    ),
    "an expression without an end": (
        files("{cat,dog}/{1..3}.jpg"),
        describe(IMAGES, record_set("i", field("i/l", "sc:Text", "cr:Label", of="files", regex="((a+)+)+x"))),
        ("extracted by",),
    ),
    "a label by what is not read": (
        files("{cat,dog}/{1..3}.jpg"),
        describe(
            IMAGES,
            record_set(
                "i",
                {
                    **field("i/l", "sc:Text", "cr:Label"),
                    "source": {"fileSet": {"@id": "files"}, "extract": {"jsonPath": "$.label"}},
                },
            ),
        ),
        ("jsonPath",),
    ),
    "two descriptions": (files("{cat,dog}/{1..3}.jpg", {"metadata.json": _NAMED}), _NAMED, ("metadata.json",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_it_is_named(case: str) -> None:
    """Nothing is decided in silence, and the layouts that the error names work."""
    made, description, named = REFUSED[case]
    with pytest.raises(LayoutError) as refused:
        stated(with_one(made, description))
    said = str(refused.value)
    assert all(word in said for word in named), said
    for layout in re.findall(r'layout="(\w+)"', said):
        if layout not in ("file_names", "croissant"):
            assert stated(with_one(made, description), layout).startswith(layout)


@pytest.mark.parametrize("content", ["{'mark'", "['mark']", "{'a': 'mark', 'recordSet': [{'field': [3]}]}"])
def test_a_damaged_description_is_named(content: str) -> None:
    """Whatever is wrong in it."""
    damaged = content.replace("'", '"').replace("mark", "http://mlcommons.org/croissant/1.0")
    made = files("{cat,dog}/{1..3}.jpg", {"croissant.json": damaged})
    with pytest.raises(LayoutError, match=r"croissant\.json"):
        stated(made)


@pytest.mark.parametrize("case", READ)
def test_the_formats_own_library_accepts_these(case: str, tmp_path: Path) -> None:
    """So that what is tested is Croissant."""
    if find_spec("mlcroissant") is None:
        pytest.skip("needs mlcroissant: pip install mlcroissant")
    import mlcroissant

    (tmp_path / "croissant.json").write_text(json.dumps(READ[case][1]), "utf-8")
    assert not mlcroissant.Dataset(tmp_path / "croissant.json").metadata.issues.errors

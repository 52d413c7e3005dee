"""Well-known datasets, 120 at least: what their users mean, or one error that names what to write; no wrong guess."""

import json
import posixpath
import re
from collections import Counter, defaultdict
from contextlib import nullcontext
from typing import Any

import pytest

from colabstage.errors import ColabstageError
from colabstage.layouts.detect import detect_layout
from colabstage.options import (
    Boxes,
    Masks,
    SampleTable,
    Values,
    array_rows,
    audio_clips,
    file_names,
    folders,
    image_masks,
    parts,
    table_rows,
    token_blocks,
)
from tests.layouts.described import described
from tests.layouts.known import Known, MemoryTree
from tests.layouts.known_datasets import DATASETS

OPTIONS = (array_rows, audio_clips, file_names, folders, image_masks, parts, table_rows, token_blocks)


def read(known: Known, layout: str) -> tuple[str, str, SampleTable | None]:
    """The layout and what was found; or "" and the error's first line."""
    chosen: Any = eval(layout, {one.__name__: one for one in OPTIONS})
    tree = MemoryTree(known.files)
    try:
        found = detect_layout(tree, chosen)
    except ColabstageError as error:
        return "", str(error).partition("\n")[0], None
    finally:
        twice = {name for name, nbytes in tree.nbytes.items() if nbytes > len(known.files[name])}
        if known.name not in _OF_PIXELS:
            assert {name for name in twice if not name.endswith(_CONTAINERS)} == set(), "read twice"
    return found.layout, described(found), found


# What samples are rows or parts of is looked at in places, its header first.
_CONTAINERS = (".tar", ".npz", ".npy", ".gz", ".mat", ".bin", ".h5", "-00001")
_OF_PIXELS = {
    one.name for one in DATASETS if one.layout == "pixel_table" or one.error.startswith(("Dig", "sign_mnist"))
}


@pytest.mark.parametrize("known", DATASETS, ids=lambda known: known.name)
def test_each_is_what_its_users_mean_or_one_error(known: Known) -> None:
    """Right by itself, or by the line that the error names; with the label of each file that something says of it, and
    no file of labels read twice."""
    layout, said, found = read(known, "'auto'")
    if known.error:
        assert layout == "", f"taken for {layout}: {said}"
        assert re.search(known.error, said), said
    if known.write:
        layout, said, found = read(known, known.write)
    if not known.error or known.write:
        assert (layout, said) == (known.layout, known.found)
    if found is not None:
        check_each_file(known, found)


def test_a_long_text_is_read_once() -> None:
    """However many look for labels and splits in it, as in CelebA's attributes and partition."""
    names = [f"a_picture_of_a_person_whose_name_is_not_known_number_{number:06d}.jpg" for number in range(16_000)]
    texts = {
        "attributes.txt": "\n".join(
            ["path,smiling,young", *(f"{name},{n % 2},{n % 3 % 2}" for n, name in enumerate(names))]
        ),
        "partition.txt": "\n".join(f"{name},{n % 3}" for n, name in enumerate(names)),
    }
    files = {name: text.encode() for name, text in texts.items()}
    tree = MemoryTree(dict.fromkeys((f"img/{name}" for name in names), b"") | files)
    found = detect_layout(tree, "auto")
    assert Counter(found.splits) == {"train": 5334, "val": 5333, "test": 5333}
    for name, content in files.items():
        assert 1 << 20 < tree.nbytes[name] <= len(content) + 64 * 1024, name


def check_each_file(known: Known, found: SampleTable) -> None:
    """The label of each file is in its path, or where something beside it names it: another reader, which knows of no
    format. A mask has the number of its image."""
    targets = found.targets
    if isinstance(targets, Masks):
        for number, key in enumerate(found.keys):
            image, mask = posixpath.split(key.replace("leftImg8bit", "")), posixpath.split(targets.source.name(number))
            last = re.findall(r"\d+", image[1])[-1]
            assert re.search(rf"(?<!\d){last}(?!\d)", mask[1]), (key, mask)
            assert ("val" in image[0]) is ("val" in mask[0]), (key, mask)
    elif isinstance(targets, Values | Boxes) and known.layout in _LABELLED and not known.name.startswith(_ELSEWHERE):
        words = said_of(known)
        for number, key in enumerate(found.keys):
            base = posixpath.basename(key.partition("#")[0])
            stem = posixpath.splitext(base)[0]
            said = {*key.split("/"), *re.split(r"[._]", stem), stem.rpartition("_")[0], *words[base], *words[stem]}
            assert said.issuperset(labels_of(found, number)), (key, labels_of(found, number), sorted(said))


_LABELLED = ("image_folder", "table", "file_names", "coco_classes", "audio", "detection")
# Of these the classes are numbers, or one without a name, or stand in one file for all (tests/layouts/boxes/ has
# readers), or beside folders.
_ELSEWHERE = (
    "African", "BDD", "Bone Fracture (YOLO", "Car Object", "COCO128", "COCO8", "CVAT", "DOTA8", "Darknet",
    "Human Faces", "Label Studio", "MURA", "Roboflow, CreateML", "Roboflow, Darknet", "Roboflow, Keras",
    "Roboflow, YOLO", "Tiger-Pose", "VGG", "WIDER",
)  # fmt: skip


def said_of(known: Known) -> dict[str, set[str]]:
    """By bare name, with and without its extension: all words in lines that name a file, and in annotations of its own;
    in tables, columns that hold 1 for it too. COCO's JSON is joined by its ids."""
    words: dict[str, set[str]] = defaultdict(set)
    for name, content in known.files.items():
        base, extension = posixpath.splitext(posixpath.basename(name))
        if extension in (".csv", ".txt", ".jsonl"):
            header, *lines = (re.split("[,;]", line.strip()) for line in content.decode().splitlines() or [""])
            for cells in [header, *lines]:
                said = {
                    column.strip() for column, cell in zip(header, cells, strict=False) if cell.strip() in {"1", "1.0"}
                }
                said |= {word for cell in cells for word in (cell.strip(), *re.split(r"""[\s|"'{}:]+""", cell))}
                for word in {posixpath.basename(word) for word in said}:
                    words[word] |= said
        elif extension == ".json" and b'"categories"' in content:
            found = json.loads(content)
            kinds = {one["id"]: one["name"] for one in found["categories"]}
            images = {one["id"]: posixpath.basename(one.get("file_name") or one["coco_url"]) for one in found["images"]}
            for one in found.get("annotations", ()):
                words[images[one["image_id"]]].add(kinds.get(one.get("category_id"), ""))
        if extension in (".xml", ".json", ".txt"):
            for own in (base, posixpath.splitext(base)[0]):
                words[own].update(re.split(r'[<>",:\s]+', content.decode()))
    return words


def labels_of(found: SampleTable, number: int) -> list[str]:
    """The names of the classes of one sample; a number as it is where they have none."""
    targets, classes = found.targets, found.classes
    if isinstance(targets, Boxes):
        part = slice(targets.offsets[number], targets.offsets[number + 1])
        return [classes[label] for label in targets.columns["labels"][part]]
    assert isinstance(targets, Values)
    row = targets.values[number]
    if row.ndim:
        return [classes[place] for place in row.nonzero()[0]] if classes else []
    return [classes[row] if classes else str(row)]


def test_most_are_right_by_themselves() -> None:
    """No fewer than now, and no fewer without a line to write: whoever makes one need a line lowers this in sight."""
    assert len({known.name for known in DATASETS}) == len(DATASETS) >= 435
    assert sum(not known.error and not known.write for known in DATASETS) >= 325


@pytest.mark.parametrize(("line", "is_read"), [("img/{:06}.png {}", True), ("the number {:05}, and {}", False)])
def test_a_long_text_beside_a_table_is_read_once_if_its_beginning_names_images(line: str, is_read: bool) -> None:
    """All of it, after the beginning; it is longer than what is kept."""
    count = 5000
    names = [f"img/{number:06}.png" for number in range(count)]
    table = "".join(f"{name},{'ab'[number % 2]}\n" for number, name in enumerate(names))
    text = "".join(f"{line.format(number, number // 2 % 2):240}\n" for number in range(count)).encode()
    tree = MemoryTree(dict.fromkeys(names, b"") | {"l.csv": f"file,label\n{table}".encode(), "all.txt": text})
    with pytest.raises(ColabstageError, match=r"'l\.csv' and by 'all\.txt'") if is_read else nullcontext():
        assert detect_layout(tree).layout == "table"
    assert tree.nbytes["all.txt"] == 64 * 1024 + is_read * len(text)

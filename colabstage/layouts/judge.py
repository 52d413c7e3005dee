"""The judge: what must be true of what evidence states, and of the files that are left over."""

from __future__ import annotations

import posixpath
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import CorruptArchiveError, DecodeError
from colabstage.images.decode import probe_image
from colabstage.io.files import read_with_retry
from colabstage.io.units import listed
from colabstage.layouts.boxes import NAME as DETECTION
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import Evidence, class_of_samples
from colabstage.layouts.reading import Source, decode_text
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import Boxes, BrokenDatasetError, SampleTable
from colabstage.layouts.words import (
    ANNOTATIONS,
    ARCHIVES,
    IMAGES,
    TEXTS,
    before_last_word,
    folder_of,
    holds_images,
    is_note,
    is_role,
    is_table,
    normal,
    split_name,
    spoken,
    stem_of,
)
from colabstage.trees.folder import FolderTree
from colabstage.trees.names import extension_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from colabstage.trees.listing import FileEntries


def judge(source: Source, found: Evidence) -> SampleTable:
    """Return the samples, if nothing contradicts what is stated of them."""
    table = found.table
    checks = (_spelled_twice, _split_twice, _no_boxes, _boxes_outside)
    why = next((why for check in checks if (why := check(table))), "") or _left_over(source, found)
    if why:
        msg = f'{why} layout="{table.layout}" takes the {table.unit} as they are.'
        raise BrokenDatasetError(msg)
    return found.told()


def _spelled_twice(table: SampleTable) -> str:
    """Find classes that are one word in two spellings, which are one class for people and two for a program."""
    seen: dict[str, str] = {}
    for name in table.classes:
        other = seen.setdefault(spoken(name), name)
        if other != name:
            form = " (the same letters in two forms of Unicode)" if normal(other) == normal(name) else ""
            return (
                f"Two classes of the {table.unit} are called '{show(other)}' and '{show(name)}'{form}, which look like "
                "one class spelled in two ways. Spell it in one way."
            )
    return ""


def _split_twice(table: SampleTable) -> str:
    """Find a split with two names, and a file of a table that is in two splits."""
    # dev beside one of them may be intended, because some corpora have both.
    several = sorted({"val", "valid", "validation"} & set(table.splits or ()))
    if len(several) > 1:
        return f"The {table.unit} are in the splits {listed(several)}, which look like one. Use one name."
    split_of: dict[str, str] = {}
    for key, split in zip(table.keys, table.splits or (), strict=False) if table.layout == "table" else ():
        name = key.partition("#")[0]
        if split_of.setdefault(name, split) != split:
            return (
                f"'{name}' is in the splits '{split_of[name]}' and '{split}', so it would be trained and tested on. "
                "Take it out of one."
            )
    return ""


def _left_over(source: Source, found: Evidence) -> str:
    """Find what is left over and may hold more samples, or their labels: archives, and where nothing states labels, a
    document of Google or any file of annotations.
    """
    table = found.table
    documents = [note for note in source.tree.notes if "Google" in note] if table.targets is None else []
    if documents:
        return f"Nothing labels the {table.unit}, and a document may: {documents[0]} Download it as CSV beside them."
    if not isinstance(table.inputs.source, TreeFiles):
        # Shards are their own samples; arrays may have labels in another form beside them.
        others = source.ending_in(ANNOTATIONS).where(lambda name: name not in found.used and not is_note(name))
        if table.layout != "arrays" or table.targets is not None or not others:
            return ""
        return (
            f"Nothing among the arrays of '{source.label}' is their targets, and '{others.names[0]}' may be, in a form "
            "that is not read beside arrays. Save it as an array too, numpy.save('y.npy', y), in the order of the rows."
        )
    masks = _left_over_masks(source, found)
    if masks:
        return (
            f"'{masks[0]}' and {len(masks) - 1:,} more images beside those that {found.who} labels may be their masks, "
            "and would be left out. For images and masks give layout=image_masks(FOLDER), from colabstage.options."
        )
    opened = {posixpath.basename(part.label) for part in source.tree.parts()} | found.used
    archives = files_called(source, ARCHIVES).where(lambda name: opened.isdisjoint({name, posixpath.basename(name)}))
    if not archives:
        return ""
    folder = source.tree.label if isinstance(source.tree, FolderTree) else "FOLDER"
    return (
        f"'{archives.names[0]}' beside the {table.unit} of '{source.label}' is an archive, which may hold more of them "
        f"or their labels. Give it in a list of sources, ['{folder}', '{folder}/{archives.names[0]}']."
    )


def _left_over_masks(source: Source, found: Evidence) -> list[str]:
    """Return the images that a table does not name and that look like masks of those that it does, if there are as many
    as half of these: in a folder of masks, or called after them."""
    if found.table.layout != "table":
        return []
    rest = set(source.ending_in(IMAGES).names) - set(found.table.keys) - found.used
    stems = {posixpath.splitext(name)[0] for name in found.table.keys}
    masks = [
        name
        for name in rest
        if (is_role(folder_of(name)) and not holds_images(folder_of(name)))
        or (before_last_word(posixpath.splitext(name)[0]) in stems)
    ]
    return sorted(masks) if 2 * len(masks) >= len(stems) else []


# Of so many images with boxes the size is looked at.
_LOOKED_AT = 8


def _no_boxes(table: SampleTable) -> str:
    """Find annotations without any box."""
    if table.layout != DETECTION or not isinstance(table.targets, Boxes) or len(table.targets.boxes) or not len(table):
        return ""
    return (
        f"Annotations of the {len(table):,} images are there, and no box in any of them (first '{table.keys[0]}'). "
        "Export them with their boxes."
    )


def _boxes_outside(table: SampleTable) -> str:
    """Find boxes none of which is in its image: the images were made smaller, or are those of another dataset."""
    boxes, source = table.targets, table.inputs.source
    known = not isinstance(boxes, Boxes) or boxes.relative or boxes.sizes is not None
    if known or not isinstance(boxes, Boxes) or not isinstance(source, TreeFiles):
        return ""
    chosen = np.flatnonzero(np.diff(boxes.offsets))[:_LOOKED_AT].tolist()
    outside = []
    for number in chosen:
        with suppress(DecodeError, CorruptArchiveError):
            facts = probe_image(read_with_retry(lambda: source.read(number), source.name(number)))  # noqa: B023
            corners = boxes.boxes[boxes.offsets[number] : boxes.offsets[number + 1], :2]
            outside.append(bool((corners >= (facts.width, facts.height)).any(axis=1).all()))
    if not outside or not all(outside):
        return ""
    box = ", ".join(f"{edge:g}" for edge in boxes.boxes[boxes.offsets[chosen[0]]].tolist())
    return (
        f"The boxes of '{table.keys[chosen[0]]}' and of {len(outside) - 1:,} more images that were looked at lie "
        f"outside of them (first {box}): the images were made smaller, or are others. Scale the boxes as the images "
        "were."
    )


def files_called(source: Source, ends: tuple[str, ...]) -> FileEntries:
    """Return the files whose names have one of these endings, in any case; .tar.gz is longer than an extension."""
    files = source.ending_in(tuple(map(extension_of, ends)))
    return files.where(lambda name: name.lower().endswith(ends))


# Enough to recognise a file's content, and little enough for a slow mount.
_HEAD_BYTES = 64 * 1024
_HEADS = 16
# At least this many samples must be named, because a text may mention one in passing.
_NAMED = 3
_AGREEING = 0.9
_WORD = re.compile(r"[^\s,;|\"'<>\[\]{}()=:]+")
_CELL = re.compile(r"[^,;\t|\"<>]+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
# A stem counts as that of a sample, not as a word or a number, if it has letters and digits, or many digits.
_TELLING = re.compile(r"(?=.*\d)(?=.*\D).{3,}|\d{5,}")


def named_elsewhere(
    source: Source, found: Evidence, folds: list[str], rows_agree: Callable[[Evidence], bool]
) -> tuple[str, list[str]]:
    """Account for the files that are left over: one may state something else of the samples than their folders do.

    Returns why the folders do not count, "" if they do; and lists of splits that agree with them.

    Args:
        source: the files.
        found: what folders state.
        folds: lists of splits that are known and not read.
        rows_agree: tells whether the tables that lead to the samples agree with them.
    """
    used = found.used | found.passed
    others = source.files.ending_in(ANNOTATIONS).where(lambda name: name not in used)
    if not others:
        return "", folds
    by_stem = {stem_of(name): name for name in others.names}
    # A file in one class's folder, or a readme, does not list samples of several classes.
    classes = set(found.table.classes)
    of_parts = others.where(lambda name: _is_beside_parts(name, classes)).names
    if of_parts:
        return _says_more(of_parts[0], f"{len(of_parts):,} files such as this"), []
    of_many = others.ending_in(TEXTS).where(lambda name: classes.isdisjoint(name.split("/")[:-1]) and not is_note(name))
    texts = sorted(of_many, key=lambda entry: (entry.name.count("/"), entry.name))[:_HEADS]
    # The beginning is enough; some lists have a million lines.
    heads = {entry.name: normal(decode_text(source.head(entry, _HEAD_BYTES))) for entry in texts}
    words = {part for head in heads.values() for line in head.splitlines() for part in _parts(_words(line))}
    class_of: dict[str, str] = {}
    own: list[str] = []
    for name, label in zip(found.table.keys, class_of_samples(found.table), strict=True):
        base = normal(posixpath.basename(name))
        stem = posixpath.splitext(base)[0]
        class_of |= {word: label for word in (base, stem) if word in words}
        # The same folders of classes with XML in them say the same; what is beside a sample says more of it.
        mate = by_stem.get(stem)
        if mate and (posixpath.dirname(mate) == posixpath.dirname(name) or label not in mate.split("/")):
            own.append(mate)
    states = {name: _states(head, class_of, min(_NAMED, len(found.table))) for name, head in heads.items()}
    competing = [name for name, state in states.items() if state == "else" and name not in folds]
    if competing and all(map(is_table, competing)) and rows_agree(found):
        competing = []
    # A few files beside samples are notes; one for most samples is an annotation.
    if 2 * len(own) > len(found.table):
        competing = own
    if competing:
        what = f"{len(competing):,} files such as this" if competing is own else "this file"
        return _says_more(competing[0], what), []
    agreeing = [name for name, state in states.items() if state == "same" and split_name(stem_of(name)).split]
    return "", sorted({*folds, *agreeing})


def _says_more(name: str, what: str) -> str:
    return (
        f"'{name}' names them too, in a form that is not read here, and may hold their labels: {what} would be left "
        "out. Write a table with a path and a label in each row beside the images, or give a function as layout=."
    )


def _is_beside_parts(name: str, classes: set[str]) -> bool:
    """Tell whether a file is in a folder of annotations inside of a class's: MOT17-02/gt/gt.txt."""
    *folders, _ = name.split("/")
    places = [place for place, folder in enumerate(folders) if folder in classes]
    return bool(places) and any(is_role(folder) and not holds_images(folder) for folder in folders[places[0] + 1 :])


def _words(line: str) -> list[str]:
    """Return the parts of a line that may be a name or label: between spaces and quotes, and between delimiters."""
    return [*_WORD.findall(line), *(cell.strip() for cell in _CELL.findall(line))]


def _parts(words: list[str]) -> set[str]:
    """Return the folders and base names in some words."""
    return {part for word in words for part in word.replace("\\", "/").split("/")}


def _states(text: str, class_of: dict[str, str], enough: int) -> str:
    """Return whether a text states the "same" classes of samples, or something "else"; "" if it names too few.

    Args:
        text: the beginning of a file.
        class_of: the class of samples by bare name, with and without the extension.
        enough: how many it must name.
    """
    named: set[str] = set()
    in_path, in_words, numbers = 0, 0, 0
    stated: set[tuple[str, str]] = set()
    for line in text.splitlines():
        words = _words(line)
        parts = _parts(words)
        numbers += sum(_NUMBER.fullmatch(word) is not None for word in words) >= 4
        for part in parts & class_of.keys():
            if posixpath.splitext(part)[1] or _TELLING.fullmatch(part):
                named.add(part)
                in_words += class_of[part] in words
                in_path += class_of[part] in parts
                stated.add((class_of[part], " ".join(word for word in line.split() if part not in _parts([word]))))
    if len(named) < enough:
        return ""
    # A name and one word, the same for all of a class and for no other, is the class by another name.
    renamed = len(stated) > 1 and len({label for label, _ in stated}) == len({word for _, word in stated})
    if renamed and len(stated) == len({label for label, _ in stated}):
        return "same"
    # A line of names, classes and no more agrees; boxes below a path with the class in it are something else.
    is_else = in_path < _AGREEING * len(named) or (numbers > 0 and in_words < _AGREEING * len(named))
    return "else" if is_else else "same"

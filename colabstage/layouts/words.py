"""The vocabulary of datasets: extensions, words for splits, parts, labels and paths; and names in one normal form."""

from __future__ import annotations

import difflib
import functools
import posixpath
import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# First those of torchvision's ImageFolder, then others that Pillow reads, which torchvision silently skips.
IMAGES = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
    ".gif", ".jfif", ".jpe", ".avif", ".heic", ".heif", ".jp2",
)  # fmt: skip
JPEGS = (".jpg", ".jpeg", ".jpe", ".jfif")
SOUNDS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff")
# Hugging Face's ImageFolder uses metadata.jsonl.
TABLES = (".csv", ".tsv", ".parquet", ".jsonl")
# Files that can be searched for the names of samples.
TEXTS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".xml", ".txt", ".lst", ".yaml")
ANNOTATIONS = (*TEXTS, ".parquet", ".mat", ".xlsx", ".pkl")
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
# Files of records that are named so, and all endings of such names, "" for that of train.tfrecord-00000-of-00008.
RECORDS = re.compile(r".*\.(tfrecords?|tfrec|mdb|lmdb)(-\d+-of-\d+)?(\.(gz|zst))?", re.IGNORECASE)
RECORD_ENDS = (".tfrecord", ".tfrecords", ".tfrec", ".gz", ".zst", "", ".mdb", ".lmdb")
# Files that hold no labels, whatever their names.
HARMLESS = frozenset({*IMAGES, "", ".md", ".rst", ".py", ".ipynb", ".m", ".html", ".pdf", ".docx", ".db", ".ini"})
_NOTES = (
    "readme", "license", "licence", "requirements", "changelog", "attribution",
    "dataset_info.json", "dataset_dict.json", "state.json",
)  # fmt: skip

# Names that people give splits, and the stored name of each; in the order of a table.
SPLITS = {
    "train": "train", "training": "train", "val": "val", "valid": "valid", "validation": "validation",
    "validate": "validation", "dev": "dev", "test": "test", "testing": "test",
}  # fmt: skip
_SHORT = {"Tr": "train", "Ts": "test"}
SPLIT_ORDER = {split: order for order, split in enumerate(dict.fromkeys(SPLITS.values()))}
# A folder may be called val and the list beside it validation; none of these means test.
_HELD_OUT = frozenset({"val", "valid", "validation", "dev"})
# Words that people combine with the split: training_set, seg_train, train_images, test1.
_BESIDE_SPLITS = frozenset({"set", "seg", "image", "images", "img", "imgs", "data", "dataset", "photos"})
# Names of folders that hold a part of every sample, not a class.
_OF_IMAGES = frozenset({"image", "images", "img", "imgs", "photos", "pictures"})
_ROLES = _OF_IMAGES | {
    "mask", "masks", "label", "labels", "annotation", "annotations", "annot", "annots", "gt", "ground", "truth",
    "groundtruth", "segmentation", "segmentations", "trimaps", "xml", "xmls", "txt", "bbox", "bboxes", "boxes",
    "panoptic", "instances", "gts", "targets", "jpeg", "png", "jpg", "leftimg8bit", "gtfine",
}  # fmt: skip
_ROLE_ENDS = re.compile(r"[a-zA-Z](Images|Masks|Labels|Annotations?)|Ground_?Truth|Segmentation_?(Class|Object)")
# Parts of a dataset with names that may also be classes, beside others.
_PARTS = frozenset({
    "fold", "query", "gallery", "probe", "hr", "lr", "rgb", "depth", "input", "inputs", "target", "actor", "speaker",
    "subject", "participant", "patient", "x", "y",
})  # fmt: skip
# What is recorded or stored in numbered pieces: video_1, batch2.
_PIECES = frozenset({
    "driver", "user", "session", "scene", "video", "clip", "seq", "sequence", "recording", "trial", "camera", "cam",
    "slide", "page", "tile", "batch", "part", "set", "chunk", "shard", "dataset", "site", "hospital",
})  # fmt: skip
_DATED = re.compile(r"(19|20)\d\d[-_. ]?(0[1-9]|1[0-2])([-_. ]?(0[1-9]|[12]\d|3[01]))?(?!\d)")
# What cameras and phones call pictures, which is no class.
OF_CAMERAS = frozenset({"img", "dsc", "dscn", "dscf", "pxl", "mvimg", "vid", "sam", "gopr", "wa"})
_ASIDE = frozenset({
    "thumbnail", "thumbnails", "thumb", "thumbs", "preview", "previews", "cropped", "augmented", "backup", "original",
    "originals", "raw", "unsorted", "output", "outputs", "results", "tmp", "temp", "preds", "predictions",
})  # fmt: skip
_UNLABELLED = frozenset({"unlabeled", "unlabelled", "unsup", "unsupervised"})
# Other names for parts of one sample; they count only if the folders share stems.
_OF_SAMPLES = _ROLES | _PARTS | {
    "ann", "anno", "seg", "low", "high", "blur", "blurred", "sharp", "noisy", "clean", "hazy", "clear", "rain", "rainy",
    "before", "after", "pre", "post", "change", "red", "green", "blue", "nir", "swir", "ir", "thermal", "vis",
    "visible", "infrared", "color", "colour", "colors", "gray", "grey", "frames", "raw", "ref", "reference", "source",
    "src", "left", "right", "ortho", "dsm", "all", "original", "normal", "normals", "out", "output", "vessel",
    "vessels", "disp", "disparity", "flow", "edges", "overlay", "overlays", "pred", "preds", "predictions",
}  # fmt: skip
# In a file name: labels of many samples, or what the classes are.
_OF_LABELS = frozenset({
    "label", "labels", "class", "classes", "category", "categories", "target", "targets", "annotation", "annotations",
    "annot", "annots", "gt", "truth", "groundtruth", "y",
})  # fmt: skip
# In a folder's name they say nothing of its content.
OF_FOLDERS = frozenset({"dir", "folder"})
OF_SPLITS = frozenset({"split", "splits", "partition", "partitions", "fold", "folds"})
_NEVER_CLASSES = _ROLES | {"anno", "seg", "rgb"}
_OF_TARGETS = (
    (_NEVER_CLASSES | {"ann", "change", "target", "out", "semantic", "instance"})
    - _OF_IMAGES
    - {"rgb", "jpeg", "png", "jpg", "leftimg8bit"}
)
# with_mask beside without_mask are classes.
_NEGATIONS = frozenset({"with", "without", "no", "non", "not", "un"})
# Texts that differ in such words alone are classes, or sides of each sample: languages by their codes too, but parts of
# one text are called ac and ad.
_OF_TEXTS = re.compile(
    "(ar|bg|bn|ca|cs|da|de|el|en|es|et|fa|fi|fr|ga|he|hi|hr|hu|id|it|ja|ko|lt|lv|nl|no|pl|pt|ro|ru|sk|sl|sr|sv|sw|ta|te|th"
    "|tr|uk|ur|vi|zh)([_-][a-z]{2})?|arabic|chinese|czech|danish|dutch|english|finnish|french|german|greek|hebrew|hindi"
    "|hungarian|irish|italian|japanese|korean|norwegian|persian|polish|portuguese|romanian|russian|scottish|spanish|swedish"
    "|turkish|ukrainian|vietnamese|pos|neg|positive|negative|neutral|ham|spam|fake|real|true|false|toxic|hate|human|ai"
    "|source|target|src|tgt|trg|input|output|question|answer|questions|answers|articles?|summar(y|ies)|highlights",
    re.IGNORECASE,
)
# Thumbnails, bins and settings of file managers and network drives; and Speech Commands' background noise.
_FOREIGN = frozenset(
    {"_background_noise_", "@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found", "__macosx"}
)
# trainImages, train_images and TRAIN-images mean the same.
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# What file managers add to a second copy: cat (1), cat - Copy, Copy of cat.
_COPY = re.compile(r"^copy of | ?\(\d+\)$|( ?- ?| )copy( ?\(?\d+\)?)?$", re.IGNORECASE)
# What programs write into the names of copies and pieces: Roboflow's hash, and what was done: cat1_aug_3, v2_frame_17.
_DONE_BY_PART = {
    "aug": "aug(mented|mentation)?", "flip": "([hv]|lr|ud)?flip(ped)?(lr|tb|ud|[hv])?", "mirror": "mirror(ed)?",
    "rot": "rot(at(e|ed|ion))?", "deg": r"(new)?\d*deg(flip(lr|tb)?)?", "blur": "blur(red)?", "nois": "nois[ey]",
    "zoom": "zoom(ed)?", "shear": "shear(ed)?", "shift": "shift(ed)?", "jitter": "jitter(ed)?",
    "bright": "bright(ness|er)?", "crop": "crop(ped)?",
    **{word: word for word in ("contrast", "copy", "frame", "slice", "tile", "patch")},
}  # fmt: skip
_DONE = "|".join(_DONE_BY_PART.values())
_MADE = re.compile(
    rf"\.rf\.[0-9a-z]{{16,}}$|[ ._-]+(({_DONE})\d*)([ ._-]+(({_DONE})\d*|\d+))*$|^(({_DONE})[ ._-]+)+", re.IGNORECASE
)
# person12_virus_3, sub-01_T1w, patient 7/slice_2, but not phone_case_3; SCENES and PERSONS are columns.
_PERSON = re.compile(
    r"((?<![a-z])(?:patient|subject|participant|person|volunteer|donor|subj)|(?<![^/])(?:case|sub))"
    r"[ _-]?(id[ _-]?)?(\d+)", re.IGNORECASE,
)  # fmt: skip
_TELLING = re.compile(r"(?=.*\d)(?=.*\D).{3,}|\d{5,}")
# A stem with its last number, and what follows that.
NUMBERED = re.compile(r"(.*?)(\d{1,18})(\D*)")
# A last word of a name that is not just a number, read from its end: to look for its beginning takes ten times as long.
_LAST_WORD = re.compile(r"(?=[^/ ._-]*[A-Za-z])[^/ ._-]+[ ._-]?")


def normal(name: str) -> str:
    """Return a name in the form in which names are compared: macOS decomposes letters, other systems do not."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def normal_names(names: Iterable[str]) -> list[str]:
    """Return names in that form; nearly always all are."""
    found = list(names)
    return found if "".join(found).isascii() else [normal(name) for name in found]


def stem_of(name: str) -> str:
    """Return the bare name of a file without its extension."""
    return posixpath.splitext(posixpath.basename(name))[0]


def stems_of(names: Iterable[str]) -> list[str]:
    """Return the bare names of files without their extensions, in a tenth of the time that `stem_of` takes."""
    bases = (name[name.rfind("/") + 1 :] for name in names)
    return [base[:dot] if (dot := base.rfind(".")) > 0 else base for base in bases]


def are_numbered(stems: Sequence[str], cells: Sequence[str]) -> bool:
    """Tell whether files are called after numbers, one for each: frame_0012 after 12, but not a_3 and b_3 after 3."""
    pairs = {*zip(stems, cells, strict=True)}
    found = ((stem, cell, cell.isdecimal() and NUMBERED.fullmatch(stem)) for stem, cell in pairs)
    agree = all(stem == cell or (last and int(last[2]) == int(cell)) for stem, cell, last in found)
    # The number that is all of a short name, 3.jpg, may be what is in it.
    return agree and len(pairs) == len({*cells}) and all(map(is_telling, stems))


def is_telling(stem: str) -> bool:
    """Tell whether a word is the stem of a sample rather than a word or a number: it has letters and digits, or many
    digits."""
    return _TELLING.fullmatch(stem) is not None


def originals(names: Sequence[str]) -> Sequence[str]:
    """Return the names of files without what programs write into those of copies and pieces: names of copies of one
    picture, or of frames of one video, become equal.

    >>> originals(["a/cat1.jpg", "a/cat1_flipLR.jpg", "a/rotated_cat1.jpg", "a/cat_rot_2.jpg"])
    ['a/cat1.jpg', 'a/cat1.jpg', 'a/cat1.jpg', 'a/cat_rot_2.jpg']
    """
    return [*map(_original, names)] if _say_one_of(names, (".rf.", *_DONE_BY_PART)) else names


def _original(name: str) -> str:
    folder, slash, base = name.rpartition("/")
    stem, extension = posixpath.splitext(base)
    found = _MADE.sub("", stem)
    # Without a number it may be the name of many: cat_rot_1 is rotten.
    return f"{folder}{slash}{found}{extension}" if any(map(str.isdecimal, found)) else name


def persons(names: Sequence[str]) -> list[str]:
    """Return the number of a patient or other person in each path, beside the word for it; "" for none. Without any the
    list is empty.

    >>> persons(["sick/person12_virus_3.jpg", "phone_case_3.jpg", "Patient 07/slice1.png", "in/case_4/1.png"])
    ['person 12', '', 'patient 7', 'case 4']
    """
    if not _say_one_of(names, ("patient", "subj", "participant", "person", "volunteer", "donor", "case", "sub")):
        return []
    found = map(_PERSON.search, names)
    return ["" if one is None else f"{one[1].lower()} {int(one[3])}" for one in found]


def _say_one_of(names: Sequence[str], words: Iterable[str]) -> bool:
    """Tell whether any name has any of some words. One text is searched in a hundredth of the time that names take."""
    text = "\n".join(names).lower()
    return any(word in text for word in words)


def before_last_word(stem: str) -> str:
    """Return what precedes the last word of a name, as the stem of an image does in that of its mask; "" for nothing.

    >>> before_last_word("train_1_anno"), before_last_word("train_1")
    ('train_1', '')
    """
    found = _LAST_WORD.match(stem[::-1])
    return "" if found is None else stem[: -found.end()]


def folder_of(name: str) -> str:
    """Return the bare name of the folder that a file is in; "" if it is in none."""
    return posixpath.basename(posixpath.dirname(name))


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGES)


def is_sample(name: str) -> bool:
    """Tell whether a name ends as those of images and clips of sound do."""
    return name.lower().endswith((*IMAGES, *SOUNDS))


def is_table(name: str) -> bool:
    return name.lower().endswith(TABLES)


def is_note(name: str) -> bool:
    """Tell whether a file's name says that it is not about single samples: a readme, what `save_to_disk` adds."""
    return posixpath.basename(name).lower().startswith(_NOTES)


def may_hold_labels(name: str) -> bool:
    """Tell whether a file's name says that it holds labels: labels.npy, train_annotations.json, y_train.mat."""
    return not _OF_LABELS.isdisjoint(words_of(stem_of(name)))


def may_hold_names(name: str) -> bool:
    """Tell whether a file's name says that it holds names of classes, beside labels: signnames.csv, cat_to_name.json,
    class_to_idx.json."""
    return may_hold_labels(name) or any(word.endswith(("name", "names")) for word in words_of(stem_of(name)))


def is_submission(name: str) -> bool:
    """Tell whether a table is a competition's sample submission, whose labels are placeholders."""
    return "submission" in posixpath.basename(name).lower()


@functools.lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words and numbers of a name, in lower case.

    >>> words_of("ISIC2018_TrainingGroundTruth")
    ('isic', '2018', 'training', 'ground', 'truth')
    """
    found = _WORDS.findall(name)
    # nnU-Net's folders are imagesTr, labelsTr, imagesTs; image_tr is the top right.
    return tuple(_SHORT.get(word, word.lower()) if found[0].lower() in _ROLES else word.lower() for word in found)


def letters_of(name: str) -> list[str]:
    """Return the words of a name without its numbers, and those for a folder: img_dir means img."""
    return [word for word in words_of(name) if not word[0].isdecimal() and word not in OF_FOLDERS]


def sides_of_texts(names: Iterable[str]) -> list[str]:
    """Return the words in which texts differ, if all are classes or sides of each sample: en.txt beside de.txt."""
    stems = [re.split("[^A-Za-z]+", stem_of(name)) for name in names]
    shared = set.intersection(*map(set, stems)) if stems else set()
    rest = ["-".join(word for word in stem if word not in shared) for stem in stems]
    return sorted({*rest}) if len({*rest}) > 1 and all(map(_OF_TEXTS.fullmatch, rest)) else []


class SplitName(NamedTuple):
    """The split in a folder's or table's name."""

    split: str
    rest: tuple[str, ...]
    """The remaining words, which distinguish datasets."""


@functools.lru_cache(maxsize=4096)
def split_name(name: str) -> SplitName:
    """Read the split in a name, in any spelling.

    >>> split_name("rps-test-set"), split_name("train2017")
    (SplitName(split='test', rest=('rps',)), SplitName(split='train', rest=()))
    """
    words = letters_of(name)
    # Two splits in one name (train_test_split) do not say what it contains.
    splits = {SPLITS[word] for word in words if word in SPLITS}
    rest = tuple(word for word in words if word not in SPLITS and word not in _BESIDE_SPLITS)
    return SplitName(splits.pop() if len(splits) == 1 else "", rest)


def is_split(name: str) -> bool:
    """Tell whether a folder's name is only a split: train, Training_set, val2017, test_images."""
    found = split_name(name)
    return bool(found.split) and not found.rest


def is_almost_split(name: str) -> bool:
    """Tell whether a path has a word that may be meant as a held-out split: eval, vaild. What has no split is trained
    on, so nothing is lost by trian; and brain is no split."""
    close = [difflib.get_close_matches(word, SPLITS, 1, 0.8) for word in letters_of(name) if word not in SPLITS]
    return any(found and SPLITS[found[0]] != "train" for found in close)


def split_of_path(name: str) -> str:
    """Return the split in the names of a file's folders, the outermost first; "" for none."""
    return next((split_name(folder).split for folder in name.split("/")[:-1] if is_split(folder)), "")


def split_of_file(name: str) -> str:
    """Return the split in a file's name, or otherwise in those of its folders; "" for none."""
    return split_name(stem_of(name)).split or split_of_path(name)


def same_split(one: str, other: str) -> bool:
    """Tell whether two names of splits mean the same part of a dataset: val, valid, validation and dev do."""
    return one == other or {one, other} <= _HELD_OUT


def names_classes(name: str, header: Iterable[str]) -> bool:
    """Tell whether a table names the classes of masks, by their colours or numbers: class_dict.csv, Roboflow's
    _classes.csv."""
    columns = {column.strip().lower() for column in header}
    is_about_classes = {"name", "r", "g", "b"} <= columns or {"pixel value", "class"} <= columns
    return is_about_classes and "class" in posixpath.basename(name).lower()


@functools.lru_cache(maxsize=4096)
def is_role(name: str) -> bool:
    """Tell whether a folder's name is a part of every sample: images, masks, labels, train_annotations."""
    words = set(letters_of(name))
    is_named = not words.isdisjoint(_ROLES) and words <= _ROLES | SPLITS.keys()
    return is_named or name.lower() in _ROLES or _ROLE_ENDS.search(name) is not None


def is_aside(name: str) -> bool:
    """Tell whether a folder's name is a part of every sample, or says that its files are others once more, or are still
    to be sorted: masks, thumbnails."""
    return is_role(name) or set() < {*words_of(name)} <= _ASIDE


def holds_targets(name: str) -> bool:
    """Tell whether a folder's name has a word for masks or labels: Semantic_masks, train-label-img."""
    return not _OF_TARGETS.isdisjoint(letters_of(name))


def is_unlabelled(name: str) -> bool:
    """Tell whether a folder's name says that its samples have no label: unlabeled2017, train_unsup."""
    return not _UNLABELLED.isdisjoint(words_of(name))


def parts_among(names: Sequence[str]) -> set[str]:
    """Return the folders whose names are parts of a dataset or of each sample: fold1, LR, depth, video_2, 2024-01; or
    have a word for one beside those that all share: DIV2K_HR and DIV2K_LR_bicubic."""
    words = {name: set(letters_of(name)) for name in names}
    shared = set.intersection(*words.values()) if words else set()
    called = {name: _PARTS | _PIECES if any(map(str.isdecimal, name)) else _PARTS for name in names}
    alone = {name for name, own in words.items() if set() < own <= called[name] or _DATED.match(name)}
    return alone | {name for name, own in words.items() if shared and not _PARTS.isdisjoint(own - shared)}


def may_hold_parts(names: Iterable[str], stem: str) -> bool:
    """Tell whether folders that share stems, such as `stem`, may hold parts of each sample by their names.

    All are called so, or by a letter beside one that is (A, B, label), or by numbers beside targets (time1, time2,
    label); or one is called as no class would be, and the stems have letters: plain numbers are shared by folders of
    classes as well.
    """
    words = {name: set(words_of(name)) for name in names}
    # "cat photos" and "dog photos" are not different parts.
    alike = len({frozenset(one & _OF_SAMPLES) for one in words.values()}) == 1
    if alike or any(not one.isdisjoint(_NEGATIONS) for one in words.values()):
        return False
    others = [name for name, one in words.items() if len(name) > 1 and one.isdisjoint(_OF_SAMPLES)]
    are_numbered = len(others) > 1 == len({tuple(letters_of(name)) for name in others})
    if not others or (are_numbered and any(map(holds_targets, words.keys() - others))):
        return True
    return re.search(r"[a-z]", stem) is not None and any(not one.isdisjoint(_NEVER_CLASSES) for one in words.values())


@functools.lru_cache(maxsize=4096)
def holds_images(name: str) -> bool:
    """Tell whether a folder's name only says that it holds images: images, JPEGImages, train_imgs."""
    return is_role(name) and not _OF_IMAGES.isdisjoint(letters_of(name)[-1:])


@functools.lru_cache(maxsize=4096)
def is_foreign(name: str) -> bool:
    """Tell whether a folder is hidden, or left by a file manager or network drive, so not part of a dataset."""
    return name.startswith(".") or name.lower() in _FOREIGN


def spoken(name: str) -> str:
    """Return a class's name as people read it, so that two spellings of it are equal."""
    text = " ".join(normal(name).replace("_", " ").split())
    text = _COPY.sub("", text).strip() or text
    # Single letters are kept: "a" and "A" are two classes.
    if len(text) == 1:
        return text
    return str(int(text)) if text.isascii() and text.isdecimal() and len(text) < 100 else text.casefold()


def shared_folders(names: Iterable[str]) -> list[str]:
    """Return the folders common to all paths, the outermost first."""
    paths = [folder.split("/") if folder else [] for folder in {name.rpartition("/")[0] for name in names}]
    if not paths:
        return []
    # All paths sort between the first and the last of them.
    first, last = min(paths), max(paths)
    depth = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[: min(len(first), len(last)) if depth is None else depth]


def splits_of_folders(folders: Sequence[str]) -> list[str]:
    """Return the split of each of some folders; "" for none."""
    # DIV2K_train_HR beside DIV2K_valid_HR: the same words beside the split.
    depth = len(shared_folders(f"{folder}/" for folder in folders))
    tops = [split_name("".join(folder.split("/")[depth : depth + 1])) for folder in folders]
    several = Counter(rest for split, rest in {*tops} if split)
    alike = {rest for _, rest in tops if several[rest] > 1 or len({top.rest for top in tops}) == 1}
    return [
        split_of_path(f"{folder}/") or (top.split if top.rest in alike else "")
        for folder, top in zip(folders, tops, strict=True)
    ]


# --- columns of tables and fields of records --------------------------------------------------------------------------

# By preference, if two have the same content.
LABELS = (
    "label", "labels", "class", "class_name", "classname", "class_label", "label_name", "category", "target", "targets",
    "tags", "diagnosis", "diagnostic", "dx", "finding_labels", "species", "breed", "class_id", "classid", "label_id",
    "category_id",
)  # fmt: skip
SETS_OF_LABELS = ("labels", "tags", "targets", "finding_labels")
LABEL_WORDS = frozenset({"label", "labels", "class", "classid", "classname", "category", "target", "species", "breed"})
PATHS = (
    "path", "image_path", "img_path", "file_path", "filepath", "file", "file_name", "filename", "image", "img",
    "image_name", "image_id", "image_index", "img_name", "picture", "audio", "clip",
)  # fmt: skip
# In the name of a column they say that it names files, whatever of: mask_image_path.
OF_PATHS = frozenset({"path", "file", "filename", "name", "image", "img", "id"})
IDS = ("id", "idx", "index", "uuid", "row")
# Words about an image that are not its class, however often they repeat.
CAPTIONS = ("text", "txt", "caption", "captions", "description", "prompt", "comment")
# Facts about a file, or made from it for an experiment, which are not targets.
ABOUT_FILES = (
    "url", "link", "source_url", "md5", "sha1", "sha256", "checksum", "hash", "phash", "file_size", "filesize",
    "fold", "folds", "kfold", "cv_fold",
)  # fmt: skip
SPLIT_COLUMNS = ("split", "subset", "partition", "data_split", "dataset_split")
# Columns that say splits if one of their words does.
PERHAPS_SPLITS = (*SPLIT_COLUMNS, "set", "phase", "usage", "part")
PERSONS = re.compile(
    r"(patient|subject|participant|person|lesion)(_?(id|no|nr|num|number|code|name))?|case_?(id|no|nr|num|number|code|name)"
    r"|(group|session|scene|animal|mouse|donor|individual|volunteer|specimen|recording|clip|sequence|slide)_?id"
)
# May be a label or a group; places if their cells are numbers or codes, because words may be parts of a body.
SCENES = re.compile(r"(speaker|driver|user|case|video)(_?id)?|group|session|scene|seq_?id")
PLACES = re.compile(r"(location|site|station)(_?(id|no|nr|num|number|code|name))?|(camera|trap)_?(id|no|nr|num|number)")
GROUPS = (PERSONS, PLACES, SCENES)
YES = frozenset({"true", "t", "yes", "y", "1", "1.0"})
NO = frozenset({"false", "f", "no", "n", "0", "0.0"})
# The column of CUB-200-2011 and NABirds: yes is for training.
_BOTH_SPLITS = "train_test_split"
# Names of fields that say which split each record belongs to.
SPLIT_FIELDS = frozenset({*SPLIT_COLUMNS, *(f"is_{word}" for word in SPLITS), "is_training_image", _BOTH_SPLITS})
# FER2013 calls it usage; of clothes that is a class.
MAY_SPLIT = SPLIT_FIELDS | {"usage"}
# Names of arrays and attributes that list the names of classes.
CLASS_LISTS = {"classes", "class_names", "classnames", "label_names", "list_classes", "target_names", "categories"}
# What 0, 1 and 2 mean in a column of splits, as in CelebA's partition.
NUMBERED_SPLITS = ("train", "val", "test")


def plain_name(column: str) -> str:
    """Return a column's name in the form of the known names: "Patient ID" is patient_id."""
    return re.sub(r"[\s.-]+", "_", column.strip().lower())


def flagged_splits(column: str) -> tuple[str, str] | None:
    """Return the splits that yes and no mean in a column that is called after one: is_test, isTraining, train."""
    read = split_name(column)
    if plain_name(column) == _BOTH_SPLITS:
        return "train", "test"
    if not read.split or not {"is"}.issuperset(read.rest):
        return None
    return read.split, "test" if read.split == "train" else "train"


def split_field(name: str) -> str:
    """Return the field of splits that a file is called after: partition for list_eval_partition.txt, split for
    splits.json; "" for none."""
    stem = stem_of(name)
    found = (word.removesuffix("s") for word in (plain_name(stem), *words_of(stem)))
    return next((word for word in found if word in SPLIT_FIELDS), "")


def states_splits(header: Sequence[str]) -> bool:
    """Tell whether a table states the splits of files alone, by its header: a path and a split."""
    return len(header) == 2 and sum(plain_name(name) in SPLIT_FIELDS for name in header) == 1


def is_label_name(column: str) -> bool:
    """Tell whether a column's name means a label, so that it is never the path."""
    return plain_name(column) in LABELS


def label_names(columns: Iterable[str], first: tuple[str, ...] = ()) -> list[str]:
    """Return the columns whose name means a label, one of the plain names `first` or a common one, by preference."""
    known = {name: place for place, name in reversed([*enumerate((*first, *LABELS, "y"))])}
    plain = {name: plain_name(name) for name in columns}
    # Beside an x, y is the other part of a place.
    found = (name for name, one in plain.items() if one in known and (one != "y" or "x" not in plain.values()))
    return sorted(found, key=lambda name: known[plain[name]])


def is_group_name(column: str) -> bool:
    """Tell whether a column's name means what samples belong to: a person, a place, a scene."""
    return any(pattern.fullmatch(plain_name(column)) for pattern in GROUPS)


def may_be_label(column: str) -> bool:
    """Tell whether a column's name allows it to be a label: it means nothing else."""
    known = (*IDS, *CAPTIONS, *ABOUT_FILES, *PATHS, *SPLIT_COLUMNS, "width", "height")
    return not (is_index_name(column) or plain_name(column) in known or plain_name(column).endswith("_id"))


def unused_labels(fields: Sequence[str]) -> list[str]:
    """Return the fields that may label samples which nothing else does: none beside a caption, because such images have
    texts instead of labels, and the others are about both."""
    return [] if {*map(plain_name, fields)} & {*CAPTIONS} else [*filter(may_be_label, fields)]


def is_index_name(column: str) -> bool:
    """Tell whether a column is a row number that a program wrote."""
    # "Unnamed: 0" is pandas' name for an index that it wrote and read again.
    return not column or column.lower().startswith("unnamed")

"""WebDataset's shards, as its own writer makes them, read as its own reader reads them."""

from __future__ import annotations

import gc
import io
import json
import tarfile
import time
import tracemalloc
import warnings
import wave
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import CorruptArchiveError, EmptySourceError, LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.formats.webdataset import scan_shard
from colabstage.layouts.records import ScanWindow, ShardFile, split_of_shard
from colabstage.layouts.table import BrokenDatasetError
from colabstage.options import Arrays, Masks, Values, audio_clips
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.folder import FolderTree
from colabstage.trees.open import JoinedTree, open_tree
from tests.layouts.readers import contents, labels, picture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


webdataset = pytest.importorskip("webdataset", reason="needs webdataset: pip install -c constraints.txt webdataset")


def png(values: NDArray[np.uint8]) -> bytes:
    """A grey image."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def samples(first: int, count: int) -> list[dict[str, Any]]:
    """Images with a class, as `TarWriter` takes them."""
    return [{"__key__": f"{n:06d}", "png": picture(n), "cls": n % 3} for n in range(first, first + count)]


def write(path: Path, content: Sequence[Mapping[str, Any]]) -> Path:
    """Make a shard with WebDataset's own writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as sink:
        for sample in content:
            sink.write(dict(sample))
    return path


def write_tar(path: Path, files: Sequence[tuple[str, bytes]]) -> Path:
    """Make a tar of files that WebDataset's writer would refuse."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def read_back(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """All samples as WebDataset's own reader gives them, undecoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its files to the garbage collector
        found = list(webdataset.WebDataset([str(path) for path in paths], shardshuffle=False))
        gc.collect()
    return found


def test_a_sample_of_many_is_one_small_object_while_they_are_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 images with a class: at most 700 bytes of memory each."""
    monkeypatch.setattr("colabstage.layouts.records._FAR_BYTES", 1 << 15)
    files = [(f"{n // 2:06d}.{('png', 'cls')[n % 2]}", b"1") for n in range(4_000)]
    path = write_tar(tmp_path / "shards" / "a.tar", files)
    shard = ShardFile(path.name, "", lambda: LocalBytes(path))
    tracemalloc.start()
    try:
        found = scan_shard(shard, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.samples) == 2_000
    assert peak < 700 * 2_000


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_shards_in_a_folder_are_what_webdataset_reads(tmp_path: Path, ending: str) -> None:
    """Sample by sample, shard after shard, also compressed; splits are those that the shards are called after."""
    paths = [
        write(tmp_path / "data" / f"train-000000.{ending}", samples(0, 5)),
        write(tmp_path / "data" / f"train-000001.{ending}", samples(5, 4)),
        write(tmp_path / "data" / f"val-000000.{ending}", samples(0, 3)),
    ]
    table = detect_layout(FolderTree(tmp_path / "data"))
    theirs = read_back(paths)
    assert table.layout == "webdataset"
    assert contents(table) == [sample["png"] for sample in theirs]
    assert labels(table) == [int(sample["cls"]) for sample in theirs]
    assert table.splits == ("train",) * 9 + ("val",) * 3
    assert table.keys[0] == f"train-000000.{ending}/000000.png"


def test_a_tar_is_a_shard_itself(tmp_path: Path) -> None:
    """One tar is read in place; several that are joined are one shard each, with the splits that they are called."""
    one = write(tmp_path / "train-0.tar", samples(0, 5))
    other = write(tmp_path / "test-0.tar", samples(5, 4))
    with open_tree(one, spool=tmp_path) as tree:
        table = detect_layout(tree)
        assert contents(table) == [sample["png"] for sample in read_back([one])]
        assert table.splits == ("train",) * 5
    parts = [(path.stem, open_tree(path, spool=tmp_path)) for path in (one, other)]
    with JoinedTree("two", parts) as joined:
        table = detect_layout(joined)
        assert contents(table) == [sample["png"] for sample in read_back([one, other])]
        assert table.splits == ("train",) * 5 + ("test",) * 4


def test_shards_inside_a_zip_are_read(tmp_path: Path) -> None:
    """What gives no parts is unpacked to the local disk first."""
    shard = write(tmp_path / "a.tar", samples(0, 4))
    with zipfile.ZipFile(tmp_path / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(shard, "shards/a.tar")
    with open_tree(tmp_path / "data.zip", spool=tmp_path) as tree:
        assert contents(detect_layout(tree)) == [picture(n) for n in range(4)]


@pytest.mark.parametrize(
    ("files", "values", "classes"),
    [
        ([{"json": {"label": n % 2}} for n in range(4)], [0, 1, 0, 1], ("0", "1")),
        ([{"json": {"label": 1 + n % 2}} for n in range(4)], [1, 2, 1, 2], ()),
        ([{"json": {"label": n % 2, "class_name": "ab"[n % 2]}} for n in range(4)], [0, 1, 0, 1], ("a", "b")),
        ([{"json": {"label": "cat" if n else "dog"}} for n in range(4)], [1, 0, 0, 0], ("cat", "dog")),
        ([{"json": {"label": n / 4}} for n in range(4)], [0, 0.25, 0.5, 0.75], ()),
        ([{"txt": "dog" if n % 2 else "cat"} for n in range(4)], [0, 1, 0, 1], ("cat", "dog")),
        ([{"txt": str(n % 2)} for n in range(4)], [0, 1, 0, 1], ("0", "1")),
        ([{"cls": 7, "json": {"label": 1}, "txt": "a caption"} for n in range(2)], [7, 7], ()),
        ([{"json": n} for n in range(3)], [0, 1, 2], ()),
        *(
            ([{"json": {"width": 6, name: word}} for word in ("pug", "boxer", "pug")], [1, 0, 1], ("boxer", "pug"))
            for name in ("label", "Label", "class_index", "diagnosis", "species")
        ),
    ],
)
def test_labels_are_taken_where_they_are(tmp_path: Path, files: list[Any], values: list[Any], classes: Any) -> None:
    """From cls, else from json by the names that tables have, else from a txt that is a class."""
    write(tmp_path / "d" / "a.tar", [{"__key__": f"{n}", "jpg": b"x", **file} for n, file in enumerate(files)])
    table = detect_layout(FolderTree(tmp_path / "d"), "webdataset")
    assert labels(table) == values
    assert table.classes == classes


def test_a_field_of_the_json_says_the_splits(tmp_path: Path) -> None:
    """One in all samples, of those names alone."""
    splits = ("train", "train", "test", "val")
    for name, lacks in (("d", 9), ("odd", 2)):
        fields = [{"label": n % 2, **({} if n == lacks else {"split": splits[n]})} for n in range(4)]
        write(
            tmp_path / name / "a.tar", [{"__key__": f"{n}", "jpg": b"x", "json": one} for n, one in enumerate(fields)]
        )
    assert detect_layout(FolderTree(tmp_path / "d")).splits == splits
    with pytest.raises(BrokenDatasetError, match=r"a\.tar.*'split'"):
        detect_layout(FolderTree(tmp_path / "odd"))


def test_arrays_and_masks_are_what_webdataset_reads(tmp_path: Path) -> None:
    """npy as rows, seg.png as masks, as its own decoder gives them; what is read by nobody is said."""
    rng = np.random.default_rng(0)
    rows = [
        {"__key__": f"{n}", "npy": rng.normal(size=(3, 4)).astype("f4"), "cls": n % 3, "wav": b""} for n in range(4)
    ]
    path = write(tmp_path / "rows" / "a.tar", rows)
    found = detect_layout(FolderTree(path.parent))
    assert isinstance(found.inputs, Arrays)
    assert isinstance(found.targets, Values)
    for number, sample in enumerate(read_back([path])):
        own = found.inputs.to_array(found.inputs.source.read(number))
        np.testing.assert_array_equal(own, np.lib.format.read_array(io.BytesIO(sample["npy"])))
        assert found.targets.values[number] == int(sample["cls"])
    assert "Other files of the samples were left out: wav." in found.notes

    masks = [np.full((8, 6), n % 3, np.uint8) for n in range(4)]
    files = [
        (f"{n}.{end}", content) for n in range(4) for end, content in (("jpg", picture(n)), ("seg.png", png(masks[n])))
    ]
    found = detect_layout(
        FolderTree(write_tar(tmp_path / "masks" / "a.tar", [*files[:2], ("0.cls", b"1"), *files[2:]]).parent)
    )
    assert isinstance(found.targets, Masks)
    theirs = read_back([tmp_path / "masks" / "a.tar"])
    assert [found.targets.source.read(number) for number in range(4)] == [sample["seg.png"] for sample in theirs]
    assert "labels" in found.notes[0]
    with pytest.raises(BrokenDatasetError, match=r"'b.tar/1.jpg'"):
        detect_layout(FolderTree(write_tar(tmp_path / "some" / "b.tar", [*files[:3]]).parent))
    odd = [("0.jpg", picture(0)), ("0.cls", b"0"), ("1.npy", b""), ("1.cls", b"0")]
    tree = FolderTree(write_tar(tmp_path / "odd" / "b.tar", odd).parent)
    with pytest.raises(BrokenDatasetError, match=r"1\.npy|0\.jpg"):
        detect_layout(tree)


@pytest.mark.parametrize("kind", ["pyd", "pth"])
def test_samples_that_only_webdataset_decodes_are_named(tmp_path: Path, kind: str) -> None:
    """A pickle may run anything; the message has the line that gets it in."""
    tree = FolderTree(write_tar(tmp_path / "d" / "a.tar", [(f"0.{kind}", b"x"), ("0.cls", b"0")]).parent)
    with pytest.raises(LayoutError, match=rf"WebDataset\(URL\).decode\(\).to_tuple\('{kind}', 'cls'\)"):
        detect_layout(tree)


def clip(values: NDArray[np.int16], rate: int = 8000) -> bytes:
    """A WAV."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, rate, 0, "NONE", ""))
        out.writeframes(values.astype("<i2").tobytes())
    return file.getvalue()


def test_clips_of_sound_are_rows(tmp_path: Path) -> None:
    """wav with its cls, of one length; of other lengths as audio_clips says."""
    clips = [np.random.default_rng(n).integers(-999, 999, 50).astype(np.int16) for n in range(4)]
    write(tmp_path / "d" / "a.tar", [{"__key__": f"{n}", "wav": clip(one), "cls": n} for n, one in enumerate(clips)])
    found = detect_layout(FolderTree(tmp_path / "d"))
    assert isinstance(found.inputs, Arrays)
    assert (found.layout, labels(found), found.inputs.shape) == ("webdataset", [0, 1, 2, 3], (50,))
    for number, one in enumerate(clips):
        np.testing.assert_array_equal(found.inputs.to_array(found.inputs.source.read(number)), one / np.float32(32768))
    path = write(
        tmp_path / "e" / "a.tar", [{"__key__": f"{n}", "wav": clip(clips[n][: 40 + n]), "cls": n} for n in range(4)]
    )
    with pytest.raises(BrokenDatasetError, match=r"layout=audio_clips\(length=43\)"):
        detect_layout(FolderTree(tmp_path / "e"))
    for tree in (FolderTree(tmp_path / "e"), open_tree(path, spool=tmp_path)):
        with tree:
            found = detect_layout(tree, audio_clips(length=43, dtype="int16"))
            assert isinstance(found.inputs, Arrays)
            np.testing.assert_array_equal(found.inputs.to_array(found.inputs.source.read(0)), [*clips[0][:40], 0, 0, 0])
            assert labels(found) == [0, 1, 2, 3]


def test_what_is_said_in_a_clip_is_no_label(tmp_path: Path) -> None:
    """A tar of folders of clips with a text beside each has the folders as classes, as it has without the texts."""
    files = [
        (f"{word}/{n}.{end}", content)
        for word in ("yes", "no")
        for n in range(2)
        for end, content in (("wav", clip(np.zeros(9, np.int16))), ("txt", b"a word"))
    ]
    with open_tree(write_tar(tmp_path / "d" / "a.tar", files), spool=tmp_path) as tree:
        with pytest.raises(LayoutError, match="not a WebDataset"):
            detect_layout(tree, "webdataset")
        assert detect_layout(tree, "audio").classes == ("no", "yes")


def test_captions_are_no_classes(tmp_path: Path) -> None:
    """Images with a text of their own each are kept without targets, and a note says so."""
    write(tmp_path / "d" / "a.tar", [{"__key__": f"{n}", "jpg": b"x", "txt": f"photo {n}"} for n in range(4)])
    table = detect_layout(FolderTree(tmp_path / "d"))
    assert table.targets is None
    assert any("captions" in note for note in table.notes)


def test_samples_without_an_image_are_left_out(tmp_path: Path) -> None:
    """And counted in a note."""
    write(tmp_path / "d" / "a.tar", [*samples(0, 2), {"__key__": "z", "cls": 1}])
    table = detect_layout(FolderTree(tmp_path / "d"))
    assert len(table) == 2
    assert any("1 sample of the shards without" in note for note in table.notes)


@pytest.mark.parametrize(
    "names",
    [
        ["n01/1.jpg", "n01/2.jpg", "n02/1.jpg", "n02/2.jpg"],
        ["images/1.jpg", "labels/1.txt"],
        ["1.jpg", "2.jpg", "classes.txt"],
    ],
)
def test_tars_of_other_layouts_are_not_claimed(tmp_path: Path, names: list[str]) -> None:
    """Neither as the tree itself nor inside of one."""
    path = write_tar(tmp_path / "e" / "d.tar", [(name, b"") for name in names])
    with open_tree(path, spool=tmp_path) as tree, pytest.raises(LayoutError, match="not a WebDataset"):
        detect_layout(tree, "webdataset")
    with pytest.raises(LayoutError, match="not a WebDataset"):
        detect_layout(FolderTree(tmp_path / "e"), "webdataset")


def test_a_stray_tar_does_not_hide_a_folder_of_images(tmp_path: Path) -> None:
    """Not even a broken one: it is asked about, and the layout's name leaves it out."""
    for name in ("cat/1.jpg", "dog/1.jpg", "backup.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(LayoutError, match=r"'backup\.tar'.*layout=\"image_folder\""):
        detect_layout(FolderTree(tmp_path))
    assert detect_layout(FolderTree(tmp_path), "image_folder").classes == ("cat", "dog")


def test_without_tars_there_is_nothing(tmp_path: Path) -> None:
    """An empty source is told from one that is something else."""
    with pytest.raises(EmptySourceError):
        detect_layout(FolderTree(tmp_path), "webdataset")


@pytest.mark.parametrize("cut", [700, 3000, 10_000])
def test_a_cut_shard_is_named(tmp_path: Path, cut: int) -> None:
    """In a header, in a member, without an end: never fewer samples in silence."""
    write(tmp_path / "d" / "a-0.tar", samples(0, 3))
    path = write(tmp_path / "d" / "a-1.tar", samples(3, 30))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CorruptArchiveError, match=r"a-1\.tar"):
        detect_layout(FolderTree(tmp_path / "d"))


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([("1.jpg", b""), ("1.cls", b"0"), ("1.jpg", b"")], "'1.jpg' twice"),
        ([("1.jpg", b""), ("1.json", b"{")], r"1\.json'.* not JSON"),
        ([("1.jpg", b""), ("1.cls", b"\xff\xfe\xff")], "is not text"),
        ([("1.jpg", b""), ("1.cls", b"0"), ("2.jpg", b"")], "1 of 2 samples has no label"),
        ([("1.jpg", b""), ("1.cls", b"0"), ("2.jpg", b""), ("2.cls", b"cat")], "a word"),
        ([("1.jpg", b""), ("1.cls", b"9" * 30)], "64 bits"),
    ],
)
def test_broken_samples_are_named(tmp_path: Path, files: list[tuple[str, bytes]], says: str) -> None:
    """One typed error; no other layout is asked."""
    write_tar(tmp_path / "d" / "a.tar", files)
    with pytest.raises(BrokenDatasetError, match=says):
        detect_layout(FolderTree(tmp_path / "d"))


@pytest.mark.torch
@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_shards_are_packed(tmp_path: Path, encoding: str) -> None:
    """End to end: the packed pixels and labels are those that WebDataset decodes."""
    dataset_h5 = pytest.importorskip("colabstage.load.dataset", reason="needs torch: pip install torch").dataset_h5
    paths = [write(tmp_path / "d" / f"test-{n}.tar", samples(4 * n, 4)) for n in range(3)]
    pack_dataset(tmp_path / "d", tmp_path / "out.h5", encoding=encoding, progress=False)
    theirs = read_back(paths)
    packed = dataset_h5(tmp_path / "out.h5", split="test")
    assert len(packed) == len(theirs)
    for index, sample in enumerate(theirs):
        x, y = packed[index]
        np.testing.assert_array_equal(x, np.asarray(Image.open(io.BytesIO(sample["png"]))))
        assert y == int(sample["cls"])
    packed.close()


def test_more_shards_than_may_be_open(tmp_path: Path) -> None:
    """Handles are let go of, and taken again, as reading goes from shard to shard."""
    for number in range(80):
        write(tmp_path / f"s-{number:03d}.tar", samples(number, 1))
    table = detect_layout(FolderTree(tmp_path))
    assert contents(table) == [picture(n) for n in range(80)]
    assert contents(table) == [picture(n) for n in range(80)]


class _SlowBytes:
    """A `ByteSource` that takes its time, and counts."""

    label = "slow"

    def __init__(self, content: bytes, wait: Callable[[], None]) -> None:
        self.content = content
        self.size = len(content)
        self.reads = 0
        self._wait = wait

    def pread(self, length: int, offset: int) -> bytes:
        self.reads += 1
        self._wait()
        return self.content[offset : offset + length]

    def close(self) -> None:
        pass


def test_a_slow_shard_is_scanned_in_few_reads() -> None:
    """A round trip costs more than the bytes between two headers."""
    content = bytes(range(256)) * 40_000
    source = _SlowBytes(content, lambda: time.sleep(0.003))
    window = ScanWindow(ShardFile("slow", "", lambda: source))
    assert all(window.pread(100, at) == content[at : at + 100] for at in range(0, len(content), 50_000))
    assert source.reads <= 5
    assert window.pread(1000, len(content) - 10) == content[-10:]


def test_the_split_of_a_shard_is_a_word_of_its_name() -> None:
    """Of the file's name first, then of the folders; two different words are none."""
    assert split_of_shard("train/test-0.tar") == "test"
    assert split_of_shard("val/0.tar") == "val"
    assert split_of_shard("train-val-0.tar") is None
    assert split_of_shard("constraint-0.tar") is None


def test_a_label_in_a_json_that_is_none_is_refused(tmp_path: Path) -> None:
    """A list is never dropped, unless a cls says the label."""
    files = [("a.png", picture(0)), ("a.json", json.dumps({"label": [0, 1]}).encode())]
    write_tar(tmp_path / "one" / "a.tar", files)
    with pytest.raises(BrokenDatasetError, match=r"a\.json'.*\[0, 1\].*'label'"):
        detect_layout(FolderTree(tmp_path / "one"))
    write_tar(tmp_path / "two" / "a.tar", [*files, ("a.cls", b"1")])
    table = detect_layout(FolderTree(tmp_path / "two"))
    assert isinstance(table.targets, Values)
    assert table.targets.values.tolist() == [1]

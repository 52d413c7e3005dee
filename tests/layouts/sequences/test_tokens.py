"""Blocks of tokens: of files of tokens, of text as its bytes or as a tokenizer has it; nothing is lost but the end."""

from __future__ import annotations

import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage import pack_dataset, plan_stage, stage_dataset
from colabstage.errors import EmptySourceError, LayoutError, OptionError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.formats import tokens as token_streams
from colabstage.layouts.table import BrokenDatasetError
from colabstage.options import Arrays, token_blocks
from colabstage.trees.folder import FolderTree
from tests.layouts.readers import completed

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.options import SampleTable


def put(place: Path, content: str | bytes) -> Path:
    """Write a file, and the folders above it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.encode() if isinstance(content, str) else content)
    return place


def stream(found: SampleTable, split: str | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """All inputs and all targets of a split, one behind the other."""
    chosen = [i for i in range(len(found)) if split is None or (found.splits and found.splits[i] == split)]
    sides = []
    for side in (found.inputs, found.targets):
        assert isinstance(side, Arrays)
        rows = [side.source.read(index) for index in chosen]
        assert all(isinstance(row, np.ndarray) and row.dtype == side.dtype and row.shape == side.shape for row in rows)
        sides.append(np.concatenate(rows))
    return sides[0], sides[1]


@pytest.mark.torch
@pytest.mark.parametrize("in_zip", [False, True])
def test_nanogpt_files_are_taken_as_they_are(tmp_path: Path, in_zip: bool) -> None:
    """train.bin and val.bin of uint16: every token in its place, from file to Dataset, the next as its target."""
    dataset_h5 = pytest.importorskip("colabstage.load.dataset", reason="needs torch: pip install torch").dataset_h5
    folder = tmp_path / "shakespeare"
    tokens = {"train": np.arange(5000) * 13 % 50257, "val": np.arange(700) % 50257}
    for split, values in tokens.items():
        put(folder / f"{split}.bin", b"")
        values.astype(np.uint16).tofile(folder / f"{split}.bin")
    put(folder / "meta.pkl", "x")
    put(folder / "input.txt", "the text it was made of")
    source = folder
    if in_zip:
        source = tmp_path / "a.zip"
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in folder.iterdir():
                archive.write(path, path.name)
    layout = token_blocks(length=64)
    report = pack_dataset(source, tmp_path / "out.h5", layout=layout, progress=False)
    assert report.samples == {"train": 78, "val": 10}
    for split, values in tokens.items():
        dataset = dataset_h5(tmp_path / "out.h5", split=split)
        for row, key in enumerate(dataset.reader.keys()):
            start = int(key[:-1].rpartition("[")[2]) * 64
            x, y = dataset[row]
            assert x.dtype == np.uint16
            np.testing.assert_array_equal(x, values[start : start + 64])
            np.testing.assert_array_equal(y, values[start + 1 : start + 65])


@pytest.mark.parametrize(("magic", "dtype"), [(20240520, np.uint16), (20240801, np.uint32)])
def test_llm_c_files_have_a_header(tmp_path: Path, magic: int, dtype: Any) -> None:
    """256 int32 that are no tokens, and that say how wide tokens are."""
    tokens = np.arange(3000).astype(dtype)
    header = np.zeros(256, np.int32)
    header[:3] = magic, 1, len(tokens)
    put(tmp_path / "train_000.bin", header.tobytes() + tokens.tobytes())
    found = detect_layout(FolderTree(tmp_path))
    assert found.layout == "tokens"
    x, y = stream(found)
    assert x.dtype == dtype
    np.testing.assert_array_equal(x, tokens[:2048])
    np.testing.assert_array_equal(y, tokens[1:2049])


def test_text_is_its_bytes(tmp_path: Path) -> None:
    """Every byte of UTF-8 in its order, files by name, splits apart; the end that fills no row is left out."""
    texts = {"train/a.txt": "Grüße\n" * 500, "train/b.txt": "x y z" * 300, "valid.txt": "ü" * 600}
    for name, text in texts.items():
        put(tmp_path / name, text)
    put(tmp_path / "README.md", "about")
    found = token_blocks(length=100)(FolderTree(tmp_path))
    train = np.frombuffer((texts["train/a.txt"] + texts["train/b.txt"]).encode(), np.uint8)
    x, y = stream(found, "train")
    assert len(x) == (len(train) - 1) // 100 * 100
    np.testing.assert_array_equal(x, train[: len(x)])
    np.testing.assert_array_equal(y, train[1 : len(x) + 1])
    assert len(stream(found, "valid")[0]) == 1100
    plain = token_blocks(length=100, next_tokens=False, separator=0)(FolderTree(tmp_path))
    assert plain.targets is None
    assert found.notes[0].startswith("6,700 tokens are 65 rows of 100 uint16 tokens, with the next ones as targets")


def words(text: str) -> list[int]:
    """A tokenizer: a number for each word, by its length and first letter."""
    return [ord(word[0]) * 100 + len(word) for word in text.split()]


@pytest.mark.parametrize("piece", [1 << 20, 64, 7])
def test_a_tokenizer_sees_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """However small the pieces are in which a file is read, tokens are those of the text at once."""
    monkeypatch.setattr(token_streams, "_PIECE_BYTES", piece)
    text = "".join(f"the {'word ' * (i % 9)}é{i}\n" for i in range(300)) + "no line end"
    put(tmp_path / "a.txt", text)
    options = token_blocks(length=10, tokenizer=words, separator=65535)
    x, _ = stream(completed(options(FolderTree(tmp_path))))
    wanted = [*words(text), 65535]
    assert x.tolist() == wanted[: len(x)]
    assert len(x) == (len(wanted) - 1) // 10 * 10


@pytest.mark.parametrize("workers", [0, 1])
def test_a_staging_reports_the_tokens_that_it_packed(tmp_path: Path, workers: int) -> None:
    """And not how many there may be, as its plan does."""
    put(tmp_path / "set/a.txt", "the cat sat on a mat " * 50)
    places: Any = {"local_dir": tmp_path / "here", "cache_dir": None}
    options = token_blocks(length=10, tokenizer=words)
    assert "At most" in str(plan_stage(tmp_path / "set", layout=options, **places))
    with ThreadPoolExecutor(1) as pool:
        executor = pool if workers else None
        staged = stage_dataset(tmp_path / "set", layout=options, **places, executor=executor, progress=False)
    notes = staged.report.notes
    assert any(note.startswith("300 tokens are 29 rows") for note in notes)
    assert not any("At most" in note for note in notes)


@pytest.mark.parametrize("piece", [1 << 20, 50])
def test_lines_of_json_are_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """Each line's text by its field, or the line itself; the separator stands behind each."""
    monkeypatch.setattr(token_streams, "_PIECE_BYTES", piece)
    documents = [f"document {i}\nwith «two» lines" for i in range(40)]
    lines = [json.dumps({"body": text, "n": 1}) if i % 3 else json.dumps(text) for i, text in enumerate(documents)]
    file = put(tmp_path / "a.jsonl", "\n".join(lines) + "\n\n")
    options = token_blocks(length=8, field="body", separator=300, next_tokens=False)
    found = completed(options(FolderTree(tmp_path)))
    assert isinstance(found.inputs, Arrays)
    x = np.concatenate([found.inputs.source.read(index) for index in range(len(found))])
    wanted = [token for text in documents for token in (*text.encode(), 300)]
    assert x.tolist() == wanted[: len(x)]
    for broken, says in (("{", "line 22"), ('{"body": 3}', "a number under 'body'"), ("[]", "it is a list")):
        file.write_text("\n".join([*lines[:21], broken, *lines[22:]]))
        with pytest.raises(BrokenDatasetError, match=rf"'a\.jsonl', line 22.*{'' if says == 'line 22' else says}"):
            completed(options(FolderTree(tmp_path)))


@pytest.mark.parametrize("tokens", [[70000], [-1], [0.5], [[1, 2]]])
def test_tokens_that_do_not_fit_are_refused(tmp_path: Path, tokens: Any) -> None:
    """None is cut to sixteen bits in silence."""
    put(tmp_path / "a.txt", "text")
    with pytest.raises(LayoutError, match=r"'a\.txt'.*uint32"):
        completed(token_blocks(length=1, tokenizer=lambda _: tokens)(FolderTree(tmp_path)))


def test_wider_tokens(tmp_path: Path) -> None:
    """dtype="uint32" holds them."""
    put(tmp_path / "a.txt", "text")
    options = token_blocks(length=2, dtype="uint32", tokenizer=lambda _: [70000, 2, 3])
    assert stream(completed(options(FolderTree(tmp_path))))[0].tolist() == [70000, 2]


def test_other_files_are_declined(tmp_path: Path) -> None:
    """Binary files of any name, pictures among texts, half a token, too little text, text that is none."""
    with pytest.raises(EmptySourceError):
        token_blocks()(FolderTree(tmp_path))
    put(tmp_path / "a/weights.bin", bytes(4096))
    with pytest.raises(LayoutError, match=r"'weights\.bin'"):
        token_blocks()(FolderTree(tmp_path / "a"))
    put(tmp_path / "b/a.txt", "text" * 999)
    put(tmp_path / "b/a.jpg", "")
    with pytest.raises(LayoutError, match=r"1 \.jpg"):
        token_blocks()(FolderTree(tmp_path / "b"))
    put(tmp_path / "c/train.bin", bytes(4097))
    with pytest.raises(BrokenDatasetError, match=r"'train\.bin'.* 4,097 bytes"):
        detect_layout(FolderTree(tmp_path / "c"))
    put(tmp_path / "d/a.txt", "short")
    with pytest.raises(LayoutError, match=r"\b5\b"):
        token_blocks()(FolderTree(tmp_path / "d"))
    put(tmp_path / "e/a.txt", b"\xff\xfe" * 100)
    with pytest.raises(BrokenDatasetError, match=r"'a\.txt'"):
        completed(token_blocks(length=9, tokenizer=words)(FolderTree(tmp_path / "e")))


@pytest.mark.parametrize("wrong", [{"length": 0}, {"dtype": "int64"}, {"separator": 65536}])
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    """Before any tree is opened."""
    with pytest.raises(OptionError, match=next(iter(wrong))):
        token_blocks(**wrong)


@pytest.mark.parametrize(
    "names",
    [
        ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"),
        ("data_batch_1.bin", "test_batch.bin", "batches.meta.txt"),
    ],
)
def test_binary_files_of_images_are_no_tokens(tmp_path: Path, names: tuple[str, ...]) -> None:
    """STL10's and CIFAR's files lie beside texts, and say by their names that they are something else."""
    for name in names:
        (tmp_path / name).write_bytes(bytes(60_000))
    with pytest.raises(LayoutError, match=r"numpy\.fromfile"):
        token_blocks()(FolderTree(tmp_path))


def test_a_tokenizers_tokens_are_known_again(tmp_path: Path) -> None:
    """By what they are, so that a killed run goes on in another process; another tokenizer's are others."""
    put(tmp_path / "a.txt", "one two three four\n")
    stamps = [
        completed(token_blocks(length=2, tokenizer=tokenizer)(FolderTree(tmp_path))).inputs.source.stamp(0)
        for tokenizer in (lambda text: [1] * len(text.split()), lambda text: [1 for _ in text.split()], words)
    ]
    assert stamps[0] == stamps[1] != stamps[2]


def test_text_is_not_read_while_it_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its beginning; nor is anything written."""
    put(tmp_path / "a.txt", "To be or not to be.\n" * 50_000)
    monkeypatch.setattr(FolderTree, "chunks", None)
    monkeypatch.setattr(token_streams, "spool_folder", None)
    assert len(detect_layout(FolderTree(tmp_path))) == (20 * 50_000 - 1) // 1024

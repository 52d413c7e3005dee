"""Blocks of tokens: of files of tokens, of text as its bytes or as a tokenizer has it; nothing is lost but the end."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from colabstage import pack_dataset, plan_stage, stage_dataset
from colabstage.errors import LayoutError, OptionError
from colabstage.layouts.detect import detect_layout
from colabstage.options import Arrays, SampleTable, token_blocks
from tests.layouts.known import MemoryTree
from tests.layouts.readers import completed, contents, read
from tests.support.archives import write_archive
from tests.support.made_files import write_files


def stream(found: SampleTable, split: str = "") -> tuple[NDArray[Any], NDArray[Any]]:
    """All inputs and all targets of a split, one behind the other."""
    table = completed(found)
    chosen = [n for n in range(len(table)) if not split or (table.splits and table.splits[n] == split)]
    assert isinstance(table.targets, Arrays)
    return (
        np.concatenate([contents(table)[n] for n in chosen]),
        np.concatenate([table.targets.to_array(table.targets.source.read(n)) for n in chosen]),
    )


TOKENS = {"train": np.arange(5000) * 13 % 50257, "val": np.arange(700) % 50257}


@pytest.mark.parametrize("holder", ["folder", "zip"])
def test_nanogpts_files_are_taken_as_they_are(tmp_path: Path, holder: str) -> None:
    """Every token in its place, from file to pack, the next as its target; texts beside are what it was made of."""
    made = {f"{split}.bin": values.astype(np.uint16).tobytes() for split, values in TOKENS.items()}
    made |= {"meta.pkl": b"x", "input.txt": b"the text it was made of"}
    source = write_files(tmp_path / "set", made) if holder == "folder" else write_archive(tmp_path / "a.zip", made)
    report = pack_dataset(source, tmp_path / "out.h5", layout=token_blocks(length=64), progress=False)
    assert report.samples == {"train": 78, "val": 10}
    with h5py.File(tmp_path / "out.h5") as file:
        for split, values in TOKENS.items():
            rows = [int(key[:-1].rpartition("[")[2]) * 64 for key in file[f"key_{split}"].asstr()]
            assert file[f"X_{split}"].dtype == np.uint16
            np.testing.assert_array_equal(file[f"X_{split}"], [values[start : start + 64] for start in rows])
            np.testing.assert_array_equal(file[f"Y_{split}"], [values[start + 1 : start + 65] for start in rows])


@pytest.mark.parametrize(("magic", "dtype"), [(20240520, np.uint16), (20240801, np.uint32)])
def test_the_header_of_llm_c_says_how_wide_tokens_are(magic: int, dtype: Any) -> None:
    """256 int32 that are no tokens."""
    tokens, header = np.arange(3000).astype(dtype), np.zeros(256, np.int32)
    header[:3] = magic, 1, len(tokens)
    found = read({"train_000.bin": header.tobytes() + tokens.tobytes()})
    assert found.layout == "tokens"
    x, y = stream(found)
    assert x.dtype == dtype
    np.testing.assert_array_equal((x, y), (tokens[:2048], tokens[1:2049]))


def test_text_is_its_bytes() -> None:
    """Every byte of UTF-8 in its order, files by name, splits apart; the end that fills no row is left out."""
    texts = {"train/a.txt": "Grüße\n" * 500, "train/b.txt": "x y z" * 300, "valid.txt": "ü" * 600, "README.md": "about"}
    found = read(texts, token_blocks(length=100))
    train = np.frombuffer((texts["train/a.txt"] + texts["train/b.txt"]).encode(), np.uint8)
    x, y = stream(found, "train")
    assert len(x) == (len(train) - 1) // 100 * 100
    np.testing.assert_array_equal((x, y), (train[: len(x)], train[1 : len(x) + 1]))
    assert len(stream(found, "valid")[0]) == 1100
    assert re.findall(r"[\d,]+", found.notes[0])[:3] == ["6,700", "65", "100"]
    assert read(texts, token_blocks(length=100, next_tokens=False, separator=0)).targets is None


@pytest.mark.parametrize(
    "options",
    [{}, {"separator": 10}, {"tokenizer": lambda text: [ord(letter) for letter in text]}],
    ids=["bytes", "with a separator", "by a tokenizer"],
)
def test_a_byte_order_mark_is_no_token(options: dict[str, Any]) -> None:
    """As editors on Windows begin each file; in any of the files."""
    texts = {f"{name}.txt": f"{name} line\n" * 20 for name in "abc"}
    marked = {name: text if name == "b.txt" else f"\ufeff{text}" for name, text in texts.items()}
    plain, found = (
        np.concatenate(contents(completed(read(files, token_blocks(length=7, **options))))) for files in (texts, marked)
    )
    np.testing.assert_array_equal(found, plain)


def words(text: str) -> list[int]:
    """A tokenizer: a number for each word, by its length and first letter."""
    return [ord(word[0]) * 100 + len(word) for word in text.split()]


@pytest.mark.parametrize(("letters", "length"), [(4, 10), (6000, 100)])
def test_a_tokenizer_sees_whole_lines(letters: int, length: int) -> None:
    """Also of a file that is read in several pieces: tokens are those of the text at once."""
    text = "".join(f"the {('w' * letters + ' ') * (i % 9)}é{i}\n" for i in range(100)) + "no line end"
    assert letters == 4 or len(text.encode()) > 2 * 2**20
    x, _ = stream(read({"a.txt": text}, token_blocks(length=length, dtype="uint32", tokenizer=words, separator=65535)))
    wanted = [*words(text), 65535]
    np.testing.assert_array_equal(x, wanted[: (len(wanted) - 1) // length * length])


DOCUMENTS = [f"document {i}\nwith «two» lines" for i in range(40)]
LINES = [json.dumps({"body": text, "n": 1}) if i % 3 else json.dumps(text) for i, text in enumerate(DOCUMENTS)]


def test_lines_of_json_are_documents() -> None:
    """Each line's text by its field, or the line itself; the separator stands behind each."""
    options = token_blocks(length=8, field="body", separator=300, next_tokens=False)
    x = np.concatenate(contents(completed(read({"a.jsonl": "\n".join(LINES) + "\n\n"}, options))))
    assert x.tolist() == [token for text in DOCUMENTS for token in (*text.encode(), 300)][: len(x)]


def test_wider_tokens_need_a_wider_dtype() -> None:
    found = read({"a.txt": "text"}, token_blocks(length=2, dtype="uint32", tokenizer=lambda _: [70000, 2, 3]))
    assert stream(found)[0].tolist() == [70000, 2]


def always(tokens: list[Any], _: str) -> list[Any]:
    """A tokenizer that gives the same tokens for any text."""
    return tokens


REFUSED: dict[str, tuple[dict[str, bytes | str], Any, str]] = {
    **{
        f"line 22 is {broken}": (
            {"a.jsonl": "\n".join([*LINES[:21], broken, *LINES[22:]])},
            token_blocks(length=8, field="body"),
            r"'a\.jsonl', line 22",
        )
        for broken in ("{", '{"body": 3}', "[]")
    },
    **{
        f"the tokens {tokens}": (
            {"a.txt": "text"}, token_blocks(1, tokenizer=partial(always, tokens)), r"'a\.txt'.*uint32"
        )
        for tokens in ([70000], [-1], [0.5], [[1, 2]])
    },
    "no text in UTF-8": ({"a.txt": b"\xff\xfe" * 100}, token_blocks(length=9, tokenizer=words), r"'a\.txt'"),
    "text in UTF-16 without a mark": ({"a.txt": b"t\0e\0" * 9}, token_blocks(length=9), r"'a\.txt'.*UTF-16"),
    "text in UTF-16": ({"a.txt": "text".encode("utf-16") * 9}, token_blocks(length=9), r"'a\.txt'.*UTF-16"),
    "binary files of any name": ({"weights.bin": bytes(4096)}, "tokens", r"'weights\.bin'"),
    "a table beside tokens": ({"train.bin": bytes(4100), "a.csv": "a\n1\n"}, "auto", r"text and tokens: 1 \.csv"),
    "a note beside data": ({"a.txt": "notes", "1.dcm": b"", "2.dcm": b""}, "auto", r"not read: 2 \.dcm.*pydicom"),
    "other data beside texts": ({"a.txt": "text" * 999, "a.xyz": b""}, "auto", r"1 \.xyz"),
    "half of what its header states": (
        {"train.bin": np.array([20240520, 1, 4000, *[0] * 253], np.int32).tobytes() + bytes(4000)}, "auto", "4,000"
    ),
    **{
        f"tokens of uint32, above {first}": (
            {"train.bin": np.arange(first, first + 3000, dtype=np.uint32).tobytes()}, "auto", r'1024, dtype="uint32"'
        )
        for first in (0, 128_000)
    },
    "half a token": ({"train.bin": bytes(4097)}, "auto", r"'train\.bin'.* 4,097"),
    "too little text": ({"a.txt": "short"}, "tokens", r"\b5\b"),
    **{
        f"binary files of images: {names}": (dict.fromkeys(names, bytes(60_000)), "tokens", rf"'{names[0]}'.*\.npy")
        for names in (
            ("train_X.bin", "train_y.bin", "class_names.txt"),
            ("data_batch_1.bin", "test_batch.bin", "batches.meta.txt"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_text_or_does_not_fit_is_refused(case: str) -> None:
    """None is cut to sixteen bits in silence."""
    files, layout, named = REFUSED[case]
    with pytest.raises(LayoutError, match=named):
        completed(read(files, layout))


@pytest.mark.parametrize("wrong", [{"length": 0}, {"dtype": "int64"}, {"separator": 65536}], ids=str)
def test_options_are_checked_before_any_tree_is_opened(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        token_blocks(**wrong)


def test_a_tokenizers_tokens_are_known_again() -> None:
    """By what they are, so that a killed run goes on in another process; another tokenizer's are others."""
    stamps = [
        completed(read({"a.txt": "one two three four\n"}, token_blocks(2, tokenizer=tokenizer))).inputs.source.stamp(0)
        for tokenizer in (lambda text: [1] * len(text.split()), lambda text: [1 for _ in text.split()], words)
    ]
    assert stamps[0] == stamps[1] != stamps[2]


def test_a_vocabulary_that_grows_while_texts_are_packed_is_noted(tmp_path: Path) -> None:
    """The next session would restore the pack, and have none."""
    (tmp_path / "a.txt").write_text("one two three two one\n" * 9, encoding="utf-8")
    places: dict[str, Any] = {"local_dir": tmp_path / "here", "cache_dir": None, "progress": False}
    known: dict[str, int] = {}
    layout = token_blocks(2, tokenizer=lambda text: [known.setdefault(word, len(known)) for word in text.split()])
    for is_noted in (True, False):
        report = stage_dataset(tmp_path / "a.txt", layout=layout, refresh=True, **places).report
        assert ("vocabulary that grows" in str(report.notes)) == is_noted


@pytest.mark.parametrize("workers", [0, 1])
def test_a_plan_does_not_tokenize_and_a_staging_says_how_many_rows_there_are(tmp_path: Path, workers: int) -> None:
    """The plan says how many there are at most, and writes nothing."""
    calls: list[str] = []

    def tokenizer(text: str) -> list[int]:
        calls.append(text)
        return words(text)

    folder = write_files(tmp_path / "set", {"a.txt": b"the cat sat on a mat " * 50})
    options: dict[str, Any] = {"local_dir": tmp_path / "here", "cache_dir": None}
    plan = plan_stage(folder, layout=token_blocks(length=10, tokenizer=tokenizer), **options)
    assert plan.samples is not None
    assert plan.samples["train"] >= 29
    assert not calls
    assert not (tmp_path / "here").exists()
    with ThreadPoolExecutor(1) as pool:
        executor = pool if workers else None
        layout = token_blocks(length=10, tokenizer=words)
        staged = stage_dataset(folder, layout=layout, executor=executor, progress=False, **options)
    assert any(re.findall(r"\d+", note)[:2] == ["300", "29"] for note in staged.report.notes)


def test_text_is_not_read_whole_while_it_is_detected() -> None:
    """Its beginning says enough."""

    class Beginnings(MemoryTree):
        def chunks(self, entry: Any) -> Any:
            pytest.fail(f"{entry.name} is read whole")

    text = b"To be or not to be.\n" * 50_000
    assert len(detect_layout(Beginnings({"a.txt": text}))) == (len(text) - 1) // 1024

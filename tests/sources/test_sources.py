"""What a `source` argument is, by its words alone, and what takes paths alone."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colabstage import compare_sources, doctor, extract_archive, pack_dataset
from colabstage.errors import OptionError, SourceNotFoundError
from colabstage.sources.parse import (
    KaggleSource,
    LocalSource,
    ManySource,
    ObjectSource,
    ShareSource,
    Source,
    TreeSource,
    WebSource,
    expand_source,
    parse_source,
)
from colabstage.trees.open import open_tree

ID = "1A2b3C4d5E6f7G8h9I0jKlMnOpQrStUvW"
SECRETS = ("pw", "s3cret", "SIG", "t0p")


@pytest.mark.parametrize(
    ("text", "kind", "address", "name"),
    [
        ("/data/kitti.tar.gz", LocalSource, "/data/kitti.tar.gz", "kitti"),
        ("file:///data/My%20photos.zip", LocalSource, "/data/My photos.zip", "My-photos"),
        ("/data/part-*.zip", LocalSource, "/data/part-*.zip", "part"),
        ("/content/drive/MyDrive/a.zip", LocalSource, "drive:MyDrive/a.zip", "a"),
        ("/content/drive/Shared drives/lab/a", LocalSource, "drive:Shareddrives/lab/a", "a"),
        ("/content/drive/other", LocalSource, "/content/drive/other", "other"),
        (f"https://drive.google.com/file/d/{ID}/view?usp=sharing", ShareSource, f"gdrive:{ID}", "gdrive-1A2b3C4d5E6f"),
        (f"gdrive://{ID}", ShareSource, f"gdrive:{ID}", "gdrive-1A2b3C4d5E6f"),
        ("https://Example.org:443/d/a.zip#top", WebSource, "https://example.org/d/a.zip", "a"),
        ("http://example.org:8080", WebSource, "http://example.org:8080/", "example.org"),
        ("https://ann:pw@example.org/a.zip", WebSource, "https://example.org/a.zip", "a"),
        ("https://e.org/a.zip?X-Amz-Signature=SIG&X-Amz-Date=1", WebSource, "https://e.org/a.zip", "a"),
        ("https://e.org/a.zip?sv=2024&se=9&sp=r&sig=SIG", WebSource, "https://e.org/a.zip", "a"),
        (" <https://e.org/a.zip>\n", WebSource, "https://e.org/a.zip", "a"),
        ("s3://bucket/train/", ObjectSource, "s3://bucket/train", "train"),
        ("S3://Bucket", ObjectSource, "s3://Bucket", "Bucket"),
        ("ftp://ann:s3cret@host/d/a.tar", ObjectSource, "ftp://host/d/a.tar?3de2445360cd", "a"),
        ("github://org:repo@main/data", ObjectSource, "github://org:repo@main/data", "data"),
        ("s3://bucket/p#1/a.zip", ObjectSource, "s3://bucket/p#1/a.zip", "a"),
        ("s3://bucket/what?.zip", ObjectSource, "s3://bucket/what?.zip", "what"),
        ("memory://a/b.zip", ObjectSource, "memory://a/b.zip", "b"),
        ("kaggle://ann/cats", KaggleSource, "kaggle:ann/cats", "cats"),
        ("https://www.kaggle.com/datasets/ann/cats/data", KaggleSource, "kaggle:ann/cats", "cats"),
    ],
)
def test_words_become_a_source_with_a_lasting_address(text: str, kind: type[Source], address: str, name: str) -> None:
    """Each spelling is one kind of source, whose address has no secret in it."""
    source = parse_source(text)
    assert (type(source), source.address, source.name) == (kind, address, name)
    shown = f"{source!r} {source.address} {source.label}"
    assert not [secret for secret in SECRETS if secret in shown]


def test_what_distinguishes_addresses_stays_and_what_signs_them_does_not() -> None:
    """The key follows the object and not the day; what is left of a query is told apart but not written down."""

    def address(query: str) -> str:
        return parse_source(f"https://e.org/get?{query}").address

    assert address("id=1") != address("id=2")
    assert address("id=1&X-Amz-Signature=a") == address("id=1&X-Amz-Signature=b") == address("id=1")
    assert address("key=tok") != address("key=other")
    assert address("token=a") != address("token=b")  # it may name what one is let in to
    assert "tok" not in address("key=tok")
    assert address("expires=never") != address("")  # no signature beside it: who knows what it means
    addresses = [
        parse_source(text).address
        for text in (
            "github://org:repo1@main/data",
            "github://org:repo2@main/data",
            "ftp://ann:pw@host/a.zip",
            "ftp://bob:pw@host/a.zip",
            "ftp://host/a.zip",
            "https://e.org/a;x=1/b.zip",
            "https://e.org/a;x=2/b.zip",
            "az://c/data.zip",
            "az://c/data.zip?snapshot=1",
        )
    ]
    assert len(set(addresses)) == len(addresses)
    assert parse_source("ftp://ann:pw@host/a.zip").address == parse_source("ftp://ann:new@host/a.zip").address


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("https://e.org/get?id=7&token={}", "id=7&token={}"),
        ("https://h.org/get;jsessionid={}/a.zip", "https://h.org/get;jsessionid={}/a.zip"),
        ("ftp://{}@host/a.zip", "user {}"),
    ],
)
def test_a_weak_secret_cannot_be_guessed_from_an_address(
    text: str, guess: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses stand in manifests that people publish: each guess costs a slow digest, the same on every machine."""
    tried: list[bytes] = []
    slow = hashlib.scrypt

    def count(password: bytes, **options: Any) -> bytes:
        assert options["n"] * options["r"] >= 2**16
        tried.append(password)
        return slow(password, **options)

    monkeypatch.setattr(hashlib, "scrypt", count)
    address = parse_source(text.format("hunter2")).address
    fast = {hashlib.sha256(one.encode()).hexdigest()[:12] for one in (guess.format("hunter2"), "hunter2")}
    assert address.partition("?")[2] not in fast
    assert parse_source(text.format("hunter3")).address != address
    assert parse_source(text.format("hunter2")).address == address
    assert [name for name in (b"hunter2", b"hunter3") if not any(name in one for one in tried)] == []
    # Once for each secret and server in a process, however many addresses it stands in.
    made = len(tried)
    assert {parse_source(text.format("hunter2").replace("/get", f"/{n}")).address for n in range(50)}
    assert len(tried) == made
    # And none for what is no secret by its name: lists of addresses have thousands of these.
    assert len({parse_source(f"https://e.org/get?id={number}&download=1").address for number in range(50)}) == 50
    assert len(tried) == made


def test_addresses_are_the_same_on_every_machine() -> None:
    """Digests of secrets too: a cache is shared by machines."""
    assert parse_source("https://e.org/get?token=hunter2").address == "https://e.org/get?0b6a0bc38353"
    assert parse_source("https://e.org/get?id=1").address == "https://e.org/get?d9fc91d45c09"


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` and relative paths mean what they mean here and now; a long name that is here is no id."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ID).mkdir()
    for text in (ID, f"~/{ID}", Path(ID), f"./{ID}/../{ID}"):
        source = parse_source(text)
        assert isinstance(source, LocalSource)
        assert source.path == tmp_path / ID


def test_a_list_is_one_source(tmp_path: Path) -> None:
    """Parts keep their order; the address depends on them and on nothing else; one alone is itself."""
    both = parse_source(["/d/train.zip", "https://e.org/test.zip?X-Amz-Signature=t0p"])
    assert isinstance(both, ManySource)
    assert [part.address for part in both.parts] == ["/d/train.zip", "https://e.org/test.zip"]
    assert both.name == "train-and-1-more"
    assert both.address == parse_source(("/d/train.zip", "https://e.org/test.zip?X-Amz-Signature=new")).address
    assert both.address != parse_source(["https://e.org/test.zip", "/d/train.zip"]).address
    assert parse_source(["/d/part-000.zip", "/d/part-001.zip"]).name == "part"
    assert parse_source(["/d/a.zip"]) == parse_source("/d/a.zip")
    tree = open_tree(tmp_path, spool=tmp_path)
    mixed = parse_source([tree, "/d/a.zip"])
    assert isinstance(mixed, ManySource)
    assert isinstance(mixed.parts[0], TreeSource)
    assert parse_source(tree).address == f"tree:{tmp_path}"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "names nothing"),
        (7, "source=7"),
        (b"/data", "source=b'/data'"),
        ([["/a"], "/b"], "list"),
        ("simplecache::s3://bucket/a.zip", "another file system"),
        ("file://server/a.zip", "server"),
        ("https:///a.zip", "names no server"),
        ("https://e.org:port/a.zip", "port as a number"),
        (f"https://docs.google.com/document/d/{ID}/edit", "Google document"),
    ],
)
def test_what_is_no_source_is_refused_with_what_is(source: object, says: str) -> None:
    """The message names what is wrong, and what was expected."""
    with pytest.raises(OptionError, match=says):
        parse_source(source)  # type: ignore[arg-type]  # on purpose


def test_a_pattern_stands_for_what_fits_it_now(tmp_path: Path) -> None:
    """Sorted by name; a file whose name only looks like a pattern is itself; nothing that fits is an error."""
    for name in ("b.zip", "a.zip", "c.txt", "d[1].zip"):
        (tmp_path / name).touch()

    def names(pattern: str) -> list[str]:
        source = parse_source(tmp_path / pattern)
        assert isinstance(source, LocalSource)
        expanded = expand_source(source, unpack=False)
        assert expanded.address == source.address
        parts = expanded.parts if isinstance(expanded, ManySource) else (expanded,)
        return [os.path.basename(part.address) for part in parts]  # noqa: PTH119

    assert names("*.zip") == ["a.zip", "b.zip", "d[1].zip"]
    assert names("[ab].zip") == ["a.zip", "b.zip"]
    assert names("d[1].zip") == ["d[1].zip"]
    assert names("nothing.zip") == ["nothing.zip"]
    with pytest.raises(SourceNotFoundError, match=r"x\*"):
        names("x*")


ADDRESS_CALLS: dict[str, Callable[[str], Any]] = {
    "compare_sources": compare_sources,
    "doctor": doctor,
    "extract_archive": lambda path: extract_archive(path, "out"),
    "pack_dataset": lambda path: pack_dataset(path, "out.h5"),
}


@pytest.mark.parametrize("name", ADDRESS_CALLS)
def test_an_address_is_not_looked_for_as_a_file(name: str) -> None:
    """`pack_dataset` and `compare_sources` found no folder 'https:'; the error says what takes an address."""
    with pytest.raises(OptionError, match=r"='https://example\.org/a\.zip' .*(fetch_files|plan_stage)"):
        ADDRESS_CALLS[name]("https://example.org/a.zip")


def test_pack_dataset_says_what_takes_several_sources(tmp_path: Path) -> None:
    """Errors about archives beside a table recommend a list, which was taken for a dataset of texts."""
    with pytest.raises(OptionError, match=r"paths for samples.*stage_dataset"):
        pack_dataset([tmp_path / "table", tmp_path / "table/train.zip"], tmp_path / "a.h5")

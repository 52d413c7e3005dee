"""Kaggle's datasets: what people paste, mounts, and the zip behind a redirect, from an imitated service."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files
from colabstage.errors import CorruptArchiveError, OptionError, SourceAccessError, SourceNotFoundError, SourceReadError
from tests.support.archives import stored_zip
from tests.support.far import random_bytes
from tests.support.images import make_tree, read_tree
from tests.support.kaggle_service import HostedDataset, KaggleService

FILES = {"train/a.bin": random_bytes(3_000), "train/b.bin": random_bytes(4_000, seed=1), "labels.csv": b"a,1\n"}
LARGE = {f"{number}.bin": random_bytes(1_000_000, seed=number) for number in range(6)}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KaggleService]:
    """An imitated Kaggle that this process is led to, on a machine without credentials."""
    with KaggleService(tmp_path) as imitated:
        imitated.hosts.lead(monkeypatch, tmp_path / "home")
        monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path / "root"))
        yield imitated


def fetch(out: Path, address: str = "kaggle://ann/cats") -> dict[str, bytes]:
    """Fetch a dataset's files; return them by name."""
    fetch_files(address, str(out), progress=False)
    return read_tree(out)


FORMS = {
    "kaggle://ann/cats/": None,
    "kaggle://ann/cats/versions/7": 7,
    "www.kaggle.com/datasets/ann/cats/data": None,
    "https://www.kaggle.com/datasets/ann/cats/code?datasetId=1&sortBy=voteCount": None,
    "https://www.kaggle.com/datasets/ann/cats/data?datasetVersionNumber=7": 7,
    "https://www.kaggle.com/api/v1/datasets/download/ann/cats": None,
}


def test_every_pasted_form_is_understood(service: KaggleService, out: Path) -> None:
    """Each form gives owner, name and, where there is one, the version, which then need not be asked for."""
    service.add(HostedDataset("ann", "cats", stored_zip(FILES), version=7))
    for number, (text, version) in enumerate(FORMS.items()):
        before = service.count("GetDataset")
        assert fetch(out / str(number), text) == FILES, text
        assert service.count("GetDataset") - before == (version is None), text


@pytest.mark.parametrize(
    "text", ["kaggle://ann/../cats", "kaggle://ann/cats/versions/0", "https://www.kaggle.com/competitions/titanic"]
)
def test_other_things_of_kaggles_are_refused(tmp_path: Path, text: str) -> None:
    """A competition, or half a name, is an error that shows the forms."""
    with pytest.raises(OptionError, match=r"kaggle://owner/dataset|competition_download"):
        fetch_files(text, tmp_path / "out")


def test_a_dataset_arrives_with_all_its_files(service: KaggleService, out: Path) -> None:
    """Its files, not the zip that Kaggle makes of them, or a part of them; the next call asks once. A version that is
    not there is a missing source; a checksum is refused: Kaggle makes a new zip when it likes."""
    service.add(HostedDataset("ann", "cats", stored_zip(FILES), version=3))
    for _ in range(2):
        assert fetch(out) == FILES
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(".colabstage") and path.is_dir()] == []
    assert service.count("DownloadDataset") == 1
    assert fetch(out.with_name("3"), "kaggle://ann/cats/versions/3") == FILES
    with pytest.raises(SourceNotFoundError, match="versions/9"):
        fetch(out, "kaggle://ann/cats/versions/9")
    part = out.with_name("part")
    fetch_files("kaggle://ann/cats", part, only="train", progress=False)
    assert read_tree(part) == {"a.bin": FILES["train/a.bin"], "b.bin": FILES["train/b.bin"]}
    with pytest.raises(OptionError, match="hash="):
        fetch_files("kaggle://ann/cats", out, hash="md5:" + "0" * 32, progress=False)


def test_a_token_opens_a_private_dataset_and_goes_nowhere_else(
    service: KaggleService, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is used at Kaggle, and is sent to no storage."""
    pytest.importorskip("kagglehub", reason="needs kagglehub: pip install 'colabstage[kaggle]'")
    service.add(HostedDataset("ann", "cats", stored_zip(FILES), access="token"))
    with pytest.raises(SourceAccessError, match="KAGGLE_API_TOKEN"):
        fetch(out)
    monkeypatch.setenv("KAGGLE_API_TOKEN", service.token)
    assert fetch(out) == FILES
    assert not service.leaked


def test_a_login_of_this_session_counts(service: KaggleService, out: Path) -> None:
    """`kagglehub.login()` keeps a user and a key in memory."""
    config = pytest.importorskip("kagglehub.config", reason="needs kagglehub: pip install 'colabstage[kaggle]'")
    service.add(HostedDataset("ann", "cats", stored_zip(FILES), access="token"))
    config.set_kaggle_credentials("bob", service.token)
    try:
        assert fetch(out) == FILES
    finally:
        config.clear_kaggle_credentials()


def test_a_broken_file_with_the_login_is_an_error_that_names_it(service: KaggleService, out: Path) -> None:
    """It is not taken for no login."""
    pytest.importorskip("kagglehub", reason="needs kagglehub: pip install 'colabstage[kaggle]'")
    from kagglehub import config

    folder = out.parent / "kaggle-settings"
    folder.mkdir()
    (folder / "kaggle.json").write_text("{", encoding="utf-8")
    service.add(HostedDataset("ann", "cats", stored_zip(FILES)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(config.CREDENTIALS_FOLDER_ENV_VAR_NAME, str(folder))
        with pytest.raises(SourceAccessError, match=r"kaggle\.json"):
            fetch(out)


def damaged() -> bytes:
    """What the zip's own checksums deny is no dataset."""
    archive = bytearray(stored_zip(LARGE))
    archive[2_500_000] ^= 1
    return bytes(archive)


@pytest.mark.parametrize(
    ("hosted", "error", "named"),
    [
        (None, SourceNotFoundError, "kaggle://ann/cats"),
        # The remedy is a page to open.
        (HostedDataset("ann", "cats", b"", access="consent"), SourceAccessError, "https://www.kaggle.com/datasets/ann/cats"),
        (HostedDataset("ann", "cats", b"<html>Sorry</html>"), SourceReadError, "kaggle://ann/cats"),
        (HostedDataset("ann", "cats", damaged()), CorruptArchiveError, "2.bin"),
    ],
    ids=["missing", "licence", "page", "damage"],
)  # fmt: skip
def test_what_is_no_dataset_is_refused(
    service: KaggleService, out: Path, hosted: HostedDataset | None, error: type[Exception], named: str
) -> None:
    """And nothing is left behind."""
    if hosted is not None:
        service.add(hosted)
    with pytest.raises(error) as raised:
        fetch(out)
    assert named in str(raised.value)
    assert not out.exists()


@pytest.mark.parametrize(
    ("manners", "downloads"),
    [
        ({"busy": 1}, 2),
        ({"cut_every": 700_000}, 1),
        # The storage's signed addresses last for a while only; what came before is kept.
        ({"cut_every": 700_000, "lasts": 3}, 4),
    ],
    ids=["busy", "cut", "expires"],
)
def test_a_bad_day_of_the_service_does_not_show(
    service: KaggleService, out: Path, manners: dict[str, Any], downloads: int
) -> None:
    """However often the storage hangs up, the rest is asked for."""
    service.add(HostedDataset("ann", "cats", stored_zip(LARGE), **manners))
    assert fetch(out) == LARGE
    assert 1 <= service.count("DownloadDataset") <= downloads
    assert service.count("GetDataset") == 1


def test_a_mount_is_read_in_place_without_a_request(
    service: KaggleService, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that names owner and dataset is taken anywhere; the older one, which names the dataset alone, on Kaggle."""
    make_tree(tmp_path / "root/kaggle/input/datasets/ann/cats", FILES)
    assert fetch(out) == FILES
    make_tree(tmp_path / "root/kaggle/input/dogs", FILES)
    with pytest.raises(SourceNotFoundError):
        fetch(out.with_name("dogs"), "kaggle://ann/dogs")
    assert service.count("GetDataset") == 1
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert fetch(out.with_name("dogs"), "kaggle://ann/dogs") == FILES
    assert service.count("GetDataset") == 1


def test_what_kagglehub_has_already_is_read_there(service: KaggleService, out: Path, tmp_path: Path) -> None:
    """A version in kagglehub's own cache is not asked for again; one that is half there is no version."""
    service.add(HostedDataset("ann", "cats", stored_zip(FILES), version=3))
    cache = tmp_path / "home/.cache/kagglehub/datasets/ann/cats"
    make_tree(cache / "versions/3", FILES)
    (cache / "3.complete").touch()
    assert fetch(out) == FILES
    assert service.count("DownloadDataset") == 0
    (cache / "3.complete").unlink()
    assert fetch(out.with_name("again")) == FILES
    assert service.count("DownloadDataset") == 1

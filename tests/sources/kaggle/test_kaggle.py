"""Kaggle's datasets: what people paste, mounts, and the zip behind a redirect, from an imitated service."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

import pytest

from colabstage import fetch_files
from colabstage.errors import CorruptArchiveError, OptionError, SourceAccessError, SourceNotFoundError, SourceReadError
from colabstage.io.files import RetryPolicy
from colabstage.sources.kaggle import KaggleDataset, KaggleFolder, open_kaggle, parse_kaggle
from tests.support.kaggle_service import HostedDataset, KaggleService, zip_archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CATS = KaggleDataset("ann", "cats")
QUICK = RetryPolicy(attempts=2, first_wait_s=0.01)


def content(size: int, seed: int = 0) -> bytes:
    """Bytes that differ from place to place."""
    return hashlib.shake_128(str(seed).encode()).digest(size)


FILES = {"train/a.bin": content(3_000), "train/b.bin": content(4_000, seed=1), "labels.csv": b"a,1\n"}
LARGE = {f"{number}.bin": content(1_000_000, seed=number) for number in range(6)}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KaggleService]:
    """An imitated Kaggle that this process is led to, on a machine without credentials."""
    with KaggleService(tmp_path) as imitated:
        for name, value in imitated.hosts.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path / "root"))
        yield imitated


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the files go."""
    return tmp_path / "out"


def fetch(out: Path, address: str = "kaggle://ann/cats") -> dict[str, bytes]:
    """Fetch a dataset's files; return them by name."""
    fetch_files(address, str(out), progress=False)
    return read_tree(out)


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put_files(folder: Path) -> None:
    """Have the dataset's files lie in a folder, as a mount would."""
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("kaggle://ann/cats", None),
        ("kaggle://ann/cats/", None),
        ("kaggle://ann/cats/versions/7", 7),
        ("https://www.kaggle.com/datasets/ann/cats", None),
        ("https://kaggle.com/datasets/ann/cats/", None),
        ("www.kaggle.com/datasets/ann/cats/data", None),
        ("https://www.kaggle.com/datasets/ann/cats?select=labels.csv", None),
        ("https://www.kaggle.com/datasets/ann/cats/code?datasetId=1&sortBy=voteCount", None),
        ("https://www.kaggle.com/datasets/ann/cats/versions/7", 7),
        ("https://www.kaggle.com/datasets/ann/cats/data?datasetVersionNumber=7", 7),
        (" <https://www.kaggle.com/datasets/ann/cats> ", None),
    ],
)
def test_every_pasted_form_is_understood(text: str, version: int | None) -> None:
    """Each form gives owner, name and, where there is one, the version."""
    assert parse_kaggle(text) == KaggleDataset("ann", "cats", version)


@pytest.mark.parametrize(
    "text", ["ann/cats", "https://example.org/datasets/ann/cats", "/kaggle/input/cats", "http://[x", ""]
)
def test_what_is_not_kaggles_is_left_to_others(text: str) -> None:
    """Paths and other addresses are no Kaggle datasets."""
    assert parse_kaggle(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "kaggle://cats",
        "kaggle://ann/cats/versions/x",
        "kaggle://ann/../cats",
        "kaggle://ann/cats/versions/0",
        "https://www.kaggle.com/competitions/titanic",
        "https://www.kaggle.com/datasets",
    ],
)
def test_other_things_of_kaggles_are_refused(text: str) -> None:
    """A competition, or half a name, is an error that shows the forms."""
    with pytest.raises(OptionError, match="kaggle://owner/dataset"):
        parse_kaggle(text)


def test_a_dataset_arrives_with_all_its_files(service: KaggleService, out: Path) -> None:
    """Its files, not the zip that Kaggle makes of them; nothing else stays beside them, and the next call asks once."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), version=3))
    assert fetch(out) == FILES
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(".colabstage") and path.is_dir()] == []
    assert fetch(out) == FILES
    assert service.count("DownloadDataset") == 1


def test_a_certain_version_is_asked_for(service: KaggleService, out: Path) -> None:
    """A version that is there comes, another is a missing source."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), version=3))
    assert fetch(out, "kaggle://ann/cats/versions/3") == FILES
    assert service.count("GetDataset") == 0
    with pytest.raises(SourceNotFoundError, match="versions/9"):
        fetch(out, "kaggle://ann/cats/versions/9")


def test_a_missing_dataset_names_itself(service: KaggleService, out: Path) -> None:
    """A 404 names the dataset, and nothing is left behind."""
    with pytest.raises(SourceNotFoundError, match="kaggle://ann/cats"):
        fetch(out)
    assert not out.exists()


def test_a_licence_that_was_not_accepted_names_the_page(service: KaggleService, out: Path) -> None:
    """The remedy is a page to open."""
    service.add(HostedDataset("ann", "cats", b"", access="consent"))
    with pytest.raises(SourceAccessError, match=r"https://www\.kaggle\.com/datasets/ann/cats"):
        fetch(out)


def test_a_token_opens_a_private_dataset_and_goes_nowhere_else(
    service: KaggleService, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is used at Kaggle, and is sent to no storage."""
    pytest.importorskip("kagglehub", reason="needs kagglehub: pip install 'colabstage[kaggle]'")
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), access="token"))
    with pytest.raises(SourceAccessError, match="KAGGLE_API_TOKEN"):
        fetch(out)
    monkeypatch.setenv("KAGGLE_API_TOKEN", service.token)
    assert fetch(out) == FILES
    assert not service.leaked


def test_a_login_of_this_session_counts(service: KaggleService, out: Path) -> None:
    """`kagglehub.login()` keeps a user and a key in memory."""
    config = pytest.importorskip("kagglehub.config", reason="needs kagglehub: pip install 'colabstage[kaggle]'")
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), access="token"))
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
    service.add(HostedDataset("ann", "cats", zip_archive(FILES)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(config.CREDENTIALS_FOLDER_ENV_VAR_NAME, str(folder))
        with pytest.raises(SourceAccessError, match=r"kaggle\.json"):
            fetch(out)


@pytest.mark.slow
def test_cut_connections_are_resumed_while_bytes_come(service: KaggleService, out: Path) -> None:
    """However often the storage hangs up, the rest is asked for."""
    service.add(HostedDataset("ann", "cats", zip_archive(LARGE), cut_every=700_000))
    assert fetch(out) == LARGE


def test_an_address_that_expires_midway_is_asked_for_again(service: KaggleService, out: Path) -> None:
    """The storage's signed addresses last for a while only; what came before is kept."""
    service.add(HostedDataset("ann", "cats", zip_archive(LARGE), lasts=3, cut_every=700_000))
    assert fetch(out) == LARGE
    assert service.count("DownloadDataset") > 1
    assert service.count("GetDataset") == 1


def test_a_damaged_archive_is_not_taken(service: KaggleService, out: Path) -> None:
    """What the zip's own checksums deny is no dataset."""
    archive = bytearray(zip_archive(LARGE))
    archive[2_500_000] ^= 1
    service.add(HostedDataset("ann", "cats", bytes(archive)))
    with pytest.raises(CorruptArchiveError, match=r"2\.bin"):
        fetch(out)
    assert not out.exists()


def test_a_busy_service_is_asked_again(service: KaggleService, out: Path) -> None:
    """A 503 passes."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), busy=1))
    assert fetch(out) == FILES


def test_what_comes_instead_of_an_archive_is_refused(service: KaggleService, out: Path) -> None:
    """A page with status 200 is no dataset."""
    service.add(HostedDataset("ann", "cats", b"<html>Sorry</html>"))
    with pytest.raises(SourceReadError, match="kaggle://ann/cats"):
        fetch(out)
    assert not out.exists()


def test_a_mount_is_read_in_place_without_a_request(service: KaggleService, out: Path, tmp_path: Path) -> None:
    """A mount that names owner and dataset is taken anywhere."""
    mount = tmp_path / "root/kaggle/input/datasets/ann/cats"
    put_files(mount)
    found = open_kaggle(CATS)
    assert isinstance(found, KaggleFolder)
    assert found.path == mount
    assert fetch(out) == FILES
    assert service.count("GetDataset") == 0


def test_the_older_mount_counts_on_kaggle_only(
    service: KaggleService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that names the dataset alone is enough on Kaggle, and not elsewhere."""
    put_files(tmp_path / "root/kaggle/input/cats")
    service.add(HostedDataset("ann", "cats", zip_archive(FILES)))
    found = open_kaggle(CATS)
    assert not isinstance(found, KaggleFolder)
    found.close()
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    mounted = open_kaggle(CATS)
    assert isinstance(mounted, KaggleFolder)
    assert mounted.path == tmp_path / "root/kaggle/input/cats"


def test_kaggle_attaches_a_certain_version(
    service: KaggleService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook on Kaggle asks for the mount, and reads in place."""
    service.add(HostedDataset("ann", "cats", b"", version=2))
    for name, value in service.kaggle_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KAGGLE_CACHE_MOUNT_FOLDER", str(tmp_path / "input"))
    put_files(tmp_path / "input/datasets/ann/cats")
    found = open_kaggle(KaggleDataset("ann", "cats", 2))
    assert isinstance(found, KaggleFolder)
    assert (found.path, found.version) == (tmp_path / "input/datasets/ann/cats", "2")
    assert service.count("attach") == 1


@pytest.mark.parametrize("appears", [True, False])
def test_colabs_cache_is_read_in_place(
    service: KaggleService, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, appears: bool
) -> None:
    """Colab mounts what it has a moment after it was asked; where nothing appears, Kaggle is asked for the files."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), mounts=True))
    monkeypatch.setenv("TBE_RUNTIME_ADDR", service.colab_environment()["TBE_RUNTIME_ADDR"])
    monkeypatch.setenv("COLAB_CACHE_MOUNT_FOLDER", str(tmp_path / "input"))
    monkeypatch.setattr("colabstage.sources.kaggle._MOUNT_S", 30.0 if appears else 0.5)
    timer = threading.Timer(0.5, put_files, [tmp_path / "input/cats"])
    if appears:
        timer.start()
    assert fetch(out) == FILES
    assert service.count("DownloadDataset") == (0 if appears else 1)
    assert service.count("mount") == 1


def test_what_kagglehub_has_already_is_read_there(service: KaggleService, out: Path, tmp_path: Path) -> None:
    """A version in kagglehub's own cache is not asked for again; one that is half there is no version."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), version=3))
    cache = tmp_path / "home/.cache/kagglehub/datasets/ann/cats"
    put_files(cache / "versions/3")
    (cache / "3.complete").touch()
    assert fetch(out) == FILES
    assert service.count("DownloadDataset") == 0
    (cache / "3.complete").unlink()
    assert fetch(out.with_name("again")) == FILES
    assert service.count("DownloadDataset") == 1


def test_a_checksum_is_refused(service: KaggleService, out: Path) -> None:
    """It is for one file, and Kaggle makes a new zip when it likes."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES)))
    with pytest.raises(OptionError, match="hash="):
        fetch_files("kaggle://ann/cats", out, hash="md5:" + "0" * 32, progress=False)


def test_a_part_of_a_dataset_is_fetched_alone(service: KaggleService, out: Path) -> None:
    """Its folder is the root, as of any source."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES)))
    fetch_files("kaggle://ann/cats", out, only="train", progress=False)
    assert read_tree(out) == {"a.bin": FILES["train/a.bin"], "b.bin": FILES["train/b.bin"]}


def test_what_is_there_already_stays(service: KaggleService, out: Path) -> None:
    """A folder of the user's is not written to."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES)))
    out.mkdir()
    (out / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError):
        fetch(out)
    assert read_tree(out) == {"mine.txt": b"mine"}

"""Kaggle's datasets: what people paste, mounts, and the real kagglehub against an imitated service on loopback."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import (
    CancelledError,
    MissingDependencyError,
    NotEnoughSpaceError,
    OptionError,
    SourceAccessError,
    SourceNotFoundError,
    SourceReadError,
    TargetExistsError,
)
from colabstage.io.files import RetryPolicy
from colabstage.io.progress import Cancellation, NullProgress
from colabstage.io.redaction import hide_secrets
from colabstage.sources import kaggle_datasets as kaggle
from colabstage.sources.kaggle_datasets import (
    KaggleDataset,
    KaggleFiles,
    credentials_in,
    judge_failure,
    open_kaggle,
    parse_kaggle,
)
from colabstage.sources.remote import TransientError
from tests.support.kaggle_service import HostedDataset, KaggleService, zip_archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("kagglehub", reason="needs kagglehub: pip install 'colabstage[kaggle]'")

CATS = KaggleDataset("ann", "cats")
QUICK = RetryPolicy(attempts=2, first_wait_s=0.01)


def content(size: int, seed: int = 0) -> bytes:
    """Bytes that differ from place to place."""
    return hashlib.shake_128(str(seed).encode()).digest(size)


FILES = {"train/a.bin": content(3_000), "train/b.bin": content(4_000, seed=1), "labels.csv": b"a,1\n"}
LARGE = {f"{number}.bin": content(1_000_000, seed=number) for number in range(6)}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KaggleService]:
    """An imitated Kaggle that this process and its children are led to, on a machine without credentials."""
    with KaggleService(tmp_path) as imitated:
        for name, value in imitated.hosts.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path / "root"))
        yield imitated


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The caller's folder."""
    return tmp_path / "out"


def fetch(
    dataset: KaggleDataset,
    out: Path,
    *,
    cancellation: Cancellation | None = None,
    stall_s: float = 60.0,
    policy: RetryPolicy = QUICK,
) -> KaggleFiles:
    """Open with few and quick tries."""
    return open_kaggle(
        dataset,
        out,
        progress=NullProgress(),
        cancellation=cancellation or Cancellation(),
        stall_timeout_s=stall_s,
        policy=policy,
    )


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
    """The newest version is found, downloaded, extracted and renamed; nothing else stays on the disk."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), version=3))
    assert fetch(CATS, out) == KaggleFiles(out / "cats", version="3")
    assert read_tree(out) == {f"cats/{name}": data for name, data in FILES.items()}


@pytest.mark.slow
def test_a_certain_version_is_asked_for(service: KaggleService, out: Path) -> None:
    """A version that is there comes, another is a missing source."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), version=3))
    assert read_tree(fetch(KaggleDataset("ann", "cats", 3), out).path) == FILES
    with pytest.raises(SourceNotFoundError, match="versions/9"):
        fetch(KaggleDataset("ann", "cats", 9), out / "other")


def test_a_missing_dataset_is_said(service: KaggleService, out: Path) -> None:
    """A 404 names the dataset, and nothing is left behind."""
    with pytest.raises(SourceNotFoundError, match="kaggle://ann/cats"):
        fetch(CATS, out)
    assert list(out.iterdir()) == []


def test_a_licence_that_was_not_accepted_names_the_page(service: KaggleService, out: Path) -> None:
    """The remedy is a page to open."""
    service.add(HostedDataset("ann", "cats", b"", access="consent"))
    with pytest.raises(SourceAccessError, match=r"https://www\.kaggle\.com/datasets/ann/cats"):
        fetch(CATS, out)


def test_a_token_opens_a_private_dataset_and_goes_nowhere_else(
    service: KaggleService, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is used at Kaggle, and is sent to no storage."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), access="token"))
    with pytest.raises(SourceAccessError, match="KAGGLE_API_TOKEN"):
        fetch(CATS, out)
    monkeypatch.setenv("KAGGLE_API_TOKEN", service.token)
    assert read_tree(fetch(CATS, out).path) == FILES
    assert not service.leaked


def test_a_login_of_this_session_is_handed_to_the_worker(service: KaggleService, out: Path) -> None:
    """`kagglehub.login()` sets what only this process knows."""
    from kagglehub.config import clear_kaggle_credentials, set_kaggle_credentials

    service.add(HostedDataset("ann", "cats", zip_archive(FILES), access="token"))
    set_kaggle_credentials("bob", service.token)
    try:
        assert read_tree(fetch(CATS, out).path) == FILES
    finally:
        clear_kaggle_credentials()


@pytest.mark.slow
def test_cut_connections_are_resumed_while_bytes_come(service: KaggleService, out: Path) -> None:
    """However often the storage hangs up, kagglehub is called again and goes on."""
    service.add(HostedDataset("ann", "cats", zip_archive(LARGE), cut_every=2_500_000))
    assert read_tree(fetch(CATS, out).path) == LARGE
    assert service.count("DownloadDataset") > QUICK.attempts


def test_a_wrong_checksum_is_not_taken(service: KaggleService, out: Path) -> None:
    """What the storage's own md5 denies is no dataset."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), wrong_hash=True))
    with pytest.raises(SourceReadError, match="MD5"):
        fetch(CATS, out)
    assert not (out / "cats").exists()


def test_a_busy_service_is_asked_again(service: KaggleService, out: Path) -> None:
    """A 503 passes."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), busy=1))
    assert read_tree(fetch(CATS, out).path) == FILES


def test_what_comes_instead_of_an_archive_is_refused(service: KaggleService, out: Path) -> None:
    """A page with status 200 is no dataset, and is not left where one is expected."""
    service.add(HostedDataset("ann", "cats", b"<html>Sorry</html>"))
    with pytest.raises(SourceReadError, match="kaggle://ann/cats"):
        fetch(CATS, out)
    assert not (out / "cats").exists()


@pytest.mark.slow
def test_a_storage_that_falls_silent_is_given_up(service: KaggleService, out: Path) -> None:
    """kagglehub's process is ended when nothing more comes."""
    service.add(HostedDataset("ann", "cats", zip_archive(LARGE), bytes_per_s=2_000))
    began = time.monotonic()
    with pytest.raises(SourceReadError, match="No more of"):
        fetch(CATS, out, stall_s=3.0)
    assert time.monotonic() - began < 12


def test_a_cancellation_ends_the_worker(service: KaggleService, out: Path) -> None:
    """The process is gone at once; the leak guard looks for it."""
    service.add(HostedDataset("ann", "cats", zip_archive(LARGE), bytes_per_s=500_000))
    cancellation = Cancellation()
    timer = threading.Timer(2.0, cancellation.cancel)
    timer.start()
    began = time.monotonic()
    with pytest.raises(CancelledError):
        fetch(CATS, out, cancellation=cancellation)
    timer.join()
    assert time.monotonic() - began < 6


_CHILD = """
import sys
from pathlib import Path
from colabstage.sources.kaggle_datasets import KaggleDataset, open_kaggle
from colabstage.io.progress import Cancellation, NullProgress
open_kaggle(KaggleDataset("ann", "cats"), Path(sys.argv[1]), progress=NullProgress(), cancellation=Cancellation())
"""


@pytest.mark.slow
def test_a_killed_download_is_resumed_and_its_worker_is_gone(service: KaggleService, out: Path) -> None:
    """A worker ends with the process that started it, and what it brought is taken over."""
    service.add(HostedDataset("ann", "cats", zip_archive(LARGE), bytes_per_s=2_000_000))
    with subprocess.Popen([sys.executable, "-c", _CHILD, str(out)]) as child:
        deadline = time.monotonic() + 60
        while sum(path.stat().st_size for path in out.rglob("*.archive")) < 2_000_000:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
    time.sleep(1.0)
    (archive,) = out.rglob("*.archive")
    left = archive.stat().st_size
    time.sleep(0.5)
    assert archive.stat().st_size == left
    # The rest fits into one connection, the whole does not, and there is no second try.
    service.add(HostedDataset("ann", "cats", zip_archive(LARGE), cut_every=len(zip_archive(LARGE)) - left + 1))
    assert read_tree(fetch(CATS, out, policy=RetryPolicy(attempts=1)).path) == LARGE
    assert [path.name for path in out.iterdir()] == ["cats"]


def test_the_newer_mount_is_read_in_place_without_a_request(service: KaggleService, out: Path, tmp_path: Path) -> None:
    """A mount that names owner and dataset is taken anywhere."""
    mount = tmp_path / "root/kaggle/input/datasets/ann/cats"
    put_files(mount)
    found = fetch(CATS, out)
    assert found.path == mount
    assert "mounted" in found.notes[0]
    assert not out.exists()


def test_the_older_mount_counts_on_kaggle_only(
    service: KaggleService, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that names the dataset alone is enough on Kaggle, and not elsewhere."""
    put_files(tmp_path / "root/kaggle/input/cats")
    service.add(HostedDataset("ann", "cats", zip_archive(FILES)))
    assert fetch(CATS, out).path == out / "cats"
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert fetch(CATS, out).path == tmp_path / "root/kaggle/input/cats"


def test_kaggle_attaches_a_certain_version(
    service: KaggleService, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Kaggle kagglehub asks for the mount, and it is read in place."""
    service.add(HostedDataset("ann", "cats", b"", version=2))
    for name, value in service.kaggle_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KAGGLE_CACHE_MOUNT_FOLDER", str(tmp_path / "input"))
    put_files(tmp_path / "input/datasets/ann/cats")
    found = fetch(KaggleDataset("ann", "cats", 2), out)
    assert found.path == tmp_path / "input/datasets/ann/cats"
    assert service.count("attach") == 1
    assert list(out.iterdir()) == []


@pytest.mark.slow
def test_colabs_cache_is_read_in_place(
    service: KaggleService, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colab mounts what it has, a moment after it was asked."""
    service.add(HostedDataset("ann", "cats", b"", mounts=True))
    monkeypatch.setenv("TBE_RUNTIME_ADDR", service.colab_environment()["TBE_RUNTIME_ADDR"])
    monkeypatch.setenv("COLAB_CACHE_MOUNT_FOLDER", str(tmp_path / "input"))
    timer = threading.Timer(1.0, put_files, [tmp_path / "input/cats"])
    timer.start()
    found = fetch(CATS, out)
    timer.join()
    assert found.path == tmp_path / "input/cats"


@pytest.mark.slow
def test_a_mount_that_never_appears_is_given_up_with_the_way_around(
    service: KaggleService, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kagglehub would wait for ever; here it is ended, and the switch that avoids the mount is named."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), mounts=True))
    monkeypatch.setenv("TBE_RUNTIME_ADDR", service.colab_environment()["TBE_RUNTIME_ADDR"])
    monkeypatch.setenv("COLAB_CACHE_MOUNT_FOLDER", str(tmp_path / "input"))
    waits_since: list[float] = []

    def waited_s() -> float:
        # Its process takes seconds to start, more where the machine is busy; that time does not pass here.
        if not waits_since and any("Mounting files to" in log.read_text() for log in out.rglob("log.txt")):
            waits_since.append(time.monotonic())
        return time.monotonic() - waits_since[0] if waits_since else 0.0

    with monkeypatch.context() as patched:
        patched.setattr(kaggle, "time", SimpleNamespace(monotonic=waited_s))
        with pytest.raises(SourceReadError, match="DISABLE_COLAB_CACHE=1"):
            fetch(CATS, out, stall_s=1.0)
    assert waits_since
    assert time.monotonic() - waits_since[0] > 1.0
    monkeypatch.setenv("DISABLE_COLAB_CACHE", "1")
    assert read_tree(fetch(CATS, out).path) == FILES


def test_what_kagglehub_has_already_stays_there(service: KaggleService, out: Path, tmp_path: Path) -> None:
    """A dataset in kagglehub's own cache is not put on the disk a second time."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES), version=3))
    cache = tmp_path / "home/.cache/kagglehub/datasets/ann/cats"
    put_files(cache / "versions/3")
    (cache / "3.complete").touch()
    found = fetch(CATS, out)
    assert found.path == cache / "versions/3"
    assert service.count("DownloadDataset") == 0


def test_a_cache_that_somebody_chose_is_used(
    service: KaggleService, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`KAGGLEHUB_CACHE` says where Kaggle's files belong on this machine."""
    service.add(HostedDataset("ann", "cats", zip_archive(FILES)))
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "chosen"))
    found = fetch(CATS, out)
    assert found.path == tmp_path / "chosen/datasets/ann/cats/versions/1"
    assert read_tree(found.path) == FILES


def test_what_is_there_already_stays(service: KaggleService, out: Path) -> None:
    """A name that is taken is refused before any request."""
    (out / "cats").mkdir(parents=True)
    with pytest.raises(TargetExistsError):
        fetch(CATS, out)
    assert service.count("GetDataset") == 0


def test_a_missing_kagglehub_has_its_install_line(
    service: KaggleService, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the package the message says what to install."""
    monkeypatch.setattr(kaggle, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install -q kagglehub"):
        fetch(CATS, out)


def test_a_full_disk_and_a_lost_connection_are_told_apart() -> None:
    """What another try may cure passes; what it cannot does not."""
    assert isinstance(judge_failure(CATS, {"kinds": ["OSError"], "errno": 28}), NotEnoughSpaceError)
    assert isinstance(judge_failure(CATS, {"kinds": ["ReadTimeout", "Timeout", "OSError"]}), TransientError)
    assert isinstance(judge_failure(CATS, {"kinds": ["HTTPError"], "status": 429}), TransientError)
    assert not isinstance(judge_failure(CATS, {"kinds": ["ValueError"], "message": "x"}), TransientError)


def test_messages_carry_no_credentials() -> None:
    """Tokens and signed addresses are cut out of what kagglehub says."""
    text = "Max retries with url: /a.zip?X-Goog-Signature=abc (key s3cr3t)"
    cleaned = hide_secrets(text, credentials_in({"KAGGLE_KEY": "s3cr3t"}))
    assert cleaned == "Max retries with url: /a.zip?X-Goog-Signature=… (key …)"

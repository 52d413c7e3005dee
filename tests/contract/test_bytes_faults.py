"""Sources whose bytes were once read wrongly: archives, parts of archives, pointers, servers, buckets.

A message is right if it names the value that helps, whatever its wording.
"""

import ast
import base64
import hashlib
import io
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pytest

from colabstage import ColabstageError, fetch_files, stage_dataset
from colabstage.errors import SourceAccessError, SourceReadError, WebPageError
from colabstage.options import token_blocks
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.contract.packed import Packed, found, noted, pack, refused, row
from tests.support.archives import MAKERS, stored_zip, tar_bytes
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer
from tests.support.https_hosts import PLAIN, HostAnswer, HttpsHosts, answer_page
from tests.support.invariants import left_behind
from tests.support.kaggle_service import HostedDataset, KaggleService
from tests.support.made_files import files, grey, image, write_files
from tests.support.share_links import DriveShares, SharedItem

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def stage(tmp_path: Path) -> Callable[[object], Packed]:
    """Stage a source, each time into a new folder: returns what it holds, or how it is refused."""

    def call(source: Any, **options: Any) -> Packed:
        local = tmp_path / f"local-{len(list(tmp_path.iterdir()))}"
        try:
            data = stage_dataset(source, image_size=24, local_dir=local, cache_dir=None, progress=False, **options)
        except ColabstageError as error:
            return Packed(refusal=str(error).replace(f"{tmp_path}", "HERE"))
        except Exception as error:
            msg = f"not an error of colabstage: {error!r}"
            raise AssertionError(msg) from error
        splits = ", ".join(f"{name} {count}" for name, count in data.splits.items())
        return Packed(f"{splits}: {' '.join(data.classes)}", (str(data.report),))

    return call


PETS = files("photos/{cat,dog}/{0..3}.png")

# --- names and advice -------------------------------------------------------------------------------------------------


def test_a_zip_of_dropbox_is_read(tmp_path: Path, stage: Callable[[object], Packed]) -> None:
    """Its first member is the root. Names of other tools are in tests/trees and tests/sources/extract."""
    (tmp_path / "a.zip").write_bytes(stored_zip({"/": b"", "photos/": b"", **PETS}))
    assert stage(tmp_path / "a.zip").found == "train 8: cat dog"


@pytest.mark.parametrize("service", ["Drive", "Kaggle"])
def test_advice_about_archives_in_a_downloaded_folder_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Callable[[object], Packed], service: str
) -> None:
    """For a shared folder or dataset that holds zips, the message says which of them to stage."""
    parts = {f"part{number}.zip": stored_zip(files(f"{{cat,dog}}/{number}_{{0..3}}.png")) for number in (1, 2)}
    if service == "Kaggle":
        pytest.importorskip("kagglehub", reason="needs kagglehub: pip install 'colabstage[kaggle]'")
    with DriveShares(tmp_path) if service == "Drive" else KaggleService(tmp_path) as imitated:
        imitated.hosts.lead(monkeypatch, tmp_path / "home")
        if isinstance(imitated, DriveShares):
            ids = [f"1Item{number:028d}" for number in range(len(parts))]
            for one, (name, content) in zip(ids, parts.items(), strict=True):
                imitated.add(SharedItem(one, name, content=content))
            imitated.add(SharedItem("1Folder" + 26 * "a", "pets", kind="folder", entries=tuple(ids)))
            source = f"https://drive.google.com/drive/folders/1Folder{26 * 'a'}"
        else:
            imitated.add(HostedDataset("ann", "pets", stored_zip(parts)))
            source = "kaggle://ann/pets"
        packed = stage(source)
        advice = packed.refusal.partition("Give as the source")[2]
        given = re.findall(r"'([^']+)'", advice.replace("HERE", str(tmp_path)))
        assert len(given) == (len(parts) if service == "Drive" else 0), packed.refusal
        for source in given:
            assert stage(source).refusal == "", source


@pytest.mark.parametrize("where", ["bucket", "only", "unpacked"])
def test_advice_about_archives_in_a_folder_can_be_followed(
    tmp_path: Path, stage: Callable[..., Packed], where: str
) -> None:
    """Each suggestion contains the archive's address, also if all in it is beside it."""
    parts = {f"part{number}.zip": stored_zip(files(f"{{cat,dog}}/{{{number}0..{number}3}}.png")) for number in (1, 2)}
    if where == "unpacked":
        write_files(tmp_path / "set", {"a.zip": stored_zip(PETS), **PETS})
        refusal = stage(tmp_path / "set").refusal.replace("HERE", str(tmp_path))
        advised = ast.literal_eval(refusal[refusal.index("[") : refusal.index("]") + 1])
        assert stage(advised).found == "train 8: cat dog"
        return
    if where == "bucket":
        fsspec.filesystem("memory").pipe({f"/pets/zips/{name}": content for name, content in parts.items()})
        refusal = stage("memory://pets/zips").refusal
    else:
        write_files(tmp_path / "set/zips", parts)
        refusal = stage(tmp_path / "set", only="zips").refusal.replace("HERE", str(tmp_path))
    advised = re.findall(r"'([^']+\.zip)'", refusal)
    assert len(advised) == len(parts), refusal
    assert stage(advised).found == "train 16: cat dog"


# --- parts of archives ------------------------------------------------------------------------------------------------

JOINED = r"\bcat |zip -s|7z x|\bjoin"


def test_parts_of_an_archive_are_joined(tmp_path: Path, stage: Callable[[object], Packed]) -> None:
    """Found by a pattern; by the name of one part: tests/trees/test_only.py."""
    whole = stored_zip(PETS)
    half = len(whole) // 2
    write_files(tmp_path, {"a.zip.001": whole[:half], "a.zip.002": whole[half:]})
    assert stage(f"{tmp_path}/a.zip.*").found == "train 8: cat dog"


@pytest.mark.parametrize("source", ["a.zip", "glued.zip"])
def test_a_split_zip_is_joined(tmp_path: Path, stage: Callable[[object], Packed], source: str) -> None:
    """If it is not joined, the error says `zip -s 0`: parts joined with cat are not yet a zip."""
    if not shutil.which("zip"):
        pytest.skip("needs zip: apt install zip")
    write_files(tmp_path, files("set/{cat,dog}/{0..9}.png"))
    subprocess.run(["zip", "-qrs", "64k", "a.zip", "set"], cwd=tmp_path, check=True)
    parts = [*sorted(tmp_path.glob("a.z0*")), tmp_path / "a.zip"]
    assert len(parts) > 2
    (tmp_path / "glued.zip").write_bytes(b"".join(part.read_bytes() for part in parts))
    packed = stage(tmp_path / source)
    helpful = r"zip -s|7z x" if source == "glued.zip" else JOINED
    assert packed.found or re.search(helpful, packed.refusal), str(packed)


# --- what is not the data ---------------------------------------------------------------------------------------------


def pointer(n: int) -> bytes:
    """What git leaves if a file in Large File Storage was not fetched."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{n:064x}\nsize {12_345 + n}\n".encode()


NAMES = ["rábano", "piña", "a", "b", "c"]
VOC = "<annotation><filename>{0}.png</filename><object><name>x</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox></object></annotation>"
COCO = {
    "categories": [{"id": 1, "name": "x"}],
    "images": [{"id": i, "file_name": f"{name}.png", "width": 64, "height": 48} for i, name in enumerate(NAMES)],
    "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 1, 5, 5], "area": 25} for i in range(5)],
}


def mac(folder: str, labels: dict[str, Any]) -> dict[str, bytes]:
    """Images whose names are as macOS stores them, and labels that name them as people type."""
    images = {f"{folder}/{unicodedata.normalize('NFD', name)}.png": image(i) for i, name in enumerate(NAMES)}
    return images | files("", labels)


TOKENS: dict[str, Any] = {"layout": token_blocks(64)}
# fmt: off
LFS = [
    row(f"pointers of Git LFS: {names}", {name: pointer(n) for n, name in enumerate(files("", {names: b""}))}, right=[refused("LFS")], **(TOKENS if names == "input.txt" else {}))
    for names in ("input.txt", "x.npy", "x.h5", "train-0000{0,1}.tar", "{yes,no}/{1,2}.wav")
]
UNICODE = [
    row(f"names of macOS: {name}", made, right=[found(right), noted("Unicode"), refused("Unicode|piña|rábano")])
    for name, made, right in [
        ("YOLO", mac("images/train", {f"labels/train/{name}.txt": "0 0.5 0.5 0.2 0.2\n" for name in NAMES} | {"data.yaml": "names: [x]\n"}), "train: boxes x 5"),
        ("VOC", mac("JPEGImages", {f"Annotations/{name}.xml": VOC.format(name) for name in NAMES}), "train: boxes x 5"),
        ("a table", mac("images", {"labels.csv": "file,label\n" + "".join(f"images/{name}.png,{'xy'[i % 2]}\n" for i, name in enumerate(NAMES))}), "train: x 3, y 2"),
        ("masks", mac("images", {f"masks/{name}.png": grey(np.eye(48, 64, dtype=np.uint8)) for name in NAMES}), "train: 5 masks with 240 pixels"),
        ("COCO", mac("images", {"annotations.json": COCO}), "train: boxes x 5"),
    ]
]
SHEETS = [
    row(f"labels in a Google Sheet: {name}", files("{0..4}.png", {name: {"doc_id": "1"}}), right=[refused("gsheet")])
    for name in ("labels.csv.gsheet", "labels.gsheet")
]
REPOSITORIES = [
    row(f"a repository: {what}", files(" ".join(f"repo-main/{names}" for names in images.split()), {"repo-main/README.md": "how to train"}),
        right=[found(right), refused("assets|figures|unlabeled")])
    for what, images, right in [
        ("data, assets, docs", "data/{cat,dog}/{0..4}.png assets/logo.png docs/figure.png", "train: cat 5, dog 5"),
        ("splits, assets", "dataset/{train,test}/{cat,dog}/{0..4}.png assets/logo.png", "train: cat 5, dog 5; test: cat 5, dog 5"),
        ("data/raw, figures", "data/raw/{cat,dog}/{0..4}.png figures/plot.png", "train: cat 5, dog 5"),
        ("data, unlabeled", "data/{cat,dog}/{0..4}.png unlabeled/{1,2}.png", "train: cat 5, dog 5"),
    ]
]
UNFINISHED = [
    row(f"an unfinished download: {name}", PETS | {name: b"\0\1", **more}, right=[refused(f"{name}.*unfinished")])
    for name, more in [
        ("photos/cat/4.png.aria2", {"photos/cat/4.png": image(4)[:900] + bytes(900)}), ("photos/cat/4.png.crdownload", {}), ("photos/dog/4.png.part", {}),
        ("photos/dog/4.png.2b5f.partial", {}), (".cache/huggingface/download/4.incomplete", {}),
    ]
] + [row("pointers of DVC", files("", {"photos.dvc": "outs:\n- path: photos\n"}), right=[refused("dvc pull")])]
# fmt: on


@pytest.mark.parametrize(("made", "right", "options"), [*LFS, *UNICODE, *SHEETS, *REPOSITORIES, *UNFINISHED])
def test_what_is_not_the_data_is_named(
    tmp_path: Path, made: dict[str, bytes], right: list[Callable[[Packed], bool]], options: dict[str, Any]
) -> None:
    """Rows as in `test_samples_faults.py`."""
    packed = pack(write_files(tmp_path / "set", made), tmp_path / "out.h5", **options)
    is_right = any(one(packed) for one in right)
    assert is_right, str(packed)


def test_a_file_that_aria2_has_not_completed_is_not_read(tmp_path: Path, stage: Callable[[object], Packed]) -> None:
    """It has its whole length from the beginning, with zeros for what is missing, as arrays may have them."""
    rows = io.BytesIO()
    np.save(rows, np.ones((10, 8, 8, 3), np.uint8))
    write_files(tmp_path, {"x.npy": rows.getvalue()[:500].ljust(len(rows.getvalue()), b"\0"), "x.npy.aria2": b"\0\1"})
    with pytest.raises(ColabstageError, match=r"x\.npy\.aria2"):
        fetch_files(tmp_path / "x.npy", tmp_path / "copy.npy", progress=False)
    assert "x.npy.aria2" in stage(tmp_path / "x.npy").refusal
    (tmp_path / "x.npy.aria2").unlink()
    assert stage(tmp_path / "x.npy").found


LINKS = [
    *[(link, "gone", True) for link in ("photos/cat/4.png", "photos/owl", "val", "labels.csv")],
    ("photos/owl", "cat", True),
    *[(link, "gone", False) for link in ("photos/.#4.png", "README", "docs/latest.html", ".venv/bin/python")],
]


# What a link is to a dataset is decided alike, wherever it was listed: of archives every third is in every run.
@pytest.mark.parametrize(
    ("form", "link", "leads", "is_missed"),
    [
        pytest.param(form, *link, marks=[pytest.mark.long] * (form != "folder" and (at + shift) % 3 > 0))
        for shift, form in enumerate(("folder", "tar", "zip"))
        for at, link in enumerate(LINKS)
    ],
)
def test_samples_behind_links_to_nothing_are_missed(
    tmp_path: Path, stage: Callable[..., Packed], link: str, leads: str, form: str, *, is_missed: bool
) -> None:
    """As where git-annex has not fetched all, or an archive has links to folders: what is advised makes them a dataset."""
    root = write_files(tmp_path / "set", PETS)
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(leads)
    source = root
    if form != "folder":
        source = tmp_path / f"set.{form}"
        line = ["tar", "-cf", str(source), "."] if form == "tar" else ["zip", "-qry", str(source), "."]
        if not shutil.which(line[0]):
            pytest.skip("needs zip: apt install zip")
        subprocess.run(line, cwd=root, check=True)
    packed = stage(source)
    if form == "folder" and leads == "cat":
        assert packed.found == "train 12: cat dog owl"
    elif not is_missed:
        assert packed.found == "train 8: cat dog"
    else:
        assert f"'{link}' beside the images" in packed.refusal
        assert stage(source, layout="image_folder").found == "train 8: cat dog"
        assert stage(source, only="photos").found == "train 8: cat dog" or link.startswith("photos/")
        if form == "folder":
            said = packed.refusal.replace("HERE", str(tmp_path))
            advised = said.partition("remove them: ")[2].partition(". layout=")[0]
            subprocess.run(advised, shell=True, check=True)
            assert stage(source).found == "train 8: cat dog"


@pytest.mark.fuse
def test_what_is_mounted_below_a_folder_is_left_alone(tmp_path: Path, stage: Callable[[object], Packed]) -> None:
    """`/content/labels.csv` beside `/content/drive`: files that the table does not name are ignored, even if the Drive
    fails."""
    lines = "".join(f"images/{i}.png,{'xy'[i % 2]}\n" for i in range(6))
    write_files(tmp_path / "content", files("images/{0..5}.png", {"labels.csv": f"file,label\n{lines}"}))
    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        for n in range(20):
            (drive.cloud / f"MyDrive/course{n}").mkdir(parents=True)
        drive.mount(tmp_path / "content/drive")
        for source in ("content/labels.csv", "content"):
            packed = stage(tmp_path / source)
            assert packed.found == "train 6: x y"
            assert "('drive')" in packed.notes[0]
        assert drive.stats().listings_cold + drive.stats().listings_warm <= 2
        drive.kill()
        assert stage(tmp_path / "content/labels.csv").found == "train 6: x y"


# --- servers ----------------------------------------------------------------------------------------------------------


@contextmanager
def answering(folder: Path, status: int, headers: dict[str, str], body: bytes) -> Iterator[str]:
    """Serve the same response to every request; yields the address."""
    with HttpsHosts({PLAIN: lambda _: HostAnswer(status, headers, body)}, folder) as hosts:
        yield f"http://{hosts.address}"


@pytest.mark.parametrize("call", ["stage", "fetch"])
def test_a_challenge_to_browsers_is_named(tmp_path: Path, stage: Callable[[object], Packed], call: str) -> None:
    """202 without content: the file has to be downloaded with a browser."""
    challenge = {"x-amzn-waf-action": "challenge", "Content-Type": "text/html; charset=UTF-8"}
    with answering(tmp_path, 202, challenge, b"") as address:
        if call == "stage":
            refusal = stage(f"{address}/files/42.zip").refusal
        else:
            with pytest.raises(ColabstageError) as raised:
                fetch_files(f"{address}/files/42.zip", tmp_path / "x.zip", progress=False)
            refusal = str(raised.value)
    assert "browser" in refusal, refusal


def test_a_bucket_whose_readers_pay_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Callable[[object], Packed]
) -> None:
    """A signed request may be refused because it does not say that its caller pays; the error says how to."""
    pytest.importorskip("s3fs", reason="needs s3fs: pip install 'colabstage[s3]'")
    denied = b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>'
    with answering(tmp_path, 403, {"Content-Type": "application/xml"}, denied) as address:
        login = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**login, "AWS_ENDPOINT_URL": address}.items():
            monkeypatch.setenv(name, value)
        refusal = stage("s3://satellite/photos").refusal
    assert re.search("requester.?pays", refusal, re.IGNORECASE), refusal


def test_a_row_of_files_is_a_list_of_them(tmp_path: Path, stage: Callable[..., Packed]) -> None:
    """`{000..002}`, as WebDataset names shards: on a disk, on the web and in a list, also together with patterns."""
    shards = {}
    for k in range(3):
        numbers = range(3 * k, 3 * k + 3)
        members = {f"{n:06}.png": image(n) for n in numbers} | {f"{n:06}.cls": b"%d" % (n % 2) for n in numbers}
        shards[f"train-{k:03}.tar"] = tar_bytes(dict(sorted(members.items())))
    write_files(tmp_path / "shards", shards)
    here, right = f"{tmp_path}/shards/train-", "train 9: 0 1"
    assert stage(f"{here}{{000..002}}.tar").found == right
    assert stage([f"{here}{{000..001}}.tar", f"{here}??2.tar"]).found == right
    assert "train-003.tar" in stage(f"{here}{{000..003}}.tar").refusal
    assert stage(f"{here}{{002..000}}.tar").found == right
    assert "too many" in stage(f"{here}{{0..999999}}.tar").refusal
    with WebServer(shards) as web:
        source = f"{web.url('')}train-{{000..002}}.tar"
        options: dict[str, Any] = {"image_size": 24, "cache_dir": None, "progress": False}
        first = stage_dataset(source, local_dir=tmp_path / "local", **options)
        assert first.splits == {"train": 9}
        web.forget_requests()
        assert stage_dataset(source, local_dir=tmp_path / "local", **options).path == first.path
        # One request for each, as for a list of addresses.
        assert len(web.requests) == 3
        assert fetch_files(source, tmp_path / "copies", progress=False).files == 3
        # The shell's `{0..10}` does not pad with zeros.
        assert "train-0.tar" in stage(f"{web.url('')}train-{{0..10}}.tar").refusal


@pytest.mark.parametrize(
    "start", ["https://www.kaggle.com/c", "https://www.kaggle.com/competitions", "kaggle://competitions"]
)
def test_a_competition_of_kaggles_is_answered_with_its_download(stage: Callable[..., Packed], start: str) -> None:
    """Its rules have to be accepted before the download, which kagglehub takes care of."""
    address = f"{start}/digit-recognizer{'/data' if start.endswith('/c') else ''}"
    assert "kagglehub.competition_download('digit-recognizer')" in stage(address).refusal


def test_a_large_file_of_a_list_meets_its_checksum(tmp_path: Path) -> None:
    """It arrives in parts, and only the whole has a checksum; after a repeat, nothing of the wrong file is kept."""
    right = bytes(range(256)) * (260 * 1024)
    digest = base64.b64encode(hashlib.md5(right, usedforsecurity=False).digest()).decode()
    headers = (("x-goog-hash", f"md5={digest}"),)
    (tmp_path / "small.bin").write_bytes(b"s")
    with WebServer({"large.bin": right[:-1] + b"?"}, knobs=WebKnobs(headers=headers)) as web:
        files = [web.url("large.bin"), str(tmp_path / "small.bin")]
        for _ in range(2):
            with pytest.raises(SourceReadError, match=r"large\.bin.*md5"):
                fetch_files(files, tmp_path / "got", progress=False)
        assert not (tmp_path / "got").exists()
        web.put("large.bin", right)
        fetch_files(files, tmp_path / "got", progress=False)
    assert (tmp_path / "got/large.bin").read_bytes() == right


@pytest.mark.parametrize(
    ("name", "body", "value"),
    [
        ("x.jpg", b'{"error": "quota exceeded"}', "quota exceeded"),
        ("x.npy", b"try again tomorrow", "try again tomorrow"),
        ("x.parquet", b"", "empty"),
        ("x.zip", b"", "empty"),
        ("train.csv", pointer(7), "Git LFS"),
        ("photos", b'<?xml version="1.0"?><ListBucketResult><Name>b</Name></ListBucketResult>', "bucket"),
    ],
)
def test_what_stands_in_for_a_file_on_the_web_is_not_fetched(
    tmp_path: Path, name: str, body: bytes, value: str
) -> None:
    """An error page with status 200, an empty file, a pointer: saved under the data's name, it would be noticed much
    later."""
    with answering(tmp_path, 200, {}, body) as address, pytest.raises(WebPageError, match=value):
        fetch_files(f"{address}/{name}", tmp_path / "got/", progress=False)
    assert not (tmp_path / "got").exists() or not list((tmp_path / "got").iterdir())


# What a tar arrives by is what a tar.gz does.
@pytest.mark.parametrize("name", ["pets.zip", "pets.tar.gz", pytest.param("pets.tar", marks=pytest.mark.long)])
@pytest.mark.parametrize("length", ["told", "chunked", "close"])
@pytest.mark.parametrize("ranges", ["honoured", "ignored"])
def test_a_dataset_is_staged_from_a_server_that_tells_little(
    tmp_path: Path, name: str, length: Any, ranges: Any
) -> None:
    """Without ranges, without a length (as GitHub sends its archives), or without either; each call fetches again what
    a cut connection left, if nothing told where the file ends."""
    knobs, local = WebKnobs(length=length, ranges=ranges), tmp_path / "local"
    with WebServer({name: MAKERS[name.removeprefix("pets")](PETS)}, knobs=knobs) as web:
        if (length, ranges) == ("close", "ignored"):
            web.set_faults(WebFault(kind="truncate", at_byte=40_000))
            with pytest.raises(ColabstageError, match="truncated"):
                stage_dataset(web.url(name), image_size=24, local_dir=local, cache_dir=None, progress=False)
            web.set_faults()
        data = stage_dataset(web.url(name), image_size=24, local_dir=local, cache_dir=None, progress=False)
        assert (data.splits, data.classes) == ({"train": 8}, ("cat", "dog"))
    assert not left_behind(local)


@pytest.mark.parametrize(
    ("page", "given"),
    [
        ("https://www.dropbox.com/s/abc/pets.zip?dl=0", "dl=1"),
        ("https://uni-my.sharepoint.com/:u:/g/personal/ann?e=abc", "&download=1"),
        ("https://github.com/ann/pets", "https://github.com/ann/pets/archive/HEAD.zip"),
        ("https://github.com/ann/pets/blob/main/pets.zip", "https://github.com/ann/pets/raw/main/pets.zip"),
        ("https://huggingface.co/datasets/ann/pets", "'hf://datasets/ann/pets'"),
        ("https://huggingface.co/datasets/ann/pets/tree/main/data", "'hf://datasets/ann/pets@main/data'"),
        ("https://huggingface.co/datasets/ann/pets/blob/main/a.zip", "/datasets/ann/pets/resolve/main/a.zip"),
        ("https://console.cloud.google.com/storage/browser/pets/my%20set;tab=objects", "'gs://pets/my set'"),
        (
            "https://gitlab.uni.org/ann/pets/-/blob/main/a.zip?ref_type=heads",
            "//gitlab.uni.org/ann/pets/-/raw/main/a.zip",
        ),
        ("https://zenodo.org/records/12/preview/a.zip?include_deleted=0", "https://zenodo.org/records/12/files/a.zip"),
        ("https://zenodo.org/records/123", "https://zenodo.org/api/records/123/files-archive"),
        ("https://figshare.com/ndownloader/files/42", "'https://ndownloader.figshare.com/files/42'"),
        ("https://huggingface.co/datasets/ann/pets/resolve/main/a.zip", "'hf://datasets/ann/pets@main/a.zip'"),
    ],
)
# Both are refusals, of which each page is met with one.
@pytest.mark.parametrize("status", [200, 401, pytest.param(202, marks=pytest.mark.long)])
def test_the_page_of_a_service_leads_to_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, given: str, status: int
) -> None:
    """The error gives the address, or the parameter, for the data that the page shows, or refuses."""
    if status != 200 and given.endswith("=1"):
        pytest.skip("the address of the data is the page's own")
    answer = answer_page("<html><title>Pets</title></html>", status, headers={"x-amzn-waf-action": "challenge"})
    leads = HostAnswer(302, {"Location": page})
    with HttpsHosts({urlsplit(page).netloc: lambda _: answer, "doi.org": lambda _: leads}, tmp_path) as hosts:
        hosts.lead(monkeypatch)
        if status == 200 and not given.endswith("=1"):
            # Only where the redirect ends says what the page is.
            with pytest.raises(WebPageError, match=re.escape(given)):
                fetch_files("https://doi.org/10.5281/pets", tmp_path / "got", progress=False)
        with pytest.raises(WebPageError if status == 200 else SourceAccessError, match=re.escape(given)):
            fetch_files(page, tmp_path / "got", progress=False)


def test_addresses_without_an_ending_are_images_by_what_arrives(tmp_path: Path, stage: Callable[..., Packed]) -> None:
    """As in a table of addresses: the name gets the ending of the image, also where only one file is fetched; what is no
    image keeps its name, and is refused as before."""
    served = {f"image/{1000 + n}": image(n) for n in range(12)}
    with WebServer(
        {**served, "image/note": b"\0\1\2\3", "image/more": b"\0\1"}, knobs=WebKnobs(content_type="image/png")
    ) as web:
        addresses = [web.url(name) for name in served]
        assert stage(addresses, layout="images").found.startswith("train 12")
        table = "".join(f"{address},{'cat' if n < 6 else 'dog'}\n" for n, address in enumerate(addresses))
        write_files(tmp_path, {"labels.csv": f"url,label\n{table}".encode()})
        advised = "['HERE/labels.csv', *pandas.read_csv('HERE/labels.csv')['url']]"
        assert advised in stage(tmp_path / "labels.csv").refusal
        assert stage([tmp_path / "labels.csv", *addresses]).found == "train 12: cat dog"
        fetch_files(addresses, tmp_path / "copies", progress=False)
        assert {path.name for path in (tmp_path / "copies").iterdir()} == {f"{1000 + n}.png" for n in range(12)}
        for name, arrived in (("image/1000", "1000.png"), ("image/note", "note")):
            fetch_files(web.url(name), f"{tmp_path}/one/", progress=False)
            assert (tmp_path / "one" / arrived).exists()
        assert stage([web.url("image/note"), web.url("image/more")], layout="images").refusal

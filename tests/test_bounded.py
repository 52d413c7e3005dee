"""No small hostile input hangs, runs for minutes or fills the memory; unreadable input is a typed error.

Every call runs in its own process with a limit on time and memory.
"""

import io
import json
import multiprocessing
import os
import resource
import shutil
import socket
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, fetch_files, list_datasets, make_loader, pack_dataset, publish_file, restore_file
from colabstage.errors import ColabstageError, NotStagedError, OptionError
from tests.support.loopback import RawServer
from tests.support.made_files import files, write_files

LIMIT_S = 40
_ONE_FORK = threading.Lock()


def _answer(call: Callable[[], object], answers: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30,) * 2)
    try:
        call()
        answers.send(("fine", 0))
    except ColabstageError as error:
        answers.send((type(error).__name__, len(str(error))))
    except BaseException as error:  # noqa: BLE001 - what is to be found
        answers.send((f"untyped: {error!r:.200}", 0))


def outcome(call: Callable[[], object], *, limit_s: float = LIMIT_S) -> str:
    """Make a call in a fork; return "fine", or the name of its typed error."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    fork: Any = multiprocessing.get_context("fork")
    child = fork.Process(target=_answer, args=(call, theirs))
    # filelock refuses a fork while another thread forks.
    with _ONE_FORK:
        child.start()
    theirs.close()
    try:
        assert ours.poll(limit_s), "it is still at it"
        name, length = ours.recv()
    finally:
        child.kill()
        child.join()
        ours.close()
    # A message quotes only a piece of a wrong value, however long that is.
    assert length < 10_000
    return str(name)


def pack(source: Path, out: Path, **options: Any) -> str:
    return outcome(lambda: pack_dataset(source, out, overwrite=True, progress=False, **options))


def pack_images(made: dict[str, bytes], tmp_path: Path) -> str:
    """Pack files with images."""
    return pack(write_files(tmp_path / "d", made), tmp_path / "o.h5", image_size=(8, 8))


IMAGES = files("a{0..5}.png")
LAUGHS = 'a: &a ["x","x","x","x","x","x","x","x","x"]\n' + "".join(
    f"{chr(98 + level)}: &{chr(98 + level)} [{','.join(['*' + chr(97 + level)] * 9)}]\n" for level in range(8)
)
LARGE = 10**400
BOX = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
OBJECT = f"<object><name>c</name>{BOX}</object>"
ENTITIES = "".join(f'<!ENTITY {chr(98 + n)} "{("&" + chr(97 + n) + ";") * 10}">' for n in range(9))


def yolo(line: str = "0 .5 .5 .2 .2", **texts: str) -> dict[str, bytes]:
    """Four images with a box each; the first one's as in `line`."""
    labels = {"labels/train/0.txt": f"{line}\n", "labels/train/{1..3}.txt": "0 .5 .5 .2 .2\n"}
    return files("images/train/{0..3}.png", labels | {f"data.{end}": text for end, text in texts.items()})


def coco(part: str, **changes: Any) -> dict[str, bytes]:
    """Six images with a box each; the first entry of a part is changed."""
    found: dict[str, list[dict[str, Any]]] = {
        "images": [{"id": n, "file_name": f"a{n}.png", "width": 64, "height": 48} for n in range(6)],
        "annotations": [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 2, 3, 4]} for n in range(6)],
        "categories": [{"id": 1, "name": "x"}],
    }
    found[part][0] |= changes
    return IMAGES | {"annotations.json": json.dumps(found).encode()}


def voc(content: str | bytes) -> dict[str, bytes]:
    """Four images with a box each; the first one's file has this content."""
    others = f"<annotation>{OBJECT}</annotation>"
    return files("JPEGImages/{0..3}.png", {"Annotations/0.xml": content, "Annotations/{1..3}.xml": others})


# A few hundred bytes that would expand to gigabytes; numbers that are no index, and fit into no array; what is deeper
# than Python can parse; paths of so many folders that searching from each of them on would take hours; entities.
HOSTILE: dict[str, Callable[[], dict[str, bytes]]] = {
    "YAML: a list of names": lambda: yolo(yaml=LAUGHS + "names: *i\n"),
    "YAML: a list in itself": lambda: yolo(yaml="names: &a [*a]\n"),
    "YAML: deep": lambda: yolo(yaml="names: " + "[" * 1000),
    "YAML: a long number": lambda: yolo(yaml=f"names: {{{'9' * 5000}: car}}\n"),
    "YOLO: a long class": lambda: yolo(f"{'9' * 5000} .5 .5 .2 .2"),
    "YOLO: an endless class": lambda: yolo("1e400 .5 .5 .2 .2"),
    "YOLO: a large class": lambda: yolo("1000000000 .5 .5 .2 .2"),
    "COCO: a width": lambda: coco("images", width=10**30),
    "COCO: a box": lambda: coco("annotations", bbox=[LARGE, 0, 1, 1]),
    "COCO: an id": lambda: coco("annotations", image_id=[[[LARGE]]]),
    "COCO: a category": lambda: coco("categories", id={"deep": [1] * 100_000}),
    "COCO: paths of many folders": lambda: files("a{0..5}.png", {"annotations.json": {
        "images": [{"id": n, "file_name": "a/" * 300_000 + f"{n}.png"} for n in range(3)],
        "annotations": [], "categories": [{"id": 1, "name": "x"}],
    }}),
    "COCO: nested": lambda: files("a{0..5}.png", {
        "annotations.json": '{"images": [{"file_name": "0.png"}], "categories": [], "annotations": '
        + "[" * 200_000 + "]" * 200_000 + "}"
    }),
    "XML: entities": lambda: voc(
        f'<!DOCTYPE l [<!ENTITY a "aaaaaaaaaa">{ENTITIES}]><annotation><filename>&j;</filename></annotation>'
    ),
    "XML: another file": lambda: voc(
        '<!DOCTYPE l [<!ENTITY a SYSTEM "file:///dev/zero">]><annotation>&a;</annotation>'
    ),
    "XML: a long flag": lambda: voc(
        f"<annotation><object><name>c</name><difficult>{'9' * 5000}</difficult>{BOX}</object></annotation>"
    ),
    "XML: an unknown encoding": lambda: voc(
        f'<?xml version="1.0" encoding="klingon"?><annotation>{OBJECT}</annotation>'
    ),
    "XML: bytes that gbk has not": lambda: voc(b'<?xml version="1.0" encoding="gbk"?><annotation>\xff</annotation>'),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_labels_that_never_end(tmp_path: Path, kind: str) -> None:
    assert pack_images(HOSTILE[kind](), tmp_path) == "BrokenDatasetError"


@pytest.mark.parametrize("what", ["a pipe", "a link to a device"])
def test_a_manifest_that_is_no_file(tmp_path: Path, what: str) -> None:
    """Opening a pipe waits for a writer, and a device may have no end."""
    folder = tmp_path / "shared"
    pack_dataset(write_files(tmp_path / "d", IMAGES), folder / "a.h5", image_size=(8, 8), progress=False)
    manifest = folder / "a.h5.json"
    manifest.unlink()
    if what == "a pipe":
        os.mkfifo(manifest)
    else:
        manifest.symlink_to("/dev/zero")
    pack = folder / "a.h5"
    assert outcome(lambda: dataset_h5(pack)) == "fine"
    assert outcome(lambda: publish_file(pack, tmp_path / "b.h5", progress=False)) == "fine"
    assert outcome(lambda: restore_file(pack, tmp_path / "c.h5", progress=False)) != ""
    assert outcome(lambda: list_datasets(local_dir=tmp_path / "none", cache_dir=folder)) == "fine"
    other = shutil.copy(pack, tmp_path / "other.h5")
    assert outcome(lambda: publish_file(other, pack, progress=False)) == "TargetExistsError"


def test_nested_xml(tmp_path: Path) -> None:
    """Deeper than any stack; elements outside boxes are skipped."""
    nested = "<a>" * 300_000 + "</a>" * 300_000
    assert pack_images(voc(f"<annotation>{nested}</annotation>"), tmp_path) == "fine"


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16", "iso-8859-1"])
def test_xml_in_the_encodings_that_people_use(tmp_path: Path, encoding: str) -> None:
    """Expat supports few of them."""
    word = "été" if encoding == "iso-8859-1" else "山"
    labels = f"<annotation><object><name>{word}</name>{BOX}</object></annotation>"
    text = f'<?xml version="1.0" encoding="{encoding}"?>{labels}'
    assert pack_images(voc(text.encode(encoding)), tmp_path) == "fine"
    with h5py.File(tmp_path / "o.h5") as file:
        assert word in [name.decode() for name in file["classes"][()].tolist()]


CSV = {
    "different labels": "".join(f"a{n}.png,{n}{'9' * 5000}\n" for n in range(6)),
    "a cell of a megabyte": "".join(f"a{n}.png,{'x ' * 500_000}\n" for n in range(6)),
}


@pytest.mark.parametrize("kind", CSV)
def test_cells_of_tables(tmp_path: Path, kind: str) -> None:
    """Numbers with more digits than Python converts."""
    made = IMAGES | {"labels.csv": f"image,label\n{CSV[kind]}".encode()}
    assert pack_images(made, tmp_path) in ("fine", "LayoutError", "BrokenDatasetError")


def test_a_list_of_long_numbers_is_shown_in_part(tmp_path: Path) -> None:
    """The line that the message suggests has the beginning of the cell."""
    cells = "".join(f"a{n}.png,1 2 {'9' * 3000}\n" for n in range(6))
    write_files(tmp_path / "d", IMAGES | {"labels.csv": f"image,label\n{cells}".encode()})
    with pytest.raises(ColabstageError, match="1 2 999") as caught:
        pack_dataset(tmp_path / "d", tmp_path / "o.h5", image_size=(8, 8), progress=False)
    assert len(str(caught.value)) < 1000


def nested_groups(path: Path, count: int) -> None:
    with h5py.File(path / "x.h5", "w") as file:
        group = file
        for _ in range(count):
            group = group.create_group("a")
        file["X_train"], file["Y_train"] = np.zeros((10, 4), "u1"), np.arange(10)


def wide_table(path: Path, count: int) -> None:
    header = ",".join(f"c{number}" for number in range(count))
    cells = ",".join(["0.5"] * count)
    lines = "".join(f"a{number}.png,{number % 2},{cells}\n" for number in range(6))
    write_files(path, IMAGES | {"labels.csv": f"image,label,{header}\n{lines}".encode()})


def wide_archive(path: Path, count: int) -> None:
    data = io.BytesIO()
    np.save(data, np.zeros(4, "u1"))
    with zipfile.ZipFile(path / "x.npz", "w") as file:
        for number in range(count):
            file.writestr(f"k{number}.npy", data.getvalue())


def wide_parquet(path: Path, count: int) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    columns: dict[str, list[Any]] = {"image": [f"a{n}.png" for n in range(6)], "label": ["x", "y"] * 3}
    columns |= {f"c{number}": [0.5] * 6 for number in range(count)}
    parquet.write_table(pyarrow.table(columns), write_files(path, IMAGES) / "labels.parquet")


GROWING = {"groups": (nested_groups, 1000), "table": (wide_table, 16_000), "npz": (wide_archive, 2000)}
GROWING |= {"parquet": (wide_parquet, 4000)}


def processor_s() -> float:
    """The processor time of all processes that have ended: others' work is not in it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("kind", GROWING)
def test_structure_takes_linear_time(tmp_path: Path, kind: str) -> None:
    """Deeply nested groups, and many columns."""
    make, count = GROWING[kind]
    source = tmp_path / "d"
    source.mkdir()
    make(source, count)
    found = source / "x.h5" if kind == "groups" else source
    # Quadratic time took 7 to 24 seconds. A busy machine may take a multiple of what an idle one does, but not always.
    taken: list[float] = []
    while len(taken) < 3 and (not taken or taken[-1] >= 7):
        begun = processor_s()
        pack(found, tmp_path / "o.h5", **({"image_size": (8, 8)} if kind in ("table", "parquet") else {}))
        taken.append(processor_s() - begun)
    assert min(taken) < 7, taken


def zip_of_deep_names(path: Path) -> None:
    with zipfile.ZipFile(path / "x.zip", "w") as file:
        for number in range(200):
            file.writestr("d/" * 15_000 + f"{number}.png", b"")


def tar_of_long_names(path: Path) -> None:
    name = b"d/" * 500_000 + b"x"
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = b"L", len(name)
    member = long.tobuf(tarfile.GNU_FORMAT) + name.ljust(-(-len(name) // 512) * 512, b"\0")
    (path / "x.tar").write_bytes((member + tarfile.TarInfo("x").tobuf()) * 5 + b"\0" * 1024)


def tar_of_headers(path: Path) -> None:
    record = b"11 path=ab\n"
    header = tarfile.TarInfo("p")
    header.type, header.size = b"x", len(record)
    one = header.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")
    (path / "x.tar").write_bytes(one * 20_000 + tarfile.TarInfo("x").tobuf() + b"\0" * 1024)


def deep_folders(path: Path) -> None:
    (path / "/".join("d" * 900)).mkdir(parents=True)


@pytest.mark.parametrize("make", [zip_of_deep_names, tar_of_long_names, tar_of_headers, deep_folders])
def test_names_and_headers_of_archives(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Names with thousands of folders, and headers without a member."""
    source = tmp_path / "d"
    source.mkdir()
    make(source)
    found = next((path for path in source.iterdir() if path.is_file()), source)
    assert pack(found, tmp_path / "o.h5") in ("UnsafeArchiveError", "LayoutError", "EmptySourceError")


def tree_of_links(file: Any) -> None:
    file.create_group("s0")
    for number in range(1, 12):
        file[f"s{number}"] = h5py.SoftLink("/".join([f"s{number - 1}"] * 50))
    file["X_train"] = h5py.SoftLink("/s11")


def test_hdf5(tmp_path: Path) -> None:
    """Endless links: for a loader, and for packing."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        tree_of_links(file)
    assert outcome(lambda: next(iter(make_loader(dataset_h5(path), 4)))) in ("PackFormatError", "DamagedPackError")
    assert pack(path, tmp_path / "o.h5") in ("fine", "LayoutError", "NotEnoughSpaceError", "BrokenDatasetError")


HEAD = b'HTTP/1.1 200 OK\r\nETag: "a"\r\nTransfer-Encoding: chunked\r\n\r\n'
CHUNK = b"10000\r\n" + b"a" * 65536 + b"\r\n"
ENDLESS = {
    "trailers": (HEAD + CHUNK + b"0\r\n", b"X-T: a\r\n", 0.2),
    "trailers at once": (HEAD + CHUNK + b"0\r\n", b"X-T: a\r\n" * 4096, 0),
    "a trailer": (HEAD + CHUNK + b"0\r\nX-T: ", b"a" * 65536, 0),
    "the length of a chunk": (HEAD + CHUNK, b"0" * 65536, 0),
    "a head": (b"HTTP/1.1 200 OK\r\n", b"X-T: a\r\n", 0.2),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.2),
}


def answer(connection: socket.socket, request: bytes) -> None:
    """Send what the address names."""
    begin, again, pause_s = ENDLESS[request.split()[1].decode().strip("/").replace("%20", " ")]
    connection.sendall(begin)
    while True:
        connection.sendall(again)
        time.sleep(pause_s)


# A line ends at its length limit. Endless lines end at the time limit for a head, 30 s, as does each retry.
ONE_LINE = ["a trailer", "the length of a chunk"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(ONE_LINE, id="a line"),
        pytest.param(sorted({*ENDLESS} - {*ONE_LINE}), id="lines", marks=pytest.mark.long),
    ],
)
def test_answers_without_end(tmp_path: Path, kinds: list[str]) -> None:
    """Before, inside and after a body; all at once, because they wait."""
    with RawServer(answer) as server, ThreadPoolExecutor(len(kinds)) as pool:

        def fetch(kind: str) -> str:
            url = f"http://127.0.0.1:{server.port}/{kind}"
            return outcome(lambda: fetch_files(url, str(tmp_path / kind), progress=False), limit_s=240)

        found = dict(zip(kinds, pool.map(fetch, kinds), strict=True))
    assert set(found.values()) <= {"SourceReadError", "TransientError", "SourceChangedError"}, found


def refusal(value: Any) -> str:
    """The error for a value that is not a size."""
    with pytest.raises(OptionError) as caught:
        pack_dataset("photos", "o.h5", image_size=value)
    return str(caught.value)


def test_values_in_messages_are_short() -> None:
    """Every value is shown by its beginning or its class, and without secrets."""
    bomb: list[Any] = ["x"] * 9
    for _ in range(9):
        bomb = [bomb] * 9
    own: list[Any] = []
    own.append(own)
    for value in (bomb, own, {1: bomb}, (bomb,), "x" * 10**7, b"x" * 10**7, -(10**5000), [10**5000]):
        begun = time.thread_time()
        assert len(refusal(value)) <= 200
        assert time.thread_time() - begun < 1
    plain: tuple[Any, ...] = ([1, "a", None], {"a": (1,)}, {}, {1}, b"\0", "it's", ((),))
    for one in plain:
        assert repr(one) in refusal(one)
    assert "hunter2" not in refusal(["https://me:hunter2@example.org/a.zip"])


def test_messages_are_short() -> None:
    """A name or a line of a megabyte is cut, and the advice remains."""
    for kind in (ColabstageError, OptionError, NotStagedError):
        text = str(kind(f"'{'x' * 10**6}' cannot be read. Correct it."))
        assert len(text) < 10_000
        assert text.endswith("Correct it.")

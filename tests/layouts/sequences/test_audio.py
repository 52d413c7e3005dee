"""Clips of sound become rows of one length: the numbers that soundfile and the standard library read, and no others."""

from __future__ import annotations

import importlib
import io
import struct
import wave
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage import pack_dataset
from colabstage.errors import DecodeError, EmptySourceError, LayoutError, MissingDependencyError, OptionError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.stored import read_clip
from colabstage.layouts.table import BrokenDatasetError
from colabstage.options import Arrays, Values, audio_clips
from colabstage.trees.folder import FolderTree
from tests.layouts.readers import read_audio

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RATE = 8000


@pytest.fixture
def soundfile() -> Any:
    """The library whose reading is compared."""
    return pytest.importorskip("soundfile", reason="needs soundfile: pip install soundfile")


def tone(number: int, length: int = 400, channels: int = 1) -> NDArray[np.float64]:
    """A sound that no other number has, in -1 to 1."""
    rng = np.random.default_rng(number)
    return rng.uniform(-1, 1, (length, channels))


def write_wav(place: Path, values: NDArray[np.float64], rate: int = RATE) -> NDArray[np.int16]:
    """Write 16 bits by the standard library; returns the numbers."""
    whole = np.rint(values * 32767).astype("<i2")
    place.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(place), "wb") as file:
        file.setnchannels(values.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())
    return whole


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Twelve clips of three words, as Speech Commands has them."""
    folder = tmp_path / "commands"
    for number in range(12):
        write_wav(folder / ("go", "no", "yes")[number % 3] / f"{number:02}.wav", tone(number))
    return folder


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "IMA_ADPCM"])
@pytest.mark.parametrize("form", ["WAV", "WAVEX"])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_is_read_as_soundfile_reads_it(soundfile: Any, subtype: str, form: str, channels: int) -> None:
    """Every kind of number, exactly; kinds that need soundfile go through it."""
    if not soundfile.check_format(form, subtype):
        pytest.skip(f"needs a libsndfile that writes {subtype} in {form}: pip install -U soundfile")
    buffer = io.BytesIO()
    soundfile.write(buffer, tone(1, 1017, channels), RATE, subtype=subtype, format=form)
    wanted, rate = soundfile.read(io.BytesIO(buffer.getvalue()), dtype="float32", always_2d=True)
    clip = read_clip(buffer.getvalue(), "float32")
    assert clip.rate == rate
    assert clip.values.dtype == np.float32
    np.testing.assert_array_equal(clip.values, wanted)
    whole = read_clip(buffer.getvalue(), "int16").values
    assert whole.dtype == np.int16
    if subtype.startswith("PCM"):
        np.testing.assert_array_equal(
            whole, soundfile.read(io.BytesIO(buffer.getvalue()), dtype="int16", always_2d=True)[0]
        )
    else:
        np.testing.assert_allclose(whole, np.clip(wanted, -1, 1) * 32767.0, atol=0.51)


@pytest.mark.parametrize(("form", "subtype"), [("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS")])
def test_flac_and_others_go_through_soundfile(soundfile: Any, form: str, subtype: str) -> None:
    """FLAC is lossless, so int16 is what was written."""
    values = (tone(2, 3000) * 20000).astype(np.int16)
    buffer = io.BytesIO()
    soundfile.write(buffer, values, RATE, subtype=subtype, format=form)
    clip = read_clip(buffer.getvalue(), "float32")
    np.testing.assert_array_equal(
        clip.values, soundfile.read(io.BytesIO(buffer.getvalue()), dtype="float32", always_2d=True)[0]
    )
    if form == "FLAC":
        np.testing.assert_array_equal(read_clip(buffer.getvalue(), "int16").values, values)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_folders_of_classes_become_rows(tmp_path: Path, commands: Path, dtype: Any) -> None:
    """From the folder to the Dataset: the very numbers of the files, with their classes."""
    dataset_h5 = pytest.importorskip("colabstage.load.dataset", reason="needs torch: pip install torch").dataset_h5
    assert detect_layout(FolderTree(commands)).layout == "audio"
    layout = audio_clips(dtype=dtype)
    report = pack_dataset(commands, tmp_path / "out.h5", layout=layout, progress=False)
    assert report.classes == ("go", "no", "yes")
    assert "8,000 Hz, 400 samples (0.05 s), 1 channel." in "\n".join(report.notes)
    dataset = dataset_h5(tmp_path / "out.h5")
    for row, key in enumerate(dataset.reader.keys()):
        x, y = dataset[row]
        assert (x.shape, x.dtype) == ((400,), np.dtype(dtype))
        with wave.open(str(commands / key)) as file:
            whole = np.frombuffer(file.readframes(400), "<i2")
        np.testing.assert_array_equal(x, whole if dtype == "int16" else whole.astype(np.float32) / 32768)
        assert report.classes[y] == key.split("/")[0]


def test_a_table_may_name_the_clips(tmp_path: Path) -> None:
    """As ESC-50 has them: one folder, a table with classes, and a zip of it all."""
    with zipfile.ZipFile(tmp_path / "esc.zip", "w") as archive:
        rows = ["filename,fold,category"]
        for number in range(9):
            write_wav(tmp_path / "a.wav", tone(number))
            archive.write(tmp_path / "a.wav", f"audio/{number}.wav")
            rows.append(f"{number}.wav,{number % 3},{('dog', 'rain')[number % 2]}")
        archive.writestr("meta/esc.csv", "\n".join(rows))
    report = pack_dataset(tmp_path / "esc.zip", tmp_path / "out.h5", progress=False)
    assert report.classes == ("dog", "rain")
    assert report.samples == {"train": 9}


def test_a_list_that_names_a_class_without_a_folder_is_an_error(tmp_path: Path) -> None:
    """As of images: the clips are in folders of classes beyond doubt, so no other layout is asked."""
    for number in range(4):
        write_wav(tmp_path / "train" / ("yes" if number % 2 else "no") / f"{number}.wav", tone(number))
        write_wav(tmp_path / "val" / "val" / f"{number + 4}.wav", tone(number + 4))
    lines = [f"{number + 4}.wav\t{'yes' if number % 2 else 'no'}\n" for number in range(4)]
    (tmp_path / "val" / "words.txt").write_text("".join(lines))
    assert detect_layout(FolderTree(tmp_path)).classes == ("no", "yes")
    (tmp_path / "val" / "words.txt").write_text("".join(lines).replace("yes", "maybe"))
    for layout in ("auto", "audio"):
        with pytest.raises(BrokenDatasetError, match="'maybe'"):
            detect_layout(FolderTree(tmp_path), layout)


def rows_of(folder: Path, **options: Any) -> dict[str, NDArray[Any]]:
    """The rows of a folder's clips by key, decoded as packing decodes them."""
    found = read_audio(FolderTree(folder), **options)
    inputs = found.inputs
    assert isinstance(inputs, Arrays)
    assert inputs.decode is not None
    rows = {}
    for index, key in enumerate(found.keys):
        rows[key] = inputs.decode(bytes(inputs.source.read(index)))
        assert (rows[key].shape, rows[key].dtype) == (inputs.shape, inputs.dtype)
    return rows


def test_a_length_cuts_and_fills(commands: Path) -> None:
    """Long clips lose their end, short ones get zeros behind them."""
    short = write_wav(commands / "go/short.wav", tone(50, 100))
    with pytest.raises(BrokenDatasetError, match=r"short\.wav'.*\b100\b.*audio_clips\(length=400\)"):
        detect_layout(FolderTree(commands))
    rows = rows_of(commands, length=250, dtype="int16")
    np.testing.assert_array_equal(rows["go/short.wav"], np.concatenate([short[:, 0], np.zeros(150, np.int16)]))
    np.testing.assert_array_equal(rows["go/00.wav"], np.rint(tone(0)[:250, 0] * 32767).astype(np.int16))


def test_a_clip_that_was_not_looked_at_is_not_cut_in_silence(tmp_path: Path) -> None:
    """Its file is as long as the others, its sound is not: named when it is packed."""
    folder = tmp_path / "clips/a"
    for number in range(40):
        write_wav(folder / f"{number:02}.wav", tone(number))
    with wave.open(str(folder / "17.wav"), "wb") as file:
        file.setparams((1, 1, RATE, 0, "NONE", "not compressed"))
        file.writeframes(bytes(800))
    with pytest.raises(DecodeError, match=r"17\.wav.*\b800\b.*\b400\b"):
        pack_dataset(tmp_path / "clips", tmp_path / "out.h5", layout="audio", progress=False)
    report = pack_dataset(tmp_path / "clips", tmp_path / "out.h5", layout="audio", on_error="skip", progress=False)
    assert report.samples == {"train": 39}


def test_channels_stay_or_are_mixed(tmp_path: Path) -> None:
    """(length, channels) as they are; their mean when asked, also where only some clips are stereo."""
    stereo = write_wav(tmp_path / "a/1.wav", tone(1, channels=2))
    np.testing.assert_array_equal(rows_of(tmp_path, dtype="int16")["a/1.wav"], stereo)
    mono = write_wav(tmp_path / "a/2.wav", tone(2))
    with pytest.raises(BrokenDatasetError, match=r"\b1\b.*\b2\b.*mono=True"):
        detect_layout(FolderTree(tmp_path))
    rows = rows_of(tmp_path, dtype="int16", mono=True)
    np.testing.assert_array_equal(rows["a/1.wav"], np.rint(stereo.mean(axis=1)).astype(np.int16))
    np.testing.assert_array_equal(rows["a/2.wav"], mono[:, 0])


def test_speech_commands(commands: Path) -> None:
    """Its lists say the splits, what none names is to train on, and the noise is no word."""
    write_wav(commands / "_background_noise_" / "pink.wav", tone(99))
    (commands / "validation_list.txt").write_text("go/00.wav\nno/01.wav\n")
    (commands / "testing_list.txt").write_text("yes/02.wav\n")
    found = detect_layout(FolderTree(commands))
    assert found.classes == ("go", "no", "yes")
    assert found.splits is not None
    by_split: dict[str, list[str]] = {}
    for key, split in zip(found.keys, found.splits, strict=True):
        by_split.setdefault(split, []).append(key)
    assert by_split["validation"] == ["go/00.wav", "no/01.wav"]
    assert by_split["test"] == ["yes/02.wav"]
    assert len(by_split["train"]) == 9


def test_rates_are_not_mixed(commands: Path) -> None:
    """Nothing is resampled, so another rate is refused."""
    write_wav(commands / "go/fast.wav", tone(1), rate=16000)
    with pytest.raises(BrokenDatasetError, match="1 has 16,000 Hz"):
        detect_layout(FolderTree(commands))
    (commands / "go/fast.wav").unlink()
    with pytest.raises(BrokenDatasetError, match="expected 16,000 Hz"):
        read_audio(FolderTree(commands), rate=16000)


def chunk(name: bytes, data: bytes, size: int | None = None) -> bytes:
    """A part of a RIFF file."""
    return name + struct.pack("<I", len(data) if size is None else size) + data + b"\0" * (len(data) % 2)


def riff(*chunks: bytes) -> bytes:
    """A WAV of such parts."""
    body = b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


FORMAT = chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16))


def test_other_chunks_and_unknown_lengths_are_read_over() -> None:
    """Lists before the samples, and the lengths that a stream leaves."""
    samples = np.arange(10, dtype="<i2")
    for size in (None, 0xFFFFFFFF):
        data = riff(chunk(b"LIST", b"odd"), FORMAT, chunk(b"data", samples.tobytes(), size))
        np.testing.assert_array_equal(read_clip(data, "int16").values[:, 0], samples)


@pytest.mark.parametrize(
    "data",
    [
        riff(FORMAT, chunk(b"data", bytes(10), 20)),
        riff(FORMAT),
        riff(chunk(b"data", bytes(10))),
        riff(chunk(b"fmt ", struct.pack("<HHIIHH", 1, 0, RATE, 0, 0, 16)), chunk(b"data", bytes(4))),
        riff(FORMAT)[:20],
    ],
    ids=["cut", "no samples", "no format", "no channels", "half a header"],
)
def test_damaged_files_are_broken_samples(data: bytes) -> None:
    """Named when they are packed; the others are well."""
    with pytest.raises(DecodeError):
        read_clip(data, "float32")


@pytest.mark.parametrize("data", [b"", b"text", b"fLaC" + bytes(50), b"OggS" + bytes(100)])
def test_what_is_no_sound_is_a_broken_sample(soundfile: Any, data: bytes) -> None:
    """Whatever the library says of it."""
    with pytest.raises(DecodeError):
        read_clip(data, "float32")


def test_without_soundfile_there_is_an_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the file."""
    monkeypatch.setitem(importlib.import_module("sys").modules, "soundfile", None)
    with pytest.raises(MissingDependencyError, match="pip install soundfile"):
        read_clip(riff(FORMAT, chunk(b"data", bytes(4))), "int16")


def test_other_trees_are_declined(tmp_path: Path, commands: Path) -> None:
    """No clips is an empty source; clips without classes say both ways to have some."""
    with pytest.raises(EmptySourceError):
        read_audio(FolderTree(_empty(tmp_path)))
    write_wav(tmp_path / "flat/1.wav", tone(1))
    with pytest.raises(LayoutError):
        read_audio(FolderTree(tmp_path / "flat"))
    found = detect_layout(FolderTree(commands))
    assert isinstance(found.targets, Values)
    assert np.bincount(found.targets.values).tolist() == [4, 4, 4]


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


@pytest.mark.parametrize("wrong", [{"length": 0}, {"rate": -1}, {"dtype": "int8"}])
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    """Before any tree is opened."""
    with pytest.raises(OptionError, match=next(iter(wrong))):
        audio_clips(**wrong)

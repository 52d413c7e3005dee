"""The public signatures as users' type checkers see them. Never run: `make check` has mypy read it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, assert_type

from matplotlib.figure import Figure

import colabstage
from colabstage import CudaDataLoader, GpuMonitor, StagedDataset, dataset_h5
from colabstage.diagnose.compare import SourceComparison
from colabstage.diagnose.doctor import DoctorReport
from colabstage.diagnose.gpu import GpuSample
from colabstage.errors import ColabstageError
from colabstage.h5.info import PackInfo
from colabstage.load.frameworks.keras_dataset import KerasBatches
from colabstage.load.loader import Loader
from colabstage.machine.drive import FlushReport
from colabstage.notebook.browser import DatasetBrowser
from colabstage.notebook.form import StageForm
from colabstage.pack.execute import PackReport
from colabstage.sources.extracting import ExtractReport
from colabstage.sources.fetching import FetchReport
from colabstage.stage.dataset import StageReport
from colabstage.stage.plan import StagePlan
from colabstage.stage.publish import PublishReport, RestoreReport


def staging() -> None:
    """`stage_dataset` takes text or a path and closed sets of words, and returns a `StagedDataset`."""
    assert_type(colabstage.stage_dataset("photos.zip"), StagedDataset)
    assert_type(
        colabstage.stage_dataset(
            Path("photos"),
            layout="image_folder",
            keep="both",
            image_size=(256, 256),
            color_mode="grayscale",
            resize="crop",
            encoding="pixels",
            splits={"train": 0.8, "test": 0.2},
            seed=1,
            on_error="skip",
            local_dir=Path("here"),
            cache_dir=None,
            refresh=True,
            verify="full",
            hash="sha256:" + 64 * "0",
            wait=False,
            progress=False,
        ),
        StagedDataset,
    )
    with ProcessPoolExecutor(2) as pool:
        colabstage.stage_dataset("photos", executor=pool, prepare=lambda x: x[::2], encoding="jpeg:90", group_by="a+")
    assert_type(colabstage.stage_dataset(["s3://bucket/a.zip", Path("b.zip")]), StagedDataset)
    assert_type(colabstage.plan_stage("photos.zip", image_size=(8, 8), hash=None), StagePlan)
    assert_type(colabstage.plan_stage(("https://example.org/a.zip", Path("b.zip"))), StagePlan)
    colabstage.plan_stage("photos.zip", wait=False)  # type: ignore[call-arg]
    colabstage.plan_stage(7)  # type: ignore[arg-type]
    colabstage.stage_dataset("photos.zip", keep="everything")  # type: ignore[arg-type]
    colabstage.plan_stage("photos.zip", color_mode="cmyk")  # type: ignore[arg-type]


def what_is_staged(data: StagedDataset) -> None:
    """The attributes of a `StagedDataset`."""
    assert_type(data.path, Path)
    assert_type(data.files, Path | None)
    assert_type(data.report, StageReport)
    assert_type(data.info, PackInfo | None)
    assert_type(data.splits, Mapping[str, int])
    assert_type(data.classes, tuple[str, ...])
    assert_type(data["train"], dataset_h5)
    assert_type(data.loader("train", batch_size=64, device="cuda"), Loader)
    data.loader("train", 64, strategy="memory", num_workers=2, prefetch_factor="auto", ragged="pad", sampler=[1, 2])
    data.loader("train", 64, rank=0, world_size=2, memory_budget="2GB", shuffle="auto", epoch=3)  # type: ignore[call-arg]


def reading(dataset: dataset_h5) -> None:
    """Datasets and loaders."""
    assert_type(colabstage.dataset_h5("data.h5", split="dev", return_index=True), dataset_h5)
    assert_type(dataset[0], Any)
    assert_type(len(dataset), int)
    assert_type(colabstage.make_loader(dataset, 64), Loader)


def other_frameworks(dataset: dataset_h5) -> None:
    """Keras and TensorFlow take datasets and files; TensorFlow has no types."""
    assert_type(colabstage.to_keras(dataset, 64, one_hot=10), KerasBatches)
    assert_type(colabstage.to_keras("data.h5", 64, split="dev", shuffle=False, dtype="float32"), KerasBatches)
    assert_type(colabstage.to_hf(dataset), Any)
    assert_type(colabstage.to_tf_data(Path("data.h5"), 64, one_hot="auto", epoch=3), Any)
    colabstage.to_keras(dataset, 64, workers=4)  # type: ignore[call-arg]


def moving(batches: list[tuple[int, str]]) -> None:
    """`CudaDataLoader` yields what its loader yields."""
    loader = colabstage.CudaDataLoader(batches, "cuda", queue_size=3)
    assert_type(loader, CudaDataLoader[tuple[int, str]])
    assert_type(next(iter(loader)), tuple[int, str])
    assert_type(len(loader), int)


def packing_and_publishing() -> None:
    """The halves of staging, usable alone."""
    assert_type(colabstage.pack_dataset("photos", "photos.h5", overwrite=True), PackReport)
    assert_type(colabstage.publish_file(Path("model.pt"), "/content/drive/MyDrive"), PublishReport[Path])
    assert_type(colabstage.restore_file("/content/drive/MyDrive/model.pt", overwrite=True), RestoreReport)


def fetching() -> None:
    """Plain files."""
    assert_type(colabstage.fetch_files(["a.zip", Path("b")], "target", hash=None, overwrite=True), FetchReport)
    assert_type(colabstage.extract_archive("a.zip", Path("a"), overwrite=True), ExtractReport)


def drive() -> None:
    """Google Drive on Colab."""
    assert_type(colabstage.mount_drive("/content/drive", readonly=True), Path)
    assert_type(colabstage.refresh_drive(), Path)
    assert_type(colabstage.flush_drive(remount=False), FlushReport)


def diagnosing() -> None:
    """What is wrong on this machine, what staging would change, and how busy the GPU is."""
    assert_type(colabstage.doctor("photos", num_workers=4, timeout_s=2.0), DoctorReport)
    assert_type(colabstage.doctor().exit_code, int)
    assert_type(colabstage.compare_sources(Path("photos"), image_size=(8, 8), budget_s=5), SourceComparison)
    with colabstage.GpuMonitor(0.5, live=False) as gpu:
        assert_type(gpu, GpuMonitor)
    assert_type(gpu.samples, tuple[GpuSample, ...])
    colabstage.doctor(path="photos", retries=3)  # type: ignore[call-arg]


def the_module(error: ColabstageError) -> None:
    """The version, the errors, and no missing name."""
    assert_type(colabstage.__version__, str)
    assert_type(colabstage.ColabstageError("a sentence"), ColabstageError)
    assert_type(str(error), str)
    colabstage.stage_datset("photos.zip")  # type: ignore[attr-defined]


def filling_in() -> None:
    """The form takes values that can be written as text, and returns what `stage_dataset` returns."""
    form = colabstage.stage_form("photos.zip", image_size=(64, 64), splits={"train": 0.8, "test": 0.2})
    assert_type(form, StageForm)
    assert_type(form.dataset, StagedDataset)
    assert_type(form.code, str)
    colabstage.stage_form("photos.zip", prepare=None)  # type: ignore[call-arg]


def looking() -> None:
    """One argument is enough to look at something; plots take what exists and return figures."""
    assert_type(colabstage.browse_dataset("data-*.h5", split="test", page_size=40), DatasetBrowser)
    assert_type(colabstage.browse_dataset(dataset_h5("data.h5")), DatasetBrowser)
    data = colabstage.stage_dataset("photos")
    assert_type(colabstage.plot_class_balance(data), Figure)
    assert_type(colabstage.plot_image_sizes(Path("photos"), most=100), Figure)

"""The public signatures as users' type checkers see them. Never run: `make check` has mypy read it."""

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, assert_type

from matplotlib.figure import Figure

import colabstage
from colabstage import CudaDataLoader, GpuMonitor, StagedDataset, dataset_h5
from colabstage.errors import ColabstageError
from colabstage.h5.info import PackInfo
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
    plan = colabstage.plan_stage("photos.zip", image_size=(8, 8), hash=None)
    assert_type((plan.target, plan.samples, plan.fits), tuple[Path, dict[str, int], bool])
    assert_type(colabstage.plan_stage(("https://example.org/a.zip", Path("b.zip"))).reasons, tuple[str, ...])
    colabstage.plan_stage("photos.zip", wait=False)  # type: ignore[call-arg]
    colabstage.plan_stage(7)  # type: ignore[arg-type]
    colabstage.stage_dataset("photos.zip", keep="everything")  # type: ignore[arg-type]
    colabstage.plan_stage("photos.zip", color_mode="cmyk")  # type: ignore[arg-type]


def what_is_staged(data: StagedDataset) -> None:
    """The attributes of a `StagedDataset`."""
    assert_type(data.path, Path)
    assert_type(data.files, Path | None)
    assert_type((data.report.seconds, data.report.skipped), tuple[float, tuple[str, ...]])
    assert_type(data.info, PackInfo | None)
    assert_type(data.splits, Mapping[str, int])
    assert_type(data.classes, tuple[str, ...])
    assert_type(data["train"], dataset_h5)
    assert_type(len(data.loader("train", batch_size=64, device="cuda")), int)
    data.loader("train", 64, strategy="memory", num_workers=2, prefetch_factor="auto", ragged="pad", sampler=[1, 2])
    data.loader("train", 64, rank=0, world_size=2, memory_budget="2GB", shuffle="auto", epoch=3)  # type: ignore[call-arg]


def reading(dataset: dataset_h5) -> None:
    """Datasets and loaders."""
    assert_type(colabstage.dataset_h5("data.h5", split="dev", return_index=True), dataset_h5)
    assert_type(dataset[0], Any)
    assert_type(len(dataset), int)
    assert_type(colabstage.make_loader(dataset, 64).state_dict(), dict[str, int])


def other_frameworks(dataset: dataset_h5) -> None:
    """Keras and TensorFlow take datasets and files; TensorFlow has no types of its own."""
    assert_type(colabstage.to_keras(dataset, 64, one_hot=10).class_indices, dict[str, int])
    assert_type(len(colabstage.to_keras("data.h5", 64, split="dev", shuffle=False, dtype="float32")), int)
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
    """The halves of staging that are usable alone."""
    packed = colabstage.pack_dataset("photos", "photos.h5", overwrite=True)
    assert_type((packed.path, packed.samples, packed.nbytes), tuple[Path | str, Mapping[str, int], int])
    assert_type(colabstage.publish_file(Path("model.pt"), "/content/drive/MyDrive"), PublishReport[Path])
    assert_type(colabstage.restore_file("/content/drive/MyDrive/model.pt", overwrite=True), RestoreReport)


def fetching() -> None:
    """Plain files."""
    fetched = colabstage.fetch_files(["a.zip", Path("b")], "target", hash=None, overwrite=True)
    assert_type((fetched.path, fetched.fetched_bytes, fetched.notes), tuple[Path, int, tuple[str, ...]])
    extracted = colabstage.extract_archive("a.zip", Path("a"), overwrite=True)
    assert_type((extracted.target, extracted.members, extracted.reused), tuple[Path, int, bool])


def drive() -> None:
    """Google Drive on Colab."""
    assert_type(colabstage.mount_drive("/content/drive", readonly=True), Path)
    assert_type(colabstage.refresh_drive(), Path)
    flushed = colabstage.flush_drive(remount=False)
    assert_type((flushed.mountpoint, flushed.seconds, flushed.remounted), tuple[Path, float, bool])


def diagnosing() -> None:
    """What is wrong here, what staging would change, and how busy the GPU is."""
    assert_type(colabstage.doctor("photos", timeout_s=2.0).to_dict(), dict[str, Any])
    assert_type(colabstage.doctor().exit_code, int)
    compared = colabstage.compare_sources(Path("photos"), image_size=(8, 8), budget_s=5)
    assert_type((compared.path, compared.speedup), tuple[Path, float])
    with colabstage.GpuMonitor(0.5, live=False) as gpu:
        assert_type(gpu, GpuMonitor)
    assert_type([sample.seconds for sample in gpu.samples], list[float])
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
    assert_type(form.dataset, StagedDataset)
    assert_type(form.code, str)
    colabstage.stage_form("photos.zip", prepare=None)  # type: ignore[call-arg]


def looking() -> None:
    """What can be looked at is looked at by one argument; plots take what there is and return figures."""
    browser = colabstage.browse_dataset("data-*.h5", split="test", page_size=40)
    assert_type(browser._repr_html_(), str)
    browser = colabstage.browse_dataset(dataset_h5("data.h5"))
    data = colabstage.stage_dataset("photos")
    assert_type(colabstage.plot_class_balance(data), Figure)
    assert_type(colabstage.plot_image_sizes(Path("photos"), most=100), Figure)

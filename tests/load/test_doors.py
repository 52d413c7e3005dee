"""The adapters for other libraries: each library gets what it expects, and its own loop runs over it if installed.

fast.ai, timm and ultralytics train in test_libraries.py.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from colabstage import StagedDataset, dataset_h5, stage_dataset, to_hf
from colabstage.errors import OptionError
from tests.pages import DOCS, blocks
from tests.pictures import write_photos

PAGE = DOCS[0].with_name("coming_from.md")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> StagedDataset:
    """A few photographs in two classes, stored in the pack as files."""
    place = tmp_path_factory.mktemp("doors")
    write_photos(place / "photos")
    return stage_dataset(
        place / "photos", encoding="encoded", splits=0.75, local_dir=place / "local", cache_dir=None, progress=False
    )


def test_hugging_face_gets_rows(data: StagedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named labels and whole images; the library's own loop, with torch's loader, sees each row once."""
    pytest.importorskip("datasets", reason="needs datasets: pip install --group arrow")
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # a thread that `datasets` would leave behind
    ours = data["train"]
    rows = to_hf(ours)
    assert rows.features["label"].names == list(data.classes)
    for row in (0, len(ours) - 1):
        np.testing.assert_array_equal(np.asarray(rows[row]["image"]), ours[row][0])
    loader: Any = torch.utils.data.DataLoader(rows.with_format("torch"), batch_size=None)
    assert [int(one["label"]) for one in loader] == ours.targets.tolist()
    with pytest.raises(OptionError, match=r"data\['train'\]"):
        to_hf(data)  # type: ignore[arg-type]
    # `data` holds it, which outlives the test.
    ours.close()


@pytest.mark.parametrize("kind", ["texts", "complex64", "uint64"])
def test_rows_of_any_kind_become_columns(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts as `datasets` has them; numbers that it does not have are refused by their dtype."""
    pytest.importorskip("datasets", reason="needs datasets: pip install --group arrow")
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        if kind == "texts":
            file.create_dataset("X_train", data=["one", "zwölf"], dtype=h5py.string_dtype())
        else:
            file["X_train"] = np.full((2, 3), 2**64 - 1 if kind == "uint64" else 1j, kind)
        file["Y_train"] = np.arange(2)
    dataset = dataset_h5(tmp_path / "rows.h5")
    if kind == "texts":
        assert to_hf(dataset, x="text")["text"][:] == ["one", "zwölf"]
    else:
        with pytest.raises(OptionError, match=f"x is {kind}"):
            to_hf(dataset)
    dataset.close()


@pytest.mark.filterwarnings("ignore")  # Lightning's, about torch and itself
def test_lightnings_trainer_trains_with_the_data_module_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stages once, trains and validates with our loaders, and predicts with loaders of their parts."""
    lightning: Any = pytest.importorskip("lightning.pytorch", reason="needs lightning: pip install --group large")
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos")
    (code,) = [block.code for block in blocks(PAGE, "python") if "LightningDataModule" in block.code]
    names: dict[str, Any] = {"stage_dataset": stage_dataset}
    exec(code, names)

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3 * 32 * 32, 2)

        def training_step(self, batch: Any, _: int) -> Any:
            x, y = batch
            return torch.nn.functional.cross_entropy(self.layer(x.flatten(1)), y)

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("loss", self.training_step(batch, number))

        def predict_step(self, batch: Any, _: int) -> Any:
            return batch[1]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    of_page: Any = names["StagedData"]

    class Predicted(of_page):  # type: ignore[misc]
        def predict_dataloader(self) -> Any:
            return self.val_dataloader()

    options = {
        "image_size": 32,
        "splits": {"train": 0.8, "test": 0.2},
        "cache_dir": None,
        "local_dir": tmp_path / "fast",
    }
    quiet = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, **quiet)
    staged = Predicted("photos", 8, **options)
    trainer.fit(Model(), datamodule=staged)
    assert 0 < float(trainer.callback_metrics["loss"]) < 100
    assert torch.cat(trainer.predict(Model(), datamodule=staged)).tolist() == staged.data["test"].targets.tolist()

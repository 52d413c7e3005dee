"""Make a `keras.utils.PyDataset` of a split, for every backend of Keras: `to_keras`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from colabstage.io.arguments import takes
from colabstage.load.frameworks.arrays import ArrayBatches, ArrayRequest

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from colabstage.h5.parts import Files
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.frameworks.keras_dataset import KerasBatches
    from colabstage.load.reading.reader import SplitReader


@takes(renamed={"prefetch": "prefetch_factor"})
def to_keras(
    dataset: dataset_h5 | SplitReader | Files,
    batch_size: int,
    *,
    split: str | None = None,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    dtype: DTypeLike | None = None,
    one_hot: int | Literal["auto"] | None = None,
    num_workers: int | Literal["auto"] = "auto",
    prefetch_factor: int | Literal["auto"] = "auto",
) -> KerasBatches:
    """Make batches for Keras, with the samples of `make_loader` for the same seed, epoch and batch size.

    >>> train = to_keras("data.h5", 64, one_hot="auto")  # doctest: +SKIP
    >>> model.fit(train, validation_data=to_keras("data.h5", 64, split="dev", shuffle=False))  # doctest: +SKIP

    A batch is `(x, y)` of numpy arrays:

    - `x`: `(B, H, W, C)`, of the stored dtype (uint8), which `keras.layers.Rescaling(1 / 255)` as a model's first
      layer turns into [0, 1] on its device; or of `dtype`.
    - `y`: int64 `(B,)` where targets are integers, otherwise as stored; masks uint8 `(B, H, W)`. Boxes are a dict of
      padded arrays: `boxes` `(B, M, 4)`, `labels` `(B, M)` filled up with -1, and so on, with `lengths` `(B,)`.

    Needs keras and one of its backends; torch only if that is the backend.

    Args:
        dataset: a `dataset_h5`; or, without torch, what a `dataset_h5` is made of: the path of a file, a pattern, a
            list. The dataset's transforms, where it has any, are called sample by sample in the background thread,
            and make arrays of one shape.
        batch_size: samples in a batch; the last one of an epoch may have fewer.
        split: which one, where `dataset` is files: `"train"` by default.
        shuffle: visit the samples in a random order, another one each epoch. Without it, `fit(shuffle=True)`, which is
            Keras's default, still has the batches come in random order.
        seed: what that order depends on, together with the epoch.
        drop_last: leave out a last batch that is not full.
        dtype: floating-point dtype of x; uint8 and uint16 become [0, 1].
        one_hot: turn class indices into one number a class, along a last axis: how many classes, or `"auto"` for as
            many as the file names.
        num_workers: threads that copy or decode at once. They are threads of this process, not processes.
        prefetch_factor: batches prepared ahead.

    Returns:
        A `PyDataset` that reads ahead by itself; it refuses Keras's own workers, which would only copy batches around.

    Raises:
        MissingDependencyError: keras, or its backend, is not installed.
        OptionError: an argument that cannot work, or data that have no arrays of one shape.
        SourceNotFoundError, PackFormatError, SplitNotFoundError: there is nothing to read.
    """
    request = ArrayRequest(batch_size, shuffle, seed, drop_last, dtype, one_hot, num_workers, prefetch_factor)
    # First, because a wrong argument should not take as long to hear of as keras takes to import.
    batches = ArrayBatches(dataset, request, split=split)
    from colabstage.load.frameworks.keras_dataset import KerasBatches

    return KerasBatches(batches)

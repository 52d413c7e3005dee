"""A Keras `PyDataset` as something to profile: iterated as `fit` does it, with its threads or processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from colabstage.diagnose.facts import Setting
from colabstage.diagnose.subject import Subject, gives_the_same, h5_behind, known_stages

if TYPE_CHECKING:
    from collections.abc import Iterator


def keras_subject(dataset: Any) -> Subject:
    """Look at a `PyDataset`."""
    workers, processes = int(dataset.workers), bool(dataset.use_multiprocessing)
    pooled = workers > 1 or (workers > 0 and processes)
    ours = type(dataset).__module__.startswith("colabstage.")
    setting = Setting(
        "keras",
        workers=workers if pooled else int(ours),
        processes=processes and pooled,
        prefetch=max(1, int(dataset.max_queue_size) // max(1, workers)) if pooled else 2 * ours,
        batches=len(dataset),
        strategy=dataset.plan.strategy if ours else None,
        h5_file=h5_behind(dataset),
    )
    return Subject(
        setting,
        start=lambda: _pooled(dataset) if pooled else _each(dataset),
        alone=(lambda: _each(dataset)) if processes and pooled else None,
        known=known_stages(dataset),
        repeats=lambda: not ours and gives_the_same(dataset),
        roots=(dataset,),
    )


def _each(dataset: Any) -> Iterator[Any]:
    for number in range(dataset.num_batches):
        yield dataset[number]


def _pooled(dataset: Any) -> Iterator[Any]:
    # What `fit` itself uses; Keras 3 has no public name for it.
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    adapter = PyDatasetAdapter(dataset)
    try:
        yield from adapter._get_iterator()
    finally:
        if adapter.enqueuer is not None:
            adapter.enqueuer.stop()

"""`make_loader`: the right batches in the right order, and nothing left behind."""

import copy
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colabstage import dataset_h5, make_loader, to_numpy
from colabstage.errors import CancelledError, DamagedPackError, OptionError, SourceNotFoundError
from colabstage.transforms import Normalize
from tests.load.conftest import visited
from tests.support.made_files import write_rows


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("colabstage")]


def test_a_file_that_went_away_is_told(make_file: Callable[..., Any]) -> None:
    """Whether it is still open, and the epoch runs, depends on the engine."""
    sample = make_file("contiguous", 23)
    loader = make_loader(dataset_h5(sample.path), 8, strategy="direct")
    sample.path.unlink()
    with pytest.raises(SourceNotFoundError, match=r"moved or deleted"):
        list(loader)


@pytest.mark.parametrize("shape", [(7,), (3, 32, 32), (4, 5, 6, 2)])
def test_other_inputs_keep_their_axes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Vectors, channels-first images and volumes come as stored."""
    values = np.random.default_rng(0).standard_normal((10, *shape)).astype(np.float32)
    write_rows(tmp_path / "other.h5", values, np.zeros((10, 2), np.float32))
    x, y = next(iter(make_loader(dataset_h5(tmp_path / "other.h5"), 10, shuffle=False)))
    np.testing.assert_array_equal(x.numpy(), values)
    assert (tuple(y.shape), y.dtype) == ((10, 2), torch.float32)


def test_sixteen_bits_scale_to_one(tmp_path: Path) -> None:
    """uint16 becomes [0, 1] too, in half precision as well."""
    write_rows(tmp_path / "deep.h5", np.array([0, 13107, 65535], np.uint16).reshape(3, 1, 1, 1), [0, 1, 2])
    x, _ = next(iter(make_loader(dataset_h5(tmp_path / "deep.h5"), 3, shuffle=False, dtype=torch.float16)))
    torch.testing.assert_close(x.flatten(), torch.tensor([0, 0.2, 1], dtype=torch.float16))


def test_batch_transform_gets_the_finished_batch(make_file: Callable[..., Any]) -> None:
    """It is called once for each batch, after the conversion, and its result is the batch."""
    calls: list[torch.dtype] = []

    def transform(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(x.dtype)
        return x.mean(dim=(1, 2, 3)), y + 1

    sample = make_file("pack", 23)
    loader = make_loader(dataset_h5(sample.path), 10, shuffle=False, dtype=torch.float32, batch_transform=transform)
    batches = list(loader)
    assert calls == [torch.float32] * 3
    np.testing.assert_allclose(torch.cat([x for x, _ in batches]), sample.x.mean((1, 2, 3)) / 255, rtol=1e-5)
    np.testing.assert_array_equal(torch.cat([y for _, y in batches]), sample.y + 1)


def test_a_loader_says_how_it_was_made(make_file: Callable[..., Any]) -> None:
    """With its options it is made again, and gives the same batches."""
    dataset = dataset_h5(make_file("pack", 23).path)
    loader = make_loader(dataset, 4, seed=3, dtype=torch.float32, drop_last=True)
    assert loader.options == {"seed": 3, "dtype": torch.float32, "drop_last": True}
    again = make_loader(dataset, 4, **loader.options)
    for (x, y), (other_x, other_y) in zip(loader, again, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)
    assert make_loader(dataset, 4).options == {}


def test_encoded_images_of_many_sizes_are_lists(make_encoded: Callable[..., Path]) -> None:
    """Images of different sizes come as a list of (C, H, W) tensors, scaled if a dtype is given."""
    dataset = dataset_h5(make_encoded(7))
    batches = list(make_loader(dataset, 3, shuffle=False, dtype=torch.float32))
    assert [tuple(image.shape) for image in batches[1][0]] == [(3, 11, 20), (3, 12, 20), (3, 13, 20)]
    expected = torch.from_numpy(dataset[6][0]).permute(2, 0, 1) / 255
    torch.testing.assert_close(batches[2][0][0], expected)


@pytest.mark.parametrize(
    "changes",
    [
        *({"seed": 8}, {"batch_size": 5}, {"batch_size": None}, {"samples": 22}, {"shuffle": 0}),
        *({"batches_done": 7}, {"batches_done": -1}, {"epoch": -1}),
    ],
    ids=str,
)
def test_state_of_another_loader_is_refused(make_file: Callable[..., Any], changes: dict[str, Any]) -> None:
    """A state of another loader is an error that says what differs, and changes nothing."""
    loader = make_loader(dataset_h5(make_file("pack", 23).path), 4, seed=0)
    before = loader.state_dict()
    with pytest.raises(OptionError, match=next(iter(changes))):
        loader.load_state_dict({**before, **changes})
    assert loader.state_dict() == before


def test_iterations_beside_each_other_end_with_their_names(large: Path) -> None:
    """Running a cell again does not accumulate threads; close() ends all, and an old iterator says what happened."""
    # With more batches ahead than an epoch has, a thread could be done and gone before it is counted.
    loader = make_loader(dataset_h5(large), 4, num_workers=1, prefetch_factor=2)
    for _ in range(3):
        batches = iter(loader)
        next(batches)
    assert len(loader_threads()) == 1
    other = iter(loader)
    next(other)
    assert len(loader_threads()) == 2
    loader.close()
    assert not loader_threads()
    for ended in (batches, other):
        with pytest.raises(RuntimeError, match=r"or close\(\)"):
            next(ended)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "prefetch_factor": 2}])
def test_an_iteration_that_failed_is_not_at_its_end(large: Path, options: dict[str, Any]) -> None:
    """Whoever asks it for more gets an error, and the rest of its epoch is not taken for done."""
    loader = make_loader(dataset_h5(large), 4, **options)
    batches = iter(loader)
    next(batches)
    large.touch()
    with pytest.raises(DamagedPackError):
        list(batches)
    place = loader.state_dict()
    with pytest.raises(CancelledError, match="an error"):
        next(batches)
    assert (place["epoch"], loader.state_dict()) == (0, place)


@pytest.mark.parametrize("options", [{}, {"strategy": "memory"}, {"strategy": "device"}, {"num_workers": 0}])
def test_two_iterations_give_the_batches_that_each_would_alone(large: Path, options: dict[str, Any]) -> None:
    """`zip(loader, loader)` pairs one epoch with the next, bit for bit."""
    dataset = dataset_h5(large, return_index=True)
    loader, alone = (make_loader(dataset, 8, seed=3, **options) for _ in range(2))
    epochs = [list(alone), list(alone)]
    pairs = list(zip(loader, loader, strict=True))
    assert len(pairs) == len(loader) == 8
    for place, pair in enumerate(pairs):
        for ((x, y), index), epoch in zip(pair, epochs, strict=True):
            (expected, label), rows = epoch[place]
            assert torch.equal(index, rows)
            assert torch.equal(x, expected)
            assert torch.equal(y, label)


def test_the_state_is_of_the_iteration_that_gave_a_batch_last(large: Path) -> None:
    """A second loop that continues has the state, until the first one is used again; a place that is set stays."""
    loader = make_loader(dataset_h5(large), 8)
    first, second = iter(loader), iter(loader)
    for batches, epoch, done in ((first, 0, 1), (second, 1, 1), (second, 1, 2), (first, 0, 2)):
        next(batches)
        state = loader.state_dict()
        assert (state["epoch"], state["batches_done"]) == (epoch, done)
    loader.set_epoch(7)
    next(second)
    assert loader.state_dict()["epoch"] == 7


def test_it_says_what_it_does(make_file: Callable[..., Any]) -> None:
    """repr and HTML show the plan and the dataset."""
    loader = make_loader(dataset_h5(make_file("pack", 23).path), 4)
    for text in (repr(loader), loader._repr_html_()):
        assert loader.plan.reason in text
        assert "pack-23.h5" in text


def test_a_loader_is_no_thing_to_pickle(make_file: Callable[..., Any]) -> None:
    """It has threads; a shallow copy has its own place."""
    loader = make_loader(dataset_h5(make_file("pack", 23).path, return_index=True), 4, seed=0)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(loader)
    copied = copy.copy(loader)
    assert visited(copied) == visited(make_loader(loader.dataset, 4, seed=0))  # type: ignore[arg-type]
    assert loader.state_dict() == {**copied.state_dict(), "epoch": 0}
    # Through the sampler, as frameworks do it: only the copy's changes.
    copied.sampler.set_epoch(5)  # type: ignore[attr-defined]
    assert copied.batch_sampler.sampler is copied.sampler  # type: ignore[union-attr]
    next(iter(loader))
    next(iter(copied))
    assert (loader.state_dict()["epoch"], copied.state_dict()["epoch"]) == (0, 5)


def test_complex_numbers_become_no_fractions(tmp_path: Path) -> None:
    """They would lose their imaginary part; as they are stored they are served by every framework."""
    place = write_rows(tmp_path / "spectra.h5", np.full((4, 3), 3 + 4j, np.complex64), np.arange(4))
    real: list[dict[str, Any]] = [{"dtype": "float32"}, {"batch_transform": Normalize((0.5,), (0.25,))}]
    for options in (*real, {"strategy": "device", **real[0]}):
        with pytest.raises(OptionError, match=re.escape("transform=abs")):
            list(make_loader(dataset_h5(place), 2, **options))
    with pytest.raises(OptionError, match="complex64"):
        list(to_numpy(place, 2, dtype="float32"))
    x, _ = next(iter(make_loader(dataset_h5(place, abs), 4, dtype="float32")))
    y, _ = next(iter(to_numpy(place, 4)))
    assert (x.sum(), y.sum()) == (60, 36 + 48j)


def test_a_drawn_seed_is_taken_over_by_a_resumed_loader(large: Path) -> None:
    """A loader without a seed has its own order, and can continue another's."""
    dataset = dataset_h5(large, return_index=True)
    first, second, third = (make_loader(dataset, 8) for _ in range(3))
    assert visited(second) != visited(third)
    batches = iter(first)
    next(batches)
    second.load_state_dict(first.state_dict())
    assert visited(second) == visited(batches)
    assert visited(second) == visited(first)
    with pytest.raises(OptionError, match="seed"):
        make_loader(dataset, 8, seed=3).load_state_dict(first.state_dict())

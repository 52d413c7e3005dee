"""What users of torch and torchvision type without reading anything: it works as they mean it, or the error shows the
line to write."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Sampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)

import colabstage
from colabstage import transforms
from colabstage.errors import ArgumentError, OptionError
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader
from colabstage.options import LoaderOptions, PackOptions
from colabstage.pack.options import remedies_for_batches
from colabstage.stage.run import stage_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from colabstage.stage.dataset import StagedDataset

ROWS = 16
RETURNED = {"ColabstageError", "LoaderProfile", "StagedDataset"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> StagedDataset:
    """Twenty photographs of two classes, staged."""
    place = tmp_path_factory.mktemp("typed")
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (place / "photos" / name).mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 256, (20, 24, 3), np.uint8)
            Image.fromarray(pixels).save(place / "photos" / name / f"{number}.png")
    return stage_dataset(place / "photos", splits=[0.8, 0.2], local_dir=place / "local", cache_dir=None, progress=False)


def rows_of(loader: Any) -> int:
    return sum(len(y) for _, y in loader)


# Each line as it is typed, with what is to come of it.
WORKS: list[tuple[str, Any]] = [
    ("len(data['train']), len(data['test'])", (16, 4)),
    ("'train' in data, 'dev' in data", (True, False)),
    ("len(repr(data).splitlines())", 1),
    ("[y for x, y in data['train']] == data['train'].targets.tolist()", True),
    ("[len(part) for part in (ds[0:4], ds[-3:], ds[:])]", [4, 3, 16]),
    ("ds[np.int64(3)][1] == ds[3][1] == ds[torch.tensor(3)][1]", True),
    ("ds.classes", ("cat", "dog")),
    ("ds.class_to_idx", {"cat": 0, "dog": 1}),
    ("sorted(Counter(ds.targets.tolist())), torch.tensor(ds.targets).dtype", ([0, 1], torch.int64)),
    ("[name.split('/')[0] == ds.classes[label] for name, label in ds.samples]", [True] * ROWS),
    ("rows_of(make_loader(ds, 4))", ROWS),
    ("rows_of(make_loader(ds, batch_size=4, shuffle=None))", ROWS),
    ("rows_of(make_loader(Subset(ds, [3, 1, 2]), 2, shuffle=True))", 3),
    ("[y.tolist() for _, y in make_loader(Subset(ds, [3, 1]), 2, shuffle=False)]", "[[ds[3][1], ds[1][1]]]"),
    ("[len(y) for _, y in make_loader(Subset(data['test'], [1, 0]), 2)]", [2]),
    ("[rows_of(make_loader(part, 4, shuffle=True)) for part in random_split(ds, [0.75, 0.25])]", [12, 4]),
    ("rows_of(make_loader(Subset(Subset(ds, range(8)), [7, 0]), 2, shuffle=True))", 2),
    ("rows_of(DataLoader(random_split(ds, [0.5, 0.5])[0], 2))", 8),
    ("rows_of(DataLoader(ConcatDataset([data['train'], data['test']]), 4))", 20),
    ("rows_of(make_loader(ds, 4, sampler=WeightedRandomSampler([1.0] * 16, 6)))", 6),
    ("next(iter(data.loader('train', 4, dtype='float32')))[0].dtype", torch.float32),
    ("next(iter(data.loader('train', 4, dtype='torch.float16')))[0].dtype", torch.float16),
    ("next(iter(data.loader('train', 4, dtype=np.float32)))[0].dtype", torch.float32),
    ("next(iter(data.loader('train', 4, dtype=np.dtype('float16'))))[0].dtype", torch.float16),
    ("rows_of(data.loader('train', 4, pin_memory=True))", ROWS),
    ("rows_of(data.loader('train', 4, num_workers=0))", ROWS),
    ("rows_of(data.loader('train', 4, num_workers=2, prefetch_factor=None))", ROWS),
    ("rows_of(data.loader('train', 4, device='cpu', num_workers=0, drop_last=True))", ROWS),
    ("data.loader('train', 4, generator=torch.Generator().manual_seed(5)).state_dict()['seed']", 5),
    ("data.loader('train', 4).plan.order.name, data.loader('test', 4).plan.order.name", ("permutation", "file")),
    ("make_loader(ds, 4).plan.order.name, make_loader(data['test'], 4).plan.order.name", ("permutation", "file")),
    ("data.loader('train', 4, seed=np.int64(5)).state_dict()['seed']", 5),
    ("len(list(zip(train, train)))", 4),
    ("[y for _, y in Doubled(data.path)] == [y for _, y in Doubled(data.path)[0:16]]", False),
    ("next(iter(DataLoader(Doubled(data.path), 4)))[1].tolist()", "[2 * ds[row][1] for row in range(4)]"),
    ("[len(next(iter(train))[1]) for _ in train]", [4] * 4),
    ("rows_of(make_loader(ds, 4, options=LoaderOptions(drop_last=True), num_workers=0))", ROWS),
    ("PackOptions(image_size=224).image_size", (224, 224)),
    ("PackOptions(splits=0.8).splits", (("train", 0.8), ("test", 0.2))),
    ("PackOptions(splits=[0.8, 0.1, 0.1]).splits", (("train", 0.8), ("val", 0.1), ("test", 0.1))),
    ("PackOptions(splits={'a': 0.5, 'b': 0.5}) == PackOptions(splits=[('a', 0.5), ('b', 0.5)])", True),
    (
        "colabstage.plan_stage(data.path.parents[2] / 'photos', image_size=64, splits=0.5, cache_dir=None).samples",
        {"train": 10, "test": 10},
    ),
]

# Each line, the error, and the line to write that its message has.
REFUSED: list[tuple[str, type[Exception], str]] = [
    ("[x for x in data]", OptionError, "Write data['train'] for samples"),
    ("data[0]", OptionError, "data.loader('train', 64) for batches"),
    ("ds[[1, 2, 3]]", OptionError, "torch.utils.data.Subset(dataset, rows)"),
    ("ds[True]", OptionError, "takes a row or a slice, got bool"),
    ("ds[10**30]", IndexError, "out of range for 16 samples"),
    ("ds.read_batch(np.arange(16) < 3)", TypeError, "numpy.flatnonzero(mask)"),
    ("make_loader(ds, 4, sampler=np.arange(16) < 3)", OptionError, "numpy.flatnonzero(mask)"),
    ("make_loader(Subset(ds, np.arange(16) < 3), 4)", OptionError, "numpy.flatnonzero(mask)"),
    ("make_loader(Subset(ds, [3, 1]), 2)", OptionError, "Add shuffle=True to train on them"),
    ("make_loader(random_split(ds, [0.75, 0.25])[1], 4)", OptionError, "or shuffle=False to visit them as they are"),
    ("data.loader('train', 4, sampler=[3, 1])", OptionError, "You chose 2 of the 16 rows of 'train'"),
    ("make_loader(Subset(ds, [1.5]), 4)", OptionError, "list of integers"),
    ("make_loader(Subset(Subset(ds, [1, 2]), [5]), 4)", OptionError, "Index 5 is out of range for 2 samples"),
    ("make_loader(Doubled(data.path), 4)", OptionError, "Doubled has a __getitem__ of its own"),
    ("make_loader(Changed(ds, [1, 2]), 4)", OptionError, "Changed has a __getitem__ of its own"),
    ("make_loader(ds, 4, sampler=BatchSampler(range(9), 3, False))", OptionError, "sampler=batch_sampler.sampler"),
    ("make_loader(ds, 4, sampler=Endless())", OptionError, "Endless has no __len__"),
    ("make_loader(ds, 4, batch_transform=transforms.RandomFlip)", OptionError, "expected an object of it: RandomFlip("),
    ("transforms.Compose([transforms.RandomFlip])", OptionError, "transforms[0]=RandomFlip is a class"),
    ("transforms.Compose(transforms.RandomFlip())", OptionError, "Compose([RandomCrop(32), RandomFlip()])"),
    ("transforms.Normalize(0.5, 0.25)", OptionError, "Normalize((0.5,), (0.25,))"),
    ("list(make_loader(ds, 4, batch_transform=transforms.OneHot(1)))", OptionError, "Write OneHot(2)"),
    ("list(make_loader(ds, 4, batch_transform=lambda x, y: None))", OptionError, "does it lack a return?"),
    (
        "list(make_loader(ds, 4, batch_transform=transforms.Compose([lambda x, y: None])))",
        OptionError,
        "does it lack a return?",
    ),
    ("train.load_state_dict(None)", OptionError, "expected what state_dict() of a loader returned"),
    ("colabstage.dataset_h5(h5py.File(data.path))", OptionError, "Of an open file pass its path: '/"),
    ("colabstage.dataset_h5(h5py.File(data.path), disk_limit='1GB')", OptionError, "Of an open file pass its path: '/"),
    (
        "colabstage.dataset_h5(None, disk_limit='1GB')",
        OptionError,
        "path=None cannot work; expected the path of a file",
    ),
    ("colabstage.dataset_h5({data.path})", OptionError, "Give a list of paths"),
    ("colabstage.dataset_h5(path for path in [data.path])", OptionError, "Give a list of paths"),
    ("colabstage.pack_dataset(data, 'x.h5')", OptionError, "Write data['train'] for samples"),
    ("len(data)", ArgumentError, "Write data['train'] for samples"),
    (
        "colabstage.dataset_h5(data)",
        OptionError,
        "What stage_dataset returns has its splits already: data['train']",
    ),
    ("colabstage.dataset_h5(None)", OptionError, "path=None cannot work; expected the path of a file"),
    ("colabstage.dataset_h5(bytes(data.path))", OptionError, "expected the path of a file"),
    ("colabstage.to_keras([data.path, 3], 4)", OptionError, "path=3 cannot work; expected the path of a file"),
    ("ds[np.array([1, 2])]", OptionError, "x, y = dataset.read_batch(rows)"),
    ("make_loader(data)", TypeError, 'needs batch_size. Write make_loader(data["train"], 64)'),
    ("data.loader('train')", TypeError, 'needs batch_size. Write data.loader("train", 64)'),
    ("data.loader()", TypeError, 'needs split and batch_size. Write data.loader("train", 64)'),
    ("colabstage.to_keras(data)", TypeError, 'needs batch_size. Write to_keras(data["train"], 64)'),
    ("colabstage.to_tf_data(data)", TypeError, 'needs batch_size. Write to_tf_data(data["train"], 64)'),
    ("colabstage.autotune_loader(data)", TypeError, 'needs batch_size. Write autotune_loader(data["train"], 64)'),
    ("colabstage.plan_stage()", TypeError, "plan_stage() needs source. Write the dataset's path or address first"),
    ("colabstage.plan_stage('photos', imagesize=224)", TypeError, "plan_stage() got an unexpected keyword argument"),
    ("stage_dataset('photos', 224)", TypeError, "stage_dataset(source) takes its other arguments by name, such as "),
    ("colabstage.publish_file('model.pt')", TypeError, "needs target. Write publish_file("),
    ("make_loader(data, 4)", OptionError, "pass one split, data['train']"),
    ("make_loader(data.path, 4)", OptionError, "of a file's path make one, dataset_h5(path)"),
    ("colabstage.to_hf(data)", OptionError, "pass one split, data['train']"),
    ("colabstage.dataset_h5(train)", OptionError, "path=Loader(…) cannot work"),
    (
        "colabstage.CudaDataLoader('photos', 'cuda')",
        OptionError,
        "loader='photos' cannot work; expected a loader of batches",
    ),
    ("colabstage.profile_loader('photos')", OptionError, "make_loader(dataset_h5(path), 64)"),
    ("colabstage.profile_loader(data)", OptionError, "Pass data.loader('train', 64)"),
    ("colabstage.profile_loader(ds)", OptionError, "pass a DataLoader(dataset, 64)"),
    ("colabstage.profile_loader(train, lambda x, y: None)", OptionError, "step=lambda batch: step(*batch)"),
    ("colabstage.autotune_loader(ds, 4, step=lambda x, y: None)", OptionError, "step takes (x, y), and is called with"),
    ("colabstage.autotune_loader(data, 4)", OptionError, "pass one split, data['train']"),
    ("colabstage.autotune_loader('photos', 4)", OptionError, "of a file's path make one, dataset_h5(path)"),
    ("colabstage.compare_sources(data)", OptionError, "pass the folder or archive that it was made of"),
    ("colabstage.doctor(data)", OptionError, "Of what stage_dataset returns pass its .path"),
    ("colabstage.plot_class_balance(train)", OptionError, "data=Loader(…) cannot work; expected what stage_dataset"),
    ("make_loader(ConcatDataset([ds, ds]), 4)", OptionError, "use torch.utils.data.DataLoader"),
    (
        "make_loader(Subset(ds, [1, 2]), 2, sampler=[0])",
        OptionError,
        "make_loader(subset.dataset, batch_size, sampler=",
    ),
    ("colabstage.to_keras(data, 4)", OptionError, "pass one split, data['train']"),
    ("data.loader('train', 4, collate_fn=list)", OptionError, "DataLoader(dataset, batch_size, collate_fn=collate_fn)"),
    ("make_loader(ds, 4, persistent_workers=True)", OptionError, "Leave it out"),
    ("make_loader(ds, 4, worker_init_fn=print)", OptionError, "worker_init_fn=worker_init_fn"),
    ("make_loader(ds, 4, batch_sampler=[[1]])", OptionError, "sampler= gives this loader its rows"),
    ("make_loader(ds, 4, pin_memory_device='cuda')", OptionError, 'device="cuda"'),
    ("make_loader(ds, 4, batchsize=3)", TypeError, "Did you mean 'batch_size'"),
    ("make_loader(ds, 4, transform=abs)", OptionError, "Write batch_transform="),
    ("make_loader(ds, 4, normalize=True)", OptionError, "Write batch_transform=Normalize(mean, std)"),
    ("make_loader(ds, 4, image_size=64)", OptionError, "stage_dataset(…, image_size=…)"),
    ("colabstage.dataset_h5(data.path, transforms=abs)", TypeError, "Did you mean 'transform'"),
    ("colabstage.dataset_h5()", TypeError, "dataset_h5() needs in_file"),
    ("colabstage.to_keras(ds, 4, label_mode='int')", OptionError, 'Write one_hot="auto" for categorical labels'),
    ("colabstage.to_tf_data(ds, 4, preprocessing_function=abs)", OptionError, "dataset_h5(path, transform=…)"),
    ("stage_dataset('photos', size=224)", TypeError, "Did you mean 'image_size'"),
    ("stage_dataset('photos', batch_size=4)", OptionError, 'data.loader("train", 64).'),
    ("stage_dataset('photos', num_workers=4)", OptionError, 'data.loader("train", 64, num_workers=…).'),
    ("stage_dataset('photos', transform=abs)", OptionError, "Write prepare="),
    ("colabstage.pack_dataset('photos', 'a.h5', batch_size=4)", OptionError, 'make_loader(dataset_h5("file.h5"), 64).'),
    (
        "transforms.RandomFlip(0.5, 1, 2, 3)",
        TypeError,
        "RandomFlip(horizontal, vertical) takes its other arguments by name, such as generator=….",
    ),
    (
        "make_loader(ds, 4, dtype=np.int64)",
        OptionError,
        "int64'> is not a floating-point dtype; expected one such as torch",
    ),
    ("make_loader(ds, 4, device='gpu')", OptionError, 'Torch calls it "cuda".'),
    ("make_loader(ds, 4, device='/GPU:1')", OptionError, 'Torch calls it "cuda:1".'),
    ("make_loader(ds, 4, dtype='int64')", OptionError, "torch.float32"),
    ("make_loader(ds, 4, dtype='float31')", OptionError, "torch.float32"),
    ("make_loader(ds, 4, seed=1, generator=torch.Generator())", OptionError, "Leave out one of them"),
    ("make_loader(ds, 4, generator=3)", OptionError, "expected a torch.Generator, or seed=0"),
    ("make_loader(ds, 4, num_workers=0, prefetch_factor=2)", OptionError, "Leave out one of them"),
    ("make_loader(ds, 4, num_workers=0, strategy='workers')", OptionError, "1 or more"),
    ("stage_dataset('photos', imagesize=224)", TypeError, "Did you mean 'image_size'"),
    ("stage_dataset('photos', image_size='224')", OptionError, "or one number: 224"),
    (
        "stage_dataset('photos', splits=0.2)",
        OptionError,
        "train on 20 % of the samples, and test on the others. Write sp",
    ),
    ("stage_dataset('photos', splits='0.8')", OptionError, "expected 0.8, [0.8, 0.1, 0.1]"),
    ("stage_dataset('photos', splits=[0.5, 0.2, 0.2, 0.1])", OptionError, "{'train': 0.8, 'test': 0.2}"),
    (
        "colabstage.dataset_h5(data.path, 'test')",
        OptionError,
        "For that split write split='test'",
    ),
    ("make_loader(ds, 4, memory_budget='half')", OptionError, "memory_budget='half' is not a size"),
    ("colabstage.stage_form('photos', prepare=abs)", OptionError, "stage_dataset(…, prepare=prepare)"),
]


class Doubled(dataset_h5):
    """A dataset whose samples are changed where torch's documentation has it."""

    def __getitem__(self, index: int | slice) -> Any:
        made = super().__getitem__(index)
        return made if isinstance(index, slice) else (made[0], 2 * made[1])


class Changed(Subset[Any]):
    """The same of a part."""

    def __getitem__(self, index: Any) -> Any:
        return 2 * super().__getitem__(index)[1]  # type: ignore[no-untyped-call]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Endless(Sampler[int]):
    """A sampler that does not say how much it gives."""

    def __iter__(self) -> Iterator[int]:
        return iter([0])


# What a notebook has imported.
IMPORTED = {
    "BatchSampler": BatchSampler,
    "Changed": Changed,
    "Doubled": Doubled,
    "Endless": Endless,
    "h5py": h5py,
    "ConcatDataset": ConcatDataset,
    "Counter": Counter,
    "DataLoader": DataLoader,
    "LoaderOptions": LoaderOptions,
    "PackOptions": PackOptions,
    "Subset": Subset,
    "WeightedRandomSampler": WeightedRandomSampler,
    "colabstage": colabstage,
    "make_loader": make_loader,
    "np": np,
    "random_split": random_split,
    "rows_of": rows_of,
    "stage_dataset": stage_dataset,
    "torch": torch,
    "transforms": transforms,
}


def typed(line: str, data: StagedDataset) -> Any:
    """What the notebook would show."""
    here = {"data": data, "ds": data["train"], "train": data.loader("train", 4), "place": data.path.parent}
    return eval(line, {**IMPORTED, **here})


@pytest.mark.parametrize(("line", "expected"), WORKS, ids=[line for line, _ in WORKS])
def test_it_works_as_it_is_meant(data: StagedDataset, line: str, expected: Any) -> None:
    """What stands in quotes is typed as well."""
    assert typed(line, data) == (typed(expected, data) if isinstance(expected, str) else expected)


@pytest.mark.parametrize(("line", "error", "says"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_the_error_shows_the_line(data: StagedDataset, line: str, error: type[Exception], says: str) -> None:
    """Nobody has to look it up."""
    with pytest.raises(error, match=re.escape(says)):
        typed(line, data)


# What is called with arguments: not what calls return, nor errors.
CALLED = [
    *(getattr(colabstage, name) for name in colabstage.__all__ if name not in RETURNED),
    *(getattr(transforms, name) for name in transforms.__all__),
]


@pytest.mark.parametrize("called", CALLED, ids=[one.__name__ for one in CALLED])
def test_every_public_call_suggests_the_name_that_was_meant(called: Any) -> None:
    """The same error wherever an argument is misspelt, of the name that people call; `help` still shows the others."""
    name = list(inspect.signature(called).parameters)[-1]
    with pytest.raises(ArgumentError, match=rf"^{called.__name__}\(\) got .* '{name}q'\. Did you mean '{name}'\?$"):
        called(**{f"{name}q": 1})


def test_arguments_about_batches_are_those_of_loaders() -> None:
    """Each name that packing sends to the loader is one that the loader has."""
    pointed = {name for name, says in remedies_for_batches("loader(").items() if f": loader(, {name}=…)." in says}
    assert pointed <= {one.name for one in fields(LoaderOptions)}
    assert len(pointed) > 8


# What no argument takes that is a size, a name, a function, a path or a switch.
ODD: tuple[Any, ...] = (float("nan"), b"x", [[]], object())


@pytest.mark.parametrize("name", [one.name for one in fields(PackOptions) if one.init and one.name != "once"])
def test_a_wrong_kind_of_option_is_told_by_its_name(name: str) -> None:
    """Before anything is looked at, whatever was given."""
    for given in ODD:
        with pytest.raises(OptionError, match=f"^{name}[= ]"):
            PackOptions(**{name: given})


@pytest.mark.parametrize("name", [one.name for one in fields(LoaderOptions)])
def test_a_wrong_kind_of_loader_option_is_told_by_its_name(data: StagedDataset, name: str) -> None:
    """By the call that it was given to, not by the first batch."""
    for given in ODD:
        with pytest.raises(OptionError, match=name):
            make_loader(data["train"], 4, **{name: given})


@pytest.mark.parametrize("name", ["local_dir", "cache_dir", "hash", "disk_limit"])
def test_a_wrong_kind_of_argument_is_told_by_its_name(tmp_path: Path, name: str) -> None:
    """Before the source is looked for."""
    for given in ODD:
        with pytest.raises(OptionError, match=f"{name}="):
            stage_dataset(tmp_path / "missing", **{name: given})


def test_no_thread_works_without_workers(data: StagedDataset) -> None:
    """With `num_workers=0` the loop's thread makes each batch when it asks for it, the same ones."""
    asked: list[int] = []

    def slow(x: Any) -> Any:
        asked.append(1)
        return torch.from_numpy(x)

    ahead, alone = (make_loader(data["train"], 4, num_workers=number) for number in (1, 0))
    for (x, y), (other_x, other_y) in zip(ahead, alone, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)
    watched = make_loader(dataset_h5(data.path, slow), 4, num_workers=0)
    assert "by the loop itself" in watched.plan.workers.reason
    for number, _ in enumerate(watched, 1):
        assert len(asked) == 4 * number


def test_pinned_memory_is_left_where_there_is_no_gpu(data: StagedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it; where there is one, each tensor is pinned."""
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    for available, tensors in ((False, 0), (True, 2 * 4)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert rows_of(make_loader(data["train"], 4, pin_memory=True, strategy="direct")) == ROWS
        assert len(pinned) == tensors


@dataclass
class RandomResizedCrop:
    """Stands in for torchvision's, which is not everywhere: takes images alone."""

    size: int

    def __call__(self, image: Any) -> Any:
        assert isinstance(image, Image.Image)
        return image.resize((self.size, self.size))


class ToTensor:
    """As torchvision's: takes images and arrays."""

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


@dataclass
class Compose:
    """As torchvision's."""

    transforms: list[Any]

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Lambda:
    """As torchvision's: calls a function of the user's."""

    def __call__(self, image: Any) -> str:
        return type(image).__name__


@pytest.fixture
def _as_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (RandomResizedCrop, ToTensor, Compose, Lambda):
        monkeypatch.setattr(kind, "__module__", "torchvision.transforms.transforms")


@pytest.mark.usefixtures("_as_torchvision")
@pytest.mark.parametrize("strategy", ["direct", "memory"])
def test_transforms_of_torchvisions_get_images(data: StagedDataset, strategy: Any) -> None:
    """The canonical line works, also in a nest; what takes arrays gets arrays, as functions of anybody do."""
    canonical = Compose([RandomResizedCrop(8), ToTensor()])
    for transform in (canonical, Compose([canonical])):
        x, _ = next(iter(make_loader(dataset_h5(data.path, transform), 4, strategy=strategy)))
        assert (x.shape, x.dtype) == ((4, 3, 8, 8), torch.float32)
    whole = dataset_h5(data.path)
    np.testing.assert_array_equal(dataset_h5(data.path, ToTensor())[2][0].permute(1, 2, 0) * 255, whole[2][0])
    assert dataset_h5(data.path, Lambda())[0][0] == "ndarray"
    assert dataset_h5(data.path, Compose([Lambda()]))[0][0] == "ndarray"
    assert dataset_h5(data.path, lambda x: type(x).__name__)[0][0] == "ndarray"


@pytest.mark.usefixtures("_as_torchvision")
def test_what_is_no_image_stays_an_array(tmp_path: Path) -> None:
    """Fractions and shapes that PIL has no mode for are passed as they are stored; one channel is a grey image."""
    seen: list[Any] = []
    watch = Compose([RandomResizedCrop(2)])
    for dtype, shape in (("f4", (4, 5, 3)), ("u1", (4, 5, 2)), ("u1", (7,)), ("u1", (4, 5, 1)), ("u1", (4, 5, 4))):
        path = tmp_path / f"{dtype}{len(shape)}{shape[-1]}.h5"
        with h5py.File(path, "w") as file:
            file["X_train"], file["Y_train"] = np.ones((2, *shape), dtype), [0, 1]
        try:
            seen.append(dataset_h5(path, watch)[0][0].mode)
        except AssertionError:
            seen.append("array")
    assert seen == ["array", "array", "array", "L", "RGBA"]


def test_names_of_a_file_without_any(tmp_path: Path) -> None:
    """`samples` needs the names that packs keep; targets are there all the same."""
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["X_train"], file["Y_train"] = np.zeros((3, 2), "f4"), [2, 0, 1]
    plain = dataset_h5(tmp_path / "plain.h5")
    assert plain.targets.tolist() == [2, 0, 1]
    assert plain.class_to_idx == {}
    with pytest.raises(ValueError, match=r"key_train|keys"):
        _ = plain.samples

"""Training as people write it: orders, samplers, other libraries' transforms, processes, memory.

Tests that need torchvision, kornia, Ignite or Lightning run in the environment of `make libraries`.
"""

import json
import pickle
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from colabstage import (
    ColabstageError,
    CudaDataLoader,
    autotune_loader,
    dataset_h5,
    make_loader,
    pack_dataset,
    profile_loader,
    resumable,
    stage_dataset,
    to_numpy,
)
from colabstage.errors import OptionError
from colabstage.transforms import Compose, Normalize, OneHot, RandomCrop, RandomFlip, RandomResizedCrop
from tests.nurseries import Nurseries
from tests.support.images import in_classes, make_tree
from tests.support.made_files import files, grey, write_files, write_rows

pytestmark = pytest.mark.timeout(100)


def needs(package: str) -> pytest.MarkDecorator:
    """Skip a test if a library is not installed."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}: make libraries")


def rows(path: Path, count: int = 40, shape: tuple[int, ...] = (8, 8, 3)) -> Path:
    """A file whose targets are the row numbers; the left half of each image is bright."""
    x = np.zeros((count, *shape), np.uint8 if len(shape) == 3 else np.float32)
    if len(shape) == 3:
        x[:, :, : shape[1] // 2] = 255
    return write_rows(path, x, np.arange(count))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Forty images, each labelled with its row number."""
    return rows(tmp_path / "rows.h5")


def seen(loader: Any, most: int = 1000) -> list[int]:
    """The targets of the first batches."""
    found: list[int] = []
    for number, (_, y) in enumerate(loader):
        if number == most:
            break
        found += np.asarray(y).tolist()
    return found


def error_of(call: Callable[[], object]) -> Exception | None:
    """The error that a call ends with, of whatever class."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - what is looked for
        return error
    return None


# --- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"shuffle": False, "batch_transform": RandomFlip()}], ids=["order", "flips"])
def test_a_new_loader_has_draws_of_its_own(path: Path, options: dict[str, Any]) -> None:
    """As with a DataLoader: for people who make a loader for each epoch, fold or fit, and seed torch."""
    found = set()
    for epoch in range(5):
        torch.manual_seed(epoch)
        loader = make_loader(dataset_h5(path), 8, **options)
        found.add(tuple((*x[:, 0, 0, 0].tolist(), *y.tolist()) for x, y in loader))
    assert len(found) == 5


@pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="needs TensorFlow: pip install -c constraints.txt --group tensorflow"
)
def test_keras_gets_other_batches_in_every_pass(tmp_path: Path, nurseries: Nurseries) -> None:
    """Also if a pass is short, or its dataset is made anew."""
    place, child = rows(tmp_path / "rows.h5", 400, (4,)), Path(__file__).with_name("keras_orders.py")
    counts = json.loads(nurseries.run_script("tensorflow", [child, place], {}))
    assert counts.pop("fit(to_tf_data.take(3))") >= 25
    made_anew = {f"{name}, made anew": 5 for name in ("to_keras", "to_tf_data")}
    assert counts == {**made_anew, "next(iter(train))": 5, "a loop that breaks": 5}


def test_the_dataset_of_a_loader_has_the_rows_that_it_visits(path: Path) -> None:
    """PyTorch's tutorial divides by len(loader.dataset)."""
    loader: Any = make_loader(Subset(dataset_h5(path), range(5, 15)), 4, shuffle=False)
    assert len(seen(loader)) == 10
    assert len(loader.dataset) == 10


def test_a_plan_says_what_is_done(path: Path) -> None:
    """Batches of numpy are read one by one, however small they are."""
    both = make_loader(dataset_h5(path), 8, shuffle=True), to_numpy(path, 8)
    assert [" batches at a time" in repr(one) for one in both] == [True, False]


def test_numpys_generator_of_another_kind_is_refused(path: Path, tmp_path: Path) -> None:
    random: Any = np.random
    dataset = dataset_h5(path)
    own = random.get_bit_generator()
    loader = make_loader(dataset, 8, sampler=RandomSampler(dataset))
    random.set_bit_generator(np.random.PCG64(0))
    try:
        for call in (lambda: next(iter(loader)), resumable(tmp_path, model=torch.nn.Linear(1, 1)).__enter__):
            with pytest.raises(OptionError, match=r"PCG64.*set_bit_generator\(np.random.MT19937"):
                call()
    finally:
        random.set_bit_generator(own)


def test_a_transforms_index_error_is_no_end(path: Path) -> None:
    """Python takes one for the end of what has no iterator of its own."""
    nothing: list[int] = []
    with pytest.raises(IndexError):
        list(dataset_h5(path, transform=lambda _: nothing[0]))


@pytest.mark.parametrize(
    ("side", "read"), [("X_train", dataset_h5), ("Y_train", lambda place: to_numpy(place, 8))], ids=["x", "y"]
)
@pytest.mark.parametrize("written", [0, 20, 40])
@pytest.mark.parametrize("options", [{"chunks": (4, 2)}, {"chunks": (4, 2), "compression": "gzip"}, {}, None], ids=str)
def test_rows_that_were_never_written_are_told(
    tmp_path: Path, written: int, options: dict[str, Any] | None, side: str, read: Callable[[Path], object]
) -> None:
    """HDF5 gives zeros for them, as after a program that was stopped. Within one block, what was written is unknown. A
    virtual dataset may be put together of parts that leave rows out."""
    place = tmp_path / "rows.h5"
    with h5py.File(place, "w") as file:
        file["X_train" if side == "Y_train" else "Y_train"] = np.ones((40, 2))
        if options is None:
            file["part"] = np.ones((written, 2))
            virtual = h5py.VirtualLayout((40, 2), np.float64)
            virtual[:written] = h5py.VirtualSource(file["part"])
            file.create_virtual_dataset(side, virtual)
        else:
            rows_of = file.create_dataset(side, (40, 2), np.float32, **options)
            if written:
                rows_of[:written] = 1
    if written == 40 or (written and options == {}):
        read(place)
    else:
        with pytest.warns(UserWarning, match=f"{side} in .* were never written") as caught:
            read(place)
        assert caught[0].filename == __file__ or "lambda" in str(read)


def test_a_file_that_is_being_written_is_told(path: Path) -> None:
    """Rows of one block that were not written yet are zeros, and only h5py's lock tells."""
    with h5py.File(path, "r+"), pytest.warns(UserWarning, match="is open for writing"):
        dataset_h5(path)
    with h5py.File(path):
        dataset_h5(path)


@pytest.mark.parametrize(("options", "told"), [({}, True), ({"drop_last": True}, False), ({"batch_size": 2}, False)])
def test_ranks_that_would_wait_for_another_are_told(path: Path, options: dict[str, Any], told: bool) -> None:
    """With batches of one sample, one rank has one more."""
    ranks: dict[str, Any] = {"batch_size": 1, "rank": 1, "world_size": 3, **options}
    error = error_of(lambda: make_loader(dataset_h5(path), **ranks))
    assert ("drop_last=True" in str(error)) == told


# On a busy machine more processes than cores may have been the fastest, about which torch warns.
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_form_of_batches_that_only_a_stock_loader_makes_is_measured_with_one(path: Path) -> None:
    """The loader of the result collates as it was asked to."""
    tuned = autotune_loader(dataset_h5(path), 8, collate_fn=len, budget_s=0.5)
    assert set(tuned.loader()) == {8}


# --- samplers ---------------------------------------------------------------------------------------------------------


class Drawn(Sampler[int]):
    """Rows in an order that a numpy generator draws anew for each epoch."""

    def __init__(self, draw: Callable[[int], Any]) -> None:
        self._draw = draw

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        return iter(self._draw(40).tolist())


def test_a_sampler_of_numpys_global_numbers_resumes_and_is_divided(path: Path) -> None:
    """As in the tutorials: a second epoch visits every row once, and each row is on one of two ranks."""

    def drawn(**options: Any) -> Any:
        return make_loader(dataset_h5(path), 8, sampler=Drawn(np.random.permutation), **options)

    np.random.seed(0)  # noqa: NPY002
    loader = drawn()
    seen(loader)
    done, again = seen(islice(loader, 3)), drawn()
    again.load_state_dict(loader.state_dict())
    assert sorted(done + seen(again)) == list(range(40))
    assert sorted(row for rank in range(2) for row in seen(drawn(rank=rank, world_size=2))) == list(range(40))


def test_a_sampler_of_its_own_numbers_is_not_resumed_in_another_order(path: Path) -> None:
    """Its generator is the same in each session, and does not know how many epochs are done."""
    loader, again = (
        make_loader(dataset_h5(path), 8, sampler=Drawn(np.random.default_rng(0).permutation)) for _ in range(2)
    )
    seen(loader)
    seen(islice(loader, 3))
    with pytest.raises(OptionError, match="order="):
        again.load_state_dict(loader.state_dict())


def test_a_subset_takes_a_sampler_of_weights(tmp_path: Path) -> None:
    """A fold with balanced classes: within ten epochs, nearly all of its rows are visited."""
    labels = np.array([0] * 450 + [1] * 50)
    write_rows(tmp_path / "rows.h5", np.zeros((500, 4), np.float32), labels)
    subset = Subset(dataset_h5(tmp_path / "rows.h5", return_index=True), [row for row in range(500) if row % 5])
    weights = (1 / np.bincount(labels)[labels])[subset.indices]
    sampler = WeightedRandomSampler(weights.tolist(), len(subset), generator=torch.Generator().manual_seed(0))
    stock = len({row for _ in range(10) for row in sampler})
    loader = make_loader(subset, 50, sampler=sampler)
    visited = {int(row) for _ in range(10) for _, index in loader for row in index}
    assert 0.9 * stock <= len(visited)
    assert visited <= {*subset.indices}


# --- the caller's transforms ------------------------------------------------------------------------------------------


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    """Images whose left half is bright; their masks mark it as the object."""
    x = np.zeros((32, 8, 8, 3), np.uint8)
    x[:, :, :4] = 255
    return write_rows(tmp_path / "masks.h5", x, x[..., 0] // 255)


def follows(x: Any, mask: Any) -> bool:
    """Whether the mask is where the object is."""
    return bool(((torch.as_tensor(x)[0] > 0).int() == torch.as_tensor(mask).int()).all())


def flip_as(how: str) -> Any:
    """A random flip: ours, or torchvision's as people pass it."""
    if how == "ours":
        return RandomFlip()
    from torchvision.transforms import v2

    flip = v2.RandomHorizontalFlip()
    return {
        "a step": flip,
        "its Compose": v2.Compose([flip]),
        "our Compose": Compose([flip]),
        "Sequential": torch.nn.Sequential(flip),
    }[how]


FLIPS = [
    "ours",
    *(pytest.param(how, marks=needs("torchvision")) for how in ("a step", "its Compose", "our Compose", "Sequential")),
]


@pytest.mark.parametrize("how", FLIPS)
def test_masks_follow_flips(masked: Path, how: str) -> None:
    """For flips given as batch_transform."""
    torch.manual_seed(0)
    loader = make_loader(dataset_h5(masked), 4, batch_transform=flip_as(how))
    assert all(follows(x, y) for xs, ys in loader for x, y in zip(xs, ys, strict=True))


@pytest.mark.parametrize("how", FLIPS)
def test_boxes_follow_flips(tmp_path: Path, how: str) -> None:
    """For flips given as batch_transform: the box stays on the bright half."""
    bright = np.zeros((32, 32), np.uint8)
    bright[:, :16] = 255
    labels = {"labels/train/{0..7}.txt": "0 0.25 0.5 0.5 1.0\n", "data.yaml": "names: [a]\n"}
    made = files("", {"images/train/{0..7}.png": grey(bright), **labels})
    data = stage_dataset(
        write_files(tmp_path / "set", made), image_size=32, local_dir=tmp_path / "l", cache_dir=None, progress=False
    )
    torch.manual_seed(0)
    loader = data.loader("train", 4, batch_transform=flip_as(how))
    placed = [
        (float(y["boxes"][0, 0]), int(x[0, 0, 0]))
        for _ in range(4)
        for xs, ys in loader
        for x, y in zip(xs, ys, strict=True)
    ]
    assert set(placed) == {(0.0, 255), (16.0, 0)}


@needs("torchvision")
@pytest.mark.parametrize("step", ["RandomHorizontalFlip", "RandomErasing", "ColorJitter", "RandomAffine"])
def test_torchvision_draws_for_each_image(path: Path, step: str) -> None:
    """As in a DataLoader; the docs say that the same transforms can be given as batch_transform."""
    from torchvision.transforms import v2

    torch.manual_seed(0)
    arguments: dict[str, tuple[Any, ...]] = {"RandomErasing": (1.0,), "ColorJitter": (0.5,), "RandomAffine": (30,)}
    transform = getattr(v2, step)(*arguments.get(step, ()))
    loader = make_loader(dataset_h5(path), 20, dtype="float32", batch_transform=transform)
    assert max(len({image.numpy().tobytes() for image in x}) for x, _ in loader) > 1


@needs("torchvision")
@pytest.mark.parametrize("how", ["a choice", "after a flip"])
def test_torchvisions_mixing_takes_whole_batches(path: Path, how: str) -> None:
    """CutMix or MixUp, chosen at random as on torchvision's page, or after a transform of single images."""
    from torchvision.transforms import v2

    mixing = v2.RandomChoice([v2.CutMix(num_classes=40), v2.MixUp(num_classes=40)])
    steps = {"a choice": mixing, "after a flip": v2.Compose([v2.RandomHorizontalFlip(), mixing])}
    torch.manual_seed(0)
    batches = list(make_loader(dataset_h5(path), 20, dtype="float32", batch_transform=steps[how]))
    for _, y in batches:
        assert y.shape == (20, 40)
        torch.testing.assert_close(y.sum(1), torch.ones(20))
    # A flip is drawn for each image, so some have the bright half on the other side.
    assert (len({float(x[0, 0, 0]) for xs, _ in batches for x in xs}) > 1) == (how == "after a flip")


@needs("torchvision")
def test_no_class_is_background_to_torchvisions_detectors(tmp_path: Path) -> None:
    """Boxes are "as torchvision's detection models take them"."""
    from torchvision.models import detection

    made = files("images/train/{0..3}.jpg", {"data.yaml": "names: [helmet, vest]\n"})
    made |= files(
        "", {"labels/train/{0,2}.txt": "0 0.5 0.5 0.25 0.25\n", "labels/train/{1,3}.txt": "1 0.5 0.5 0.25 0.25\n"}
    )
    data = stage_dataset(
        write_files(tmp_path / "set", made),
        image_size=(48, 64),
        local_dir=tmp_path / "l",
        cache_dir=None,
        progress=False,
    )
    model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=len(data.classes) + 1
    )
    given: set[int] = set()
    inner = model.roi_heads.assign_targets_to_proposals

    def noted(proposals: Any, boxes: Any, labels: Any) -> Any:
        given.update(int(value) for one in labels for value in one)
        return inner(proposals, boxes, labels)

    model.roi_heads.assign_targets_to_proposals = noted
    for images, targets in data.loader("train", 4, dtype=torch.float32, label_offset=1):
        model(images, targets)
    assert given == {1, 2}


@needs("torchvision")
def test_a_joint_transform_gets_image_and_mask(masked: Path) -> None:
    """It is accepted, or refused with a line that flips both."""
    from torchvision.transforms import v2

    joint = v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip()])
    with pytest.raises(ColabstageError, match="batch_transform="):
        dataset_h5(masked, transform=joint)
    torch.manual_seed(0)
    loader = make_loader(dataset_h5(masked), 8, batch_transform=joint)
    assert all(follows(x, y) for xs, ys in loader for x, y in zip(xs, ys, strict=True))


def test_kornias_modules_are_called_as_the_message_says(path: Path) -> None:
    """They take x alone, or draw for both if they have several `data_keys`, and are then functions of (x, y)."""
    kinds = {"__module__": "kornia.augmentation", "__call__": lambda _, x, y=None: x + 1 if y is None else [x + 1, y]}
    flip, joint = (
        type("RandomHorizontalFlip", (), {**kinds, "data_keys": keys})() for keys in (["input"], ["input"] * 2)
    )
    for given in (lambda: flip, lambda: Compose([flip])):
        with pytest.raises(ColabstageError, match=r"batch_transform=lambda x, y: \(augment\(x\), y\)"):
            seen(make_loader(dataset_h5(path), 8, batch_transform=given()))
    for works in (lambda x, y: (flip(x), y), joint, Compose([joint])):
        assert sorted(seen(make_loader(dataset_h5(path), 8, batch_transform=works))) == list(range(40))


def of_torchvision(name: str, *parts: object, module: str = "torchvision.transforms.v2") -> Any:
    """A stand-in for one of torchvision's transforms, or another library's, which are recognized by their module. It
    returns the class of what it gets."""
    kind = type(name, (), {"__module__": module, "__call__": lambda _, x: type(x).__name__})
    one = kind()
    if parts:
        one.transforms = list(parts)
    return one


OF_TIMM = of_torchvision("Compose", of_torchvision("RandomResizedCropAndInterpolation", module="timm.data.transforms"))


def flip_of(module: str) -> Any:
    """A module that moves x alone, inside others."""
    flip = type("RandomHorizontalFlip", (torch.nn.Identity,), {"__module__": module})()
    return torch.nn.Sequential(torch.nn.Identity(), torch.nn.Sequential(flip))


def first(path: Path, target_transform: Any = None, **options: Any) -> Any:
    return next(iter(make_loader(dataset_h5(path, target_transform=target_transform), 8, **options)))


def of_rows(*arguments: Any, **options: Any) -> Callable[[Path, Path], object]:
    return lambda path, _: first(path, *arguments, **options)


# What would be lost in silence: calls with `path` and `masked`, and what the error names.
REFUSED: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    # Two weights, meant for two classes, would draw only the first two rows.
    **{
        f"a sampler of {of}": (of_rows(sampler=sampler), "40")
        for of, sampler in {
            "weights of classes": WeightedRandomSampler([0.2, 0.8], 40),
            "fewer rows": RandomSampler(range(10)),
            "more rows": SequentialSampler(range(50)),
            "ranks": DistributedSampler(range(10), num_replicas=1, rank=0),  # type: ignore[arg-type]
        }.items()
    },
    "an offset that is text": (of_rows(label_offset="1"), "label_offset"),
    # It would have no effect.
    "an offset of labels without boxes": (of_rows(label_offset=1), "label_offset"),
    # Its samples would count twice, in `len` and in every epoch.
    "a file that is listed twice": (lambda path, _: dataset_h5([path, path]), r"rows\.h5' twice"),
    "a file that is listed by another path": (
        lambda path, _: dataset_h5([path, f"{path.parent}/./{path.name}"]), r"rows\.h5' twice"
    ),
    # Zeros in all channels would be a class that no loss sees.
    "a class beyond OneHot's": (lambda _, masked: first(masked, batch_transform=OneHot(1)), "class 1"),
    "a class beyond one_hot=": (lambda _, masked: next(iter(to_numpy(masked, 8, one_hot=1))), "class 1"),
    "torchvision's flip in a container": (
        lambda _, masked: dataset_h5(masked, flip_of("torchvision.transforms.v2")), "batch_transform="
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_lost_is_refused(path: Path, masked: Path, case: str) -> None:
    call, said = REFUSED[case]
    with pytest.raises(ColabstageError, match=said):
        call(path, masked)


@pytest.mark.parametrize(
    ("transform", "refused"),
    [
        pytest.param(OF_TIMM, True, id="of timm"),
        (of_torchvision("Compose", of_torchvision("ToTensor"), of_torchvision("RandomHorizontalFlip")), True),
        (of_torchvision("RandomResizedCrop"), True),
        (of_torchvision("RandomApply", of_torchvision("ColorJitter")), False),
        (of_torchvision("Resize"), False),
        (of_torchvision("Normalize"), False),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bool) else "",
)
def test_a_transform_of_x_alone_does_not_move_it_by_chance(
    masked: Path, path: Path, transform: Any, refused: bool
) -> None:
    """A mask as y would not move along; labels go with any transform."""
    dataset_h5(path, transform)
    error = error_of(lambda: dataset_h5(masked, transform))
    assert isinstance(error, ColabstageError) == refused, repr(error)
    if refused:
        assert "batch_transform=" in str(error)


@pytest.mark.parametrize(
    ("transform", "dtype", "refused"),
    [
        (of_torchvision("Resize"), np.float32, True),
        (of_torchvision("Compose", of_torchvision("Resize"), of_torchvision("ToImage")), np.uint16, True),
        (torch.nn.Sequential(), np.float32, True),
        (of_torchvision("Compose", of_torchvision("ToImage"), of_torchvision("Resize")), np.float32, False),
        (of_torchvision("Compose", of_torchvision("Lambda"), of_torchvision("Resize")), np.uint16, False),
        (of_torchvision("Resize"), np.uint8, False),
    ],
)
def test_no_transform_of_torchvision_leaves_x_as_it_is(
    tmp_path: Path, transform: Any, dtype: Any, refused: bool
) -> None:
    """Those of `v2` pass arrays through, so x would be neither resized nor scaled."""
    if isinstance(transform, torch.nn.Sequential):
        # `append` would take modules only.
        transform._modules["0"] = of_torchvision("Resize")
    place = write_rows(tmp_path / "rows.h5", np.zeros((4, 8, 8, 3), dtype), np.arange(4))
    error = error_of(lambda: dataset_h5(place, transform)[0])
    assert ("Begin with ToTensor" in str(error)) == refused


def test_timms_transforms_get_images(path: Path) -> None:
    """They take no arrays, as torchvision's that they stand among."""
    for transform in (OF_TIMM, of_torchvision("ToTensor", module="timm.data.transforms")):
        assert dataset_h5(path, transform)[0][0] == "Image"


def test_a_module_of_images_alone_is_called_as_the_message_says(path: Path) -> None:
    """As a Sequential of torchvision's or kornia's modules, which gets x and y."""
    change = torch.nn.Sequential(torch.nn.Flatten())
    with pytest.raises(ColabstageError, match=re.escape("such as batch_transform=lambda x, y: (change(x), y)")):
        next(iter(make_loader(dataset_h5(path), 8, batch_transform=change)))
    loader = make_loader(dataset_h5(path), 8, batch_transform=lambda x, y: (change(x), y))
    assert {tuple(x.shape) for x, _ in loader} == {(8, 192)}


@pytest.mark.parametrize(("dtype", "outside"), [(np.bool_, 0), (np.float32, 0), (np.uint8, 255), (np.int64, 255)])
def test_a_cropped_mask_has_no_object_outside_the_image(tmp_path: Path, dtype: Any, outside: int) -> None:
    """255 is not a class, and as a bool or a fraction it would count as the object."""
    write_rows(tmp_path / "masks.h5", np.zeros((16, 8, 8, 3), np.uint8), np.zeros((16, 8, 8), dtype))
    loader = make_loader(dataset_h5(tmp_path / "masks.h5"), 16, batch_transform=RandomCrop(8, padding=4))
    ((_, mask),) = loader
    assert set(mask.unique().tolist()) == {0, outside}


@pytest.mark.parametrize(
    "change", [RandomFlip(1.0), RandomCrop(4, padding=2), RandomResizedCrop(4), Normalize((0.5,), (0.5,)), OneHot(40)]
)
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_another_default_device_is_not_that_of_batches(path: Path, change: Any, dtype: str | None) -> None:
    """They are where `device=` says, and so is what transforms make of them."""
    with torch.device("meta"):
        x, y = next(iter(make_loader(dataset_h5(path), 8, batch_transform=change, dtype=dtype)))
    assert {x.device.type, y.device.type} == {"cpu"}


def test_a_list_of_arrays_is_several_inputs(path: Path) -> None:
    """As `default_collate` makes one of each, for every framework; a list of numbers is a vector."""
    dataset = dataset_h5(path, lambda x: [x, np.array([x.mean()])], target_transform=lambda y: [y, 1])
    for batches in (make_loader(dataset, 8), to_numpy(dataset, 8)):
        x, _ = next(iter(batches))
        assert [tuple(part.shape) for part in x] == [(8, 8, 8, 3), (8, 1)]
    assert next(iter(to_numpy(dataset, 8)))[1].shape == (8, 2)


def test_numbers_of_numpy_are_numbers(path: Path) -> None:
    """As they come from a grid or a data frame."""
    eight, one, two = np.int64(8), np.int64(1), np.int64(2)
    loader = make_loader(dataset_h5(path), eight, batch_transform=RandomCrop(eight), rank=one, world_size=two)  # type: ignore[arg-type]
    assert len(seen(loader)) == 20
    assert Normalize((0.5,), (0.5,), dtype=np.float16).dtype == torch.float16


def test_targets_beyond_int64_are_not_turned_negative(tmp_path: Path) -> None:
    """Such as hashes; the line in the message makes numbers of them that fit."""
    write_rows(tmp_path / "rows.h5", np.zeros((4, 2)), np.arange(4, dtype=np.uint64) + 2**63)
    with pytest.raises(ColabstageError, match=str(2**63 + 3)):
        list(make_loader(dataset_h5(tmp_path / "rows.h5"), 4))
    smaller = dataset_h5(tmp_path / "rows.h5", target_transform=lambda y: y - 2**63)
    assert sorted(seen(make_loader(smaller, 4))) == [0, 1, 2, 3]


def test_one_integer_in_a_row_of_its_own_is_a_class(tmp_path: Path) -> None:
    """Targets `(N, 1)`, as in Keras's CIFAR-10: losses take int64, and no byte wraps around."""
    write_rows(tmp_path / "rows.h5", np.zeros((4, 2)), np.arange(4, dtype=np.uint8).reshape(4, 1))
    dataset = dataset_h5(tmp_path / "rows.h5")
    for batches in (make_loader(dataset, 4), make_loader(dataset, 4, strategy="device"), to_numpy(dataset, 4)):
        y = next(iter(batches))[1]
        assert str(y.dtype).endswith("int64")
        assert sorted((y - 1).tolist()) == [[-1], [0], [1], [2]]


@pytest.mark.parametrize("shape", [(12, 10, 5), (12, 10, 2)], ids=["five bands", "two"])
def test_bands_are_not_taken_for_the_width(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Inputs (H, W, C) keep their axes if C is not that of an image; each line in the message can be followed."""
    bright = np.zeros((4, *shape), np.uint16)
    bright[:, :, :5] = 1
    dataset, flip = dataset_h5(write_rows(tmp_path / "rows.h5", bright, np.arange(4))), RandomFlip(1.0)
    for transform in (flip, Compose([flip]), Compose([Normalize((0.5,), (0.5,)), Compose([flip])])):
        with pytest.raises(ColabstageError, match=re.escape("x.permute(0, 3, 1, 2)")):
            make_loader(dataset, 4, batch_transform=transform)
    turned = Compose([lambda x, y: (x.permute(0, 3, 1, 2), y), flip])
    ((x, _),) = make_loader(dataset, 4, batch_transform=turned)
    assert np.array_equal(x.permute(0, 2, 3, 1).numpy(), bright[:, :, ::-1])
    ((x, _),) = make_loader(dataset, 4, batch_transform=Compose([lambda x, y: (x, y), flip]))
    assert np.array_equal(x.numpy(), bright[..., ::-1])


@pytest.mark.parametrize("shape", [(32, 32, 3), (8, 8), (3, 8, 8)], ids=["twice as large", "half", "channels first"])
@pytest.mark.parametrize("step", [RandomFlip(1.0), RandomCrop(16, padding=2, mask_fill=0)], ids=["flip", "crop"])
def test_targets_of_another_size_than_their_images(tmp_path: Path, step: Any, shape: tuple[int, ...]) -> None:
    """As in super-resolution, or maps of heat: they would not move with x. Each line of the message can be followed."""
    y = np.random.default_rng(0).integers(0, 9, (4, *shape), np.uint8)
    place = write_rows(tmp_path / "rows.h5", np.arange(4 * 16 * 16 * 3).reshape(4, 16, 16, 3).astype(np.uint8), y)

    def batch(change: Any) -> Any:
        return next(iter(make_loader(dataset_h5(place), 4, shuffle=False, seed=0, batch_transform=change)))

    with pytest.raises(OptionError, match=re.escape("batch_transform=lambda x, y: (augment(x, x)[0], y)")):
        batch(step)
    assert np.array_equal(batch(lambda x, y: (step(x, x)[0], y))[1].numpy(), y)
    # As large as x, and the same: it moves alike.
    x, moved = batch(Compose([lambda x, y: (x, x.clone()), step]))
    assert torch.equal(x, moved)


@pytest.mark.parametrize("shape", [(3, 3), (4, 10), (1, 1)], ids=["camera", "letters", "number"])
def test_targets_that_are_no_pixels_stay(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Whatever their axes, as their transform is the caller's."""
    y = np.random.default_rng(0).random((4, *shape))
    place = write_rows(tmp_path / "rows.h5", np.zeros((4, 16, 16, 3), np.uint8), y)
    ((_, found),) = make_loader(dataset_h5(place), 4, shuffle=False, batch_transform=RandomFlip(1.0))
    assert np.array_equal(found.numpy(), y)


# --- files of other programs ------------------------------------------------------------------------------------------


def matlab_file(path: Path) -> Path:
    """Images (32, 30, 3, 20) and labels (20, 1), as MATLAB saves them with -v7.3."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file["X"], file["y"] = np.zeros((20, 3, 30, 32), np.uint8), np.arange(20.0)[None] % 2
        for name, kind in (("X", b"uint8"), ("y", b"double")):
            file[name].attrs["MATLAB_class"] = np.bytes_(kind)
    with path.open("r+b") as handle:
        handle.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")
    return path


@pytest.mark.parametrize("names", [{}, {"x": "X", "y": "y"}])
def test_arrays_of_matlab_are_packed(tmp_path: Path, names: dict[str, str]) -> None:
    """The file has their axes reversed; the message says what reads them correctly."""
    path = matlab_file(tmp_path / "set.mat")
    with pytest.raises(ColabstageError, match="pack_dataset"):
        dataset_h5(path, **names)  # type: ignore[arg-type]
    pack_dataset(path, tmp_path / "packed.h5", progress=False)
    assert dataset_h5(tmp_path / "packed.h5")[0][0].shape == (32, 30, 3)


def test_images_of_matlab_that_are_read_as_they_lie_are_noted(tmp_path: Path) -> None:
    """Their axes may already have been reversed before saving."""
    with pytest.warns(UserWarning, match="3 x 30 x 32"):
        dataset_h5(matlab_file(tmp_path / "set.mat"), x="X")


@pytest.mark.parametrize(
    "classes", [np.str_("a"), np.array([["a", "b"]], "S1"), {"a": np.arange(2)}], ids=["a text", "two axes", "a group"]
)
def test_what_another_program_calls_classes(path: Path, classes: Any) -> None:
    """None of these is a list of names; the samples are still read."""
    with h5py.File(path, "r+") as file:
        if isinstance(classes, dict):
            for name, values in classes.items():
                file[f"classes/{name}"] = values
        else:
            file["classes"] = classes if not isinstance(classes, str) else str(classes)
    dataset = dataset_h5(path)
    assert (dataset.classes, dataset[3][1]) == ((), 3)


# --- other loops ------------------------------------------------------------------------------------------------------


@needs("ignite")
@pytest.mark.filterwarnings("default")
def test_ignites_deterministic_engine_runs(path: Path) -> None:
    """It rebuilds a DataLoader from the attributes of the given one; otherwise our error says what to do."""
    from ignite.engine import DeterministicEngine

    found: list[int] = []
    engine = DeterministicEngine(lambda _, batch: found.extend(batch[1].tolist()))
    error = error_of(lambda: engine.run(make_loader(dataset_h5(path), 8), max_epochs=1))
    assert isinstance(error, ColabstageError) or sorted(found) == list(range(40)), repr(error)


@pytest.mark.parametrize("tool", ["profile_loader", "autotune_loader"])
def test_measuring_leaves_nothing_in_a_history_that_was_handed_over(path: Path, tool: str) -> None:
    """Its note says so without `restore=`; with it, nothing of the steps that were tried stays."""
    losses: list[float] = []
    kinds: set[int] = set()
    counts, confusion = np.zeros(2), torch.zeros(2)

    def step(batch: Any) -> None:
        loss = float(torch.as_tensor(batch[0]).float().mean())
        losses.append(loss)
        kinds.add(len(losses))
        counts[0] += 1
        confusion[0] += 1

    def measure(restore: Any) -> str:
        if tool == "profile_loader":
            stock = DataLoader(TensorDataset(torch.randn(256, 4), torch.zeros(256)), 16)
            return " ".join(profile_loader(stock, step, restore=restore, budget_s=0.3).notes)
        return " ".join(autotune_loader(dataset_h5(path), 8, step=step, restore=restore, budget_s=0.3).notes)

    assert "recorded stays changed" in measure(None)
    before = [*losses], {*kinds}, counts.tolist(), confusion.tolist()
    assert len(losses) == counts[0] > 0
    measure((losses, kinds, counts, confusion))
    assert (losses, kinds, counts.tolist(), confusion.tolist()) == before


@pytest.mark.parametrize("streaming", [False, True])
def test_a_transform_that_is_set_on_a_split_is_that_of_its_loaders(tmp_path: Path, streaming: bool) -> None:
    """As with torchvision's and Hugging Face's datasets."""
    source = make_tree(tmp_path / "photos", in_classes(4))
    places: dict[str, Any] = {"local_dir": tmp_path / "local", "cache_dir": None, "progress": False}
    data = stage_dataset(source, streaming=streaming, **places)
    data["train"].transform = lambda x: x[:1].astype("float32") - 1000
    for x, _ in data.loader("train", 4):
        assert x.shape[1] == 1
        assert x.max() < 0


# --- runs that go on --------------------------------------------------------------------------------------------------


def parts(path: Path) -> dict[str, Any]:
    """A model with its loader."""
    return {"model": torch.nn.Linear(8 * 8 * 3, 40), "loader": make_loader(dataset_h5(path), 8, seed=0)}


def test_a_loop_over_the_runs_epochs_ends(path: Path, tmp_path: Path) -> None:
    """Written as checkpoints are resumed everywhere; also where the same loader measures between two epochs."""

    def session(until: int | None = None) -> list[int]:
        begun, done = [], 0
        own = parts(path)
        with resumable(tmp_path / "run", progress=False, **own) as run:
            for epoch in range(run.epoch, 3):
                begun.append(epoch)
                for _ in own["loader"]:
                    run.step()
                    done += 1
                    if done == until:
                        run.save()
                        return begun
                seen(own["loader"])
        return begun

    assert [session(7), session(), session()] == [[0, 1], [1, 2], []]


def test_a_run_refuses_a_loader_that_another_thread_reads(path: Path, tmp_path: Path) -> None:
    """It is ahead of the loop, so the batches between would never be trained on."""
    own = parts(path)
    with resumable(tmp_path / "run", progress=False, **own) as run:
        batches = iter(CudaDataLoader(own["loader"], "cpu"))
        next(batches)
        with pytest.raises(ColabstageError, match="Another thread"):
            run.step()
        list(batches)


# --- packs that are read under a limit ---------------------------------------------------------------------------------


def test_a_part_that_is_all_here_is_opened_by_several(path: Path, tmp_path: Path) -> None:
    """Two splits, or copies in other processes: opening one does not change the file for the others."""
    with h5py.File(path, "r+") as file:
        file["X_val"], file["Y_val"] = file["X_train"][:5], np.arange(40, 45)
    pack_dataset(path, tmp_path / "pack.h5", progress=False)
    train, val = (
        dataset_h5(tmp_path / "pack.h5", split=split, disk_limit="50MB", local_dir=tmp_path / "part")
        for split in ("train", "val")
    )
    again = pickle.loads(pickle.dumps(train))
    assert sorted(seen(make_loader(train, 8)) + seen(make_loader(val, 8))) == list(range(45))
    assert again[3][1] == train[3][1]


# --- processes, files and memory --------------------------------------------------------------------------------------

_FEW_FILES = """
import resource, sys
from colabstage import dataset_h5, make_loader

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 4096))
try:
    print(sum(int((x[:, 0].long() == y).sum()) for x, y in make_loader(dataset_h5(sys.argv[1]), 64)))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each of 160 subjects, more than `_FEW_FILES` lets a process have open."""
    folder = tmp_path_factory.mktemp("subjects")
    for number in range(160):
        write_rows(folder / f"s{number:04}.h5", np.full((2, 4), number, np.float32), np.full(2, number))
    return folder


def test_more_files_are_read_than_may_be_open(tmp_path: Path, subjects: Path, nurseries: Nurseries) -> None:
    """The limit is raised, or fewer files are kept open."""
    (tmp_path / "script.py").write_text(_FEW_FILES, encoding="utf-8")
    assert nurseries.run_script("torch", [tmp_path / "script.py", subjects / "s*.h5"], {}) == "320"

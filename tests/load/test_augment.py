"""Batch augmentation: each sample differently, with its masks and boxes, and reproducibly for the same place."""

import math
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from colabstage import dataset_h5, make_loader
from colabstage.errors import OptionError
from colabstage.transforms import Compose, Normalize, OneHot, RandomCrop, RandomFlip, RandomResizedCrop
from tests.support.made_files import write_rows

DTYPES = [torch.uint8, torch.float32, torch.float16, torch.bfloat16, torch.int16]
SIZE = (12, 17)
NONE = torch.zeros(0)


def batch(count: int = 9, *, dtype: torch.dtype = torch.uint8, last: bool = True) -> torch.Tensor:
    """Images `(B, 3, 12, 17)` of noise, in `channels_last` memory or not."""
    values = np.random.default_rng(0).integers(0, 256, (count, *SIZE, 3))
    images = torch.from_numpy(values).permute(0, 3, 1, 2).to(dtype)
    return images.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def addresses(count: int = 9, size: tuple[int, int] = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose pixels encode their positions, and masks that do the same."""
    masks = torch.arange(size[0] * size[1], dtype=torch.int64).view(1, *size).repeat(count, 1, 1)
    return masks[:, None].float(), masks


def applied(transform: Any, x: Any, y: Any = NONE, seed: int = 3) -> tuple[Any, Any]:
    """Apply a transform to a batch by hand, with the random numbers of a torch seed."""
    torch.manual_seed(seed)
    return transform(x, y)  # type: ignore[no-any-return]


def crops_of(count: int = 9, size: tuple[int, int] = SIZE, **options: Any) -> list[tuple[int, int, int, int]]:
    """Top, left, height and width of the crops that a seed draws, whatever they are resized to: seen in an enlarged
    mask, which keeps all of its pixels."""
    images, masks = addresses(count, size)
    _, moved = applied(RandomResizedCrop((2 * size[0], 2 * size[1]), **options), images, masks)
    first, last = moved[:, 0, 0].numpy(), moved[:, -1, -1].numpy()
    (top, left), (bottom, right) = np.divmod(first, size[1]), np.divmod(last, size[1])
    return list(zip(top.tolist(), left.tolist(), (bottom - top + 1).tolist(), (right - left + 1).tolist(), strict=True))


ALL: list[Any] = [
    RandomFlip(0.5, 0.5),
    RandomCrop(SIZE, padding=3),
    RandomCrop((5, 9)),
    RandomResizedCrop(8),
    Normalize((0.5,), (0.25,)),
]


@pytest.mark.parametrize("transform", ALL[:3], ids=repr)
@pytest.mark.parametrize("form", ["BHW", "BKHW", "BHWK"])
def test_masks_move_with_their_images(transform: Any, form: str) -> None:
    """Every pixel of the mask is still on its pixel of the image; everything from outside is void."""
    images, masks = addresses()
    y = {"BHW": masks, "BKHW": masks[:, None].repeat(1, 2, 1, 1), "BHWK": masks[..., None]}[form]
    x, moved = applied(transform, images, y)
    plain = {"BHW": moved, "BKHW": moved[:, 0], "BHWK": moved[..., 0]}[form]
    inside = plain != 255
    # Address 255 does not occur: there are 204 pixels.
    assert torch.equal(x[:, 0][inside], plain[inside].float())
    assert (x[:, 0][~inside] == 0).all()


def test_masks_of_resized_crops_take_the_nearest_pixel() -> None:
    """As torch's own "nearest-exact", image by image."""
    images, masks = addresses()
    _, moved = applied(RandomResizedCrop((7, 30)), images, masks)
    for row, (top, left, height, width) in enumerate(crops_of()):
        part = masks[row : row + 1, None, top : top + height, left : left + width]
        expected = functional.interpolate(part.float(), (7, 30), mode="nearest-exact")
        assert torch.equal(moved[row].float(), expected[0, 0])


@pytest.mark.parametrize(("dtype", "last"), [(dtype, dtype != torch.float32) for dtype in DTYPES])
def test_resized_crops_are_torchs_own(dtype: torch.dtype, last: bool) -> None:
    """For each image, the result of torch's antialiased bilinear filter on the crop, shrinking and growing."""
    images = batch(dtype=dtype, last=last)
    x, _ = applied(RandomResizedCrop((5, 25)), images)
    assert x.dtype == dtype
    for row, (top, left, height, width) in enumerate(crops_of()):
        part = images[row : row + 1, :, top : top + height, left : left + width].double()
        expected = functional.interpolate(part, (5, 25), mode="bilinear", antialias=True)[0]
        # torch mixes bytes with 8-bit weights; 16-bit floats have 8 or 11 bits.
        atol = {torch.uint8: 2.0, torch.int16: 0.51, torch.bfloat16: 0.6, torch.float16: 0.1}.get(dtype, 1e-3)
        torch.testing.assert_close(x[row].double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("transform", [*ALL, Compose([RandomResizedCrop(8), RandomFlip()])], ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_gives_what_the_processor_gives(transform: Any, dtype: torch.dtype, cuda: str) -> None:
    """The same parameters, the same pixels up to rounding; masks exactly."""
    images, (_, masks) = batch(dtype=dtype), addresses()
    x, y = applied(transform, images, masks)
    x_there, y_there = applied(transform, images.to(cuda), masks.to(cuda))
    assert x_there.device.type == "cuda"
    # Otherwise a later layer would have to change the memory format back.
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in (x, x_there))
    atol = {torch.uint8: 2.0, torch.int16: 1.0, torch.bfloat16: 1.1}.get(dtype, 0.2)
    torch.testing.assert_close(x_there.cpu().double(), x.double(), rtol=2e-3, atol=atol)
    assert torch.equal(y_there.cpu(), y)


def test_flips_come_as_often_as_asked() -> None:
    """Within five deviations of a fair count, and both directions independently."""
    count, images = 4000, torch.zeros(4000, 1, 2, 2, dtype=torch.uint8)
    images[:, :, 0, 0] = 1
    x, _ = applied(RandomFlip(0.3, 0.8), images)
    for corner, share in {(0, 0): 0.7 * 0.2, (0, 1): 0.3 * 0.2, (1, 0): 0.7 * 0.8, (1, 1): 0.3 * 0.8}.items():
        found = int(x[:, 0, corner[0], corner[1]].sum())
        assert abs(found - count * share) < 5 * math.sqrt(count * share * (1 - share))


def test_padded_crops_are_everywhere_alike() -> None:
    """Each of the 81 positions of a window is equally frequent, by a chi-square test."""
    count = 8100
    images = torch.zeros(count, 1, 8, 8, dtype=torch.uint8)
    images[:, :, 4, 4] = 1
    x, _ = applied(RandomCrop(8, padding=4), images)
    where = x.flatten(1).argmax(dim=1) + 64 * (x.flatten(1).sum(dim=1) == 0)
    counts = torch.bincount(where, minlength=65)
    # Eight of nine rows and columns keep the dot inside; at the other positions it is cut away.
    expected = torch.tensor([count / 81] * 64 + [count * 17 / 81])
    # Exceeded by one seed in 10,000, with 64 degrees of freedom, after Wilson and Hilferty.
    limit = 64 * (1 - 2 / (9 * 64) + 3.719 * math.sqrt(2 / (9 * 64))) ** 3
    assert float(((counts - expected) ** 2 / expected).sum()) < limit


def torchvisions_crop(
    rng: random.Random, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """`torchvision.transforms.RandomResizedCrop.get_params`, as documented."""
    height, width = size
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    if width / height < min(ratio):
        w, h = width, round(width / min(ratio))
    elif width / height > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def distance(values: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> float:
    """The Kolmogorov-Smirnov distance of two samples."""
    points = np.concatenate([values, others])
    shares = [np.searchsorted(np.sort(part), points, side="right") / len(part) for part in (values, others)]
    return float(np.abs(shares[0] - shares[1]).max())


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [((25, 25), (0.08, 1.0), (3 / 4, 4 / 3)), ((10, 50), (0.5, 1.0), (3 / 4, 4 / 3)), ((7, 5), (0.2, 0.9), (1.0, 1.0))],
)
def test_crops_are_distributed_as_torchvisions(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    """Their sides, area, ratio and positions."""
    count, rng = 2000, random.Random(0)
    ours = np.array(crops_of(count, size, scale=scale, ratio=ratio))
    theirs = np.array([torchvisions_crop(rng, size, scale, ratio) for _ in range(count)])
    # Chance exceeds this with probability 1e-4; for whole numbers, less often.
    limit = math.sqrt(-math.log(1e-4 / 2) / count)
    columns = [
        np.column_stack([c, c[:, 2] * c[:, 3], np.log(c[:, 3] / c[:, 2]), c[:, 0] + c[:, 2], c[:, 1] + c[:, 3]])
        for c in (ours, theirs)
    ]
    assert max(distance(one, other) for one, other in zip(*(part.T for part in columns), strict=True)) < limit


def test_where_no_crop_fits_the_middle_is_taken() -> None:
    """For an image far from every ratio, as in torchvision."""
    for size in ((4, 200), (200, 4), (1, 1)):
        expected = torchvisions_crop(random.Random(0), size, (1.0, 1.0), (3 / 4, 4 / 3))
        assert set(crops_of(20, size, scale=(1.0, 1.0))) == {expected}


def boxes_of(count: int) -> list[dict[str, torch.Tensor]]:
    """Up to three boxes for each image, with labels, and one image without any."""
    rng = torch.Generator().manual_seed(1)
    targets = []
    for row in range(count):
        first = torch.rand(row % 4, 2, generator=rng) * torch.tensor([8.0, 6.0])
        boxes = torch.cat([first, first + 1 + torch.rand(row % 4, 2, generator=rng) * 5], dim=1)
        targets.append({"boxes": boxes, "labels": torch.arange(row % 4), "image_id": torch.tensor(row)})
    return targets


def painted(boxes: torch.Tensor, size: tuple[int, int] = SIZE) -> torch.Tensor:
    """An image with the pixels of integer boxes marked."""
    image = torch.zeros(1, *size)
    for x0, y0, x1, y1 in boxes.int().tolist():
        image[0, y0:y1, x0:x1] = 1
    return image


@pytest.mark.parametrize("transform", [RandomFlip(0.5, 0.5), RandomCrop((6, 9), padding=2)], ids=repr)
def test_boxes_move_with_what_they_hold(transform: Any) -> None:
    """A box drawn after the move covers what was drawn before it."""
    targets = [{"boxes": target["boxes"].round(), "labels": target["labels"]} for target in boxes_of(9)]
    x, y = applied(transform, torch.stack([painted(target["boxes"]) for target in targets]), targets)
    for image, target in zip(x, y, strict=True):
        assert torch.equal(painted(target["boxes"], image.shape[1:]), image)


@pytest.mark.parametrize("transform", [RandomFlip(0.5, 0.5), RandomCrop((4, 5)), RandomResizedCrop((20, 30))], ids=repr)
def test_padded_boxes_are_the_listed_ones(transform: Any) -> None:
    """Padded targets hold the same boxes in the same order, followed by the padding."""
    targets = boxes_of(9)
    lengths = torch.tensor([len(target["boxes"]) for target in targets])
    padded = {"boxes": torch.zeros(9, 3, 4), "labels": torch.full((9, 3), -1), "lengths": lengths}
    for row, target in enumerate(targets):
        padded["boxes"][row, : lengths[row]], padded["labels"][row, : lengths[row]] = target["boxes"], target["labels"]
    _, listed = applied(transform, batch(), targets)
    _, y = applied(transform, batch(), padded)
    assert y["lengths"].tolist() == [len(target["boxes"]) for target in listed]
    for row, target in enumerate(listed):
        count = len(target["boxes"])
        assert len(target["labels"]) == count
        torch.testing.assert_close(y["boxes"][row, :count], target["boxes"])
        assert torch.equal(y["labels"][row, :count], target["labels"])
        assert (y["labels"][row, count:] == -1).all()
        assert (y["boxes"][row, count:] == 0).all()
        assert target["image_id"] == row


def test_boxes_of_resized_crops_are_scaled_and_cut() -> None:
    """The whole image as a box becomes the whole result; a box outside the crop is dropped with its label."""
    crop = RandomResizedCrop((20, 30))
    whole, corner = (
        [{"boxes": torch.tensor([[0.0, 0, *end]]), "labels": torch.tensor([5])} for _ in range(9)]
        for end in ((17, 12), (1, 1))
    )
    for target in applied(crop, batch(), whole)[1]:
        torch.testing.assert_close(target["boxes"], torch.tensor([[0.0, 0, 30, 20]]))
    left = [len(target["labels"]) for target in applied(crop, batch(), corner)[1]]
    assert left == [int(top == first == 0) for top, first, _, _ in crops_of()]


def test_nested_targets_are_found() -> None:
    """Masks in tuples and dicts move, labels of any shape stay."""
    _, masks = addresses()
    labels = torch.arange(9)
    y = {"mask": masks, "more": (labels, labels.view(9, 1, 1))}
    _, moved = applied(RandomFlip(1.0), batch(), y)
    assert torch.equal(moved["mask"], masks.flip(-1))
    assert torch.equal(moved["more"][0], labels)
    assert torch.equal(moved["more"][1], labels.view(9, 1, 1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32])
def test_normalize_is_the_formula(dtype: torch.dtype) -> None:
    """Bytes over their white, floats unchanged, minus the mean, divided by the deviation; means may be arrays."""
    images = batch(dtype=torch.int32).to(dtype)
    means, stds = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    white = {torch.uint8: 255, torch.uint16: 65535}.get(dtype, 1)
    mean, std = (torch.tensor(part).view(1, 3, 1, 1) for part in (means, stds))
    for given in ((means, stds), (np.array(means), np.array(stds))):
        torch.testing.assert_close(Normalize(*given)(images, NONE)[0], (images.float() / white - mean) / std)


def test_one_mean_normalises_x_of_any_shape() -> None:
    """Grey images without a channel axis, rows of a table, and images of different sizes: the axes stay."""
    for shape in ((4, 5, 6), (4, 7), (4,), (4, 3, 5, 6)):
        data = torch.arange(math.prod(shape)).reshape(shape).to(torch.uint8)
        torch.testing.assert_close(Normalize((0.5,), (0.25,))(data, NONE)[0], (data.float() / 255 - 0.5) / 0.25)
    images = [torch.full((3, size, 4), 255, dtype=torch.uint8) for size in (2, 5)]
    x, _ = Normalize((0.5,) * 3, (0.25,) * 3)(images, NONE)
    assert [tuple(image.shape) for image in x] == [(3, 2, 4), (3, 5, 4)]
    assert all((image == 2).all() for image in x)


def test_one_hot_leaves_void_empty() -> None:
    """One channel for each class; void pixels are in none."""
    y = torch.tensor([[[0, 2], [255, 1]]], dtype=torch.uint8)
    _, hot = OneHot(3)(NONE, y)
    assert hot.shape == (1, 3, 2, 2)
    assert torch.equal(hot.sum(dim=1), torch.tensor([[[1.0, 1.0], [0.0, 1.0]]]))
    assert torch.equal(hot.argmax(dim=1)[0, 0], torch.tensor([0, 2]))
    _, labels = OneHot(300, dtype=torch.uint8)(NONE, torch.tensor([299, 1, -1]))
    assert labels.nonzero().tolist() == [[0, 299], [1, 1]]


def test_compose_is_its_parts_in_turn() -> None:
    """Equal parts draw independently, plain callables are called, one-hot masks follow the same geometry."""
    images, masks = addresses()
    seen: list[torch.dtype] = []

    def plain(x: Any, y: Any) -> tuple[Any, Any]:
        seen.append(x.dtype)
        return x, y % 7

    x, y = applied(Compose([RandomFlip(), RandomCrop((6, 9)), plain, OneHot(7), RandomFlip()]), images, masks)
    assert torch.equal(y.argmax(dim=1).float(), x[:, 0] % 7)
    assert seen == [torch.float32]
    twice, _ = applied(Compose([RandomFlip(), RandomFlip()]), images)
    unchanged = (twice == images).flatten(1).all(dim=1)
    assert 0 < int(unchanged.sum()) < 9


def test_transforms_pickle() -> None:
    """They work unchanged after a trip to another process."""
    for transform in (*ALL, OneHot(3), Compose(ALL)):
        assert repr(pickle.loads(pickle.dumps(transform))) == repr(transform)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: RandomFlip(1.5), "horizontal=1.5"),
        (lambda: RandomFlip(vertical=-1), "vertical=-1"),
        (lambda: RandomCrop(0), "size=0"),
        (lambda: RandomCrop(4, padding=-1), "padding=-1"),
        (lambda: RandomResizedCrop((3, 4, 5)), "size="),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(3, scale=(0, 1)), "scale="),
        (lambda: RandomResizedCrop(3, ratio=(2, 1)), "ratio="),
        (lambda: Normalize((0.1,), ()), "std"),
        (lambda: Normalize((0.1,), (0.0,)), "std above 0"),
        (lambda: Normalize((0.1,), (1.0,), dtype=torch.uint8), "dtype"),
        (lambda: OneHot(0), "classes=0"),
        (lambda: OneHot(3)(NONE, torch.zeros(2)), "float32"),
        (lambda: RandomCrop(18)(batch(), NONE), "12 x 17"),
        (lambda: RandomFlip()([batch()[0]], NONE), "list"),
        (lambda: RandomFlip()(torch.zeros(3, 4), NONE), r"\(3, 4\)"),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[], object], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        make()


def test_means_of_other_channels_are_refused() -> None:
    """Three means do not fit grey images, nor anything else."""
    for shape in ((4, 1, 5, 6), (4, 3, 5), (4, 20, 3), (4, 2, 3, 5, 6)):
        with pytest.raises(OptionError, match="3 channels"):
            Normalize((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))(torch.zeros(shape), NONE)


RNG = np.random.default_rng(0)
# Places in images of 96 x 96 around their middle, as of parts of faces.
FACES = 48 + RNG.normal(0, 1, (20, 5, 1)) * [3, 4] + RNG.uniform(-25, 25, (1, 5, 2))
POINTS: dict[str, tuple[Any, bool]] = {
    "landmarks": (FACES, True),
    "in a row": (FACES.reshape(20, 10).astype(np.float32), True),
    "as whole numbers": (FACES.reshape(20, 10).astype(np.int64), True),
    "some of them missing": (np.where(RNG.random((20, 5, 1)) < 0.3, np.nan, FACES), True),
    "with what is visible": (np.concatenate([FACES, RNG.integers(0, 3, (20, 5, 1))], axis=2), True),
    "as parts of the sides": (FACES / 96, True),
    "one point": (FACES[:, 0], True),
    "corners of a box": (np.sort(FACES, axis=1)[:, [0, 4]].reshape(20, 4), True),
    "classes of five things": (RNG.integers(0, 2, (20, 5)), False),
    "two classes of five things": (np.eye(2)[RNG.integers(0, 2, (20, 5))], False),
    "counts": (RNG.integers(0, 9, (20, 10)), False),
    "parts of a whole": (RNG.dirichlet(np.ones(10), 20), False),
    "features": (RNG.normal(0, 1, (20, 10)), False),
    "a matrix": (RNG.uniform(-1, 1, (20, 3, 3)), False),
    "age and class": (np.stack([RNG.integers(1, 90, 20), RNG.integers(0, 2, 20)], axis=1), False),
}


@pytest.mark.parametrize(("y", "are_points"), POINTS.values(), ids=POINTS)
def test_points_that_would_not_move_are_refused(tmp_path: Path, y: Any, *, are_points: bool) -> None:
    """Other numbers stay as they are; the error's line is for numbers that only look like points."""
    x = RNG.integers(0, 256, (20, 96, 96, 3), np.uint8)
    dataset = dataset_h5(write_rows(tmp_path / "points.h5", x, y))
    augment: Any = Compose([Normalize((0.5,), (0.5,)), RandomFlip(1.0)])
    if are_points:
        with pytest.raises(
            OptionError, match=r"RandomFlip would move x alone.*Compose\(\[lambda x, y: \(x, y\), augment\]"
        ):
            make_loader(dataset, 20, batch_transform=augment)
        make_loader(dataset, 20, batch_transform=augment.transforms[0])
    as_it_says = Compose([lambda x, y: (x, y), augment]) if are_points else augment
    ((moved, same),) = make_loader(dataset, 20, shuffle=False, batch_transform=as_it_says)
    np.testing.assert_array_equal(same, y)
    np.testing.assert_allclose(moved.permute(0, 2, 3, 1).flip(2), x / 127.5 - 1, rtol=0, atol=1e-6)
    by_seed = Compose([*as_it_says.transforms, RandomFlip(0.5, 0.5)])
    one, other = (next(iter(make_loader(dataset, 20, seed=1, batch_transform=by_seed)))[0] for _ in range(2))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_mean_of_bytes_is_refused_with_that_of_fractions(tmp_path: Path, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 256, (8, 12, 17, 3), np.uint8)
    dataset = dataset_h5(write_rows(tmp_path / "rows.h5", x, np.arange(8)))
    with pytest.raises(OptionError, match=re.escape("Write Normalize((0.5,), (0.5,)).")):
        make_loader(dataset, 8, dtype=dtype, batch_transform=Normalize((127.5,), (127.5,)))
    ((found, _),) = make_loader(dataset, 8, shuffle=False, dtype=dtype, batch_transform=Normalize((0.5,), (0.5,)))
    np.testing.assert_allclose(found.permute(0, 2, 3, 1), x / 127.5 - 1, rtol=0, atol=1e-6)


def test_in_a_loader_a_sample_is_treated_alike_in_any_batch(make_file: Callable[..., Any]) -> None:
    """Differently in each epoch, but the same with any batch size, and after a resume in the middle."""
    dataset = dataset_h5(make_file("pack", 23).path, return_index=True)
    augment = Compose([RandomCrop(8, padding=1), RandomFlip()])

    def by_row(batches: Any) -> dict[int, bytes]:
        return {
            int(row): image.numpy().tobytes() for (x, _), rows in batches for image, row in zip(x, rows, strict=True)
        }

    loaders = [make_loader(dataset, size, seed=6, batch_transform=augment) for size in (5, 4)]
    epochs = [[by_row(loader) for _ in range(2)] for loader in loaders]
    assert epochs[0] == epochs[1]
    assert all(epochs[0][0][row] != epochs[0][1][row] for row in (0, 1, 2))
    resumed = make_loader(dataset, 5, seed=6, batch_transform=augment)
    resumed.load_state_dict({**resumed.state_dict(), "epoch": 1, "batches_done": 3})
    left = by_row(resumed)
    assert len(left) == 8
    assert left.items() <= epochs[0][1].items()


def test_what_a_seed_draws_is_the_same_for_ever(make_file: Callable[..., Any]) -> None:
    """Runs are resumed on other machines and with other versions, so order and augmentation must not change."""
    sample = make_file("pack", 10)
    dataset = dataset_h5(sample.path, return_index=True)
    loader = make_loader(dataset, 10, seed=7, batch_transform=RandomFlip())
    loader.set_epoch(2)
    (((x, _), index),) = loader
    flipped = [
        not np.array_equal(image, sample.x[row]) for image, row in zip(x.permute(0, 2, 3, 1), index, strict=True)
    ]
    assert index.tolist() == [8, 6, 4, 0, 5, 7, 1, 3, 9, 2]
    assert flipped == [False] * 4 + [True] * 5 + [False]

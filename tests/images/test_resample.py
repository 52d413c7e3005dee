"""Images scaled by torch's kernel: within one grey level of Pillow, the same bytes on any thread, or by Pillow."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from colabstage.images.decode import Scratch, can_torch_resize, decode_sized, fit_pixels, resample
from colabstage.images.geometry import ImageOptions, place_image

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.images.geometry import Resize

# Heights and widths before and after: smaller, larger, one side alone, one pixel.
SIZES = [
    ((375, 500), (224, 224)),
    ((224, 500), (224, 224)),
    ((100, 40), (224, 224)),
    ((1, 1), (9, 7)),
    ((1, 700), (30, 20)),
    ((3000, 2), (64, 64)),
    ((31, 33), (1, 1)),
    ((64, 64), (63, 65)),
]

needs_kernel = pytest.mark.skipif(
    not can_torch_resize(), reason="needs torch's kernel: pip install torch, on a processor with AVX2"
)


def noise(*shape: int, seed: int = 0, dtype: Any = np.uint8) -> NDArray[Any]:
    """Every value there is, in no order: the hardest image to agree on."""
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


def by_pillow(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.int64]:
    """What Pillow makes of the whole image."""
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR)).astype(np.int64)


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """The image's bytes, hardly compressed."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


@needs_kernel
@pytest.mark.parametrize(("source", "target"), SIZES)
def test_torch_is_within_one_grey_level_of_pillow(source: tuple[int, int], target: tuple[int, int]) -> None:
    """In every pixel, of noise and of black and white, whether an image shrinks or grows."""
    for pixels in (noise(*source, 3), np.where(noise(*source, 3, seed=1) < 128, 0, 255).astype(np.uint8)):
        found = resample(pixels, place_image(source, target, "stretch"), resizer="torch")
        assert found.shape == (*target, 3)
        assert found.dtype == np.uint8
        assert np.abs(found - by_pillow(pixels, target)).max() <= 1


@needs_kernel
def test_torch_agrees_with_pillow_on_a_hundred_random_sizes() -> None:
    """Sides from 1 to 500 pixels, both ways."""
    random = np.random.default_rng(3)
    for seed in range(100):
        height, width, rows, columns = (int(side) for side in np.exp(random.uniform(0, np.log(500), 4)))
        pixels = noise(height, width, 3, seed=seed)
        found = resample(pixels, place_image((height, width), (rows, columns), "stretch"), resizer="torch")
        assert np.abs(found - by_pillow(pixels, (rows, columns))).max() <= 1


@needs_kernel
def test_torch_cuts_whole_pixels_out_of_memory_that_is_read_only() -> None:
    """A box with whole edges is what Pillow makes of that box; what it is cut from is not written to, nor warned of."""
    pixels = noise(90, 150, 3)
    before = pixels.copy()
    pixels.flags.writeable = False
    options = ImageOptions(size=(45, 45), resize="crop")
    assert np.abs(fit_pixels(pixels, options, resizer="torch") - by_pillow(before[:, 30:120], (45, 45))).max() <= 1
    whole = fit_pixels(pixels, ImageOptions(size=(45, 45)), resizer="torch")
    assert np.abs(whole - by_pillow(before, (45, 45))).max() <= 1
    np.testing.assert_array_equal(pixels, before)


@needs_kernel
def test_torch_pads_with_black() -> None:
    """The scaled image in the middle, zeros around it, also in memory that had another image before."""
    scratch = Scratch()
    scratch.resized((60, 60, 3))[...] = 255
    pixels = noise(40, 80, 3)
    found = resample(pixels, place_image((40, 80), (60, 60), "pad"), resizer="torch", scratch=scratch)
    assert not found[:15].any()
    assert not found[45:].any()
    assert np.abs(found[15:45] - by_pillow(pixels, (30, 60))).max() <= 1


@needs_kernel
@pytest.mark.parametrize(
    ("pixels", "resize"),
    [
        (noise(91, 150, 3), "crop"),
        (noise(90, 150, 1), "stretch"),
        (noise(90, 150, 4), "stretch"),
        (noise(90, 150, 1, dtype=np.uint16), "stretch"),
        (noise(90, 150, 1, dtype=np.float32), "pad"),
    ],
    ids=["a box with fractions", "grayscale", "alpha", "16 bits", "floating point"],
)
def test_all_else_stays_with_pillow(pixels: NDArray[Any], resize: Resize) -> None:
    """What torch has no fast kernel for comes out the same, bit for bit, whichever is asked for."""
    options = ImageOptions(size=(40, 44), color_mode="keep", resize=resize)
    np.testing.assert_array_equal(fit_pixels(pixels, options, resizer="torch"), fit_pixels(pixels, options))


@needs_kernel
@pytest.mark.parametrize("size", [(224, 224), (150, 200), (90, 50)])
def test_photographs_of_any_reduction_stay_close_to_the_exact_result(size: tuple[int, int]) -> None:
    """A JPEG that is decoded at a half or a quarter first, or not at all, is within three grey levels in the mean."""
    coarse = Image.fromarray(noise(12, 16, 3))
    pixels = np.asarray(coarse.resize((500, 376), Image.Resampling.BICUBIC))
    data = jpeg(pixels)
    exact = by_pillow(np.asarray(Image.open(io.BytesIO(data))), size)
    found, own, _ = decode_sized(data, ImageOptions(size=size), resizer="torch")
    assert own == (376, 500)
    assert np.abs(found - exact).mean() < 3.0
    if size == (224, 224):  # neither side is reduced before: torch needs no whole blocks to be fast
        assert np.abs(found - exact).max() <= 1


@needs_kernel
def test_threads_and_used_memory_do_not_show() -> None:
    """The same bytes from one thread and from eight, each with memory of its own that it uses again."""
    files = [jpeg(noise(200 + 7 * seed, 300 - 5 * seed, 3, seed=seed)) for seed in range(6)] * 10
    options = ImageOptions(size=(96, 80))
    expected = [decode_sized(data, options, resizer="torch")[0] for data in files]

    def decode(mine: list[bytes]) -> list[NDArray[Any]]:
        scratch = Scratch()
        return [decode_sized(data, options, resizer="torch", scratch=scratch)[0].copy() for data in mine]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(decode, [files] * 8):
            assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@needs_kernel
def test_the_kernel_starts_no_threads_of_its_own() -> None:
    """torch's pool would fight with the workers over the cores: none of its threads appears."""
    script = """
import os, numpy as np
from colabstage.images.geometry import ImageOptions
from colabstage.images.decode import fit_pixels
from colabstage.images.decode import can_torch_resize
assert can_torch_resize()
before = len(os.listdir("/proc/self/task"))
for side in (100, 1000):
    fit_pixels(np.zeros((side, side, 3), np.uint8), ImageOptions(size=(224, 224), resize="crop"), resizer="torch")
assert len(os.listdir("/proc/self/task")) == before
"""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("needs /proc, to count threads: run it on Linux")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize(
    ("before", "variables"),
    [
        ("import sys; sys.modules['torch'] = None", {}),
        ("", {"ATEN_CPU_CAPABILITY": "default"}),
    ],
    ids=["no torch", "no AVX2"],
)
def test_torch_does_not_resize_where_it_cannot(before: str, variables: dict[str, str]) -> None:
    """Without torch, and on a processor without its fast kernel, the answer is no, not an error."""
    if variables:
        pytest.importorskip("torch", reason="needs torch: pip install torch")
    script = f"{before}\nfrom colabstage.images.decode import can_torch_resize\nprint(can_torch_resize())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
    )
    assert done.stdout == "False\n"

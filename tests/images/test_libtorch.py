"""torch's kernel without torch: the same bytes, at less cost, and nothing in the way of an import that follows."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from colabstage.images.libtorch import LibTorch, find_libtorch
from colabstage.images.resample import can_torch_resize
from tests.support.libtorch import SIZES, has_libtorch

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


pytestmark = pytest.mark.skipif(not has_libtorch(), reason="needs torch 2.10 or later on Linux: pip install torch")
READY = "import sys, numpy as np\nfrom colabstage.images.resample import can_torch_resize, scale_by_torch\n"


def run(script: str) -> str:
    """What a script prints in a process that has imported nothing."""
    done = subprocess.run(
        [sys.executable, "-c", READY + script], check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    """Every value there is, in no order."""
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.torch
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("source", "target"), SIZES)
def test_the_library_scales_as_an_imported_torch_does(
    source: tuple[int, int], target: tuple[int, int], channels: int
) -> None:
    """To the bit, whichever way the kernel is reached, or the bytes of a pack would show what was imported before."""
    import torch

    path, kernel = find_libtorch(), cast("Any", torch._C._nn)._upsample_bilinear2d_aa
    assert path is not None
    for seed in range(5):
        pixels = noise(*source, channels, seed=seed)
        found, expected = (np.empty((*target, channels), np.uint8) for _ in range(2))
        LibTorch(path).scale(pixels, found)
        views: list[Any] = [torch.from_numpy(one.transpose(2, 0, 1)[None]) for one in (pixels, expected)]
        kernel(views[0], target, False, None, None, out=views[1])
        np.testing.assert_array_equal(found, expected)
    assert LibTorch(path).capability == torch.backends.cpu.get_cpu_capability()


def test_torch_is_not_imported_to_resize_and_can_be_imported_afterwards() -> None:
    """A process that only packs spares itself the import; one that imports torch later trains, and scales as before."""
    script = """
pixels = (np.arange(90 * 70 * 3) * 2654435761 >> 9).astype(np.uint8).reshape(90, 70, 3)
before, after = np.empty((30, 40, 3), np.uint8), np.empty((30, 40, 3), np.uint8)
print(can_torch_resize(), end=" ")
scale_by_torch(pixels, before)
print("torch" in sys.modules, end=" ")
import torch
loss = torch.nn.Conv2d(3, 4, 3)(torch.ones(1, 3, 8, 8)).sum()
loss.backward()
scale_by_torch(pixels, after)
print(np.array_equal(before, after), end=" ")
views = [torch.from_numpy(one.transpose(2, 0, 1)[None]) for one in (pixels, after)]
torch._C._nn._upsample_bilinear2d_aa(views[0], (30, 40), False, None, None, out=views[1])
print(np.array_equal(before, after))
"""
    usable, *found = run(script).split()
    assert found == ["False", "True", "True"]
    # Without AVX2 it is not used, and not imported to find that out either.
    assert usable == str(can_torch_resize())


def test_other_threads_go_on_while_the_library_is_loaded() -> None:
    """Readers of a slow mount take the interpreter lock hundreds of times meanwhile."""
    script = """
import threading, time
from colabstage.images.libtorch import LibTorch, find_libtorch
ticks, done, path = [], threading.Event(), find_libtorch()
def tick():
    while not done.wait(0.001):
        ticks.append(time.perf_counter())
threading.Thread(target=tick).start()
began = time.perf_counter()
LibTorch(path)
ended = time.perf_counter()
done.set()
print(sum(began < at < ended for at in ticks))
"""
    assert int(run(script)) >= 5


@pytest.mark.torch
@pytest.mark.parametrize("problem", ["another library", "no library"])
def test_where_the_library_is_of_no_use_torch_is_imported(tmp_path: Path, problem: str) -> None:
    """An older torch lacks the calls, another system the file: the pixels are the same, only later."""
    path = find_libtorch()
    assert path is not None
    other = path.with_name("libc10.so")
    if problem == "no library":
        other = tmp_path / "libtorch_cpu.so"
        other.write_bytes(b"no library")
    script = f"""
from pathlib import Path
from colabstage.images import resample
resample.find_libtorch = lambda: Path({str(other)!r})
usable = can_torch_resize()
print(usable == ("AVX" in sys.modules["torch"].backends.cpu.get_cpu_capability()))
"""
    assert run(script) == "True\n"


def test_scaling_thousands_of_images_keeps_no_memory() -> None:
    """Lists and tensors that are handed over are gone after the call: a hundred bytes of each would show here."""
    script = """
import resource
from colabstage.images.libtorch import LibTorch, find_libtorch
library = LibTorch(find_libtorch())
pixels, out = np.zeros((9, 9, 3), np.uint8), np.empty((4, 4, 3), np.uint8)
def scale(times):
    for _ in range(times):
        library.scale(pixels, out)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = scale(20_000)
print(scale(60_000) - before)
"""
    assert int(run(script)) < 4_000


@pytest.mark.parametrize("later_s", [0.0, 0.04, 0.08])
def test_a_child_forked_while_the_library_is_loaded_can_use_it(later_s: float) -> None:
    """It would wait for threads that it does not have, or find a library of which half is there."""
    script = f"""
import os, signal, threading, time, warnings
from pathlib import Path
from PIL import Image
warnings.simplefilter("ignore", DeprecationWarning)
found = []
loading = threading.Thread(target=lambda: found.append(can_torch_resize()))
loading.start()
while loading.is_alive() and "libtorch_cpu" not in Path("/proc/self/maps").read_text():
    time.sleep(0.001)
time.sleep({later_s})
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(10 + can_torch_resize())
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
loading.join(60)
print(status == 10 + found[0], status)
"""
    assert run(script).split()[0] == "True"

"""Call torch's kernel that scales images without importing torch, of which it needs one library.

Since 2.10 that library has a C interface that stays the same from version to version and calls any operator by its name
(the LibTorch Stable ABI: `torch/csrc/stable/c/shim.h`). To load it takes a sixth of the processor time of an import and
half its memory, and other threads of Python go on meanwhile. An `import torch` that follows finds it loaded.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Its library is called otherwise elsewhere, and `LibTorch.capability` goes by how this processor returns texts.
_PLATFORM = ("linux", "x86_64")
# What the calls below are written for: torch 2.10. A later one translates what has changed since.
_WRITTEN_FOR = (2 << 56) | (10 << 48)
# As `at::ScalarType` and `c10::DeviceType` number them.
_UINT8, _CPU = 0, 0
_OPERATOR, _OVERLOAD = b"aten::_upsample_bilinear2d_aa", b"out"
# `std::string at::get_cpu_capability()`, which has no name in C.
_CAPABILITY = "_ZN2at18get_cpu_capabilityB5cxx11Ev"
_LONGEST_TEXT = 64

_Pointer, _Error = ctypes.c_void_p, ctypes.c_int32
_Four = ctypes.c_int64 * 4
_Arguments = ctypes.c_uint64 * 6


class _Text(ctypes.Structure):
    """A `std::string`: where its characters are, and how many; the rest is its own."""

    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("own", ctypes.c_char * 16))


class LibTorch:
    """The library of an installed torch. Any number of threads may scale by it at once."""

    def __init__(self, path: Path) -> None:
        """Load it.

        Raises:
            OSError: it cannot be loaded.
            AttributeError: it is of a torch that is too old.
        """
        handle = _open_library(path)
        # What takes no time keeps the interpreter lock: to give it away means to wait for it afterwards.
        quick = ctypes.PyDLL(str(path), handle=handle)
        self._call = _declared(
            ctypes.CDLL(str(path), handle=handle).torch_call_dispatcher,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_uint64,
        )
        self._view = _declared(
            quick.aoti_torch_create_tensor_from_blob,
            *(_Pointer, ctypes.c_int64, _Four, _Four, ctypes.c_int64),
            *(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(_Pointer)),
        )
        self._drop = _declared(quick.aoti_torch_delete_tensor_object, _Pointer)
        self._new_list = _declared(quick.torch_new_list_reserve_size, ctypes.c_size_t, ctypes.POINTER(_Pointer))
        self._append = _declared(quick.torch_list_push_back, _Pointer, ctypes.c_uint64)
        self._capability = quick[_CAPABILITY]
        self._capability.argtypes, self._capability.restype = (ctypes.POINTER(_Text),), None

    @property
    def capability(self) -> str:
        """Return the instructions that its kernels use, as `torch.backends.cpu.get_cpu_capability` does."""
        text = _Text()
        self._capability(ctypes.byref(text))
        return "" if text.length > _LONGEST_TEXT else ctypes.string_at(text.data, text.length).decode()

    def scale(self, pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Scale C-contiguous uint8 `(H, W, C)` of 1 or 3 channels into C-contiguous `out`, `(h, w, C)`.

        Raises:
            RuntimeError: torch refuses; it writes why to the standard error output.
        """
        height, width = out.shape[:2]
        size = _Pointer()
        _refuse_error(self._new_list(2, ctypes.byref(size)))
        for side in (height, width):
            _refuse_error(self._append(size, side))
        # Corners are not aligned, and both scales follow from the sizes. The call takes the list and both tensors over.
        stack = _Arguments(self._tensor(pixels), size.value or 0, 0, 0, 0, self._tensor(out))
        _refuse_error(self._call(_OPERATOR, _OVERLOAD, stack, _WRITTEN_FOR))
        _refuse_error(self._drop(stack[0]))  # another name for `out`

    def _tensor(self, pixels: NDArray[np.uint8]) -> int:
        """Return a tensor `(1, C, H, W)` of the same memory, as torch knows it."""
        height, width, channels = pixels.shape
        shape = _Four(1, channels, height, width)
        strides = _Four(pixels.size, 1, width * channels, channels)
        tensor = _Pointer()
        address = pixels.__array_interface__["data"][0]
        _refuse_error(self._view(address, 4, shape, strides, 0, _UINT8, _CPU, 0, ctypes.byref(tensor)))
        return tensor.value or 0


def find_libtorch() -> Path | None:
    """Return the library of the torch that `import torch` would find, `None` where it has none or it is not for here.

    Imports nothing.
    """
    if (sys.platform, platform.machine()) != _PLATFORM:
        return None
    spec = find_spec("torch")
    path = None if spec is None or spec.origin is None else Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    return path if path is not None and path.is_file() else None


def _open_library(path: Path) -> int:
    """Load a library without the interpreter lock, which Python itself would hold until its last page has come.

    Raises:
        OSError: it cannot be loaded.
    """
    program = ctypes.CDLL(None)
    program.dlopen.argtypes, program.dlopen.restype = (ctypes.c_char_p, ctypes.c_int), _Pointer
    handle = program.dlopen(os.fsencode(path), os.RTLD_NOW | os.RTLD_LOCAL)
    if not handle:
        msg = f"'{path}' cannot be loaded."
        raise OSError(msg)
    return int(handle)


def _declared(function: Any, *arguments: Any) -> Any:
    function.argtypes, function.restype = arguments, _Error
    return function


def _refuse_error(error: int) -> None:
    if error:
        msg = f"torch's {_OPERATOR.decode()} failed."
        raise RuntimeError(msg)

"""A model of CUDA's asynchrony over this computer's memory: what torch documents, with the latest and oddest schedules.

- Each stream runs its work in order, and streams run beside each other: here whenever anything is asked of the device,
  a random number of steps of random streams, and no more than must be done where a thread waits.
- A copy from pinned memory that was asked for with `non_blocking` reads it when it runs, and holds on to nothing but
  the address. From other memory it takes the bytes at once; without `non_blocking` the thread waits for it.
- Device memory goes back with the last reference to it, and is given out again at once to the stream it was made on;
  work that is queued on others finds it overwritten, unless it was recorded there.
- Pinned memory goes back with the last reference, and somebody else fills it, unless torch has seen its copies.

A missing wait or a buffer that is filled too early therefore gives wrong numbers.
"""

from __future__ import annotations

import contextlib
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
import torch
from torch import library
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
_GARBAGE, _SOMEBODY_ELSES = 0xA5, 0x5A
_WHOLE_BYTES = 512


class Token:
    """A place in a stream's queue, and whether it was reached."""

    reached = False


class Stream:
    """As `torch.cuda.Stream`."""

    def __init__(self, device: Any = None) -> None:
        self.gpu, self.device = GPU[0], torch.device("cuda", GPU[0].number(device))
        self.work: deque[tuple[Token | None, Callable[[], object]]] = deque()
        with self.gpu.asked():
            # Some fall behind.
            self.pace = self.gpu.random.choice([1, 100])
            self.gpu.streams.append(self)

    def queue(self, work: Callable[[], object], after: Token | None = None) -> None:
        self.work.append((after, work))

    def token(self) -> Token:
        token = Token()
        self.queue(lambda: setattr(token, "reached", True))
        return token

    def wait_event(self, event: Event) -> None:
        with self.gpu.asked():
            if event.token is not None:
                self.queue(lambda: None, event.token)

    def wait_stream(self, other: Stream) -> None:
        with self.gpu.asked():
            self.queue(lambda: None, other.token())

    def synchronize(self) -> None:
        with self.gpu.asked():
            self.gpu.run_until(self.token())


class Event:
    """As `torch.cuda.Event`."""

    def __init__(self, **_: Any) -> None:
        self.token: Token | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or GPU[0].current_stream()
        with stream.gpu.asked():
            self.token = stream.token()

    def synchronize(self) -> None:
        with GPU[0].asked():
            if self.token is not None:
                GPU[0].run_until(self.token)


class Block:
    """Device memory: goes back with the last tensor over it."""

    def __init__(self, gpu: Gpu, memory: torch.Tensor, stream: Stream) -> None:
        self.stream, self.users = stream, set[Stream]()
        weakref.finalize(self, gpu.free, memory, stream, self.users).atexit = False


class DeviceTensor(torch.Tensor):
    """A tensor on the device. `memory`: its numbers, as far as the streams have come."""

    memory: torch.Tensor
    block: Block

    @staticmethod
    def of(memory: torch.Tensor, block: Block) -> DeviceTensor:
        facts: Any = {"strides": memory.stride(), "storage_offset": memory.storage_offset(), "dtype": memory.dtype}
        made = torch.Tensor._make_wrapper_subclass(DeviceTensor, memory.shape, device=block.stream.device, **facts)
        made.memory, made.block = memory, block
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    def record_stream(self, stream: Any) -> None:
        if stream is not self.block.stream:
            self.block.users.add(stream)

    def new_tensor(self, values: Any) -> Any:  # type: ignore[override]
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Their bindings ask a build without CUDA for the device.
        if func is torch.Tensor.copy_:
            return aten.copy_.default(*args, **(kwargs or {}))
        if func is torch.Tensor.contiguous:
            return args[0] if args[0].is_contiguous(**(kwargs or {})) else aten.clone.default(args[0], **(kwargs or {}))
        if func is torch.Tensor.__setitem__:
            return args[0][args[1]].copy_(args[2])
        if func in _TO_HOST:
            return func(args[0].cpu(), *args[1:], **(kwargs or {}))
        if func is torch.Tensor.__getitem__:
            return GPU[0].call(func, args, {}, view=not any(isinstance(part, torch.Tensor) for part in _parts(args[1])))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        returns = func._schema.returns
        view = bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write
        return GPU[0].call(func, args, kwargs or {}, view=view)


_TO_HOST = {getattr(torch.Tensor, name) for name in ("__int__", "__float__", "__bool__", "item", "tolist")}


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


class Gpu:
    """Devices, their streams, and their memory."""

    def __init__(self, seed: int, devices: int = 1) -> None:
        self.random, self._lock = random.Random(seed), threading.RLock()
        self._eagerness = self.random.choice([0, 0, 1, 3])
        self.streams: list[Stream] = []
        self.most_blocks = self.free_bytes = 1 << 30
        self.waits = 0
        self._freed: list[tuple[torch.Tensor, Stream, list[Token]]] = []
        self._pinned: dict[int, tuple[torch.Tensor, list[Token]]] = {}
        self._own, self._devices = threading.local(), devices
        self._default: list[Stream] = []

    def start(self) -> None:
        self._default = [Stream(number) for number in range(self._devices)]

    @contextlib.contextmanager
    def asked(self) -> Generator[None]:
        """Something is asked of the device, which has meanwhile done a little or nothing."""
        with self._lock:
            for _ in range(self.random.randint(0, self._eagerness)):
                self._step()
            yield

    def _step(self) -> bool:
        ready = [one for one in self.streams if one.work and (one.work[0][0] is None or one.work[0][0].reached)]
        if ready:
            (stream,) = self.random.choices(ready, [one.pace for one in ready])
            stream.work.popleft()[1]()
        return bool(ready)

    def run_until(self, token: Token) -> None:
        while not token.reached:
            assert self._step(), "streams wait for each other"

    # Devices and current streams, each thread's own.

    def number(self, device: Any = None) -> int:
        index: int | None = device if isinstance(device, int) else torch.device(device or "cuda").index
        return getattr(self._own, "device", 0) if index is None else index

    def current_stream(self, device: Any = None) -> Stream:
        number = self.number(device)
        streams: dict[int, Stream] = getattr(self._own, "streams", {})
        return streams.get(number, self._default[number])

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Generator[None]:
        number, streams = self.number(), getattr(self._own, "streams", {})
        self._own.device, self._own.streams = stream.device.index, {**streams, stream.device.index: stream}
        try:
            yield
        finally:
            self._own.device, self._own.streams = number, streams

    def synchronize(self, device: Any = None) -> None:
        for stream in list(self.streams):
            if stream.device.index == self.number(device):
                stream.synchronize()

    # Memory.

    def empty(self, like: torch.Tensor, device: Any) -> DeviceTensor:
        """Return memory on the current stream, with what was there before."""
        if not self.most_blocks:
            msg = "CUDA out of memory."
            raise torch.OutOfMemoryError(msg)
        self.most_blocks -= 1
        stream = self.current_stream(device)
        nbytes = -(-max(1, like.untyped_storage().nbytes()) // _WHOLE_BYTES) * _WHOLE_BYTES
        fitting = [
            one for one in self._freed if one[1] is stream and len(one[0]) == nbytes and all(t.reached for t in one[2])
        ]
        if fitting:
            memory = fitting[-1][0]
            self._freed = [one for one in self._freed if one[0] is not memory]
        else:
            memory = torch.full((nbytes,), _GARBAGE, dtype=torch.uint8)
        flat = memory[: like.untyped_storage().nbytes()].view(like.dtype)
        return DeviceTensor.of(flat.as_strided(like.shape, like.stride()), Block(self, memory, stream))

    def free(self, memory: torch.Tensor, stream: Stream, users: set[Stream]) -> None:
        with self._lock:
            self._freed.append((memory, stream, [user.token() for user in users]))

    def pin(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        nbytes = max(1, dtype.itemsize * int(np.prod(shape)))
        held = bytearray([_GARBAGE]) * nbytes
        # Whatever torch or numpy make of it refers to this array, which is therefore the last to go.
        lent = np.ndarray(nbytes, np.uint8, buffer=held)
        raw, copies = torch.frombuffer(held, dtype=torch.uint8), list[Token]()
        with self._lock:
            self._pinned[raw.data_ptr()] = raw, copies
        weakref.finalize(lent, self._unpin, raw, copies).atexit = False
        return torch.from_numpy(lent).view(dtype)[: int(np.prod(shape))].view(shape)

    @staticmethod
    def _unpin(raw: torch.Tensor, copies: list[Token]) -> None:
        if all(token.reached for token in copies):
            raw.fill_(_SOMEBODY_ELSES)

    def pinned_at(self, host: torch.Tensor) -> int | None:
        """Return where the pinned memory begins that a tensor is in."""
        at = host.data_ptr() if host.layout == torch.strided else 0
        return next((base for base, (raw, _) in self._pinned.items() if base <= at < base + len(raw)), None)

    # Work.

    def call(self, func: Any, args: Any, kwargs: dict[str, Any], *, view: bool) -> Any:
        with self.asked():
            given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, DeviceTensor)]
            block = given[0].block if given else None
            if func is aten.copy_.default:
                return self._copy(*args, **kwargs)
            if func is aten._to_copy.default and torch.device(kwargs.get("device") or "cuda").type == "cpu":
                here = torch.empty_like(args[0].memory, dtype=kwargs.get("dtype"))
                return self._copy(here, args[0])
            if view and block is not None:
                return tree_map(lambda one: DeviceTensor.of(one, block), func(*_memory(args), **_memory(kwargs)))
            device = given[0].device if given else kwargs["device"]
            stream = self.current_stream(device)
            kwargs = {**kwargs, **({"device": "cpu"} if "device" in kwargs else {})}
            # Numbers and small tensors of the host go along by value.
            taken, named = _memory(args, own=True), _memory(kwargs, own=True)
            if getattr(func, "_schema", None) is not None and func._schema.is_mutable:
                stream.queue(lambda: func(*taken, **named))
                return kwargs.get("out", args[0])
            try:
                like = func(*_meta(args), **_meta(kwargs))
            except (NotImplementedError, RuntimeError):
                # What comes out depends on the numbers, so the thread waits for them.
                self.waits += 1
                self.run_until(stream.token())
                found = func(*taken, **named)
                if not isinstance(found, torch.Tensor):
                    return found
                taken, named, func, like = (found.clone(),), {}, torch.clone, found
            made = tree_map(lambda one: self.empty(one, device) if isinstance(one, torch.Tensor) else one, like)
            if func not in (aten.empty.memory_format, aten.empty_strided.default):
                places = _memory(made)
                stream.queue(lambda: tree_map(lambda to, one: to.copy_(one), places, func(*taken, **named)))
            return made

    def _copy(self, to: torch.Tensor, one: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        stream = self.current_stream((to if isinstance(to, DeviceTensor) else one).device)
        place, late = _memory(to), non_blocking
        if isinstance(one, DeviceTensor):
            source, late = one.memory, isinstance(to, DeviceTensor)
        elif non_blocking and (base := self.pinned_at(one)) is not None and one.stride() == to.stride():
            raw, copies = self._pinned[base]
            flat = raw[one.data_ptr() - base :][: one.untyped_storage().nbytes()]
            source = flat.view(one.dtype).as_strided(one.shape, one.stride())
        else:
            source, copies = one.clone(), []
        stream.queue(lambda: place.copy_(source))
        token = stream.token()
        if not isinstance(one, DeviceTensor):
            copies.append(token)
        if not late:
            self.waits += 1
            self.run_until(token)
        return to


def _memory(values: Any, *, own: bool = False) -> Any:
    def of(one: Any) -> Any:
        if isinstance(one, DeviceTensor):
            return one.memory
        return one.clone() if own and isinstance(one, torch.Tensor) else one

    return tree_map(of, values)


def _meta(values: Any) -> Any:
    def of(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return "meta" if one == "cpu" else one
        return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")

    return tree_map(of, values)


# The running one, for classes that stand in for torch's.
GPU: list[Gpu] = []


@contextlib.contextmanager
def simulated_gpu(monkeypatch: pytest.MonkeyPatch, seed: int, devices: int = 1) -> Generator[Gpu]:
    """Give torch a device "cuda" in this process."""
    if torch.version.cuda and not torch.cuda.is_available():
        pytest.skip("needs a torch built for CPUs, or a CUDA device: pip install torch==2.13.0+cpu")
    gpu = Gpu(seed, devices)
    empty: Any = torch.empty

    def new(*shape: Any, pin_memory: bool = False, dtype: Any = None, **named: Any) -> torch.Tensor:
        if pin_memory:
            return gpu.pin(shape if isinstance(shape[0], int) else shape[0], dtype)
        made: torch.Tensor = empty(*shape, dtype=dtype, **named)
        return made

    def made_here(make: Any, *, kernel: bool) -> Any:
        def made(*values: Any, device: Any = None, **named: Any) -> Any:
            there = make(*values, **named)
            return there if device is None else there.to(device, non_blocking=kernel)

        return made

    kernels: Any = library.Library("_", "IMPL", "CUDA")  # type: ignore[no-untyped-call]
    kernels.fallback(lambda op, *args, **kwargs: gpu.call(op, args, kwargs, view=False), "CUDA")
    with monkeypatch.context() as patch:
        GPU[:] = [gpu]
        gpu.start()
        patch.setattr(torch, "empty", new)
        patch.setattr(torch, "arange", made_here(torch.arange, kernel=True))
        patch.setattr(torch, "tensor", made_here(torch.tensor, kernel=False))
        patch.setattr(torch.Tensor, "is_pinned", lambda host: gpu.pinned_at(host) is not None)
        here = {
            "_lazy_init": lambda: None, "Stream": Stream, "Event": Event, "stream": gpu.stream,
            "current_stream": gpu.current_stream, "synchronize": gpu.synchronize,
            "mem_get_info": lambda device: (gpu.free_bytes, gpu.free_bytes),
            "memory_reserved": lambda device: 0, "memory_allocated": lambda device: 0, "_sleep": lambda cycles: None,
        }  # fmt: skip
        for name, value in here.items():
            patch.setattr(torch.cuda, name, value)
        try:
            yield gpu
        finally:
            gpu.synchronize()
            kernels._destroy()

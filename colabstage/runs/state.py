"""The state of a training run: copied out of live objects, and loaded into them again.

A version of a run is one file written by `torch.save`. It is read with `weights_only=True`, so it may hold tensors,
numbers, texts and containers of these, and nothing that would run code.
"""

from __future__ import annotations

import gc
import random
import re
from collections import ChainMap, Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from colabstage.errors import OptionError, said_by
from colabstage.h5.manifest import read_manifest
from colabstage.io.arguments import refuse_argument
from colabstage.io.units import listed
from colabstage.io.workspace import short_digest
from colabstage.load.epoch import choose_shard, digest_of, numpy_state
from colabstage.load.loader import Loader, OtherOrderError
from colabstage.machine.mounts import run_watched
from colabstage.runs.callbacks import Loop

if TYPE_CHECKING:
    from pathlib import Path

_PLAIN = (str, bytes, bool, int, float, complex, type(None), torch.Size, torch.dtype, torch.device)
# Begins the digest of a file without a manifest, which may have got one since.
ROWS = "rows "
_SOME_ROWS = 64
# Parts that show whether they have the weights that an optimizer trains.
_KNOWN = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
# Parts of optimizers and schedules that are no settings, or are elsewhere too.
_REPEATED = frozenset({"params", "base_lrs", "_last_lr", "_schedule_phases", "name", "seed"})
_MOST_SAID = 20
_AS_BEFORE = "Make it as it was when that version was saved, or begin a new run in another folder."
_NO_PLACE = (
    " Leave loader= out to save between epochs only, or give it what data.loader(…) or make_loader(…) returns, and "
    "iterate over that: what another library prepares of it is another loader."
)


class Copier:
    """Copies states into the computer's memory, and reuses that memory for the next copy."""

    def __init__(self) -> None:
        self._spare: dict[tuple[Any, ...], list[torch.Tensor]] = {}

    def copy(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Copy the state of each part; tensors that share memory share it in the copy."""
        with torch.no_grad():
            known: dict[tuple[Any, ...], torch.Tensor] = {}
            return {name: self._copy(state, name, known) for name, state in states.items()}

    def give_back(self, copied: object) -> None:
        """Reuse the memory of a copy for the next one. Nothing may read it any more."""
        # Tied weights are one tensor of the copy, in two places.
        for tensor in {id(tensor): tensor for tensor in _tensors_in(copied)}.values():
            if tensor.layout == torch.strided:
                self._spare.setdefault((tensor.shape, tensor.dtype), []).append(tensor)

    def _copy(self, value: Any, name: str, known: dict[tuple[Any, ...], torch.Tensor]) -> Any:
        if isinstance(value, torch.Tensor):
            if is_lazy(value) or value.is_meta:
                msg = f"{name} has no numbers yet. Call the model with a batch before, as lazy layers need."
                raise OptionError(msg)
            return self._tensor(value, known)
        if isinstance(value, Mapping):
            copied = {_plain(key, name): self._copy(item, f"{name}[{key!r}]", known) for key, item in value.items()}
            return _of_same_kind(copied, value)
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            items = [self._copy(item, f"{name}[{number}]", known) for number, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, set | frozenset):
            return {_plain(item, name) for item in value}
        return _plain(value, name)

    def _tensor(self, tensor: torch.Tensor, known: dict[tuple[Any, ...], torch.Tensor]) -> torch.Tensor:
        source = tensor.detach()
        if source.layout != torch.strided:
            return source.to("cpu", copy=True)
        place = (source.data_ptr(), source.shape, source.stride(), source.dtype, source.device)
        if source.numel() and place in known:
            return known[place]
        spare = self._spare.get((source.shape, source.dtype))
        copied = spare.pop() if spare else torch.empty(source.shape, dtype=source.dtype)
        known[place] = copied.copy_(source)
        return copied


def _plain(value: Any, name: str) -> Any:
    """Return a value without parts, or a key, as it can be read back."""
    # A scheduler may hold a metric as numpy computed it.
    value = value.item() if isinstance(value, np.generic) else value
    if type(value) is tuple:
        return tuple(_plain(item, name) for item in value)
    # By its class: an Enum may be a str as well, and is read back by running code.
    if type(value) not in _PLAIN:
        msg = (
            f"The state of {name} has a {type(value).__name__}, which could not be read back without running code. A "
            "state_dict() may return tensors, numbers, texts, and lists and dicts of these."
        )
        raise OptionError(msg)
    return value


def _of_same_kind(copied: dict[Any, Any], state: Any) -> Mapping[Any, Any]:
    if isinstance(state, Counter):  # milestones of a schedule
        return Counter(copied)
    if not hasattr(state, "_metadata"):
        return copied
    # From this metadata, a module knows which of its versions wrote a state.
    ordered: Any = OrderedDict(copied)
    ordered._metadata = state._metadata
    return ordered  # type: ignore[no-any-return]


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item)


def random_state() -> dict[str, Any]:
    """Return the state of Python's, numpy's and torch's random generators, including those of CUDA devices in use."""
    version, numbers, gauss = random.getstate()
    kind, words, place, has_gauss, cached = numpy_state()
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [str(kind), [int(word) for word in words], int(place), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call]
    }


def set_random_state(state: Mapping[str, Any], *, rank: int = 0) -> None:
    """Set all random generators to a state. It is the first rank's; every other rank gets numbers of its own."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, words, *rest = state["numpy"]
    np.random.set_state((kind, np.array(words, np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    for device, cuda in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(cuda, device)
    if rank:
        seed = int(short_digest(f"{rank} {state['torch'].tolist()}"), 16) % 2**63
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed)


def check_parts(parts: Mapping[str, object]) -> None:
    """Refuse objects without a state to save."""
    if not parts:
        msg = "There is nothing to save; expected the parts of the training: resumable(folder, model=model, …)."
        raise OptionError(msg)
    for name, part in parts.items():
        # A class has its objects' methods.
        if isinstance(part, type):
            refuse_argument(name, part, f"an object of it: {part.__name__}(…)")
        weights = part.parameters() if isinstance(part, torch.nn.Module) else ()
        # FSDP's own class, and the tensors of its second form, have the others only in a call that all ranks make.
        if type(part).__name__ == "FullyShardedDataParallel" or any(hasattr(one, "to_local") for one in weights):
            msg = (
                f"{name} is spread over several ranks, and a run saves what one has. Use torch.distributed.checkpoint."
            )
            raise OptionError(msg)
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(part, method, None)) or (name == "loader" and not _tells_place(part)):
                msg = (
                    f"{name} is of class {type(part).__name__}, without {method}(), so it cannot be saved; "
                    "expected a model, an optimizer, a scheduler, a gradient scaler, or an object with state_dict() "
                    "and load_state_dict()." + (_NO_PLACE if name == "loader" else "")
                )
                raise OptionError(msg)
    _check_ranks(parts.get("loader"))
    models = [part for part in parts.values() if isinstance(part, torch.nn.Module)]
    saved = {id(one) for model in models for one in model.parameters()}
    optimizers = {id(one) for one in held_by(parts.values()) if isinstance(one, torch.optim.Optimizer)}
    for name, part in parts.items() if all(isinstance(part, _KNOWN) for part in parts.values()) else ():
        if isinstance(part, torch.optim.Optimizer) and any(id(one) not in saved for one in trained_by(part)):
            msg = f"{name} trains parameters of no part, so they are not saved. Pass their model, or make {name} again."
            raise OptionError(msg)
        is_schedule = isinstance(part, torch.optim.lr_scheduler.LRScheduler)
        if is_schedule and optimizers and id(getattr(part, "optimizer", None)) not in optimizers:
            msg = f"{name} sets the rates of an optimizer that is no part. Pass that one, or make {name} again."
            raise OptionError(msg)


def _check_ranks(loader: object) -> None:
    """Refuse a loader that knows nothing of the other ranks."""
    if not isinstance(loader, Loader) or choose_shard(None, None).world_size == 1:
        return
    asked = loader._pipeline.asked
    if loader._pipeline.schedule.shard.world_size == 1 and asked.rank is None and asked.sampler is None:
        msg = (
            "loader= was made before torch.distributed was initialised, so each rank would train on all samples. Make "
            "it after init_process_group(…), or after the Accelerator; or with rank= and world_size=."
        )
        raise OptionError(msg)


def _tells_place(loader: Any) -> bool:
    """Return whether a loader has a state; Accelerate's have the method, and nothing behind it."""
    try:
        loader.state_dict()
    except AttributeError:
        return False
    return True


def held_by(parts: Iterable[object]) -> list[object]:
    """Return the parts, and what each has as an attribute, as the wrappers of other libraries have an optimizer; of a
    schedule only itself, because its state has nothing of the optimizer's."""
    found: list[object] = []
    for part in parts:
        inside = {} if isinstance(part, torch.optim.lr_scheduler.LRScheduler) else getattr(part, "__dict__", {})
        found += [part, *inside.values()]
    return found


def is_scheduled(optimizer: object) -> bool:
    """Return whether there is a schedule of an optimizer, which does not know of any itself."""
    objects = gc.get_objects()
    known = torch.optim.lr_scheduler.LRScheduler
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, known)}
    return any(type(one) in kinds and getattr(one, "optimizer", None) is optimizer for one in objects)


def unwrapped(part: Any) -> Any:
    """Return the model inside DataParallel, DistributedDataParallel and `torch.compile`: its weights then have the same
    names with and without them, so that a run can continue either way."""
    if isinstance(part, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
        return unwrapped(part.module)
    is_compiled = isinstance(part, torch.nn.Module) and "_orig_mod" in vars(part).get("_modules", ())
    return unwrapped(part._orig_mod) if is_compiled else part


def kind_of_part(part: object) -> str:
    """Return what a part's state belongs to: its class; "" for models, because another class may fit as well."""
    return "" if isinstance(part, torch.nn.Module) else type(part).__name__


def numbers_of(parts: Mapping[str, object]) -> dict[str, Any]:
    """Return what parts are set to, each under the name that a program has for it; of models what their modules say of
    themselves, or else their plain attributes."""
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, torch.optim.Optimizer):
            found |= _settings(f"{name}.param_groups", part.param_groups)
        elif isinstance(part, torch.optim.lr_scheduler.LRScheduler):
            for key, value in part.state_dict().items():
                found |= _settings(f"{name}.{key}", value) if key not in _REPEATED else {}
        elif isinstance(part, torch.nn.Module):
            found[f"len([*{name}.modules()])"] = sum(1 for _ in part.modules())
            for at, module in part.named_modules(prefix=name):
                text = module.extra_repr()
                found |= {} if module._modules and not text else {at: f"{type(module).__name__}({text})"}
                found |= {} if text else {key: one for key, one in _attributes(at, module) if _is_setting(one)}
        elif isinstance(part, Loader):
            form = part._pipeline.form
            found[f"{name}.drop_last"] = str(part.drop_last)
            for key in ("dtype", "label_offset", "batch_transform", "dataset.transform"):
                # A function is shown with the place where it is in memory.
                text = re.sub(r" at 0x\w+", "", str(attrgetter(key)(form)))
                found[f"{name}.{key}"] = " ".join(text.split())
        elif isinstance(part, Loop):
            found |= numbers_of({f"{name}.{own}": one for own, one in part.inside().items()})
        elif isinstance(part, list):
            found |= numbers_of({f"{name}[{number}]": one for number, one in enumerate(part)})
        elif isinstance(part, Mapping):
            found |= _settings(name, part)
    return found


def what_differs(given: Mapping[str, Any], then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return sentences about what is not set alike by the program, as the run began, and once that is restored."""
    said = []
    for name, before, here in ((name, then[name], now[name]) for name in then if name in now):
        if here == before != given.get(name, here):
            said.append(f"{name} stays {here}, as the run began; for {given[name]} begin a new run.")
        elif here == given.get(name) != before:
            said.append(f"{name} is {here} from here on, and was {before} until now.")
    return said if len(said) <= _MOST_SAID else [*said[:_MOST_SAID], f"{len(said) - _MOST_SAID:,} more differ."]


def _settings(name: str, value: Any) -> dict[str, Any]:
    """Return a plain value by its name, or those in a mapping or list by theirs."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:  # a learning rate
        value = value.item()
    value = tuple(sorted(value.elements())) if isinstance(value, Counter) else value  # milestones
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    below = [_settings(f"{name}[{key!r}]", item) for key, item in items if key not in _REPEATED]
    plain = {name: value} if _is_setting(value) else {}
    return dict(ChainMap(plain, *below))


def _is_setting(value: object) -> bool:
    return all(type(one) in (int, float, bool, str) for one in (value if type(value) is tuple else [value]))


def _parameters(parts: Mapping[str, object]) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of all models, by name; one that models or layers share has several."""
    models = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
    return {
        f"{name}.{own}": one
        for name, part in models.items()
        for own, one in part.named_parameters(remove_duplicate=False)
    }


def trained_by(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def frozen_in(parts: Mapping[str, object]) -> list[str]:
    return [name for name, one in _parameters(parts).items() if not one.requires_grad]


def _attributes(name: str, module: torch.nn.Module) -> list[tuple[str, Any]]:
    """Return a module's own attributes, which no state includes, by name; private ones are their libraries' own."""
    return [(f"{name}.{key}", one) for key, one in vars(module).items() if key[0] != "_" and key != "training"]


def _all_attributes(name: str, part: object) -> list[tuple[str, Any]]:
    modules = part.named_modules(prefix=name) if isinstance(part, torch.nn.Module) else ()
    return [item for at, module in modules for item in _attributes(at, module)]


def has_unsaved(part: object) -> bool:
    """Return whether a model has plain attributes that are no settings, such as what a metric counts in."""
    return not all(isinstance(one, str | int | float | tuple | None) for _, one in _all_attributes("", part))


def plain_numbers(parts: Mapping[str, object]) -> dict[str, float]:
    """Return the plain attributes that are numbers: a temperature, a count of updates."""
    found = [item for name, part in parts.items() for item in _all_attributes(name, part)]
    return {key: one for key, one in found if type(one) in (int, float)}


def names_of(parts: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the names of each optimizer's parameters, in the order by which it numbers their states; "" for those of
    no model among the parts."""
    names = {id(one): name for name, one in _parameters(parts).items()}
    return {
        name: [names.get(id(one), "") for one in trained_by(part)]
        for name, part in parts.items()
        if isinstance(part, torch.optim.Optimizer)
    }


def trains_more(parts: Mapping[str, object], optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer trains parameters of the models that no optimizer among the parts does."""
    named = [one for one in parts.values() if isinstance(one, torch.optim.Optimizer)]
    left = set(map(id, _parameters(parts).values())) - {id(one) for each in named for one in trained_by(each)}
    return any(id(one) in left for one in trained_by(optimizer))


def _in_order(state: Mapping[str, Any], then: list[str], now: list[str]) -> Mapping[str, Any]:
    """Return an optimizer's state for its parameters in the order of now."""
    if then == now or "" in then + now or len(then) != len(now):  # which torch refuses
        return state
    groups = [slice(one["params"][0], one["params"][-1] + 1) for one in state["param_groups"] if one["params"]]
    # A group's settings stay with its parameters. LBFGS has one state for all.
    if any(sorted(then[own]) != sorted(now[own]) for own in groups) or len(state["state"]) == 1:
        saved, given = next(pair for pair in zip(then, now, strict=True) if pair[0] != pair[1])
        msg = f"it trains {given} in the place of {saved}."
        raise ValueError(msg)
    return {**state, "state": {now.index(then[number]): own for number, own in state["state"].items()}}


def load_parts(
    parts: Mapping[str, Any], kinds: Mapping[str, str], states: Mapping[str, Any], names: Mapping[str, Any]
) -> list[str]:
    """Load the state of each part; if one does not fit, all stay as they were.

    If a loader's rows come in another order than in the saved epoch, it begins that epoch again: its pack was still
    being made or copied, and may be complete now.

    Returns:
        sentences about what begins again.
    """
    if missing := sorted({*states} ^ {*parts}):
        saved, given = listed(sorted(states)), listed(sorted(parts))
        msg = (
            f"The run was saved with {saved}, and now has {given}; {listed(missing)} is not in both. Pass to "
            "resumable() what it was saved with."
        )
        raise OptionError(msg)
    for name, part in parts.items():
        if kinds[name] != kind_of_part(part):
            saved = kinds[name] or "model"
            msg = f"{name} is of class {type(part).__name__}, but the run was saved with {saved}. {_AS_BEFORE}"
            raise OptionError(msg)
    now, parameters = names_of(parts), _parameters(parts)
    one_name = {id(one): name for name, one in parameters.items()}
    before = Copier().copy({name: part.state_dict() for name, part in parts.items()})
    begun: list[str] = []
    notes: list[str] = []
    try:
        for name, part in parts.items():
            # Nothing was saved of a gradient scaler that was disabled, or of a trainer that had not begun.
            if not states[name] and not isinstance(part, torch.nn.Module):
                continue
            begun.append(name)
            try:
                then = [one_name.get(id(parameters.get(one)), one) for one in names.get(name, [])]
                part.load_state_dict(_in_order(states[name], then, now.get(name, [])))
            except OtherOrderError as error:
                part.set_epoch(error.epoch)
                notes.append(
                    f"Epoch {error.epoch} begins again: its rows came in another order then, while their pack was "
                    "being made or copied, and which of them are left is not known."
                )
    except Exception as error:
        for changed in reversed(begun):
            if before[changed]:  # a trainer has none before it trains
                parts[changed].load_state_dict(before[changed])
        msg = f"The saved state of {name} cannot be loaded: {said_by(error)}. {_AS_BEFORE}"
        raise OptionError(msg) from error
    return notes


def dataset_digest(loader: object) -> str:
    """Return a digest of the file that a loader reads: from its manifest, or, of another program's, from its targets
    and some inputs. Empty where there is no file, or not all of it is here."""
    dataset: Any = getattr(loader, "dataset", None)
    while hasattr(dataset, "dataset"):  # a Subset
        dataset = dataset.dataset
    reader: Any = getattr(dataset, "reader", None)
    paths = getattr(reader, "paths", ())
    return run_watched(lambda: _digest_of(reader, paths), *paths)


def _digest_of(reader: Any, paths: Sequence[Path]) -> str:
    manifests = [read_manifest(path) for path in paths]
    hashes = [digest for manifest in manifests if manifest for digest in manifest.hashes]
    if hashes and all(manifests):
        return short_digest(" ".join(hashes))
    if not manifests or reader.layout is not None:
        return ""
    some = range(0, len(reader), len(reader) // _SOME_ROWS + 1)
    # Numbers are read whole, and of masks some. Decoded images depend on the decoder.
    read = [reader.read_y(some if reader.target_shape else range(len(reader)))]
    read += [] if reader.encoded else [reader.read_x(some)]
    return f"{ROWS}{digest_of(*(part for part in read if isinstance(part, np.ndarray)))}"

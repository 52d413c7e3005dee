"""Tell a user's functions apart by what they do: their code, and the content of everything they refer to.

Libraries that hash or pickle functions name whatever can be imported instead of looking into it: to them, an edited
function under its old name, or a new value of a global, would be "the same". So this walks by itself: through code,
defaults, closures, the globals and classes that the code names, and through objects by what they would be pickled as.
An installed library counts by name and version. What cannot be pickled cannot be compared, and equals nothing, not even
itself.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import platform
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from colabstage.io.callers_code import codes_in, is_installed

if TYPE_CHECKING:
    import numpy as np

# Types whose `repr` is their content.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, bytearray, range, types.EllipsisType, types.NoneType})
# Members of classes that describe their source text, or that Python creates for each class.
_NOT_OF_A_CLASS = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __annotations__ __annotate__ __annotations_cache__ __firstlineno__ "  # noqa: SIM905
    "__static_attributes__ __abstractmethods__ _abc_impl __orig_bases__ __parameters__ "
    "__dataclass_fields__ __dataclass_params__".split()
)
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, types.MappingProxyType})
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


class Description(NamedTuple):
    """A description of a function, to compare it with another one."""

    name: str
    digest: str
    """16 hexadecimal digits that change whenever the function may behave differently."""
    unknown: tuple[str, ...] = ()
    """The types of objects in it that cannot be compared; if there are any, the digest means nothing."""


def describe_callable(function: Callable[..., Any]) -> Description:
    """Describe a function, or anything else that can be called.

    Libraries that it uses count only by their versions, and files that it reads do not count.
    """
    walk = _CodeWalk()
    digest = walk.digest(function).hex()
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return Description(name, digest[:16], tuple(walk.unknown))


class _CodeWalk:
    """One walk through a value and everything that it refers to.

    `unknown`: types that could not be compared, in order.
    """

    def __init__(self) -> None:
        self.unknown: dict[str, None] = {}
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._under_way: dict[int, int] = {}

    def digest(self, value: Any) -> bytes:
        """Return a hash of a value's content; equal values of one type have equal hashes."""
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, repr(value))
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        # A value that contains itself is named by how many steps back it began: its id differs between processes.
        if id(value) in self._under_way:
            return _hash("cycle", len(self._under_way) - self._under_way[id(value)])
        self._under_way[id(value)] = len(self._under_way)
        try:
            found = _hash(*self._parts(value))
        finally:
            del self._under_way[id(value)]
        self._known[id(value)] = (value, found)  # kept alive, so that no other object gets its id
        return found

    def _each(self, values: Iterable[Any]) -> list[bytes]:
        return [self.digest(value) for value in values]

    def _parts(self, value: Any) -> Iterable[Any]:
        kind = type(value)
        if kind in _CONTAINERS:
            parts = self._container(value)
        elif _is_array(value):
            parts = self._array(value)
        elif isinstance(value, types.ModuleType):
            parts = self._module(value, ())
        elif isinstance(value, types.CodeType):
            parts = self._code(value)
        elif isinstance(value, type):
            parts = self._class(value)
        elif callable(value):
            parts = self._function(value)
        else:
            parts = self._object(value)
        return parts

    def _container(self, value: Any) -> Iterable[Any]:
        kind = type(value).__name__
        if isinstance(value, (dict, types.MappingProxyType)):
            if {*map(type, value), *map(type, value.values())} <= _PLAIN:
                return (kind, repr(dict(value)))  # in one step, because tables of labels may be long
            return (kind, *self._each(value.keys()), *self._each(value.values()))
        # The order of a set differs between processes.
        if isinstance(value, (set, frozenset)):
            return (kind, *sorted(self._each(value)))
        return (kind, repr(value)) if set(map(type, value)) <= _PLAIN else (kind, *self._each(value))

    def _array(self, value: np.ndarray[Any, Any]) -> Iterable[Any]:
        import numpy as np
        import xxhash

        if value.dtype.hasobject:
            return ("array", repr(value.dtype), repr(value.shape), self.digest(value.tolist()))
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data if value.nbytes else b""
        content = xxhash.xxh3_128_digest(raw)
        return ("array", repr(value.dtype), repr(value.shape), content)

    def _function(self, value: Any) -> Iterable[Any]:
        wrapped = getattr(value, "__wrapped__", None)
        match value:
            case types.FunctionType():
                parts = self._python_function(value)
            case types.MethodType():
                parts = ("method", self.digest(value.__func__), self.digest(value.__self__))
            case functools.partial():
                named = [list(pair) for pair in sorted(value.keywords.items())]
                parts = ("partial", self.digest(value.func), self.digest(list(value.args)), self.digest(named))
            case types.BuiltinFunctionType() | types.MethodWrapperType():
                owner = value.__self__
                at_home = owner is None or isinstance(owner, types.ModuleType)
                library = _library_of(getattr(value, "__module__", None) or "", "built in") if at_home else ""
                parts = ("builtin", library, value.__qualname__, b"" if at_home else self.digest(owner))
            case _ if isinstance(wrapped, types.FunctionType) and type(value).__module__ == "functools":
                parts = ("wrapped", type(value).__qualname__, self.digest(wrapped))  # without what it has cached
            case _:
                parts = self._object(value)
        return parts

    def _python_function(self, value: types.FunctionType) -> Iterable[Any]:
        cells = [_content(cell) for cell in value.__closure__ or ()]
        held = self._each(([value.__defaults__, value.__kwdefaults__], cells))
        library = _library_of(value.__module__ or "", value.__code__.co_filename)
        # By version: walking through torch for each function that calls it would take for ever.
        if library:
            return ("library", library, value.__module__, value.__qualname__, *held)
        return ("function", self.digest(value.__code__), *held, *self._globals(value))

    def _code(self, code: types.CodeType) -> Iterable[Any]:
        """Return what a code object does, without its position in the file."""
        # The higher bits are the file's `from __future__` imports, which the code itself does not show.
        flags = code.co_flags & 0xFFFF
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        constants = self._each(code.co_consts)
        return ("code", code.co_code, repr(shape), repr(names), code.co_exceptiontable, *constants)

    def _globals(self, function: types.FunctionType) -> Iterator[Any]:
        """Return the globals that a function and the functions inside it use."""
        # In the user's own modules only the used attributes count: another function there may change freely.
        codes = list(codes_in(function.__code__))
        attributes = {name for code in codes for name in code.co_names}
        named = {str(one.argval) for code in codes for one in dis.get_instructions(code) if one.opname in _GLOBALS}
        for name in sorted(named):
            yield name
            if name not in function.__globals__:
                yield "built in" if hasattr(builtins, name) else "not there"
                continue
            value = function.__globals__[name]
            is_module = isinstance(value, types.ModuleType)
            yield _hash(*self._module(value, attributes)) if is_module else self.digest(value)

    def _module(self, module: types.ModuleType, attributes: Iterable[str]) -> Iterator[Any]:
        library = _library_of(module.__name__, getattr(module, "__file__", None) or "")
        yield from ("module", module.__name__, library)
        for name in sorted(attributes) if not library else ():
            value = vars(module).get(name)
            if value is not None and not isinstance(value, types.ModuleType):
                yield from (name, self.digest(value))

    def _class(self, kind: type) -> Iterable[Any]:
        library = _library_of(kind.__module__, getattr(sys.modules.get(kind.__module__), "__file__", None) or "")
        if library:
            return ("class", library, kind.__module__, kind.__qualname__)
        own = [(name, value) for name, value in sorted(vars(kind).items()) if name not in _NOT_OF_A_CLASS]
        members = [part for name, value in own for part in (name, self.digest(_function_of(value)))]
        return ("class", kind.__qualname__, *self._each(kind.__bases__), *members)

    def _object(self, value: Any) -> Iterable[Any]:
        """Return the parts of an object, as it would be pickled."""
        kind = type(value)
        if kind.__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
            value = _tensor_bytes(value)
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:  # noqa: BLE001 - whatever it raises, the object cannot be compared
            self.unknown[f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")] = None
            return ("unknown", kind.__qualname__)
        if isinstance(reduced, str):
            return ("named", self.digest(kind), reduced)
        made = self._each(list(part) if isinstance(part, Iterator) else part for part in reduced)
        return ("object", self.digest(kind), *made)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")  # not imported, because options are also built where only help is shown
    return numpy is not None and type(value) in (numpy.ndarray, numpy.memmap)


def _hash(*parts: Any) -> bytes:
    hasher = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode(errors="surrogateescape")
        hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.digest()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable of a function that is still being defined
        return "empty"


def _function_of(member: Any) -> Any:
    """Return the function that a class's member holds, for kinds of members that cannot be pickled."""
    if isinstance(member, property):
        return [member.fget, member.fset, member.fdel]
    if isinstance(member, (staticmethod, classmethod)):
        return [type(member).__name__, member.__func__]
    if isinstance(member, functools.cached_property):
        return ["cached", member.func]
    if isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        return member.__name__  # a slot
    return member


def _tensor_bytes(tensor: Any) -> Any:
    try:
        return tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError):  # for a dtype that is not numpy's own: as it is pickled
        return tensor


def _library_of(module: str, file: str) -> str:
    """Return name and version of the installed library that a module belongs to; "" for the user's own code."""
    top = module.partition(".")[0]
    if not is_installed(module, file):
        return ""
    if top in sys.stdlib_module_names:
        return f"python {platform.python_version()}"
    return f"{top} {getattr(sys.modules.get(top), '__version__', '')}"

"""How the arguments of public functions are defined and checked.

A frozen dataclass holds the names, defaults and docs of keyword arguments; public functions take them from there. Such
a function is written with `**options: Unpack[...]`, which type checkers read; what a person sees lists each argument by
name, and an unknown name is refused, as Python does.
"""

from __future__ import annotations

import codecs
import contextlib
import difflib
import inspect
import os
import posixpath
import re
import reprlib
from dataclasses import MISSING, fields, is_dataclass, replace
from itertools import islice
from numbers import Integral, Number, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, get_args

from colabstage.errors import ArgumentError, OptionError
from colabstage.io.environment import current_folder
from colabstage.io.units import hide_secrets, listed, show_address
from colabstage.io.workspace import is_our_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    # Where arguments are defined: the fields of a dataclass, or the keyword-only parameters of a function.
    Speller = type[Any] | Callable[..., Any]

# The kinds of value that an argument may be required to have.
Kind = Literal["above zero", "function", "number", "path", "switch", "text"]
_Options = TypeVar("_Options")

# For each kind, a check of the value and the kind's name in messages.
_KINDS: Mapping[Kind, tuple[Callable[[object], bool], str]] = {
    "above zero": (lambda given: isinstance(given, Real) and float(given) > 0, "more than 0"),
    "function": (callable, "a function"),
    # To Python `True` is an integer, but nobody means it as a number.
    "number": (lambda given: isinstance(given, int) and not isinstance(given, bool), "a whole number"),
    "path": (lambda given: isinstance(given, str | os.PathLike), "a path"),
    "switch": (lambda given: isinstance(given, bool), "True or False"),
    "text": (lambda given: isinstance(given, str), "text in quotes"),
}

# `Path("s3://bucket/key")` drops the other, and as a path it would make a folder called "s3:".
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")

# People often pass something else where a dataset_h5 is needed; this says what to write.
ONE_SPLIT = "Pass one split of what stage_dataset returned, data['train'], or open a file with dataset_h5(path)."

# Of names, as difflib measures it: `image_size` is not what `batch_size` was meant to be.
_CLOSE = 0.65

# The section of a docstring that describes arguments, and each entry of it.
_ARGS = re.compile(r"^Args:\n((?: +.*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}\S.*\n(?: {5,}.*\n)*", re.MULTILINE)


def spelt_signature(
    function: Callable[..., Any], spellers: Sequence[Speller], arguments: type[Any] | None = None
) -> inspect.Signature:
    """Return the signature of a function that ends in `**arguments`, with each argument that `spellers` define by name;
    only those in a `TypedDict`, if one is given."""
    spelt = [one for speller in spellers for one in parameters(speller, arguments)]
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    names = {one.name for one in own}
    by_place = [one for one in own if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    by_name = [one for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]
    return signature.replace(parameters=[*by_place, *(one for one in spelt if one.name not in names), *by_name])


def read_options(kind: type[_Options], options: object, given: Mapping[str, Any]) -> _Options:
    """Return `options`, or the defaults of `kind`, with the arguments given by name replacing their fields."""
    if options is None:
        return kind(**given)
    if not isinstance(options, kind):
        refuse_argument("options", options, f"a {kind.__name__}(…) of colabstage.options")
    return replace(options, **given) if given else options  # type: ignore[type-var]  # a dataclass, as every `kind` is


def check_argument(name: str, given: object, kind: Kind, *, remedy: str = "") -> None:
    """Refuse an argument of the wrong kind at once: later errors would not say which it was. `remedy`: a sentence with
    the line to write instead."""
    fits, words = _KINDS[kind]
    if not fits(given):
        refuse_argument(name, given, words, remedy=remedy)


def absolute_path(path: str | os.PathLike[str], name: str = "path", *, instead: str = "") -> Path:
    """Return the absolute path that a public argument of this name gives, with `~` expanded and links unresolved. The
    file system is not accessed. `instead`: what takes an address, or what to do with one first."""
    text = text_of_path(path, name)
    one = _ONE_SLASH.match(text)
    if not text or one or "://" in text:
        # A `Path` has dropped one of the slashes.
        what = f"{show_address(re.sub(':/+', '://', text, count=1))!r} is an address" if text else "'' names nothing"
        own = f" ('./{one[0]}…' is a folder)" if one else ""
        remedy = f"; {instead}" if instead and text else ""
        msg = f"{name}={what}; expected a path on this machine or on a mounted Drive{own}{remedy}."
        raise OptionError(msg)
    try:
        # `resolve` would follow links into Drive.
        return Path(os.path.normpath(current_folder() / Path(text).expanduser()))
    except RuntimeError as error:  # the home of an unknown user
        msg = f"{text!r} leads nowhere here ({error}). Give an absolute path."
        raise OptionError(msg) from None


def text_of_path(path: str | os.PathLike[str], name: str) -> str:
    """Return the text of a path, a pattern or an address; refuse what no file can be called."""
    check_argument(name, path, "path")
    text: object = os.fspath(path)
    # A lone surrogate is in names only where Python put it in place of a byte.
    if not isinstance(text, str) or "\0" in text or re.search("[\ud800-\udc7f\udd00-\udfff]", text):
        refuse_argument(name, path, "a path without NUL characters and lone surrogates")
    return text


def check_choice(name: str, given: object, kind: object, *, otherwise: str = "") -> None:
    """Refuse an argument that is none of the words of `kind`, a `Literal`. `otherwise`: as of `whole_number`."""
    if not isinstance(given, str) or given not in get_args(kind):
        known = ", ".join(map(repr, get_args(kind)))
        msg = f"{name}={show_value(given)} is unknown; expected one of {known}{otherwise}."
        raise OptionError(msg)


def whole_number(name: str, given: object, *, least: int = 0, otherwise: str = "") -> int:
    """Return a whole number of at least `least` as Python's own `int`, which JSON can hold; refuse anything else.
    `otherwise` names other accepted values, in words that end the sentence."""
    # Numpy's integers count too. To Python `True` is an integer, but nobody means it as a number.
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        refuse_argument(name, given, f"a whole number, {least} or more{otherwise}")
    return int(given)


def refuse_argument(name: str, given: object, expected: str, *, remedy: str = "") -> NoReturn:
    """Refuse an argument, naming objects by their class: some print as a whole page. `expected`: what it may be, in
    words; `remedy`: a sentence with the line to write instead."""
    msg = f"{name}={show_value(given)} cannot work; expected {expected}."
    raise OptionError(f"{msg} {remedy}".rstrip())


def parameters(speller: Speller, arguments: type[Any] | None = None) -> list[inspect.Parameter]:
    """Return the arguments that a dataclass or function defines, its fields or its keyword-only parameters; only those
    in a `TypedDict`, if one is given."""
    kind = inspect.Parameter.KEYWORD_ONLY
    if is_dataclass(speller):
        # Fields made by a factory are not arguments.
        given = [one for one in fields(speller) if one.init and one.default is not MISSING]
        found = [inspect.Parameter(one.name, kind, default=one.default, annotation=one.type) for one in given]
    else:
        found = [one for one in inspect.signature(speller).parameters.values() if one.kind is kind]
    return [one for one in found if arguments is None or one.name in arguments.__annotations__]


def defaults(speller: Speller, arguments: type[Any] | None = None) -> dict[str, Any]:
    return {one.name: one.default for one in parameters(speller, arguments)}


def refused_call(
    function: str, signature: inspect.Signature, error: TypeError, given: Mapping[str, Any], remedies: Mapping[str, str]
) -> OptionError:
    """Return the error for a call that does not fit the signature: what Python says, and what to write instead."""
    shown = [one for one in signature.parameters.values() if one.name != "self"]
    if "too many positional" in str(error):
        placed = listed([one.name for one in shown if one.kind is one.POSITIONAL_OR_KEYWORD])
        return ArgumentError(f"{function}() got {error}; expected {placed or 'none'} by position, the others by name.")
    takes_any = any(one.kind is one.VAR_KEYWORD for one in shown)
    unknown = next((name for name in given if not takes_any and name not in signature.parameters), None)
    if unknown is None:
        hint = next((f" {remedies[name]}" for name in remedies if f"'{name}'" in str(error)), "")
        return ArgumentError(f"{function}() {error}.{hint}")
    if unknown in remedies:
        return OptionError(f"{function}() has no {unknown}=. {remedies[unknown]}")
    own = [one.name for one in shown]
    near = difflib.get_close_matches(unknown, own, 1, _CLOSE)
    hint = f" Did you mean '{near[0]}'?" if near else f" It takes {', '.join(own)}."
    # Python would name the first fault, and an argument that is missing may be the misspelt one.
    return ArgumentError(f"{function}() got an unexpected keyword argument '{unknown}'.{hint}")


def with_docs(doc: str | None, *spellers: Speller, names: Sequence[str]) -> str | None:
    """Return a docstring whose `Args:` describe `names` in their order: in its own words, the rest in those of
    `spellers`."""
    # `python -OO` removes docstrings, so there is nothing to fill in.
    if doc is None:
        return None
    doc = inspect.cleandoc(doc)
    entries = dict[str, str]()
    for text in (doc, *(inspect.cleandoc(speller.__doc__ or "") for speller in spellers)):
        found = _ARGS.search(text + "\n")
        for entry in _ENTRY.findall(found[1]) if found else ():
            described = re.split(r",\s*", entry.strip().partition(":")[0])
            if entries.keys().isdisjoint(described):
                entries |= dict.fromkeys(described, entry)
    # One entry may describe several.
    whole = "".join(dict.fromkeys(entries[name] for name in names if name in entries))
    return _ARGS.sub(lambda _: f"Args:\n{whole}\n", doc + "\n", count=1).rstrip()


def read_only(only: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the normalised paths and patterns of the argument `only`; empty for the whole source."""
    several: object = only  # annotations do not stop callers from passing something else
    given = several or () if several is None or isinstance(several, list | tuple) else (several,)
    parts = tuple(posixpath.normpath(part) if isinstance(part, str) and part.strip() else "" for part in given)
    # A list that a program built and that came out empty does not mean the whole source.
    if several == [] or any(part in ("", ".") or part.startswith("/") or ".." in part.split("/") for part in parts):
        msg = (
            f"only={only!r} names no part of a source. Give a path below it or a pattern, or a list of these: "
            "only='train/images', only='*/color', only=['train', 'labels.csv']."
        )
        raise OptionError(msg)
    return parts


def check_zip_encoding(encoding: str | None) -> None:
    try:
        if encoding is not None:
            codecs.lookup(encoding)
    except (LookupError, TypeError) as error:
        msg = f"zip_encoding={encoding!r} is no encoding that Python knows. Expected one such as gbk, cp932 or cp866."
        raise OptionError(msg) from error


# A message shows an argument's value in a few words, never a whole table.
_LONGEST = 80
_LONGEST_PATH = 400


class _Short(reprlib.Repr):
    """Write values as Python does, in bounded time: a few hundred bytes of YAML may hold lists of a terabyte."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 12
        # Secrets are hidden before the text is cut, because half a secret would not be recognised as one.
        self.maxstring = self.maxlong = self.maxother = 4000

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, bytes):
            return repr(x[: self.maxother])
        # The `repr` of a foreign class may print a page, or fail.
        return repr(x) if isinstance(x, Number | os.PathLike | type(None)) else f"{type(x).__name__}(…)"


_SHORT = _Short()


def show_value(value: object) -> str:
    """Write a value as Python does if that is one short line, otherwise by its class: `DataFrame(…)`."""
    # A path is shown in full, because its end says which file it is.
    text = show_content(value, _LONGEST_PATH if isinstance(value, os.PathLike) else _LONGEST)
    if isinstance(value, str | bytes | int | os.PathLike) or not ("…" in text or "..." in text):
        return text
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__}(…)"


def show_content(value: object, most: int = _LONGEST) -> str:
    """Write the beginning of a value as Python does, in at most `most` characters.

    >>> show_content({"a": [1, "b"]})
    "{'a': [1, 'b']}"
    >>> show_content(["car"] * 1_000_000, 20)
    "['car', 'car', 'car…"
    """
    try:
        text = hide_secrets(_SHORT.repr(value))
    except ValueError:  # an integer with more digits than Python prints
        text = f"{type(value).__name__}(…)"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_arrays(read: str = "", *, are_lists: bool = False, group: str = "") -> str:
    """Return what to write if a table, which `read` reads, holds samples, as numbers or lists, and not their paths;
    `group`: the column whose values stay in one split."""
    table = read and f"table = {read}; "
    apart = f", group=table[{group!r}].to_list()" if group else ""
    x = "numpy.stack(table[COLUMN])" if are_lists else "numpy.asarray(table[COLUMNS], 'float32')"
    return f"Of numbers make arrays: {table}numpy.savez('data.npz', x={x}, y=table[LABEL].to_list(){apart})."


# What a path that does not exist may have been meant to be.
_DRIVE_FOLDERS = frozenset({"MyDrive", "My Drive", "Shareddrives", "Shared drives"})
_NAMES_SHOWN = 6
# A folder on Drive may hold a hundred thousand names.
_MOST_NAMES = 2000


def whereabouts(path: Path) -> str:
    """Say which part of a missing path exists, and which names there are most like the missing one."""
    # The nearest existing folder shows where the path goes wrong: a missing mount, a typing error, a moved folder.
    there = next((parent for parent in path.parents if parent.exists()), Path("/"))
    if there.is_file():
        below = path.relative_to(there).as_posix()
        return f"'{there}' is a file, not a folder; a part of an archive is named by only={below!r}."
    missing = path.relative_to(there) if path.is_relative_to(there) else Path(path.name)
    first, hint = missing.parts[0], ""
    if not _DRIVE_FOLDERS.isdisjoint(there.parts):
        hint = (
            " Items in 'Shared with me' are not part of a mounted Drive until you choose 'Add shortcut to Drive'; "
            "what was just uploaded may take minutes to appear, or a refresh_drive()."
        )
    elif not _DRIVE_FOLDERS.isdisjoint(path.parts) or path.is_relative_to("/content/drive"):
        hint = " Is Google Drive mounted? Where it cannot be, give the share link of the file or folder."
    elif missing.parts[:2] == ("kaggle", "input"):
        hint = " Only Kaggle's notebooks have '/kaggle/input'; elsewhere, give the address of the dataset's page."
    return _names_in(there, first, hint)


def _names_in(folder: Path, wanted: str, hint: str) -> str:
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as scan:
        found = (entry.name for entry in islice(scan, _MOST_NAMES) if not is_our_name(entry.name))
        names = sorted(found)
    if not names:
        return f"The folder '{folder}' is empty.{hint}"
    if (link := folder / wanted).is_symlink():
        return f"'{link}' is a link to '{link.readlink()}', which does not exist."
    if wanted in names:
        return f"The folder '{folder}' lists '{wanted}', but it does not open now: try again."
    return names_like(wanted, str(folder), names, hint)


def names_like(wanted: str, folder: str, names: list[str], hint: str = "") -> str:
    """Say which names in a folder are most like a missing one. `hint`: for what is not only misspelt."""
    close = difflib.get_close_matches(wanted, names, n=_NAMES_SHOWN)
    shown = [*close, *(name for name in names if name not in close)]
    held = listed(shown, len(close) or _NAMES_SHOWN)
    return f"The folder '{folder}' holds {held}; no '{wanted}'.{'' if close else hint}"

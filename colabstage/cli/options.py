"""The command line's options, each defined once: name, help, conversion to the Python argument, and completions.

Paths stay the text that was typed: as a `Path`, `out/` would no longer say that a folder is meant, and `s3://bucket`
would be a folder `s3:`. A completion function that returns nothing leaves completion to the shell.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from colabstage.errors import OptionError
from colabstage.images.geometry import ColorMode, Resize
from colabstage.io.units import parse_fractions, parse_sides
from colabstage.pack.options import WrittenArguments
from colabstage.stage.request import FormArguments, Keep, Verify

if TYPE_CHECKING:
    from collections.abc import Callable

# The panels of the help into which options are grouped.
_IMAGES = "Content of the pack"
_PLACES = "Storage, cache and verification"


def option(
    name: str,
    metavar: str,
    text: str,
    panel: str | None = None,
    *,
    words: tuple[str, ...] = (),
    parser: Callable[[str], Any] | None = None,
    least: float | None = None,
) -> typer.models.OptionInfo:
    """Define an option. `metavar` is empty for a switch; `words`: what the Tab key offers instead of file names;
    `parser` converts the text to the argument, where typer does not."""
    info: typer.models.OptionInfo = typer.Option(
        name,
        metavar=metavar,
        help=text,
        rich_help_panel=panel,
        parser=None if parser is None else _refused_as_typed(parser),
        autocompletion=_words_starting(*words) if metavar else None,
        min=least,
    )
    return info


def choice(name: str, words: tuple[str, ...], text: str, panel: str | None = None) -> typer.models.OptionInfo:
    def read(typed: str) -> str:
        if typed not in words:
            msg = f"{typed!r} is unknown; expected one of {', '.join(words)}."
            raise OptionError(msg)
        return typed

    return option(name, "|".join(words), text, panel, words=words, parser=read)


def argument(metavar: str, text: str) -> typer.models.ArgumentInfo:
    """Define an argument of the command line, for which the shell offers file names."""
    info: typer.models.ArgumentInfo = typer.Argument(
        metavar=metavar, help=text, autocompletion=_words_starting(), show_default=False
    )
    return info


def _words_starting(*words: str) -> Callable[[str], list[str]]:
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def _refused_as_typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser whose refusal typer shows with the option's name."""

    def parse(text: str) -> Any:
        try:
            return read(text)
        except OptionError as error:
            raise typer.BadParameter(str(error)) from error

    return parse


def read_sources(texts: list[str]) -> str | list[str]:
    # A list of one source counts as several sources, with another key and other names.
    return texts[0] if len(texts) == 1 else texts


Source = Annotated[
    list[str],
    argument(
        "SOURCE",
        "A folder, an archive or a quoted pattern, also on a mounted Drive; a share link; an https://, s3://, "
        "gs://, hf://, sftp:// … address; kaggle://owner/dataset. Several sources form one dataset.",
    ),
]
LocalSource = Annotated[str, argument("SOURCE", "A folder, or a zip or tar; can be on a mounted Drive.")]
PackFile = Annotated[str, argument("FILE", "The HDF5 file.")]
AsJson = Annotated[bool, option("--json", "", "Print the result as JSON, and nothing else, to stdout.")]
Debug = Annotated[bool, option("--debug", "", "Show the traceback when something fails.")]


def _flag(
    panel: str | None, name: str, kind: Any, metavar: str, text: str, *, parser: Callable[[str], Any] | None = None
) -> tuple[str, Any]:
    """Return the Python argument of an option, and its type with its definition; the words of a `Literal` are its
    metavar."""
    written = f"--{name.replace('_', '-')}"
    if isinstance(kind, type(Keep)):
        return name, Annotated[kind, choice(written, get_args(kind), text, panel)]
    return name, Annotated[kind, option(written, metavar, text, panel, parser=parser)]


_of_images, _of_places = partial(_flag, _IMAGES), partial(_flag, _PLACES)
# The options that are arguments of several functions; functions cannot be given on a command line.
_FLAGS: dict[str, Any] = dict(
    [
        _of_images("layout", str, "NAME", "How files become samples; auto detects it."),
        _of_images(
            "image_size",
            Any,
            "HxW",
            "Height and width of every image, for example 256x256. Without it, each image keeps its own.",
            parser=parse_sides,
        ),
        _of_images(
            "color_mode",
            ColorMode,
            "",
            "3 channels, 1 channel, or those of each file. auto: 3 for images; arrays keep theirs.",
        ),
        _of_images("resize", Resize, "", "How images of other proportions are fitted to the size."),
        _of_images(
            "encoding",
            str,
            "auto|pixels|encoded|jpeg:Q",
            "Decoded pixels, the files' own bytes, JPEGs of quality Q, or whichever fits.",
        ),
        _of_images(
            "splits",
            Any,
            "NAME=F,…",
            "Fractions of the samples, for example train=0.8,dev=0.1,test=0.1; 0.8 means train, and the rest is test. "
            "If the source has splits, they divide its train.",
            parser=parse_fractions,
        ),
        _of_images("group_by", str | None, "REGEX", "Samples whose names have the same match stay in the same split."),
        _of_images("seed", int, "N", "Seed of the splits and of the row order."),
        _of_images("on_error", str, "raise|skip|skip:P%", "What to do with images that cannot be decoded."),
        _flag(
            None,
            "only",
            list[str],
            "PATH",
            "Read only this part of the source: a path in it, or a quoted pattern. Repeatable.",
        ),
        _flag(
            None,
            "zip_encoding",
            str | None,
            "NAME",
            "The encoding of the names in a zip that declares none, for example gbk.",
        ),
        _of_places("keep", Keep, "", "One HDF5 file, the plain files, or both."),
        _of_places(
            "local_dir",
            str | None,
            "PATH",
            "Folder on the local disk. Default: colabstage in the platform's fast folder.",
        ),
        _of_places(
            "cache_dir",
            str,
            "none|auto|PATH",
            "Where packs are kept. auto: MyDrive/colabstage on a mounted Drive, otherwise another persistent disk.",
        ),
        _of_places("refresh", bool, "", "Do it again, even if the result is already here or cached."),
        _of_places("verify", Verify, "", "Trust unchanged times and sizes, or compare every block."),
        _of_places("hash", str | None, "ALGORITHM:DIGEST", "The expected hash of a single file, for example sha256:…"),
        _of_places(
            "disk_limit",
            str | None,
            "SIZE",
            "Keep at most this much of the pack on the local disk, for example 20GB. A larger one is packed in shards "
            "into the cache, and read from there in part.",
        ),
        _flag(None, "overwrite", bool, "", "Replace what is at the target."),
        _of_images("shards", int | None, "N", "Write N files, OUT-00000-of-0000N.h5 …, which a pattern reads as one."),
        _flag(
            None,
            "append_to",
            str | None,
            "PACK",
            "Instead of OUT: write the samples next to this pack, as an addition to its dataset.",
        ),
    ]
)


def flags(*names: str) -> dict[str, Any]:
    return {name: _FLAGS[name] for name in names}


PACK_FLAGS = flags(*(name for name in _FLAGS if name in WrittenArguments.__annotations__))
STAGE_FLAGS = flags(*(name for name in _FLAGS if name in FormArguments.__annotations__))
_SPELLED = {
    **{name: f"--{name.replace('_', '-')} {get_args(kind)[1].metavar}".strip() for name, kind in _FLAGS.items()},
    # Arguments that have another name here than in Python.
    "budget_s": "--seconds S",
    "everything": "--all",
    "older_than_days": "--older-than DAYS",
    "step": "--step-ms MS",
    # Functions that messages advise.
    "stage_dataset": "colabstage stage",
    "pack_dataset": "colabstage pack",
    "fetch_files": "colabstage fetch",
    "extract_archive": "colabstage extract",
}


def spell_options(message: str) -> str:
    """Add to a message, which names Python functions and their arguments, how they are written here; but not an
    argument that is itself a call, which no command line can give.

    >>> spell_options("'a.h5' is there. Give overwrite=True to replace it.")
    "'a.h5' is there. Give overwrite=True to replace it. (On the command line: --overwrite.)"
    """
    named = re.findall(r"\b(\w+)=(?!\w+\()|\b([a-z]+_[a-z]+)\b(?!=)", message)
    written = [_SPELLED[name] for name in dict.fromkeys(map("".join, named)) if name in _SPELLED]
    between = "\n" if "\n" in message else " "
    return f"{message}{between}(On the command line: {', '.join(written)}.)" if written else message

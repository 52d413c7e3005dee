"""The command line's options, each defined once: name, help, conversion to the Python argument, and completions.

Places stay the text that was typed: as a `Path`, `out/` would no longer say that a folder is meant, and `s3://bucket`
would be a folder `s3:`.

If a completion function returns nothing, the shell completes file names. Errors during completion are ignored: there is
no place to show them, and the command itself will report them.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args

import typer

from colabstage.errors import ColabstageError
from colabstage.images.geometry import ColorMode, Resize
from colabstage.io.arguments import defaults
from colabstage.pack.options import split_fractions
from colabstage.stage.request import Keep, Verify, make_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_Word = TypeVar("_Word", bound=str)
# The panels of the help into which options are grouped.
_IMAGES = "What the pack holds"
_PLACES = "Storage, cache and verification"


def option(
    name: str,
    metavar: str,
    text: str,
    panel: str | None = None,
    *,
    parser: Callable[[str], Any] | None = None,
    offers: Callable[..., list[str]] | None = None,
    least: float | None = None,
) -> typer.models.OptionInfo:
    """Define an option of the command line.

    Args:
        name: with its dashes.
        metavar: the placeholder of its value in the help; empty for a switch, which takes none.
        text: its help.
        panel: the panel of the help that it belongs to; the general one by default.
        parser: converts the text to the argument; by default typer does, by type.
        offers: the completions.
        least: the smallest number allowed.
    """
    info: typer.models.OptionInfo = typer.Option(
        name, metavar=metavar, help=text, rich_help_panel=panel, parser=parser, autocompletion=offers, min=least
    )
    return info


def argument(metavar: str, text: str, *, offers: Callable[..., list[str]] | None = None) -> typer.models.ArgumentInfo:
    """Define an argument of the command line, as `option` defines an option."""
    info: typer.models.ArgumentInfo = typer.Argument(
        metavar=metavar, help=text, autocompletion=offers, show_default=False
    )
    return info


Source = Annotated[
    list[str],
    argument(
        "SOURCE",
        "A folder, an archive or a quoted pattern, also on a mounted Drive; a share link; an https://, s3://, "
        "gs://, hf://, ftp:// … address; kaggle://owner/dataset. Several sources form one dataset.",
    ),
]
LocalSource = Annotated[str, argument("SOURCE", "A folder, or a zip or tar; can be on a mounted Drive.")]
Seed = Annotated[int, option("--seed", "N", "Seed of the splits and of the row order.", _IMAGES)]
Groups = Annotated[
    str | None,
    option("--group-by", "REGEX", "Samples whose names have the same match stay in the same split.", _IMAGES),
]
Shards = Annotated[
    int | None,
    option("--shards", "N", "Write N files, OUT-00000-of-0000N.h5 …, which a pattern reads as one.", _IMAGES),
]
Only = Annotated[
    list[str],
    option("--only", "PATH", "The part of the source that is meant: a path in it, or a quoted pattern. Repeatable."),
]
ZipEncoding = Annotated[
    str | None,
    option("--zip-encoding", "NAME", "The encoding of a zip's file names where it declares none, for example gbk."),
]
CacheDir = Annotated[
    str,
    option(
        "--cache-dir",
        "none|auto|PATH",
        "Where packs are kept. auto: MyDrive/colabstage on a mounted Drive, otherwise another persistent disk.",
        _PLACES,
    ),
]
Refresh = Annotated[
    bool, option("--refresh", "", "Stage again, even if the dataset is already here or cached.", _PLACES)
]
Hash = Annotated[
    str | None,
    option("--hash", "ALGORITHM:DIGEST", "The expected hash of a single file, for example sha256:…", _PLACES),
]
Overwrite = Annotated[bool, option("--overwrite", "", "Replace what is at the target.")]
AsJson = Annotated[bool, option("--json", "", "Print the result as JSON, and nothing else, to stdout.")]
Debug = Annotated[bool, option("--debug", "", "Show the traceback when something fails.")]


def complete_words(*words: str) -> Callable[[str], list[str]]:
    """Offer the `words` that begin with the typed text."""

    def complete(incomplete: str) -> list[str]:
        return _beginning(words, incomplete)

    return complete


def complete_layouts(incomplete: str) -> list[str]:
    """Offer all layouts."""
    from colabstage.layouts.detect import LAYOUTS

    return _beginning(["auto", *(reader.name for reader in LAYOUTS)], incomplete)


def complete_files(incomplete: str) -> list[str]:
    """Leave completion to the shell, which quotes and expands paths as users expect."""
    return _beginning((), incomplete)


def complete_splits(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the splits of the file that is already on the command line."""
    from pathlib import Path

    from colabstage.h5.info import read_info

    # A line that ends in an option without its value is not parsed completely, so the file may be among the remaining
    # words. The word that can be opened is the file; a wrong guess offers nothing.
    for word in (ctx.params.get("file"), *ctx.args):
        with suppress(ColabstageError, OSError):
            return _beginning(read_info(Path(str(word))).splits, incomplete)
    return []


def complete_kept(incomplete: str) -> list[str]:
    """Offer the names of the datasets on this machine; the cache is not asked, because it may be on a slow mount."""
    from colabstage.stage.purge import list_datasets

    with suppress(ColabstageError, OSError):
        return _beginning(sorted({one.name for one in list_datasets(cache_dir=None)}), incomplete)
    return []


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


class ImageSize(NamedTuple):
    """Height and width in pixels."""

    height: int
    """Rows of pixels."""
    width: int
    """Columns of pixels."""


# Typer does not accept `dict` as the type of an option, but a custom class with a parser.
class Fractions(dict[str, float]):
    """Fraction of the samples by split name."""


def read_image_size(text: str) -> ImageSize:
    """Read `256x320`, `256,320`, or `256` for a square."""
    parts = text.lower().replace(",", "x").split("x")
    # Both notations are common; a mistake is reported here, before anything is read.
    if len(parts) not in (1, 2) or not all(part.strip().isdecimal() for part in parts):
        msg = f"{text!r} is not a size. Write HEIGHTxWIDTH in pixels, for example 256x256."
        raise typer.BadParameter(msg)
    return ImageSize(int(parts[0]), int(parts[-1]))


def read_fractions(text: str) -> Fractions:
    """Read `train=0.8,test=0.2`; or numbers alone, as `split_fractions` names them: `0.8`, `0.8,0.1,0.1`."""
    with suppress(ValueError):
        # Plain numbers first: text with names in it is not a number, and falls through.
        numbers = [float(part) for part in text.split(",")]
        # The same advice as in Python, in shell syntax.
        if len(numbers) == 1 and 0 < numbers[0] < 0.5:
            rest = f"{round(1 - numbers[0], 9):g}"
            msg = (
                f"{text!r} would be the part to train on. Write {rest} to train on the others, or both parts: "
                f"{text.strip()},{rest}."
            )
            raise typer.BadParameter(msg)
        return Fractions(split_fractions(numbers if len(numbers) > 1 else numbers[0]) or ())
    fractions = Fractions()
    for part in text.split(","):
        name, equals, number = part.partition("=")
        try:
            fraction = float(number)
        except ValueError:
            # Reported below with all other mistakes, with an example.
            equals = ""
        if not equals or name.strip() in fractions:
            msg = f"{text!r} gives no fractions. Write NAME=FRACTION,… with each name once: train=0.8,dev=0.1,test=0.1."
            raise typer.BadParameter(msg)
        fractions[name.strip()] = fraction
    return fractions


def _choice_reader(words: tuple[_Word, ...]) -> Callable[[str], _Word]:
    def read(text: str) -> _Word:
        for word in words:
            if text == word:
                return word
        msg = f"{text!r} is unknown; expected one of {', '.join(words)}."
        raise typer.BadParameter(msg)

    return read


def _choice(name: str, words: tuple[str, ...], text: str, panel: str) -> typer.models.OptionInfo:
    return option(name, "|".join(words), text, panel, parser=_choice_reader(words), offers=complete_words(*words))


read_place = _choice_reader(("here", "cache"))

PackFile = Annotated[str, argument("FILE", "The HDF5 file.", offers=complete_files)]
Layout = Annotated[
    str, option("--layout", "NAME", "How files become samples; auto detects it.", _IMAGES, offers=complete_layouts)
]
Size = Annotated[
    ImageSize | None,
    option(
        "--image-size",
        "HxW",
        "Height and width of every image, for example 256x256. Without it, each image keeps its own.",
        _IMAGES,
        parser=read_image_size,
    ),
]
Colours = Annotated[
    ColorMode,
    _choice(
        "--color-mode",
        get_args(ColorMode),
        "3 channels, 1 channel, or those of each file. auto: 3 for images; arrays keep theirs.",
        _IMAGES,
    ),
]
Resizing = Annotated[
    Resize, _choice("--resize", get_args(Resize), "How images of other proportions are fitted to the size.", _IMAGES)
]
Encoded = Annotated[
    str,
    option(
        "--encoding",
        "auto|pixels|encoded|jpeg:Q",
        "Decoded pixels, the files' own bytes, JPEGs of quality Q, or whichever fits.",
        _IMAGES,
        offers=complete_words("auto", "pixels", "encoded", "jpeg:90"),
    ),
]
Splits = Annotated[
    Fractions | None,
    option(
        "--splits",
        "NAME=F,…",
        "Fractions for a source without split folders, for example train=0.8,dev=0.1,test=0.1; 0.8 means train, "
        "and the rest is test.",
        _IMAGES,
        parser=read_fractions,
    ),
]
Errors = Annotated[
    str,
    option(
        "--on-error",
        "raise|skip|skip:P%",
        "What to do with images that cannot be decoded.",
        _IMAGES,
        offers=complete_words("raise", "skip", "skip:1%"),
    ),
]
AppendTo = Annotated[
    str | None,
    option(
        "--append-to",
        "PACK",
        "Instead of OUT: write the samples next to this pack, as an addition to its dataset.",
        offers=complete_files,
    ),
]
Keeping = Annotated[Keep, _choice("--keep", get_args(Keep), "One HDF5 file, the plain files, or both.", _PLACES)]
LocalDir = Annotated[
    str | None,
    option(
        "--local-dir",
        "PATH",
        "Folder on the local disk. Default: colabstage in the platform's fast folder.",
        _PLACES,
        offers=complete_files,
    ),
]
DiskLimit = Annotated[
    str | None,
    option(
        "--disk-limit",
        "SIZE",
        "Keep at most this much of the pack on the local disk, for example 20GB. A larger one is packed in shards "
        "into the cache, and read from there in part.",
        _PLACES,
    ),
]
Verifying = Annotated[
    Verify, _choice("--verify", get_args(Verify), "Trust unchanged times and sizes, or compare every block.", _PLACES)
]


def parse_cache_dir(text: str) -> str | Literal["auto"] | None:
    """Turn `--cache-dir` into the Python argument; a folder called none is written `./none`."""
    # The shell cannot express None.
    return None if text == "none" else text


# Options that define a pack, by Python argument; the defaults are those of `PackOptions`. Functions cannot be given on
# a command line.
PACK_FLAGS: dict[str, Any] = {
    "layout": Layout,
    "image_size": Size,
    "color_mode": Colours,
    "resize": Resizing,
    "encoding": Encoded,
    "splits": Splits,
    "group_by": Groups,
    "seed": Seed,
    "on_error": Errors,
    "only": Only,
    "zip_encoding": ZipEncoding,
}
# Those that say where the pack goes, and whether to make it again.
STAGE_FLAGS: dict[str, Any] = PACK_FLAGS | {
    "keep": Keeping,
    "local_dir": LocalDir,
    "cache_dir": CacheDir,
    "refresh": Refresh,
    "verify": Verifying,
    "hash": Hash,
    "disk_limit": DiskLimit,
}


def with_flags(flags: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each of `flags`, in place of its parameter `flags`, which receives them as
    arguments for the Python functions."""
    known = defaults(make_request)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        # Typer reads signatures, so options are defined once and are the same in every command.
        signature = inspect.signature(command, eval_str=True)
        options = [
            inspect.Parameter(
                # A list is a repeatable option, which the shell leaves empty and not None.
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=[] if name == "only" else known[name],
                annotation=kind,
            )
            for name, kind in flags.items()
        ]
        others = [one for one in signature.parameters.values() if one.name != "flags"]
        first = [one for one in others if one.default is inspect.Parameter.empty]
        # Parameters with a default come after all options, in the command's own order.
        last = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in others if one not in first]

        def run(**given: Any) -> None:
            taken = {name: given.pop(name) for name in flags}
            if "cache_dir" in taken:
                taken["cache_dir"] = parse_cache_dir(taken["cache_dir"])
            command(**given, flags=taken)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        # Typer asks `inspect.signature`, which looks here first.
        vars(run)["__signature__"] = inspect.Signature([*first, *options, *last])
        run.__annotations__ = {one.name: one.annotation for one in (*first, *options, *last)}
        return run

    return decorate


def read_sources(texts: list[str]) -> str | list[str]:
    """Return one source as itself, several as a list."""
    # A list of one source counts as several sources, with another key and other names.
    return texts[0] if len(texts) == 1 else texts

"""What people write into a field of the form, as the argument that it stands for, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from colabstage.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def read_source(text: str) -> str | list[str]:
    """One source, or several on lines of their own, which are one dataset.

    Raises:
        OptionError: there is none.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        msg = "There is no source yet. Write where the dataset is: a folder, an archive, a share link or an address."
        raise OptionError(msg)
    return lines[0] if len(lines) == 1 else lines


def write_source(source: Any) -> str:
    """The text that reads as `source`."""
    return "\n".join(map(str, source)) if isinstance(source, list | tuple) else str(source)


def read_size(text: str) -> tuple[int, int] | None:
    """`256x320` as (height, width), `256` as a square, nothing as `None`."""
    from colabstage.ui.cli.options import read_image_size

    return None if not text.strip() else tuple(_read(read_image_size, text, "image_size"))


def write_size(size: tuple[int, int] | None) -> str:
    """The text that reads as `size`."""
    return "" if size is None else f"{size[0]}x{size[1]}"


def read_splits(text: str) -> dict[str, float] | None:
    """`train=0.8,test=0.2` as fractions by name, nothing as `None`."""
    from colabstage.ui.cli.options import read_fractions

    return None if not text.strip() else dict(_read(read_fractions, text, "splits"))


def write_splits(splits: Mapping[str, float] | None) -> str:
    """The text that reads as `splits`."""
    return "" if splits is None else ",".join(f"{name}={fraction:g}" for name, fraction in splits.items())


def read_place(text: str) -> str | None:
    """A folder, or `auto`; nothing as `None`."""
    return text.strip() or None


def write_place(place: Any) -> str:
    """The text that reads as `place`."""
    return "" if place is None else str(place)


def _read(read: Callable[[str], Any], text: str, name: str) -> Any:
    """What the command line reads in the same words."""
    from typer import BadParameter

    try:
        return read(text)
    except BadParameter as error:
        msg = f"{name}: {error.message}"
        raise OptionError(msg) from None

"""Checksums of whole files, as people paste them and services offer them: `sha256:ab12…`."""

from __future__ import annotations

import hashlib
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from colabstage.errors import ChecksumMismatchError, OptionError

if TYPE_CHECKING:
    from pathlib import Path

# Hexadecimal digits of each kind. Not what hashlib has besides: nobody publishes those.
_DIGITS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128, "xxh3_64": 16, "xxh3_128": 32}
_PIECE_BYTES = 1024 * 1024
_BY_DIGITS = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}


class Hasher(Protocol):
    """What hashlib and xxhash give: fed piece by piece."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Checksum:
    """The hash of a whole file. `algorithm`: such as `"sha256"`. `digest`: hexadecimal, lower case."""

    algorithm: str
    digest: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.digest}"

    def new_hasher(self) -> Hasher:
        """A hasher that will give this digest for the right content."""
        if self.algorithm.startswith("xxh3"):
            import xxhash

            hasher: Hasher = getattr(xxhash, self.algorithm)()
            return hasher
        return hashlib.new(self.algorithm, usedforsecurity=False)


def check_file(path: Path, checksum: Checksum, label: str) -> None:
    """Hash a whole file that is here.

    Raises:
        ChecksumMismatchError: it is another one than the checksum's.
    """
    hasher = checksum.new_hasher()
    with path.open("rb") as file:
        while data := file.read(_PIECE_BYTES):
            hasher.update(data)
    if hasher.hexdigest() != checksum.digest:
        msg = (
            f"'{label}' came whole, but its {checksum.algorithm} is {hasher.hexdigest()}, not {checksum.digest}. It "
            "was not kept. Compare the checksum with its publisher's."
        )
        raise ChecksumMismatchError(msg)


def parse_checksum(text: str) -> Checksum:
    """Read `"sha256:ab12…"`; without a name, the length of the digest tells the algorithm.

    Raises:
        OptionError: the algorithm is unknown, or the digest is not one of its.
    """
    name, colon, digest = text.strip().lower().rpartition(":")
    algorithm = name.replace("-", "") if colon else _BY_DIGITS.get(len(digest), "")
    wanted = _DIGITS.get(algorithm)
    if wanted is None or len(digest) != wanted or digest.strip(string.hexdigits):
        known = ", ".join(f"{known}:… ({digits} digits)" for known, digits in _DIGITS.items())
        msg = f"hash={text!r} is no checksum; expected one of {known}."
        raise OptionError(msg)
    return Checksum(algorithm, digest)

"""A function of the user's own between decoding and storing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import LayoutError, OptionError
from colabstage.images.decode import decode_image, fit_pixels
from colabstage.layouts.fields import Arrays, Boxes, Images, Masks
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from colabstage.images.options import ImageOptions
    from colabstage.layouts.sources import Content
    from colabstage.layouts.table import SampleTable

    Prepare = Callable[[NDArray[Any]], NDArray[Any]]


def prepared_table(table: SampleTable, prepare: Prepare, options: ImageOptions) -> SampleTable:
    """The table with `prepare(x)` for every x; its shape and dtype are learnt from the first sample.

    Raises:
        OptionError: masks or boxes would have to move with x, and nobody knows how.
        LayoutError: it returns something else than an array of numbers.
        DecodeError: the first sample is broken.
    """
    if isinstance(table.targets, Masks | Boxes):
        kind = type(table.targets).__name__.lower()
        msg = f"prepare= changes the inputs, and the {kind} that lie on them would not follow."
        raise OptionError(msg)
    decode = _decoder(table.inputs, options)
    source = table.inputs.source

    def prepared(content: Content) -> NDArray[Any]:
        return np.asarray(prepare(decode(content)))

    first = prepared(read_with_retry(lambda: source.read(0), source.name(0), policy=RetryPolicy()))
    if first.dtype.kind not in "biuf":
        msg = f"prepare= returned {first.dtype} values for '{source.name(0)}'; expected an array of numbers."
        raise LayoutError(msg)
    return replace(table, inputs=Arrays(source, first.shape, first.dtype, prepared))


def _decoder(inputs: Images | Arrays, options: ImageOptions) -> Callable[[Content], NDArray[Any]]:
    def decode(content: Content) -> NDArray[Any]:
        if isinstance(inputs, Images):
            return decode_image(content, options) if isinstance(content, bytes) else fit_pixels(content, options)
        return inputs.to_array(content)

    return decode

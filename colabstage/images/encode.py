"""Arrays to image bytes, from any number of threads at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import DecodeError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def encode_jpeg(pixels: NDArray[Any], quality: int) -> bytes:
    """Encode one image as JPEG, colours at half their resolution as cameras do.

    Args:
        pixels: uint8 `(H, W, C)` of 1 or 3 channels.
        quality: 1 to 100.

    Raises:
        DecodeError: JPEG cannot hold such an image.
    """
    import simplejpeg

    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or max(pixels.shape) > 65500:
        msg = (
            f"JPEG cannot hold an image of {pixels.dtype} {' x '.join(map(str, pixels.shape))}. Pass color_mode='rgb' "
            "or 'grayscale', or another encoding."
        )
        raise DecodeError(msg)
    gray = pixels.shape[2] == 1
    encoded: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality, "GRAY" if gray else "RGB", "Gray" if gray else "420"
    )
    return encoded

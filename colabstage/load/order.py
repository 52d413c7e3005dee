"""The order in which an epoch visits the samples: a pure function of the seed and the epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def epoch_order(count: int, *, shuffle: bool, seed: int, epoch: int) -> NDArray[np.intp]:
    """The rows of one epoch.

    The same arguments give the same order on every machine and with every version of numpy: numpy promises that for
    the raw numbers of its generators, not for `permutation`.

    Args:
        count: number of samples.
        shuffle: a random permutation; otherwise the file's order.
        seed, epoch: what the permutation depends on, both at least 0.

    Returns:
        intp `(count,)`, each row once.
    """
    if not shuffle:
        return np.arange(count)
    dice = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
    return np.argsort(dice.random_raw(count), kind="stable")

"""Which campaigns there are, by name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from campaigns.campaign import Campaign

# In the order of a dataset's way: fetched, extracted, packed, published, uploaded; all of it in one cell; calls of
# all kinds in one place; and training while data arrives.
_PLACES = {
    "fetch": ("campaigns.fetching", "Fetching"),
    "extract": ("campaigns.extracting", "Extracting"),
    "pack": ("campaigns.packing", "Packing"),
    "publish": ("campaigns.publishing", "Publishing"),
    "arrive": ("campaigns.arriving", "Arriving"),
    "stage": ("campaigns.staging", "Staging"),
    "update": ("campaigns.updating", "Updating"),
    "resume": ("campaigns.resuming", "Resuming"),
    "live": ("campaigns.living", "Living"),
    "stream": ("campaigns.streaming", "Streaming"),
}
# The one that kills nothing: random files of others are read beside h5py.
FOREIGN = "foreign"


def names() -> list[str]:
    """All campaigns that kill, in order."""
    return list(_PLACES)


def campaign_class(name: str) -> type[Campaign]:
    """The class of a campaign; imported only now, so that a worker loads what it needs and no more."""
    module, attribute = _PLACES[name]
    found: type[Campaign] = getattr(importlib.import_module(module), attribute)
    return found

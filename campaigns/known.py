"""Which campaigns there are, by name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from campaigns.campaign import Campaign

# In the order of a dataset's way: fetched, extracted, packed, published, uploaded; all of it in one cell; calls of
# all kinds in one place; and training while data arrives. Each is the class of its module's name.
_MODULES = {
    "fetch": "fetching",
    "extract": "extracting",
    "pack": "packing",
    "publish": "publishing",
    "arrive": "arriving",
    "stage": "staging",
    "update": "updating",
    "resume": "resuming",
    "live": "living",
    "stream": "streaming",
}
# Those that kill nothing: random files of others, and random epochs over them, are read beside h5py.
FOREIGN, EPOCHS = "foreign", "epochs"


def names() -> list[str]:
    """Return all campaigns that kill, in order."""
    return list(_MODULES)


def campaign_class(name: str) -> type[Campaign]:
    """Return the class of a campaign; imported only now, so that a worker loads what it needs and no more."""
    module = _MODULES[name]
    found: type[Campaign] = getattr(importlib.import_module(f"campaigns.{module}"), module.capitalize())
    return found

"""Where public names of `colabstage.options` were before."""

from __future__ import annotations

from colabstage.io.moved import moved

__getattr__ = moved(__name__, "colabstage.options", frozenset({"TreeFiles"}))

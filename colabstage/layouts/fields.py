"""Where public names of `colabstage.options` were before."""

from __future__ import annotations

from colabstage.io.arguments import moved

__getattr__ = moved(__name__, "colabstage.options", frozenset({"Arrays", "Boxes", "Images", "Masks", "Values"}))

"""Where public names of `colabstage.options` were before."""

from __future__ import annotations

from colabstage.io.arguments import moved

__getattr__ = moved(
    __name__, "colabstage.options", frozenset({"array_rows", "audio_clips", "table_rows", "token_blocks"})
)

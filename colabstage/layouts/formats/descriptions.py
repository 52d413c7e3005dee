"""The `configs:` at the top of a README of the Hugging Face Hub, which say which files are of which split."""

from __future__ import annotations

import itertools
import posixpath
import re
from typing import TYPE_CHECKING, Any

from colabstage.layouts import words
from colabstage.layouts.columns import show
from colabstage.layouts.reading import Source, broken, load_yaml
from colabstage.trees.names import with_wildcards

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Other parts of the front matter describe licences, languages and features.
_CONFIGS = re.compile(r"^configs:.*\n(?:(?:[ #-].*)?\n)*", re.MULTILINE)
_OTHERWISE = "; any layout that is named in layout= does without them"


def splits_of_card(source: Source) -> tuple[str, dict[str, str]]:
    """Return the README, and the split of each file that its configurations name; no files if it has none that state
    splits. What the default configuration says of a file counts, whatever others say of it."""
    files = source.ending_in((".md",)).where(lambda name: posixpath.basename(name).lower() == "readme.md")
    depths = sorted(entry.name.count("/") for entry in files)
    # Of several side by side, none is about all files.
    if not depths or depths[:1] == depths[1:2]:
        return "", {}
    card = next(entry for entry in files if entry.name.count("/") == depths[0])
    text = "\n".join(source.text(card).splitlines())
    front = text.partition("\n---")[0] if text.startswith("---\n") else ""
    block = _CONFIGS.search(f"{front}\n")
    try:
        configs = [one for one in load_yaml(block[0])["configs"] if isinstance(one, dict)] if block else []
        stated = [[*_globs_of(filter(_is_default, configs))], [*_globs_of(itertools.filterfalse(_is_default, configs))]]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        what = f"its configs cannot be read ({show(error)})"
        raise broken(card.name, what, f"data_files with a split and a path{_OTHERWISE}") from error
    found: dict[str, str] = {}
    for globs in stated:
        own: dict[str, str] = {}
        for split, path in globs:
            whole = posixpath.normpath(posixpath.join(posixpath.dirname(card.name), path))
            for name in filter(re.compile(with_wildcards(whole)).fullmatch, source.files.names):
                if name not in found and own.setdefault(name, split) != split:
                    what = f"'{card.name}' names it in the splits '{own[name]}' and '{split}'"
                    raise broken(name, what, f"one split in all configs, or a default one{_OTHERWISE}")
        found |= own
    splits = {*found.values()}
    # A single split that is called full, or all, divides nothing.
    return card.name, {} if len(splits) == 1 and splits.isdisjoint(words.SPLIT_ORDER) else found


def _is_default(config: dict[str, Any]) -> bool:
    return config.get("config_name") == "default" or str(config.get("default")).lower() == "true"


def _globs_of(configs: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each split that configurations name, as it is stored, with each of its paths, which may have wildcards."""
    for config in configs:
        parts = config.get("data_files") or ()
        if isinstance(parts, dict):
            parts = [{"split": split, "path": paths} for split, paths in parts.items()]
        # A path alone states no split.
        for part in (one for one in parts if isinstance(one, dict) and "split" in one):
            split, paths = part["split"], part["path"]
            for path in paths if isinstance(paths, list) else [paths]:
                yield words.split_name(split).split or split, posixpath.join(config.get("data_dir", ""), path)

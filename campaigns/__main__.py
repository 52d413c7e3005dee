"""Kill colabstage's work at random moments, and write what was found into the table of docs/contributing.md.

    python -m campaigns [NAME ...] [--kills 60] [--files 1000] [--epochs 500] [--seed 1]

`--kills` is for each campaign. Two kill nothing, and read beside h5py: `foreign` `--files` random HDF5 files, `epochs`
`--epochs` random epochs over such files. Exit code 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from campaigns.campaign import WrongError
from campaigns.epochs import EpochError, check_epochs
from campaigns.foreign import ForeignFileError, check_foreign_files
from campaigns.killing import run_campaign
from campaigns.known import EPOCHS, FOREIGN, names
from campaigns.page import epochs_row, foreign_row, row, write_row


def main() -> int:
    """Run those named, or all."""
    every = [*names(), FOREIGN, EPOCHS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", choices=[*every, []], metavar="NAME", help=", ".join(every))
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    broken = 0
    for name in arguments.names or every:
        if name in (FOREIGN, EPOCHS):
            try:
                _write(
                    foreign_row(check_foreign_files(arguments.files, arguments.seed), seed=arguments.seed)
                    if name == FOREIGN
                    else epochs_row(check_epochs(arguments.epochs, arguments.seed), seed=arguments.seed)
                )
            except (ForeignFileError, EpochError) as error:
                print(f"BROKEN  {error}", file=sys.stderr, flush=True)
                broken += 1
            continue
        with tempfile.TemporaryDirectory(prefix=f"campaign-{name}-") as home:
            try:
                outcome = run_campaign(name, Path(home), kills=arguments.kills, seed=arguments.seed, say=_say)
            except WrongError as error:
                print(f"BROKEN  {error}", file=sys.stderr, flush=True)
                broken += 1
                continue
        _write(row(name, outcome, seed=arguments.seed))
    return 1 if broken else 0


def _write(line: str) -> None:
    write_row(line)
    _say(line)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())

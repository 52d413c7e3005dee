"""The command `colabstage`: `main` is what the installed command and `python -m colabstage` call."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit: 0 done, 1 the work failed, 2 wrong arguments, 130 interrupted."""
    try:
        from colabstage.cli.app import run

        run()
    except KeyboardInterrupt:  # interrupted while loading
        print("colabstage: Interrupted. Nothing was changed.", file=sys.stderr)
        sys.exit(130)
    finally:
        # Flush standard output here. The reader may have closed it, as `head` does, which is not a failure; Python
        # would flush at its very end, where nothing can be caught, and complain (docs.python.org, "Note on SIGPIPE").
        try:
            sys.stdout.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):
                print(f"colabstage: {error.strerror}.", file=sys.stderr)
                sys.exit(1)

"""`python -m colabstage`: the command line."""

from __future__ import annotations

from colabstage.cli import main

if __name__ == "__main__":
    main()

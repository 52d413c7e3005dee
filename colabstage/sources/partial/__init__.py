"""Keep some blocks of a remote file here, never more than a limit."""

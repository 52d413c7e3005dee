"""One file that is somewhere else, of which some blocks are here, never more of them than a limit."""

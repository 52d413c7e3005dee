"""Archives unpacked to a folder."""

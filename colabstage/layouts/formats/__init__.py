"""Formats: each parses what is in files, and imports no other format."""

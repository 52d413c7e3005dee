"""Samples that a table of paths and labels names."""

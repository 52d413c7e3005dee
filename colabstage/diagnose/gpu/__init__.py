"""Watching a GPU while a model trains."""

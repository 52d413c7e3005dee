"""Bytes from a slow place to the local disk."""

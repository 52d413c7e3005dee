"""Samples of any packed file for eyes: what they are, which class they have, and a few of them at a time."""

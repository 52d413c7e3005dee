"""Deciding how a dataset is loaded: facts and wishes in, a plan with reasons out."""

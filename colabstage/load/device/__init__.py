"""Batches on a device: copies that overlap with the model's work, and splits that live there."""

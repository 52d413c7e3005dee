"""Batches made of rows: their memory, the strategies that make them, and the iterations that hand them out."""

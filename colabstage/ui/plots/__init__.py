"""Pictures of datasets and of what loading them costs, as matplotlib figures that a notebook shows."""

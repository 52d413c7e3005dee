"""Training runs that outlive their machine."""

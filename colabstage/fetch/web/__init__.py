"""Files on web servers."""

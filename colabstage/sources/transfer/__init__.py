"""One file on its way here: several ranges in flight, read while it arrives, resumable by verified blocks."""

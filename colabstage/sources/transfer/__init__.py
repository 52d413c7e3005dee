"""Transfer one file: several ranges in flight, readable while it arrives, resumable by verified blocks."""

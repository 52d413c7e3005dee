"""What lies behind a Google Drive share link."""

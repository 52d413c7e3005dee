"""Where the time goes, what is wrong here, and what to change."""

"""`colabstage demo`: three sessions that train from a simulated Drive, and what each cost."""

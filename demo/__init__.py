"""The demo: sessions that train from a simulated Drive, and what each cost."""

"""Sound and tokens as rows of one length."""

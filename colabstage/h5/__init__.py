"""The packed file as a contract between the one who writes it and the one who reads it."""

"""The packed file as a contract between its writer and its readers."""

"""Which rows an epoch visits, in which order, and who of several ranks takes which."""

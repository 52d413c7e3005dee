"""Files on this machine, and how work on them survives whatever happens: workspaces, journals."""

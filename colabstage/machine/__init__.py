"""This computer: the platform, its cores, memory, disks and mounts, and Google Drive on it."""

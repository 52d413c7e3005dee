"""What this computer is: the platform, its cores, memory, disks and mounts, and Google Drive on it."""

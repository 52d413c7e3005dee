"""The same images from where they lie, from local files, and from a pack: what each costs an epoch."""

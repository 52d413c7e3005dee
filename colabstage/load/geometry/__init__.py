"""Where pixels, masks and boxes go when images are cut, mirrored and resized."""

"""Image bytes to arrays of one shape: decoding, orientation, colour, resizing."""

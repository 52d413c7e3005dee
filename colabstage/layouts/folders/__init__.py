"""Samples that are files in folders: of one class each, or in pairs of image and mask."""

"""Kaggle datasets."""

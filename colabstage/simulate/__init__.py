"""A Google Drive and a `google.colab` to practise on, where the real ones cannot be."""

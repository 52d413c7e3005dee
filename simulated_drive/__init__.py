"""A Google Drive and a `google.colab` to practise on where the real ones are not available."""

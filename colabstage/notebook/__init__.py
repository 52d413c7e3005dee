"""What notebooks show: the staging form, the browser of samples, and plots."""

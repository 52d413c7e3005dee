"""What people see and press in a notebook: progress, the staging form, the dataset browser."""

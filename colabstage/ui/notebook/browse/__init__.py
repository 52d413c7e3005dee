"""The dataset browser: pages of samples as people see them, apart from the widgets that turn the pages."""

"""A run of pytest: settings, items, workers, progress and what is gathered from them."""

"""Where programs run, as data: the features, limits and instructions of each machine."""

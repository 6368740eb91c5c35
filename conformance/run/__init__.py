"""The pytest run: settings, items, the child process, progress, and the collection of results."""

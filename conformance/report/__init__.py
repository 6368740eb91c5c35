"""Reports: the rows of a run as tables, pages and files."""

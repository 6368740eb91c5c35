"""Calls in a child process, which may crash or hang; the machine lock and temporary folders."""

"""Execution of programs: one stage by its executor, or compiled; buffers, sizes and results."""

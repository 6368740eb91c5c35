"""Schedules found by timing: candidates are built on all cores, raced in another process, checked, and stored."""

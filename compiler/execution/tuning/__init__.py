"""Schedules found by timing: candidates built on all cores, raced in a process of their own, checked, kept."""

"""Schedules for machines with threads."""

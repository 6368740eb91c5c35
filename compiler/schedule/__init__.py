"""Schedules: how to run a program, as a value; steps that are printed, parsed and applied one at a time."""

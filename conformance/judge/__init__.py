"""Checking of cases: references, error bounds, and the execution of every stage against them."""

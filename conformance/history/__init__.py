"""Comparison over time: recorded texts, baselines, bisection, histories and reports."""

"""Seconds a call -> results with ratios, as a table, JSON and a picture."""

"""Divides inputs into micro-batches, and makes the result of their outputs."""

"""Calls that are matched by the names of tensors, whatever thread makes them."""

"""Rows of the database -> values, and changes of values -> rows."""

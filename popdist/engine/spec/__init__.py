"""The engine's specification: dtypes, operations, and a reference in numpy."""

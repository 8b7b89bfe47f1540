"""What the engine promises: dtypes, operations, and a reference in numpy."""

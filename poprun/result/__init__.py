"""A finished job -> exit code and words."""

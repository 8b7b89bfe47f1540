"""The memory that the members of a group share, and what limits it."""

"""The memory that the members of a group share, and its limits."""

"""The operations of a group, from arrays to the core's rows of addresses."""

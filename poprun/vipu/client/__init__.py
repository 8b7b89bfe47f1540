"""The address of a server -> connections to it -> an inventory."""

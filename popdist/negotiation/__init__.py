"""Calls that the ranks of a process set request, agreed upon and carried out alike."""

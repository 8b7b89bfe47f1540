"""Calls matched by name: members agree on what all request, and carry it out alike."""

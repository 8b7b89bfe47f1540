"""Calls on any framework's tensors: from arguments to requests, rows and results."""

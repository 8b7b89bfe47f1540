"""Sends and receives between two members of a process group, beside its other calls.

In come tensors with a peer and a tag; out go messages with a handle to wait for.
"""

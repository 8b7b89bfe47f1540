"""Requests that all ranks agree upon, carried out by the engine."""

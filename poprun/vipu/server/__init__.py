"""Requests over HTTP come in, an embedded inventory's answers go out as JSON."""

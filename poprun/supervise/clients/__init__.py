"""Requests of popctl -> actions on a running job, and what is told about it."""

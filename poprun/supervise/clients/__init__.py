"""Requests of popctl -> actions on a running job, and answers about it."""

"""Collectives between the processes of one host, in memory that they share."""

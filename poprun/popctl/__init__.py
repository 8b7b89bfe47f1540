"""The command popctl: it sends requests to running jobs, and prints the answers."""

"""The command popctl: requests to running jobs, and what they answer -> words."""

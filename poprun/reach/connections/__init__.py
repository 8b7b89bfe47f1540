"""Connects poprun to an agent on another host: by ssh, srun or another command."""

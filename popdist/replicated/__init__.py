"""The common part of replicated training; it imports no framework."""

"""Replicated training of models that compute by torch, for the stand-ins."""

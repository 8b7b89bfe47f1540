"""Calls on tensors, turned into requests, whose results and gradients they return."""

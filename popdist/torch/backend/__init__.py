"""The backend "popdist" of torch.distributed: its process group, and how torch gets it.

In come a store, a rank and a size; out goes a process group for torch.distributed.
"""

"""What multiprocessing's forkserver imports, for processes that load batches."""

import atexit
import os

# It takes seconds: once for all forks of the server.
import torch

__all__ = ["torch"]

# The program waits at its end for the server, without torch's own end, which takes half
# a second.
atexit.register(os._exit, 0)

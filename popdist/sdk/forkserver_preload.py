"""What multiprocessing's forkserver imports, for processes that load batches."""

import atexit
import os

# It takes seconds: once for all forks of the server.
import torch

__all__ = ["torch"]

# The server ends with the program. Without torch's own end, which takes half a second,
# poprun does not find it left over.
atexit.register(os._exit, 0)

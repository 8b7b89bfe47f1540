"""Loading batches for the replicas of a process."""

from .accessor import AsynchronousDataAccessor
from .loader import DataLoader, FixedLengthIterableDataset

__all__ = ["AsynchronousDataAccessor", "DataLoader", "FixedLengthIterableDataset"]

"""Loading batches for the replicas of a process."""

from .accessor import AsynchronousDataAccessor
from .fixed_length import FixedLengthIterableDataset
from .loader import DataLoader

"""Share replicas out among instances, and run one process for each."""

__version__ = "0.1.0"

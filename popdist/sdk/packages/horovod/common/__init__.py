"""What Horovod's modules for all frameworks have in common: errors, process sets."""

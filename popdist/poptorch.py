"""PopTorch's options for the replicas of this instance."""

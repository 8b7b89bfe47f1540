"""Takes the gradients of micro-batches; gives weights updated once for all replicas."""

"""Groups of replicas: what users call, on arrays."""

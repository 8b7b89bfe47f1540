"""State of V-IPU: clusters, partitions, leases, and the processes on devices."""

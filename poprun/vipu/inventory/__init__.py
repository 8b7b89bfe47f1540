"""State of V-IPU: clusters, partitions, leases, and the processes attached to devices."""

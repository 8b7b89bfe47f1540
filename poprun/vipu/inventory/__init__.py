"""State of V-IPU: clusters, partitions, leases and who is attached to which device."""

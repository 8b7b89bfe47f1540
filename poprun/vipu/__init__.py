"""Emulated pods: requests for IPUs -> partitions, reserved devices, leases."""

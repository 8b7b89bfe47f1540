"""Emulated pods: requests for IPUs -> partitions, reserved devices, leases.

A request comes from `commands`, or for a job from `launch`. `opening` opens the
inventory that is meant. A method of `inventory.interface` performs the operation of its
name: in `client.server_inventory`, which asks a `server`, or in `inventory.embedded`,
in a transaction of its database, by a function of `inventory.tables`. `launch` holds
what a job has got as long as it runs; `release` gives it back if poprun cannot.
"""

"""Emulated pods: requests for IPUs -> partitions, reserved devices, leases.

A request comes from `commands`, or for a job from `launch`. `opening` opens the
inventory that is meant. `inventory.interface` lists the operations, each a function of
a module of `inventory`. `inventory.embedded` performs them in transactions of its
database; `client.server_inventory` asks a `server`. `launch` holds what a job has got
as long as it runs; `release` gives it back if poprun cannot.
"""

"""The operations of an inventory, each a function of its name, on one transaction.

`machines` makes clusters, agents and allocations, and says which IPUs are free. `users`
has those of a server. `partitions` reads and stores partitions; `placement` makes,
changes and removes them. `leases` opens and ends leases, and has the devices that they
hold. `acquisition` gives a job all of that at once, or lets it wait.
"""

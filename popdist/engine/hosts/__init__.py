"""The transport of several hosts: shared memory on each, links between them."""

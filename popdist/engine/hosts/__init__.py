"""The transport of several hosts: shared memory within each host, MPI between them."""

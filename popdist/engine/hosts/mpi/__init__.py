"""Links by MPI, with all that its libraries need: see connect()."""

"""A plan -> mpirun's argv, and its messages -> what failed: one class for each MPI."""

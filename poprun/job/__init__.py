"""Plan -> a finished job: starts instances over mpirun, supervises and ends them."""

"""What the user names of hosts, instances and mpirun: Settings -> checked values."""

"""The machine that poprun runs on: starts guard, mpirun and shims; emits events."""

"""The machine while it is measured: the state of its cores, busy processes on it."""

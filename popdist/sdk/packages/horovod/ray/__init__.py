"""Horovod on Ray, which only says that it is not there."""

raise ImportError(
    "horovod.ray is not available: this Horovod starts no processes in Ray's actors. "
    "Start the function that RayExecutor.run() calls as a program of its own: poprun "
    "--num-instances N --host HOST:N,... python program.py",
    name="horovod.ray",
)

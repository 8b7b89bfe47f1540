"""A stand-in for popxl that only says that there is none."""

# Programs that can do without it try to import it.
raise ImportError(
    "popxl is not available: popdist emulates PopART's Builder and sessions, but not "
    "popxl. Write the model with popart.Builder, PopTorch or PyTorch to run it on the "
    "CPU.",
    name="popxl",
)

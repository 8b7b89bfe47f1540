"""TensorFlow operations that hand tensors' memory to a Python function."""

from collections.abc import Callable

# Raises LookupError where the TensorFlow with the library of this path lacks a
# function, and RuntimeError where it refuses the operations. `carry_out` gets the key
# of a PopdistReduce and the tables of its tensors; it returns None, or the code and the
# text of a status.
def register_operations(
    path: str,
    carry_out: Callable[[int, tuple[bytes, ...]], tuple[int, str] | None],
    /,
) -> None: ...

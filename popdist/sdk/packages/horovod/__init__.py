"""Horovod's interface, with popdist's collectives."""

from typing import Any, NoReturn

# The release whose interface this is.
__version__ = "0.28.1"


# Any, because it takes whatever the function of this name takes.
def run(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse to start processes: poprun does that.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        "horovod.run is not available: this Horovod starts no processes. Start the "
        "program with poprun --num-instances N python program.py instead."
    )

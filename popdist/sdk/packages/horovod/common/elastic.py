"""What stands for the names of elastic Horovod: it raises an error."""

from typing import Any


def refused(module: str, name: str) -> type[Any]:
    """Return a class, also in place of a function, that raises an error when called."""

    # Any: it takes whatever the original of this name takes.
    def refuse(self: object, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"{module}.{name} is not available: the number of ranks of a job is fixed "
            "here. Start the program with poprun --num-instances N, which can restart "
            "a job that fails, and save checkpoints."
        )

    described = {"__module__": module, "__doc__": "Not available: see the error."}
    return type(name, (), {**described, "__init__": refuse})

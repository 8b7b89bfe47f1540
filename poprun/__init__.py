"""Share replicas out among instances, and run one process for each."""

# The name is the type checker's; signals are not handled before this is imported.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from poprun.python_calls import (
        InstanceResult,
        JobFailedError,
        JobResult,
        launch,
        run_command,
    )

__version__ = "0.1.0"
__all__ = [
    "InstanceResult",
    "JobFailedError",
    "JobResult",
    "launch",
    "run_command",
]


def __getattr__(name: str) -> object:
    # The command, its guard and its shims import this package, too, and must not wait.
    if name in __all__:
        from poprun import python_calls  # noqa: PLC0415

        return getattr(python_calls, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

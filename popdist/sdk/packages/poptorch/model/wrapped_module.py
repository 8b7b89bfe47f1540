"""The user's module while an executor trains it: an instance of a subclass."""

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from .executor import PoplarExecutor

_EXECUTOR = "_poptorch_executor"


def wrap(module: nn.Module, executor: "PoplarExecutor") -> None:
    """Give a module the methods that it has while an executor trains it.

    Raises:
        RuntimeError: Another executor trains it.
    """
    if _EXECUTOR in module.__dict__:
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call "
            "model.destroy() on the model to unwrap before wrapping again."
        )
    module.__dict__[_EXECUTOR] = executor
    module.__class__ = _subclass_of(type(module))


def unwrap(module: nn.Module) -> None:
    """Give a module its original class."""
    if module.__dict__.pop(_EXECUTOR, None) is not None:
        module.__class__ = type(module).__bases__[0]


def _instance_of(original: type[nn.Module]) -> nn.Module:
    """Return an instance without attributes, which pickle and copy then set."""
    return original.__new__(original)


def _subclass_of(original: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass for modules with an executor, which copies leave out."""

    class PoptorchModel(original):  # type: ignore[misc, valid-type]
        def destroy(self) -> None:
            """Unwrap the model, and forget what was compiled for it."""
            self.__dict__[_EXECUTOR].destroy()

        # Any: how pickle and copy describe objects.
        def __reduce_ex__(self, protocol: Any) -> Any:
            state = dict(self.__dict__)
            del state[_EXECUTOR]
            return _instance_of, (original,), state

        # torch's repr shows this name.
        def _get_name(self) -> str:
            return original.__name__

    return PoptorchModel

"""The registry of custom operators: their names, and the CPU functions for them."""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from popdist import environment as env
from popdist.errors import PopdistError, SettingError

# The group of entry points for modules of installed packages.
ENTRY_POINTS = "popdist.custom_ops"


class CustomOpError(PopdistError):
    """A custom operator has no CPU function, or its function returns a wrong result."""


@dataclass(frozen=True, slots=True)
class CustomOp:
    """A custom operator on the CPU."""

    name: str
    # Any: the tensors are the framework's, and attributes are what the program passes.
    function: Callable[[Sequence[Any], Any], Any]
    # None where the framework differentiates the function itself.
    backward: Callable[..., Any] | None = None

    def outputs(self, inputs: Sequence[Any], attributes: Any) -> list[Any]:
        """Return the outputs of the function, as a list."""
        return as_list(self.function(inputs, attributes))

    def gradients(
        self,
        gradients: Sequence[Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attributes: Any,
    ) -> list[Any]:
        """Return the gradient of each input, from the gradient of each output.

        Raises:
            CustomOpError: The backward function returns another number of gradients.
        """
        if self.backward is None:
            raise ValueError(f"{self.name} has no backward function.")
        returned = as_list(self.backward(gradients, inputs, outputs, attributes))
        if len(returned) != len(inputs):
            raise CustomOpError(
                f"The backward function of {self.name} returned {len(returned)} "
                f"gradients for {len(inputs)} inputs. Return one for each input, and "
                "None for an input without a gradient."
            )
        return returned


def as_list(value: Any) -> list[Any]:
    """Return the items of a list or tuple; a list with any other value."""
    return list(value) if isinstance(value, list | tuple) else [value]


_registered: dict[str, CustomOp] = {}


# Any: the tensors are the framework's, and attributes are what the program passes.
def register_custom_op(
    name: str,
    function: Callable[[Sequence[Any], Any], Any],
    backward: Callable[..., Any] | None = None,
) -> None:
    """Set the CPU function of a custom operator, for all of this process.

    `function(inputs, attributes)` gets tensors of the framework that runs the operator
    (torch for poptorch and popart, TensorFlow for tensorflow.python.ipu), and the
    attributes: a mapping, or for TensorFlow the text. It returns a tensor, or a list.

    Args:
        name: poptorch.custom_op's `name`, popart's `opName`, or TensorFlow's `op_name`;
            instead of "Build", the name of the library's file without its suffix.
        function: The operator's outputs, from its inputs and attributes.
        backward: `backward(gradients, inputs, outputs, attributes)` returns the
            gradients of the inputs. Without it, the framework differentiates the
            function.
    """
    _registered[name] = CustomOp(name, function, backward)


def find_custom_op(name: str, provided: Mapping[str, CustomOp]) -> CustomOp:
    """Return the custom operator of a name.

    Modules in the environment variable and in entry points are imported if the program
    itself has not registered the name.

    Args:
        name: The operator.
        provided: The operators that popdist has functions for, by their names.

    Raises:
        CustomOpError: There is no function for it.
        SettingError: The variable names a module that does not exist.
    """
    if name not in _registered:
        _import_modules(os.environ.get(env.CUSTOM_OPS, ""))
    if name in _registered:
        return _registered[name]
    if name in provided:
        return provided[name]
    raise CustomOpError(
        f"The custom operator {name!r} has no function for the CPU. Register one "
        f"before the model runs: popdist.sdk.register_custom_op({name!r}, function), "
        "where function(inputs, attributes) returns the outputs. Or name a module that "
        f"does so in {env.CUSTOM_OPS}: the program need not be changed then. "
        "docs/custom_operators.md has an example."
    )


@cache
def _import_modules(names: str) -> None:
    """Import the modules that register functions, once.

    A function that the program has registered before stays.
    """
    registered_by_program = dict(_registered)
    try:
        _import_each(names)
    finally:
        _registered.update(registered_by_program)


def _import_each(names: str) -> None:
    # First, so that the variable's modules can replace a package's functions.
    for entry_point in entry_points(group=ENTRY_POINTS):
        entry_point.load()
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0] and error.name != name:
                raise
            raise SettingError(
                env.CUSTOM_OPS,
                names,
                f"a list of modules with commas, and there is no module {name!r} on "
                "sys.path",
            ) from None

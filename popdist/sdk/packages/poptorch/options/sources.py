"""Options from texts: JSON, and files with one call on each line."""

import ast
import json
from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from ..errors import ConfigFileError


# Any: the arguments of methods are of many types.
def set_from_json(options: object, text: str, names: dict[str, Any]) -> None:
    """Call the methods that a JSON object names, with its values as arguments.

    A name may have dots: {"Training.gradientAccumulation": 2}. A list holds the
    arguments of a method that takes several. The name of an enum's member, as
    "OutputMode.All", is that member.

    Args:
        options: The options.
        text: The JSON object.
        names: The enums, by their names.

    Raises:
        ValueError: It is not JSON, or not an object.
        AttributeError: There is no method of a name.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(
            f"{text!r} is not a JSON object. Write options as "
            '{"deviceIterations": 2, "Training.gradientAccumulation": 4}.'
        )
    for name, value in values.items():
        method: Any = options
        for part in name.split("."):
            method = getattr(method, part)
        if not callable(method):
            raise AttributeError(f"Invalid attribute {name}: it is not a method.")
        arguments = value if _is_arguments(value, method) else [value]
        method(*(_member(argument, names) for argument in arguments))


def _is_arguments(value: Any, method: Callable[..., Any]) -> bool:
    """Return whether a value is a list of arguments, and not an argument itself."""
    parameters = list(signature(method).parameters.values())
    takes_one = len(parameters) == 1 and parameters[0].kind != Parameter.VAR_POSITIONAL
    return isinstance(value, list) and not takes_one


def _member(value: Any, names: dict[str, Any]) -> Any:
    """Return the enum's member that a text names; any other value as it is."""
    if isinstance(value, str):
        enum, _, member = value.removeprefix("poptorch.").partition(".")
        members = getattr(names.get(enum), "__members__", {})
        return members.get(member, value)
    return value


def set_from_file(options: object, path: str | Path, names: dict[str, Any]) -> None:
    """Make the calls of a file, one on each line, as methods of the options.

    Args:
        options: The options.
        path: The file. A line is a call with no `options.` before it, or a comment.
        names: The names that arguments may use.

    Raises:
        ConfigFileError: A line is not a call of a method, or the call raised.
    """
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            call = ast.parse(f"options.{stripped}", mode="eval").body
            if not isinstance(call, ast.Call):
                raise SyntaxError("it is not a call")
            _value(call, {**names, "options": options})
        except Exception as error:
            reason = error.msg if isinstance(error, SyntaxError) else error
            raise ConfigFileError(
                f"{type(error).__name__} at line {number} of {Path(path).name}: "
                f"{reason}\n> options.{stripped}\n"
                "A line sets one option, as in: deviceIterations(4)"
            ) from error


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return the value of names, attributes, calls, literals, and lists of these.

    Raises:
        SyntaxError: It is made of anything else.
        NameError: A name is not one of these.
    """
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise NameError(f"name {node.id!r} is not defined")
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, names), node.attr)
    if isinstance(node, ast.Call) and all(k.arg for k in node.keywords):
        arguments = [_value(argument, names) for argument in node.args]
        keywords = {str(k.arg): _value(k.value, names) for k in node.keywords}
        return _value(node.func, names)(*arguments, **keywords)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(element, names) for element in node.elts]
    if isinstance(node, ast.Dict) and all(node.keys):
        keys = (_value(key, names) for key in node.keys if key)
        return dict(zip(keys, (_value(v, names) for v in node.values), strict=True))
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise SyntaxError(f"{ast.unparse(node)} is not an argument") from None

"""Options from texts: JSON, and files with one call on each line."""

import ast
import json
from pathlib import Path
from typing import Any

from ..errors import ConfigFileError


def set_from_json(options: object, text: str) -> None:
    """Call the methods that a JSON object names, with its values as arguments.

    A name may have dots: {"Training.gradientAccumulation": 2}.

    Raises:
        ValueError: It is not JSON, or not an object.
        AttributeError: A name is that of no method.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(
            f"{text!r} is no JSON object. Write options as "
            '{"deviceIterations": 2, "Training.gradientAccumulation": 4}.'
        )
    for name, value in values.items():
        method: Any = options
        for part in name.split("."):
            method = getattr(method, part)
        if not callable(method):
            raise AttributeError(f"Invalid attribute {name}: it is not a method.")
        method(value)


def set_from_file(options: object, path: str | Path, names: dict[str, Any]) -> None:
    """Make the calls of a file, one on each line, as methods of the options.

    Args:
        options: The options.
        path: The file. A line is a call with no `options.` before it, or a comment.
        names: What the arguments may name.

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
            raise ConfigFileError(
                f"Line {number} of {path}, {stripped!r}, sets no option: "
                f"{type(error).__name__}: {error}. Write a line as in "
                "deviceIterations(4)"
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

"""Configuration files: YAML, keyed by the long names of options.

A value in a file is read by the rules of the command line.
"""

import os
import stat
from collections.abc import Iterator

import yaml
from yaml import MappingNode, Node

from poprun.errors import OptionError
from poprun.options.grammar import did_you_mean
from poprun.options.settings import DEFAULT, Layer, Setting, Settings, make_setting
from poprun.options.table import BY_NAME, BY_SHORT, OPTIONS
from poprun.options.types import Option
from poprun.words import quoted

_LARGEST_FILE = 1_000_000
_TAG = "tag:yaml.org,2002:"
# The tags that YAML may give to a single value; its type follows from the option.
_SCALARS = ("str", "int", "float", "bool", "timestamp", "value", "merge")


def read_file(path: str) -> Layer:
    """Read the options in a YAML file.

    Raises:
        OptionError: The file cannot be read, or a line of it is not valid.
    """
    layer: dict[str, Setting] = {}
    lines: dict[str, int] = {}
    for key, node in _pairs(path, _read(path)):
        line = key.start_mark.line + 1
        option = _option_of_file(key, f"{path}:{line}")
        if earlier := lines.get(option.name):
            raise OptionError(
                f"{path}:{line}: {option.name} is given twice; the first "
                f"is in line {earlier}.",
                "Leave one of them out.",
            )
        lines[option.name] = line
        texts = list(_texts(option, node, path))
        if texts:
            layer[option.name] = make_setting(option, texts, f"{path}:{line}")
    return layer


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise OptionError(
            f"The configuration file {path} cannot be read: {error.strerror}."
        ) from None
    if len(data) > _LARGEST_FILE:
        raise OptionError(
            f"The configuration file {path} has more than {_LARGEST_FILE} bytes.",
            "Name a smaller one.",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise OptionError(f"{path}:{line}: this is not valid UTF-8.") from None


def _pairs(path: str, text: str) -> list[tuple[Node, Node]]:
    """Return the keys and values of a file."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, reason = mark.line + 1 if mark else 1, error.problem
    except yaml.reader.ReaderError as error:
        line, reason = text.count("\n", 0, error.position) + 1, error.reason
    except RecursionError:
        raise OptionError(f"{path}:1: this is nested too deeply.") from None
    else:
        if root is None or isinstance(root, MappingNode):
            return root.value if root else []
        raise OptionError(
            f"{path}:{root.start_mark.line + 1}: the file is {_kind(root)}, but "
            "must map long names of options to values, such as num-replicas: 8."
        )
    raise OptionError(f"{path}:{line}: this is not valid YAML: {reason}.")


def _option_of_file(key: Node, place: str) -> Option:
    name = key.value
    if not isinstance(name, str):
        raise OptionError(
            f"{place}: the name of an option is missing before the colon."
        )
    option = BY_NAME.get(name)
    if option is None:
        word = name.lstrip("-")
        hint = did_you_mean(word, BY_NAME)
        if short := BY_SHORT.get(word):
            hint = f"Write its long name, {short.name}."
        raise OptionError(f"{place}: poprun has no option named {quoted(name)}.", hint)
    if not option.in_file:
        raise OptionError(
            f"{place}: {name} is not allowed in a configuration file.",
            "Give it on the command line.",
        )
    return option


def _texts(option: Option, node: Node, path: str) -> Iterator[tuple[str, str]]:
    label = f"{path}:{node.start_mark.line + 1}: {option.name}"
    listed = node.tag == _TAG + "seq"
    if listed and not option.multiple:
        raise OptionError(f"{label} is a list, but must be a single value.")
    for child in node.value if listed else [node]:
        label = f"{path}:{child.start_mark.line + 1}: {option.name}"
        if child.tag == _TAG + "null":
            raise OptionError(f"{label} has no value.", "Give it one, or leave it out.")
        if not isinstance(child.value, str):
            rule = "a single value"
            if option.multiple and not listed:
                rule = "a value or a list of values"
            raise OptionError(f"{label} is {_kind(child)}, but must be {rule}.")
        if child.tag.removeprefix(_TAG) not in _SCALARS:
            raise OptionError(f"{label} has the tag {child.tag}, but must have none.")
        yield child.value, label


def _kind(node: Node) -> str:
    if isinstance(node.value, str):
        return "a single value"
    is_pairs = bool(node.value) and isinstance(node.value[0], tuple)
    return "a mapping" if is_pairs or node.tag == _TAG + "map" else "a list"


def export(settings: Settings, path: str, *, overwrite: bool) -> None:
    """Write the given options to a file that `read_file` reads back.

    Raises:
        OptionError: The file exists and may not be replaced, or cannot be written.
    """
    text = to_yaml(settings)
    try:
        # Only its owner may read it: it may hold secrets, as in -x KEY=VALUE.
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if overwrite else os.O_EXCL)
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fchmod(file.fileno(), 0o600)
            file.write(text)
    except FileExistsError:
        raise OptionError(
            f"The file {path} of --export-config exists already.",
            "To replace it, add --overwrite-config=yes.",
        ) from None
    except OSError as error:
        raise OptionError(
            f"The file {path} of --export-config cannot be written: {error.strerror}."
        ) from None


def to_yaml(settings: Settings) -> str:
    """Write the options that may stand in a file and were given, with their texts."""
    values = {
        name: _exported(OPTIONS[name], setting)
        for name, setting in settings.entries.items()
        if setting.origin != DEFAULT and OPTIONS[name].in_file
    }
    return yaml.safe_dump(values, sort_keys=False, width=10_000)


def _exported(option: Option, setting: Setting) -> bool | int | str | list[str]:
    if option.multiple:
        return list(setting.texts)
    # Otherwise the text as it was given: Python may write a float as 1e-05, which
    # poprun does not read as a number of seconds.
    if isinstance(setting.value, bool | int):
        return setting.value
    return setting.texts[-1]

"""The value of every option and where it comes from.

The command line counts for more than the environment, the environment for more than
a configuration file, a file for more than the defaults. Files are YAML, keyed by the
long names of options; a value in a file is read by the rules of the command line.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from poprun.errors import OptionError
from poprun.helptext import default_text, did_you_mean
from poprun.kinds import (
    Item,
    Kind,
    Option,
    Value,
    combine,
    item,
    refusal,
    shown,
    variable,
)
from poprun.options import BY_NAME, OPTIONS, VIPU_OPTIONS

if TYPE_CHECKING:
    from yaml import MappingNode, Node

COMMAND_LINE = "command line"
DEFAULT = "default"

_LARGEST_FILE = 1_000_000
_TAG = "tag:yaml.org,2002:"
# What YAML may take a value for; what it is, the table of options says.
_SCALARS = ("str", "int", "float", "bool", "timestamp", "value", "merge")


class Setting(NamedTuple):
    """The value of one option, the texts it was read from, and where they stood."""

    value: Value
    texts: tuple[str, ...]
    origin: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The values of all options, by long name."""

    entries: Mapping[str, Setting]
    # Sentences for the user about what was given and is read by nothing.
    warnings: Sequence[str] = ()

    # Any, because each option has a type of its own, which the table of options
    # says and no annotation can.
    def __getitem__(self, name: str) -> Any:
        return self.entries[name].value

    def origin(self, name: str) -> str:
        return self.entries[name].origin

    def given(self, name: str) -> bool:
        """Whether anybody gave the option, be it with its default value."""
        return self.origin(name) != DEFAULT

    @property
    def offline(self) -> bool:
        """Whether the job runs without IPUs."""
        if self["offline-mode"] is not None:
            return bool(self["offline-mode"])
        return not any(map(self.given, VIPU_OPTIONS))

    @property
    def verbosity(self) -> int:
        """0, 1 for -v or 2 for -vv, however it was said."""
        verbose: int = self["verbose"]
        return 2 if self["vv"] else min(verbose, 2)


_Layer = Mapping[str, Setting]


def resolve(
    given: Sequence[tuple[Option, str]], environ: Mapping[str, str]
) -> Settings:
    """Lay the command line over the environment, a file and the defaults.

    Raises:
        OptionError: A value makes no sense; the sentence says where it stands.
    """
    layers = [_from_command_line(given), _from_environment(environ)]
    for layer in layers:
        _refuse_exclusive(layer)
    file = next((la["import-config"] for la in layers if "import-config" in la), None)
    if file:
        layers.append(from_file(str(file.value)))
        _refuse_exclusive(layers[-1])
    entries = {o.name: _uppermost(o, layers) for o in OPTIONS.values()}
    return Settings(entries=_with_processes(entries), warnings=list(_mistyped(environ)))


def _with_processes(entries: dict[str, Setting]) -> dict[str, Setting]:
    """Put the numbers of instances and replicas in the place of --num-processes."""
    processes = entries["num-processes"]
    if processes.origin == DEFAULT:
        return entries
    changed = {"num-processes": Setting(None, (), DEFAULT), "num-instances": processes}
    if entries["num-replicas"].origin == DEFAULT:
        changed["num-replicas"] = processes
    return entries | changed


def _mistyped(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable whose name is nearly that of an option.

    No error: any program may have variables that begin like poprun's.
    """
    known = {variable(name): name for name in BY_NAME}
    begin = variable("")
    for name in environ:
        if not name.startswith(begin) or name in known or not environ[name]:
            continue
        beginning = name.removeprefix(begin).lower().replace("_", "-")
        from difflib import get_close_matches

        for near in get_close_matches(beginning, known.values(), n=1, cutoff=0.8):
            yield (
                f"The variable {name} is no option of poprun, and has no effect. Did "
                f"you mean {variable(near)}?"
            )


def _from_command_line(given: Sequence[tuple[Option, str]]) -> _Layer:
    texts: dict[str, list[str]] = {}
    for option, text in given:
        texts.setdefault(option.name, []).append(text)
    return {
        name: _setting(OPTIONS[name], [(t, f"--{name}") for t in found], COMMAND_LINE)
        for name, found in texts.items()
    }


def _from_environment(environ: Mapping[str, str]) -> _Layer:
    layer: dict[str, Setting] = {}
    for name, option in BY_NAME.items():
        # An empty variable is how people take away one that is exported.
        text = environ.get(variable(name), "")
        if text and option.in_environment and option.name not in layer:
            origin = variable(name)
            layer[option.name] = _setting(option, [(text, origin)], origin)
    return layer


def _setting(
    option: Option, labelled: Sequence[tuple[str, str]], origin: str
) -> Setting:
    items: list[Item] = [item(option, text, label) for text, label in labelled]
    return Setting(
        value=combine(option, items),
        texts=tuple(text for text, _ in labelled),
        origin=origin,
    )


def _uppermost(option: Option, layers: Sequence[_Layer]) -> Setting:
    for layer in layers:
        if setting := layer.get(option.name):
            return setting
        if option.rival in layer:
            break
    return Setting(value=option.default, texts=(), origin=DEFAULT)


def _refuse_exclusive(layer: _Layer) -> None:
    for name, setting in layer.items():
        option = OPTIONS[name]
        if option.exclusive and option.rival in layer:
            places = {setting.origin: None, layer[option.rival].origin: None}
            raise refusal(
                f"{option.flag} and --{option.rival} are both given "
                f"({', '.join(places)}), but they exclude each other.",
                "Leave one of them out.",
            )


# --- Configuration files.


def from_file(path: str) -> _Layer:
    """Read the options in a YAML file.

    Raises:
        OptionError: The file cannot be read, or a line of it makes no sense.
    """
    root = _compose(path, _read(path))
    if root is None:
        return {}
    layer: dict[str, Setting] = {}
    lines: dict[str, int] = {}
    for key, node in root.value:
        line = key.start_mark.line + 1
        option = _option_of_file(key, f"{path}:{line}")
        if earlier := lines.get(option.name):
            raise refusal(
                f"{path}:{line}: {option.name} stands here a second time; "
                f"the first is in line {earlier}.",
                "Leave one of them out.",
            )
        lines[option.name] = line
        texts = list(_texts(option, node, path))
        if texts:
            layer[option.name] = _setting(option, texts, f"{path}:{line}")
    return layer


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise refusal(
            f"The configuration file {path} cannot be read: {error.strerror}."
        ) from None
    if len(data) > _LARGEST_FILE:
        raise refusal(
            f"The configuration file {path} has more than {_LARGEST_FILE} bytes, "
            "so it is hardly one."
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refusal(f"{path}:{line}: this is not written in UTF-8.") from None


def _compose(path: str, text: str) -> "MappingNode | None":
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise refusal(f"{path}:{line}: this is no YAML: {error.problem}.") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise refusal(f"{path}:{line}: this is no YAML: {error.reason}.") from None
    except RecursionError:
        raise refusal(f"{path}:1: this is nested too deeply.") from None
    if root is None or isinstance(root, yaml.MappingNode):
        return root
    raise refusal(
        f"{path}:{root.start_mark.line + 1}: here stands {_kind(root)}, but must "
        "stand the long names of options with their values, as in num-replicas: 8."
    )


def _option_of_file(key: "Node", place: str) -> Option:
    name = key.value
    if not isinstance(name, str):
        raise refusal(f"{place}: the name of an option is missing before the colon.")
    option = BY_NAME.get(name)
    if option is None:
        hint = did_you_mean(name.removeprefix("--"), BY_NAME)
        raise refusal(f"{place}: poprun has no option named {shown(name)}.", hint)
    if not option.in_file:
        raise refusal(
            f"{place}: {name} cannot stand in a configuration file.",
            "Give it on the command line.",
        )
    return option


def _texts(option: Option, node: "Node", path: str) -> Iterator[tuple[str, str]]:
    label = f"{path}:{node.start_mark.line + 1}: {option.name}"
    listed = node.tag == _TAG + "seq"
    if listed and not option.multiple:
        raise refusal(f"{label} is a list, but must be a single value.")
    for child in node.value if listed else [node]:
        label = f"{path}:{child.start_mark.line + 1}: {option.name}"
        if child.tag == _TAG + "null":
            raise refusal(f"{label} has no value.", "Give it one, or leave it out.")
        if not isinstance(child.value, str):
            raise refusal(f"{label} is {_kind(child)}, but must be a single value.")
        if child.tag.removeprefix(_TAG) not in _SCALARS:
            raise refusal(f"{label} has the tag {child.tag}, but must have none.")
        yield child.value, label


def _kind(node: "Node") -> str:
    if isinstance(node.value, str):
        return "a single value"
    is_pairs = bool(node.value) and isinstance(node.value[0], tuple)
    return "a mapping" if is_pairs or node.tag == _TAG + "map" else "a list"


def export(settings: Settings, path: str, *, overwrite: bool) -> None:
    """Write what was given to a file that `from_file` reads back.

    Raises:
        OptionError: The file exists and may not be replaced, or cannot be written.
    """
    text = to_yaml(settings)
    try:
        # It may name secrets, as in -x KEY=VALUE: for its owner alone.
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if overwrite else os.O_EXCL)
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fchmod(file.fileno(), 0o600)
            file.write(text)
    except FileExistsError:
        raise refusal(
            f"The file {path} of --export-config exists already.",
            "To replace it, add --overwrite-config=yes.",
        ) from None
    except OSError as error:
        raise OptionError(
            f"The file {path} of --export-config cannot be written: {error.strerror}."
        ) from None


def to_yaml(settings: Settings) -> str:
    """Write the options that may stand in a file and were given, with their texts."""
    import yaml

    pairs = [
        (yaml.ScalarNode(_TAG + "str", name), _node(OPTIONS[name], setting))
        for name, setting in settings.entries.items()
        if setting.origin != DEFAULT and OPTIONS[name].in_file
    ]
    root = yaml.MappingNode(_TAG + "map", pairs, flow_style=not pairs)
    return yaml.serialize(root, Dumper=yaml.SafeDumper, width=10_000)


def _node(option: Option, setting: Setting) -> "Node":
    import yaml

    if option.multiple:
        nodes = [yaml.ScalarNode(_TAG + "str", text) for text in setting.texts]
        return yaml.SequenceNode(_TAG + "seq", nodes, flow_style=False)
    match setting.value:
        case bool(on):
            return yaml.ScalarNode(_TAG + "bool", "true" if on else "false")
        case int(number):
            return yaml.ScalarNode(_TAG + "int", str(number))
        case _:
            # The text as it was given: a float's own may be 1e-05, which is no
            # number of seconds for us.
            return yaml.ScalarNode(_TAG + "str", setting.texts[-1])


# --- For people.


def table(settings: Settings) -> str:
    """Show every option, the value that holds and where that comes from."""
    rows = [
        (OPTIONS[name].flag, _that_holds(settings, OPTIONS[name]), setting.origin)
        for name, setting in settings.entries.items()
    ]
    first = max(len(row[0]) for row in rows)
    second = min(max(len(row[1]) for row in rows), 40)
    return "".join(f"{a:{first}}  {b:{second}}  {c}\n" for a, b, c in rows)


def _that_holds(settings: Settings, option: Option) -> str:
    setting = settings.entries[option.name]
    if setting.origin == DEFAULT:
        if option.name == "offline-mode":
            return "yes" if settings.offline else "no"
        if option.rival and not option.exclusive and settings.given(option.rival):
            return f"see --{option.rival}"
    return _in_words(option, setting)


def _in_words(option: Option, setting: Setting) -> str:
    if setting.origin == DEFAULT:
        return default_text(option)
    if isinstance(setting.value, bool):
        return "yes" if setting.value else "no"
    if option.kind is Kind.COUNT:
        return str(setting.value)
    if option.multiple:
        return ", ".join(repr(text) for text in setting.texts)
    text = setting.texts[-1]
    return text if text.isprintable() and " " not in text else repr(text)

"""Where settings come from: the command line, variables, a file and the defaults.

The command line counts for more than the environment, the environment for more than
a configuration file, a file for more than the defaults.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from poprun.errors import OptionError
from poprun.options.config_file import read_file
from poprun.options.refusals import refusal
from poprun.options.settings import (
    COMMAND_LINE,
    DEFAULT,
    Layer,
    Setting,
    Settings,
    make_setting,
    start_processes,
)
from poprun.options.table import BY_NAME, BY_SHORT, OPTIONS
from poprun.options.types import Option, variable

# The options that contradict --quiet.
_LOGGING = ("verbose", "vv", "debug")


def resolve_settings(
    given: Sequence[tuple[Option, str]], environ: Mapping[str, str]
) -> Settings:
    """Lay the command line over the environment, a file and the defaults.

    Raises:
        OptionError: A value is not valid; the sentence says where it is.
    """
    layers = [_from_command_line(given), _from_environment(environ)]
    for layer in layers:
        _refuse_exclusive(layer)
    file = next((la["import-config"] for la in layers if "import-config" in la), None)
    if file:
        layers.append(read_file(str(file.value)))
        _refuse_exclusive(layers[-1])
    entries = {o.name: _first_setting(o, layers) for o in OPTIONS.values()}
    return Settings(
        entries=_settle_quiet(_expand_num_processes(entries), layers),
        warnings=list(_warnings_of_mistyped(environ)),
    )


def _expand_num_processes(entries: dict[str, Setting]) -> dict[str, Setting]:
    """Put the numbers of instances and replicas in the place of --num-processes."""
    processes = entries["num-processes"]
    if processes.origin == DEFAULT:
        return entries
    giver = "-n" if processes.origin == COMMAND_LINE else processes.origin
    without = {
        **entries,
        "num-processes": Setting(value=None, texts=(), origin=DEFAULT),
    }
    return start_processes(without, processes, giver)


def _settle_quiet(
    entries: dict[str, Setting], layers: Sequence[Layer]
) -> dict[str, Setting]:
    """Let --quiet or the options that log count, whichever is nearer to the user.

    Raises:
        OptionError: Both are given in one place.
    """
    for layer in layers:
        given = [n for n in ("quiet", *_LOGGING) if n in layer and layer[n].value]
        if not given:
            continue
        silenced = ("quiet",) if given[0] != "quiet" else _LOGGING
        for name in set(silenced) & set(given):
            raise _exclusion(layer, "quiet", name)
        defaults = {
            n: Setting(value=OPTIONS[n].default, texts=(), origin=DEFAULT)
            for n in silenced
        }
        return entries | defaults
    return entries


def _warnings_of_mistyped(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable whose name is nearly that of an option.

    No error: any program may have variables that begin like poprun's.
    """
    known = {variable(name): name for name in BY_NAME}
    begin = variable("")
    for name in environ:
        if not name.startswith(begin) or name in known or not environ[name]:
            continue
        beginning = name.removeprefix(begin).lower().replace("_", "-")
        nearest = get_close_matches(beginning, known.values(), n=1, cutoff=0.8)
        if option := BY_SHORT.get(beginning):
            nearest = [option.name]
        for near in nearest:
            yield (
                f"The variable {name} is not an option of poprun and has no effect. "
                f"Did you mean {variable(near)}?"
            )


def _from_command_line(given: Sequence[tuple[Option, str]]) -> Layer:
    texts: dict[str, list[tuple[str, str]]] = {}
    options = {option.name: option for option, _ in given}
    for option, text in given:
        texts.setdefault(option.name, []).append((text, option.flag))
    return {
        name: make_setting(options[name], labelled, COMMAND_LINE)
        for name, labelled in texts.items()
    }


def _from_environment(environ: Mapping[str, str]) -> Layer:
    layer: dict[str, Setting] = {}
    for name, option in BY_NAME.items():
        # An empty variable is how people take away one that is exported.
        text = environ.get(variable(name), "")
        if text and option.in_environment and option.name not in layer:
            origin = variable(name)
            layer[option.name] = make_setting(option, [(text, origin)], origin)
    return layer


def _first_setting(option: Option, layers: Sequence[Layer]) -> Setting:
    for layer in layers:
        if setting := layer.get(option.name):
            return setting
        if option.rival in layer:
            break
    return Setting(value=option.default, texts=(), origin=DEFAULT)


def _refuse_exclusive(layer: Layer) -> None:
    for name in layer:
        option = OPTIONS[name]
        if option.exclusive and option.rival in layer:
            raise _exclusion(layer, option.name, option.rival)


def _exclusion(layer: Layer, one: str, other: str) -> OptionError:
    places = {layer[one].origin: None, layer[other].origin: None}
    return refusal(
        f"--{one} and --{other} are both given ({', '.join(places)}), but they exclude "
        "each other.",
        "Leave one of them out.",
    )

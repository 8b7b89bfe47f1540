"""The value of every option: from the command line, variables, a file and the defaults.

The command line counts for more than the environment, the environment for more than
a configuration file, a file for more than the defaults.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from poprun.errors import OptionError
from poprun.options.grammar import Given
from poprun.options.table import (
    BY_NAME,
    BY_SHORT,
    EXCLUSIVE,
    IPU_OPTIONS,
    OPTIONS,
    RIVALS,
    VIPU_OPTIONS,
)
from poprun.options.types import Option, Value, combine, item, read_count, variable

COMMAND_LINE = "command line"
DEFAULT = "default"
# The origin of --offline-mode begins with this if -n or Slurm decides its value.
AUTOMATIC = "automatic, by "
# The options that contradict --quiet.
_LOGGING = ("verbose", "vv", "debug")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of one option, the texts it was read from, and their place."""

    value: Value
    # Empty for a default, and where another option decides the value.
    texts: tuple[str, ...] = ()
    origin: str = DEFAULT


# The options that are given in one place.
Layer = Mapping[str, Setting]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of all options, by long name."""

    entries: Mapping[str, Setting]
    # Sentences for the user about variables that have no effect.
    warnings: Sequence[str] = ()

    # Any, because each option has another type, which no annotation can tell.
    def __getitem__(self, name: str) -> Any:
        return self.entries[name].value

    def origin(self, name: str) -> str:
        return self.entries[name].origin

    def is_given(self, name: str) -> bool:
        """Whether the option was given, even with its default value."""
        return self.origin(name) != DEFAULT

    @property
    def offline(self) -> bool:
        """Whether the job is to run without IPUs."""
        return bool(self["offline-mode"])

    @property
    def needs_ipus(self) -> bool:
        """Whether the user asks for IPUs: otherwise the job may run without any."""
        asks_for_ipus = not self.offline and any(map(self.is_given, VIPU_OPTIONS))
        return self["offline-mode"] is False or asks_for_ipus

    @property
    def offline_because_of(self) -> str:
        """The option or variable for the number of processes, if it rules out IPUs.

        It does so if no option is about replicas, IPUs or V-IPU; "" otherwise.
        """
        return self.origin("offline-mode").partition(AUTOMATIC)[2]

    @property
    def prints_topology(self) -> bool:
        """Whether the topology is to be printed."""
        # To choose its format is to ask for it, unless --print-topology is no.
        if self.is_given("topology-format") and not self.is_given("print-topology"):
            return True
        return bool(self["print-topology"])

    @property
    def shows_progress(self) -> bool:
        """Whether a status line is wanted: with -q only if --progress asks for it."""
        is_silenced = self["quiet"] and not self.is_given("progress")
        return bool(self["progress"] and not is_silenced)

    @property
    def verbosity(self) -> int:
        """0, 1 for -v, or 2 for -vv and --debug, however it was given."""
        return 2 if self["vv"] or self["debug"] else min(int(self["verbose"]), 2)


def make_setting(
    option: Option, labelled: Sequence[tuple[str, str]], origin: str
) -> Setting:
    """Read the texts of an option, each with its label for errors."""
    items = [item(option, text, label) for text, label in labelled]
    texts = tuple(text for text, _ in labelled)
    return Setting(value=combine(option, items), texts=texts, origin=origin)


def resolve_settings(given: Sequence[Given], environ: Mapping[str, str]) -> Settings:
    """Lay the command line over the environment, a file and the defaults.

    Raises:
        OptionError: A value is not valid; the sentence says where it is.
    """
    layers = [_from_command_line(given), _from_environment(environ)]
    for layer in layers:
        _refuse_exclusive(layer)
    file = next((la["import-config"] for la in layers if "import-config" in la), None)
    if file:
        # YAML takes 10 ms to import, and few jobs have a file.
        from poprun.options.config_file import read_file  # noqa: PLC0415

        layers.append(read_file(str(file.value)))
        _refuse_exclusive(layers[-1])
    entries = {name: _first_setting(name, layers) for name in OPTIONS}
    processes = entries["num-processes"]
    if processes.origin != DEFAULT:
        # The numbers of instances and replicas take its place.
        giver = "-n" if processes.origin == COMMAND_LINE else processes.origin
        entries["num-processes"] = Setting(value=None)
        entries = start_processes(entries, processes, giver)
    return Settings(
        entries=_settle_quiet(entries, layers),
        warnings=list(_warn_of_mistyped(environ)),
    )


def _from_command_line(given: Sequence[Given]) -> Layer:
    texts: dict[Option, list[tuple[str, str]]] = {}
    for option, text in given:
        texts.setdefault(option, []).append((text, option.flag))
    return {
        option.name: make_setting(option, labelled, COMMAND_LINE)
        for option, labelled in texts.items()
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


def _first_setting(name: str, layers: Sequence[Layer]) -> Setting:
    for layer in layers:
        if setting := layer.get(name):
            return setting
        if RIVALS.get(name) in layer:
            break
    return Setting(value=OPTIONS[name].default)


def _refuse_exclusive(layer: Layer) -> None:
    for name in layer:
        if name in EXCLUSIVE and RIVALS[name] in layer:
            raise _exclusion(layer, name, RIVALS[name])


def _exclusion(layer: Layer, one: str, other: str) -> OptionError:
    places = {layer[one].origin: None, layer[other].origin: None}
    return OptionError(
        f"--{one} and --{other} are both given ({', '.join(places)}), but they exclude "
        "each other.",
        "Leave one of them out.",
    )


def start_processes(
    entries: Mapping[str, Setting], processes: Setting, giver: str
) -> dict[str, Setting]:
    """Return the settings with so many instances of one replica each.

    Their job runs without IPUs, unless an option is about replicas, IPUs or V-IPU.

    Args:
        giver: The option or variable that gives their number, for the user.
    """
    changed = {"num-instances": processes}
    if entries["num-replicas"].origin == DEFAULT:
        changed["num-replicas"] = processes
    decisive = ("offline-mode", *IPU_OPTIONS)
    if all(entries[name].origin == DEFAULT for name in decisive):
        changed["offline-mode"] = Setting(value=True, origin=AUTOMATIC + giver)
    return {**entries, **changed}


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
        return entries | {n: Setting(value=OPTIONS[n].default) for n in silenced}
    return entries


def _warn_of_mistyped(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable with a name that is nearly right.

    It is no error: any program may have variables that begin like poprun's.
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


def show_table(settings: Settings) -> str:
    """Return a line for each option: its name, its value and the value's origin."""
    rows = [
        (OPTIONS[name].flag, _effective_text(settings, OPTIONS[name]), setting.origin)
        for name, setting in settings.entries.items()
    ]
    first = max(len(row[0]) for row in rows)
    second = min(max(len(row[1]) for row in rows), 40)
    return "".join(f"{a:{first}}  {b:{second}}  {c}\n" for a, b, c in rows)


def show_object(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the value of each option and the value's origin, for JSON."""
    return {
        name: {"value": setting.value, "origin": setting.origin}
        for name, setting in settings.entries.items()
    }


def _effective_text(settings: Settings, option: Option) -> str:
    setting = settings.entries[option.name]
    if setting.origin == DEFAULT:
        rival = RIVALS.get(option.name, "")
        if rival and option.name not in EXCLUSIVE and settings.is_given(rival):
            return f"see --{rival}"
        return option.default_text
    if isinstance(setting.value, bool):
        return "yes" if setting.value else "no"
    if option.read is read_count:
        return str(setting.value)
    if option.multiple:
        return ", ".join(repr(text) for text in setting.texts)
    text = setting.texts[-1]
    return text if text.isprintable() and " " not in text else repr(text)

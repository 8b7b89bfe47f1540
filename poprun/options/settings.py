"""The value of every option, and where it comes from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poprun.options.table import IPU_OPTIONS, VIPU_OPTIONS
from poprun.options.types import Item, Option, Value, combine, item

COMMAND_LINE = "command line"
DEFAULT = "default"
# The origin of --offline-mode begins with this if -n or Slurm decides its value.
AUTOMATIC = "automatic, by "


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The value of one option, the texts it was read from, and where they stood."""

    value: Value
    # Empty for a default, and where another option decides the value.
    texts: tuple[str, ...]
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
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
        is_explicit = self["offline-mode"] is False
        return is_explicit or (
            not self.offline and any(map(self.is_given, VIPU_OPTIONS))
        )

    @property
    def offline_because_of(self) -> str:
        """The option or variable for the number of processes, if it rules out IPUs.

        It does so if no option is about replicas, IPUs or V-IPU; "" otherwise.
        """
        setting = self.entries["offline-mode"]
        if setting.texts or setting.origin == DEFAULT:
            return ""
        return setting.origin.removeprefix(AUTOMATIC)

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
        verbose: int = self["verbose"]
        return 2 if self["vv"] or self["debug"] else min(verbose, 2)


Layer = Mapping[str, Setting]


def make_setting(
    option: Option, labelled: Sequence[tuple[str, str]], origin: str
) -> Setting:
    items: list[Item] = [item(option, text, label) for text, label in labelled]
    return Setting(
        value=combine(option, items),
        texts=tuple(text for text, _ in labelled),
        origin=origin,
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
        changed["offline-mode"] = Setting(
            value=True, texts=(), origin=AUTOMATIC + giver
        )
    return {**entries, **changed}

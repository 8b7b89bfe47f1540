"""Verbs and nouns as click commands: `vipu list partitions`.

As with the original, the global options stand anywhere, a noun may be singular or
plural, and a flag may have a value: --reconfigurable=false.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from poprun.vipu.commands.session import DEFAULT_TIMEOUT_S, Session
from poprun.words import FALSE_WORDS, TRUE_WORDS

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# The original takes t and f, too.
_TRUE = (*TRUE_WORDS, "t")
_FALSE = (*FALSE_WORDS, "f")
# Names of earlier releases.
_OLD_VERBS = {"delete": "remove"}


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Note a global option, if it was given at this place of the command line."""
    name = param.name or ""
    if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        if value == "":
            # An unset variable of a script must not mean the embedded inventory.
            raise click.BadParameter("It is empty.")
        if value != value:  # NaN, which a range does not refuse
            raise click.BadParameter(f"'{value}' is no number.")
        session = ctx.find_object(Session)
        if session is not None:
            session.given[name] = value


def _global_option(*names: str, **attributes: Any) -> click.Option:
    return click.Option(names, callback=_store, expose_value=False, **attributes)


GLOBAL_OPTIONS: tuple[click.Parameter, ...] = (
    _global_option(
        "--api-host",
        "-H",
        metavar="HOST",
        help="The server. [default: embedded inventory]",
    ),
    _global_option(
        "--api-port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="The port of the server. [default: 8090]",
    ),
    _global_option("--api-user-id", metavar="USER", help="The user of a server."),
    _global_option(
        "--api-access-key", metavar="KEY", help="The user's access key; ps shows it."
    ),
    _global_option(
        "--api-timeout",
        type=click.FloatRange(0, 86400, min_open=True),
        metavar="SECONDS",
        help=f"How long to wait for a reply. [default: {DEFAULT_TIMEOUT_S:g}]",
    ),
    _global_option(
        "--config",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help='A configuration file, with lines such as api-host = "NAME".',
    ),
    _global_option(
        "--json", "--showjson", "json", is_flag=True, help="Write JSON, not tables."
    ),
    # As `vipu-admin` does.
    _global_option("--admin", "-a", "admin", is_flag=True, hidden=True),
)


class Command(click.Command):
    """A command that takes the global options too."""

    # What it does, if it is a noun of a verb.
    verb = ""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes["context_settings"] = HELP
        super().__init__(*args, **attributes)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        help_ = self.get_help_option(ctx)
        return [*self.params, *GLOBAL_OPTIONS, *([help_] if help_ else [])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _without_values_of_flags(self, ctx, args))


class _Group(Command, click.Group):
    """Commands by name, which refuse a name that there is not in words of their own."""

    def __init__(
        self, name: str, commands: Sequence[click.Command], **attributes: Any
    ) -> None:
        by_name = {str(command.name): command for command in commands}
        super().__init__(name, commands=by_name, **attributes)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            ctx.fail(self.refusal(ctx, args[0]))
        return super().resolve_command(ctx, args)

    def refusal(self, ctx: click.Context, word: str) -> str:
        raise NotImplementedError(word)


class Verb(_Group):
    """A verb with its nouns; without one it explains itself.

    Args:
        name: The verb.
        help_: Its help.
        nouns: What it takes.
        of_admins: What it takes only in the program for administrators.
    """

    def __init__(
        self,
        name: str,
        help_: str,
        nouns: Sequence[click.Command],
        of_admins: Sequence[click.Command] = (),
    ) -> None:
        super().__init__(name, nouns, help=help_, subcommand_metavar="WHAT [ARGS]...")
        self._of_admins = of_admins

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _find_noun(self.commands.values(), cmd_name)

    def refusal(self, ctx: click.Context, word: str) -> str:
        if noun := _find_noun(self._of_admins, word):
            return _refuse_user(f"{self.name} {noun.name}")
        words = f"{ctx.find_root().info_name} {self.name}"
        listed = _listed(self.commands, "or")
        return f"'{words}' takes no {word[:64]!r}, but {listed}."


class Program(_Group):
    """A whole command line program: its verbs.

    Args:
        name: What it is called.
        verbs: What it can do.
        of_admins: Verbs that the program for administrators has.
    """

    def __init__(
        self,
        name: str,
        verbs: Sequence[click.Command],
        of_admins: Collection[str] = (),
        **attributes: Any,
    ) -> None:
        attributes["subcommand_metavar"] = "COMMAND [ARGS]..."
        super().__init__(name, verbs, invoke_without_command=True, **attributes)
        self._of_admins = of_admins

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.commands.get(_OLD_VERBS.get(cmd_name, cmd_name))

    def refusal(self, ctx: click.Context, word: str) -> str:
        if word in self._of_admins:
            return _refuse_user(word)
        listed = _listed(self.commands, "and")
        return f"There is no command {word[:64]!r}. There are {listed}."


def _find_noun(nouns: Iterable[click.Command], word: str) -> click.Command | None:
    """Return the command that a noun names, in the singular or the plural."""
    for noun in nouns:
        name = str(noun.name)
        if word in (name, f"{name}s", name.removesuffix("s")):
            return noun
    return None


def _refuse_user(words: str) -> str:
    return f"Only administrators can do that: vipu-admin {words} --help"


def _listed(words: Iterable[str], conjunction: str) -> str:
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def _without_values_of_flags(
    command: click.Command, ctx: click.Context, args: Sequence[str]
) -> list[str]:
    """Turn --flag=true into --flag, and leave --flag=false out."""
    flags = {
        name
        for param in command.get_params(ctx)
        if isinstance(param, click.Option) and param.is_flag
        for name in param.opts
        if name.startswith("--")
    }
    kept: list[str] = []
    for place, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if arg == "--":
            return [*kept, *args[place:]]
        if not equals or name not in flags:
            kept.append(arg)
        elif value.lower() in _TRUE:
            kept.append(name)
        elif value.lower() not in _FALSE:
            raise click.BadParameter(
                f"{value!r} is neither true nor false.", param_hint=name
            )
    return kept

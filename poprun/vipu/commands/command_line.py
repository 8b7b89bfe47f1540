"""Verbs and nouns as click commands: `vipu list partitions`.

As with the original, the global options stand anywhere, a noun may be singular or
plural, and a flag may have a value: --reconfigurable=false.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
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
        session = ctx.find_object(Session)
        if session is not None:
            session.given[name] = value


class _Seconds(click.FloatRange):
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number.", param, ctx)
        return seconds


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
        type=_Seconds(0, 86400, min_open=True),
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
    _global_option(
        "--admin",
        "-a",
        "admin",
        is_flag=True,
        hidden=True,
        help="As administrator.",
    ),
)


class _Globals(click.Command):
    """A command that takes the global options too."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*self.params, *GLOBAL_OPTIONS, *_only(self.get_help_option(ctx))]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _without_values_of_flags(self, ctx, args))


class Noun(_Globals):
    """What is listed, made and so on."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes["context_settings"] = HELP
        super().__init__(*args, **attributes)


class _Group(_Globals, click.Group):
    """Commands by name, which refuse a name that there is not in words of their own."""

    def __init__(
        self, name: str, commands: Sequence[click.Command], **attributes: Any
    ) -> None:
        super().__init__(name, context_settings=HELP, **attributes)
        for command in commands:
            self.add_command(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            ctx.fail(self.refusal(ctx, args[0]))
        return super().resolve_command(ctx, args)

    def refusal(self, ctx: click.Context, name: str) -> str:
        raise NotImplementedError(name)


class Verb(_Group):
    """A verb with its nouns; without one it explains itself."""

    def __init__(self, name: str, help_: str, nouns: Sequence[click.Command]) -> None:
        super().__init__(name, nouns, help=help_, subcommand_metavar="WHAT [ARGS]...")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for command in self.commands.values():
            name = str(command.name)
            if cmd_name in (name, f"{name}s", name.removesuffix("s")):
                return command
        return None

    def refusal(self, ctx: click.Context, name: str) -> str:
        program = ctx.find_root().command
        assert isinstance(program, Program)
        return program.find_elsewhere(str(self.name), name) or (
            f"'{program.name} {self.name}' takes no {name[:64]!r}, but "
            f"{_listed(self.commands, 'or')}."
        )


class Program(_Group):
    """A whole command line program: its verbs.

    Args:
        name: What it is called.
        verbs: What it can do.
        make_other: Makes a program that can do more, to name it to the user.
    """

    def __init__(
        self,
        name: str,
        verbs: Sequence[click.Command],
        make_other: "Callable[[], Program] | None" = None,
        **attributes: Any,
    ) -> None:
        attributes["subcommand_metavar"] = "COMMAND [ARGS]..."
        super().__init__(name, verbs, invoke_without_command=True, **attributes)
        self._make_other = make_other

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.commands.get(_OLD_VERBS.get(cmd_name, cmd_name))

    def refusal(self, ctx: click.Context, name: str) -> str:
        return self.find_elsewhere(name, "") or (
            f"There is no command {name[:64]!r}. There are "
            f"{_listed(self.commands, 'and')}."
        )

    def find_elsewhere(self, verb: str, noun: str) -> str:
        """Return a sentence if the other program has a verb with this noun, or any."""
        if self._make_other is None:
            return ""
        other = self._make_other()
        group = other.commands.get(verb)
        if not isinstance(group, Verb):
            return ""
        command = group.get_command(click.Context(group), noun) if noun else None
        if noun and command is None:
            return ""
        words = f"{verb} {command.name}" if command else verb
        return f"Only administrators can do that: {other.name} {words} --help"


def _listed(words: Iterable[str], conjunction: str) -> str:
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def comma_separated(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...]:
    """Return the names that an option lists: "ag1,ag2"."""
    return tuple(name for name in re.split(r"[,\s]+", value or "") if name)


def _only(option: click.Option | None) -> list[click.Parameter]:
    return [] if option is None else [option]


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

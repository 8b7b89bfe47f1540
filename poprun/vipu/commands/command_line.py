"""Click's part of the commands: global options, kinds of options, verbs and nouns.

The global options stand anywhere, a noun may be singular or plural, and a flag may
have a value: --reconfigurable=false. A command is made of its words: `list agents`
lists what the operation `list_agents` returns.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from poprun.errors import PoprunError
from poprun.texts.click_program import Seconds
from poprun.vipu.commands import views
from poprun.vipu.commands.session import DEFAULT_TIMEOUT_S, Session
from poprun.vipu.commands.views import read_cluster
from poprun.vipu.errors import VipuRuleError
from poprun.vipu.inventory.interface import OF_ADMINS
from poprun.vipu.rules.checks import read_hosts
from poprun.words import FALSE_WORDS, TRUE_WORDS, alternatives

Run = Callable[..., Any]

# The time for completing a name: a shell that waits for longer seems to hang.
_COMPLETION_TIMEOUT_S = 1.0
# The name of `remove` in earlier releases.
_ALIASES = {"delete": "remove"}


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names that begin so, of the parameter's or the command's noun."""
    name = str(param.name)
    noun = ctx.command.name if name in ("name", "names") else name.removesuffix("s")
    ctx.obj.given.setdefault("api_timeout", _COMPLETION_TIMEOUT_S)
    try:
        values = getattr(ctx.obj.inventory, f"list_{noun}s")()
        ctx.obj.close()
    except PoprunError:
        # There is nothing to offer; the error is reported when the line is run.
        return []
    return [value.name for value in values if value.name.startswith(incomplete)]


def _split(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...]:
    """Return the names or hosts in a list: "ag1,ag2".

    Raises:
        click.UsageError: A required list is empty.
        VipuRuleError: A host is not valid.
    """
    names = tuple(filter(None, re.split(r"[,\s]+", value or "")))
    if param.name == "hosts":
        return read_hosts(names)
    if param.required and not names:
        words = param.opts[0]
        raise click.UsageError(f"{words} is empty. List agents: {words} ag1,ag2")
    return names


def _store(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Keep a global option in the session, if it is given at this place."""
    if value == "":
        # An unset variable of a script must not mean the embedded inventory.
        raise click.BadParameter("It is empty.")
    if value:
        ctx.obj.given[param.name] = value


class _Spelling(click.Choice[Any]):
    """A member of an enumeration of V-IPU, in any spelling of it."""

    def __init__(self, kind: Any) -> None:
        super().__init__(list(map(str, kind)), case_sensitive=False)
        self._kind = kind

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return self._kind.read(value)
        except VipuRuleError as error:
            self.fail(str(error), param, ctx)


# The kinds of options, by their attributes.
INDEX = {"type": click.IntRange(min=0), "metavar": "N"}
LIST = {"callback": _split, "metavar": "LIST"}
NAME = {"shell_complete": complete, "metavar": "NAME"}
PORT = {"type": click.IntRange(1, 65535)}
_KINDS: dict[type, dict[str, Any]] = {
    bool: {"is_flag": True},
    int: {"type": click.IntRange(min=1), "metavar": "N"},
}


def option(
    names: str, kind: Any, help_: str | None = None, **attributes: Any
) -> click.Option:
    """Return an option.

    Args:
        names: Its names; the last one may name its parameter.
        kind: The attributes of its kind, or its type: bool for a flag, int for a
            positive number, or an enumeration of V-IPU.
        help_: The help.
        attributes: Its other attributes.
    """
    if isinstance(kind, type):
        kind = _KINDS.get(kind) or {"type": _Spelling(kind)}
    return click.Option(names.split(), help=help_, **kind, **attributes)


_TIMEOUT = {"type": Seconds(0, 86400, min_open=True)}
_TIMEOUT_HELP = f"How long to wait for a reply. [default: {DEFAULT_TIMEOUT_S:g}]"
_CONFIG_HELP = 'A configuration file, with lines such as api-host = "NAME".'
_GLOBAL_OPTIONS = [
    option(names, kind, help_, callback=_store, expose_value=False, metavar=metavar)
    for names, kind, metavar, help_ in (
        ("--api-host -H", {}, "HOST", "The server. [default: embedded inventory]"),
        ("--api-port", PORT, "PORT", "The port of the server. [default: 8090]"),
        ("--api-user-id", {}, "USER", "The user on the server."),
        ("--api-access-key", {}, "KEY", "The user's access key (visible in ps)."),
        ("--api-timeout", _TIMEOUT, "TIME", _TIMEOUT_HELP),
        ("--config", {"type": click.Path(dir_okay=False)}, "FILE", _CONFIG_HELP),
        ("--json --showjson json", bool, None, "Print JSON instead of tables."),
        # The same as `vipu-admin`.
        ("--admin -a admin", {"is_flag": True, "hidden": True}, None, ""),
    )
]


class Command(click.Command):
    """A command that takes the global options too."""

    def __init__(
        self, name: str, *, verb: str = "", for_admins: bool = False, **attributes: Any
    ) -> None:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        super().__init__(name, context_settings=settings, **attributes)
        # The verb in front of a noun.
        self.verb = verb
        self.for_admins = for_admins

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_ = super().get_params(ctx)
        return [*own, *_GLOBAL_OPTIONS, help_]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn --flag=true into --flag, and --flag=false into its opposite, if any."""
        if self.for_admins and not _is_for_admins(ctx):
            words = ctx.command_path.partition(" ")[2]
            ctx.fail(f"Only administrators can do that: vipu-admin {words} --help")
        params = self.get_params(ctx)
        flags = [p for p in params if isinstance(p, click.Option) and p.is_flag]
        opposites = {name: flag.secondary_opts for flag in flags for name in flag.opts}
        kept = []
        for arg in args:
            name, equals, value = arg.partition("=")
            if not equals or name not in opposites:
                kept.append(arg)
            # The original takes t and f, too.
            elif value.lower() in (*TRUE_WORDS, "t"):
                kept.append(name)
            elif value.lower() in (*FALSE_WORDS, "f"):
                kept += opposites[name]
            else:
                problem = f"{value!r} is neither true nor false."
                raise click.BadParameter(problem, param_hint=name)
        return super().parse_args(ctx, kept)


class Group(Command, click.Group):
    """A verb with its nouns, singular or plural, or a program with its verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._names(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        singular = _ALIASES.get(cmd_name, cmd_name).removesuffix("s")
        names = [name for name in self.commands if name.removesuffix("s") == singular]
        return self.commands[names[0]] if names else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if (command := self.get_command(ctx, args[0])) is not None:
            return command.name, command, args[1:]
        names, word = self._names(ctx), repr(args[0][:64])
        if ctx.parent is not None:
            names_ = alternatives(names)
            ctx.fail(f"'{ctx.command_path}' takes no {word}, but {names_}.")
        verbs = f"{', '.join(names[:-1])} and {names[-1]}"
        ctx.fail(f"There is no command {word}. There are {verbs}.")

    def _names(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands that the program has, in their order."""
        commands: dict[str, Any] = dict(self.commands)
        for_admins = _is_for_admins(ctx)
        return [n for n, each in commands.items() if for_admins or not each.for_admins]


def _is_for_admins(ctx: click.Context) -> bool:
    return ctx.find_root().info_name == "vipu-admin"


# The operations of the inventory with other names than their commands.
_OPERATIONS = {
    "update agent": "set_agent_status",
    "update cluster": "set_cluster_hosts",
}


def command(
    words: str,
    *options: click.Option,
    help_: str | None = None,
    for_admins: bool = False,
) -> Callable[[Run], Command]:
    """Return a decorator: it makes a function the command of a verb and a noun.

    The function takes the session, the name if there is one, and the options' values.
    It returns a text, a value for JSON, or None to report success.

    Args:
        words: The verb and the noun.
        options: Its options.
        help_: The help. [default: the docstring]
        for_admins: Whether only `vipu-admin` has it, even if all users may perform
            the operations.
    """
    verb, noun = words.split()
    how = _show if verb in _READING else _change
    return lambda run: Command(
        noun,
        verb=verb,
        for_admins=for_admins or _operation_of(words) in OF_ADMINS,
        params=[*_ARGUMENTS.get(verb, ()), *options],
        callback=click.pass_obj(partial(how, words, run)),
        help=help_ or run.__doc__,
    )


def operation(words: str, help_: str, *options: click.Option) -> Command:
    """Return a command that performs the operation of the inventory with its name."""
    run = partial(_read if words.split()[0] in _READING else _perform, words)
    return command(words, *options, help_=help_)(run)


def _operation_of(words: str) -> str:
    return _OPERATIONS.get(words, words.replace(" ", "_"))


def _show(words: str, run: Run, session: Session, **values: Any) -> None:
    session.show(run(session, **values))


def _change(
    words: str,
    run: Run,
    session: Session,
    name: str = "",
    names: Sequence[str] = (),
    **values: Any,
) -> None:
    for each in names or [name]:
        result = run(session, each, **values)
        if len(names) < 2:
            # The embedded inventory waits for the disk.
            session.close()
        if result is None and session.as_json:
            result = {"command": words, "id": each, "success": True}
        session.show(result or f"{words} ({each}): success.\n")


def _perform(words: str, session: Session, *name: str, **values: Any) -> None:
    getattr(session.inventory, _operation_of(words))(*name, **values)


def _read(words: str, session: Session, **values: Any) -> object:
    verb, noun = words.removesuffix("s").split()
    found = getattr(session.inventory, _operation_of(words))(**values)
    results = found if verb == "list" else [found]
    if noun == "cluster":
        results = [read_cluster(session.inventory, each) for each in results]
    if verb == "list":
        return views.list_of(noun, results, as_json=session.as_json)
    return views.value_of(noun, *results, as_json=session.as_json)


_SEVERAL = click.Argument(["names"], nargs=-1, required=True, shell_complete=complete)
# By verb.
_ARGUMENTS = {
    "get": [click.Argument(["name"], shell_complete=complete)],
    "create": [click.Argument(["name"])],
    "update": [_SEVERAL],
    "reset": [_SEVERAL],
    "remove": [_SEVERAL],
}
# The verbs that change nothing.
_READING = ("list", "discover", "get")

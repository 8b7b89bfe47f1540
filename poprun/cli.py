"""The command: argv and environment -> settings -> a page of text, or a job.

The only module that imports click. The command is click's, so that its tools find the
options; grammar parses argv, because poprun's rules are not click's:
prefixes, values that look like options, a program whose arguments stay as they are.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from poprun import __version__
from poprun.errors import PoprunError, ProgramNotFoundError, TopologyError

if TYPE_CHECKING:
    import click

    from poprun.options.grammar import CommandLine
    from poprun.options.settings import Settings

# The exit codes for output whose reader has closed it, and that cannot be written.
_CLOSED_PIPE = 141
_UNWRITTEN = 74

_COMPLETION = "_POPRUN_COMPLETE"


def main(
    words: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> int:
    """Carry out a command line, and return poprun's exit code."""
    words = sys.argv[1:] if words is None else words
    environ = os.environ if environ is None else environ
    try:
        # Asked for by scripts, again and again, and known without click.
        if list(words) == ["--version"] and _COMPLETION not in environ:
            return _print(f"poprun {__version__}\n")
        made = command()
        if instruction := environ.get(_COMPLETION):
            return _print(_completion(made, instruction))
        code: int = made.main(list(words), "poprun", standalone_mode=False, obj=environ)
    except PoprunError as error:
        _say("error", str(error))
        for hint in getattr(error, "__notes__", ()):
            _say("hint", hint)
        return error.exit_code
    return code


def command() -> "click.Command":
    """Return poprun as click sees it, made from the table of options."""
    import click

    class Command(click.Command):
        def get_params(self, ctx: click.Context) -> list[click.Parameter]:
            from poprun.options.table import OPTIONS

            return [
                click.Option(
                    [option.flag, option.name.replace("-", "_")],
                    help=option.help,
                    metavar=option.metavar,
                    multiple=option.multiple,
                    is_flag=not option.takes_value,
                )
                for option in OPTIONS.values()
            ]

        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            ctx.args = args
            return args

        def invoke(self, ctx: click.Context) -> int:
            return _answer(ctx.args, os.environ if ctx.obj is None else ctx.obj)

        def get_help(self, ctx: click.Context) -> str:
            return _help(os.environ if ctx.obj is None else ctx.obj)

    return Command("poprun")


def _answer(words: Sequence[str], environ: Mapping[str, str]) -> int:
    if not words:
        from poprun.options.help import SHORT_PAGE

        return _print(SHORT_PAGE)

    from poprun.options import grammar
    from poprun.options.settings import as_table
    from poprun.options.sources import resolve

    line = grammar.parse(words)
    # Help comes before everything that may be wrong with the rest.
    if _asked(line, "help"):
        return _print(_help(environ))
    settings = resolve(line.given, environ)
    for warning in settings.warnings:
        _say("warning", warning)
    if settings["version"] or settings.given("version-format"):
        return _print(_versions(settings, environ))
    if settings["show-config"]:
        return _print(as_table(settings))
    return _start(line, settings, words, environ)


def _asked(line: "CommandLine", name: str) -> bool:
    from poprun.options.table import OPTIONS
    from poprun.options.types import item

    option = OPTIONS[name]
    texts = [text for given, text in line.given if given is option]
    return bool(texts) and bool(item(option, texts[-1], option.flag))


def _start(
    line: "CommandLine",
    settings: "Settings",
    words: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    from poprun.options.config_file import export

    if file := settings["export-config"]:
        export(settings, file, overwrite=settings["overwrite-config"])
        # Without a program, writing the file was all there was to do.
        if not line.program:
            return 0
    if not line.program:
        raise _no_program(line, words)

    from poprun.job.guard_start import continue_guards, start_guard

    guard = None if settings["dry-run"] else start_guard(environ)
    # Slow to import, and meanwhile the guard comes up.
    from poprun import run

    try:
        return run.run(settings, line.program, guard)
    except PoprunError as error:
        for hint in _hints(line, error):
            error.add_note(hint)
        raise
    finally:
        continue_guards()


def _hints(line: "CommandLine", error: PoprunError) -> Iterator[str]:
    """Yield the likely causes of an error that the command line shows."""
    from poprun.options.table import GROUPS
    from poprun.options.types import FALSE_WORDS, TRUE_WORDS

    first, *others = line.program
    is_value = first.isdigit() or first.lower() in (*TRUE_WORDS, *FALSE_WORDS)
    if isinstance(error, ProgramNotFoundError) and is_value and line.given:
        option, _ = line.given[-1]
        if not option.takes_value:
            yield f"To give {option.flag} a value, write {option.flag}={first}."
    if isinstance(error, TopologyError):
        flags = {option.flag for option in GROUPS["Topology"]}
        for word in others:
            if word.partition("=")[0] in flags:
                yield (
                    f"{word} comes after the program, so it is an argument of it. "
                    "Write poprun's options before the program."
                )


def _no_program(line: "CommandLine", words: Sequence[str]) -> PoprunError:
    from poprun.options.types import refusal, shown

    option, text = line.given[-1] if line.given else (None, "")
    if option and words[-1] == text:
        hint = f"{option.flag} took {shown(text)} as its value."
    else:
        hint = "The program comes after the options: poprun [OPTIONS] PROGRAM."
    return refusal("The program to run is missing.", hint)


def _help(environ: Mapping[str, str]) -> str:
    from poprun.options.help import full_page

    columns = environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit():
        width = int(columns[:6])
    else:
        try:
            width = os.get_terminal_size(1).columns
        except OSError:
            width = 80
    return full_page(min(max(width, 60), 100))


def _versions(settings: "Settings", environ: Mapping[str, str]) -> str:
    if settings["version-format"] == "text":
        return f"poprun {__version__}\n"

    from poprun import versions

    found = versions.collect(environ, settings["mpirun"])
    if settings["version-format"] == "full-text":
        return "".join(f"{name} {version}\n" for name, version in found.items())

    import json

    return json.dumps(found, indent=2) + "\n"


def _completion(made: "click.Command", instruction: str) -> str:
    """Answer a shell: the script to load, or what the word at the cursor can become."""
    from click.shell_completion import CompletionItem, get_completion_class

    from poprun.options.completion import complete

    name, _, action = instruction.partition("_")
    shell = get_completion_class(name)
    if shell is None or action not in ("source", "complete"):
        from poprun.options.types import refusal

        raise refusal(
            f"{_COMPLETION} is {instruction!r}, but must be bash_source, zsh_source "
            "or fish_source."
        )
    speaker = shell(made, {}, "poprun", _COMPLETION)
    if action == "source":
        return speaker.source()
    try:
        candidates = complete(*speaker.get_completion_args())
    except PoprunError:
        # Nothing to offer; the error will be told when the line is run.
        return ""
    items = [CompletionItem(c.text, type=c.kind, help=c.help) for c in candidates]
    return "".join(f"{speaker.format_completion(i)}\n" for i in items)


def _print(text: str) -> int:
    """Write what was asked for to stdout, whatever the locale, and say how it went."""
    try:
        if sys.stdout is None:
            raise OSError("it is closed")
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _forget(sys.stdout)
        return _CLOSED_PIPE
    except OSError as error:
        _forget(sys.stdout)
        reason = error.strerror or str(error)
        _say("error", f"The standard output cannot be written: {reason}.")
        return _UNWRITTEN
    return 0


def _forget(stream: TextIO | None) -> None:
    # What is still in its buffer would fail a second time when Python ends.
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(kind: str, text: str) -> None:
    if sys.stderr is None:  # print(file=None) would write to stdout
        return
    try:
        print(f"poprun: {kind}: {text}", file=sys.stderr, flush=True)
    except OSError:  # no other stream to report it on; the exit code remains
        _forget(sys.stderr)

"""The command: argv and environment -> settings -> a page of text, or a job.

grammar parses argv, because poprun's rules are not click's: prefixes, values that look
like options, a program whose arguments stay as they are. click completes command lines
in a shell, and its tools find the options; a job does without it.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from poprun import __version__, early_signals
from poprun.errors import (
    OUTPUT_CLOSED,
    UNWRITTEN,
    OptionError,
    PoprunError,
    ProgramNotFoundError,
    TopologyError,
)
from poprun.texts.stdout import discard_unwritten, write_stdout

if TYPE_CHECKING:
    import click

    from poprun.options.grammar import CommandLine
    from poprun.options.programs import Program
    from poprun.options.settings import Settings
    from poprun.options.types import Item
    from poprun.result.recorder import Recorder

_COMPLETION = "_POPRUN_COMPLETE"

# STATE: what writes the files of --result and --events, once they are open.
_recorder: "Recorder | None" = None


def main(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> int:
    """Carry out a command line, and return poprun's exit code."""
    argv = sys.argv[1:] if argv is None else argv
    environ = os.environ if environ is None else environ
    try:
        if instruction := environ.get(_COMPLETION):
            from poprun.options.click_command import complete

            return _print(complete(command(environ), _COMPLETION, instruction))
        # Scripts call this often: it takes the shortest way.
        if list(argv) == ["--version"]:
            return _print(f"poprun {__version__}\n")
        if list(argv) == ["help"]:
            return _print(_topics(argv, environ))
        return _carry_out(argv, environ)
    except PoprunError as error:
        has_color = _has_color(argv, environ, 2)
        _report("error", str(error), has_color=has_color)
        for hint in getattr(error, "__notes__", ()):
            _report("hint", hint, has_color=has_color)
        return error.exit_code


def command(environ: Mapping[str, str] | None = None) -> "click.Command":
    """Return poprun as a click command."""
    from poprun.options.click_command import make_command

    environ = os.environ if environ is None else environ
    return make_command(
        lambda argv: _carry_out(argv, environ), lambda: _help((), environ)
    )


def _carry_out(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    if not argv:
        from poprun.options.help import SHORT_PAGE, painted

        has_color = _has_color(argv, environ, 2)
        _print_error(painted(SHORT_PAGE) if has_color else SHORT_PAGE)
        return OptionError.exit_code

    from poprun.options import grammar

    try:
        line = grammar.parse(argv)
    except OptionError as error:
        options = grammar.options_before_error(argv)
        _record_refusal(grammar.CommandLine(options=tuple(options)), environ, error)
        raise
    try:
        return _dispatch(line, argv, environ)
    except PoprunError as error:
        hints = getattr(error, "__notes__", ())
        error.args = (grammar.with_typed_names(str(error), line.options),)
        error.__notes__ = [grammar.with_typed_names(h, line.options) for h in hints]
        _record_refusal(line, environ, error)
        raise


def _record_refusal(
    line: "CommandLine", environ: Mapping[str, str], error: PoprunError
) -> None:
    """Write the result of a job that an error has ended, if it is asked for."""
    recorder = _recorder
    if recorder is None:
        try:
            # It may not be possible to make settings of all options.
            result, events, as_json = (
                _read(line, environ, name) for name in ("result", "events", "json")
            )
            if not (result or events or as_json):
                return
            from poprun.result.recorder import open_recorder

            recorder = open_recorder(
                line.words,
                result=str(result),
                events=str(events),
                on_stdout=bool(as_json),
            )
        except OptionError:
            return  # that is what the error says, or the least of the mistakes
    hints = getattr(error, "__notes__", ())
    for sentence in recorder.refuse(error.exit_code, str(error), hints):
        _report("error", sentence)


def _read(line: "CommandLine", environ: Mapping[str, str], name: str) -> "Item":
    """Return the value of an option that is read alone; "" without.

    Raises:
        OptionError: It has no such value.
    """
    from poprun.options.table import OPTIONS
    from poprun.options.types import item, variable

    texts = [text for option, text in line.options if option.name == name]
    text = [environ.get(variable(name), ""), *texts][-1]
    return item(OPTIONS[name], text, f"--{name}") if text else ""


def _dispatch(
    line: "CommandLine", argv: Sequence[str], environ: Mapping[str, str]
) -> int:
    from poprun.options.programs import resolve_programs

    # Help comes before the checks of all other options.
    if _is_given(line, "help"):
        if line.program == ("topics",):
            return _print(_topics(argv, environ))
        return _print(_help(argv, environ))
    settings, programs = resolve_programs(line, environ)
    for warning in () if settings["quiet"] else settings.warnings:
        _report("warning", warning, has_color=_has_color(argv, environ, 2))
    if settings["version"] or settings.is_given("version-format"):
        return _print(_versions(settings, environ))
    if settings["show-config"]:
        from poprun.options import show_config
        from poprun.plan.instance_count import with_tasks_of_slurm

        settings = with_tasks_of_slurm(settings, environ)
        if settings["json"]:
            import json

            values = show_config.as_object(settings)
            return _print(json.dumps(values, indent=2) + "\n")
        return _print(show_config.as_table(settings))
    if texts := settings["mpi-global-args"]:
        from poprun.mpirun.questions import answer, find_question

        if question := find_question("\n".join(texts)):
            early_signals.unblock()
            text, code = answer(question, settings["mpirun"], environ)
            return _print(text) or code
    return _start(line, settings, programs, argv, environ)


def _is_given(line: "CommandLine", name: str) -> bool:
    from poprun.options.table import OPTIONS
    from poprun.options.types import item

    texts = [text for option, text in line.options if option.name == name]
    return bool(texts) and bool(item(OPTIONS[name], texts[-1], f"--{name}"))


def _start(
    line: "CommandLine",
    settings: "Settings",
    programs: "Sequence[Program]",
    argv: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    from poprun.options.config_file import export

    if file := settings["export-config"]:
        export(settings, file, overwrite=settings["overwrite-config"])
        # Without a program, writing the file was all there was to do.
        if not line.program:
            return 0
    if not line.program:
        raise _no_program(line, argv)

    from poprun.supervise.guard_start import continue_guards, start_guard

    global _recorder
    if not settings["dry-run"] and _is_recorded(settings):
        from poprun.result.recorder import open_recorder

        _recorder = open_recorder(
            line.words,
            result=settings["result"],
            events=settings["events"],
            on_stdout=settings["json"],
        )
    trace = None
    if settings["trace"] is not None and not settings["dry-run"]:
        from poprun.trace.job_trace import open_trace

        trace = open_trace(settings["trace"])
    early_signals.unblock()
    guard = None if settings["dry-run"] else start_guard(environ)
    # Slow to import, and meanwhile the guard comes up.
    from poprun import run

    try:
        code = run.run(
            settings, programs, guard, environ, recorder=_recorder, trace=trace
        )
        for sentence in _recorder.finish(code) if _recorder else ():
            _report("error", sentence)
        return code
    except PoprunError as error:
        for hint in _hints(line, error):
            error.add_note(hint)
        raise
    finally:
        continue_guards()


def _is_recorded(settings: "Settings") -> bool:
    return bool(settings["result"] or settings["events"] or settings["json"])


def _hints(line: "CommandLine", error: PoprunError) -> Iterator[str]:
    """Yield the likely causes of an error that the command line shows."""
    from poprun.options.misplaced import explain_misplaced, find_misplaced
    from poprun.words import FALSE_WORDS, TRUE_WORDS

    first, *others = line.program
    is_value = first.isdigit() or first.lower() in (*TRUE_WORDS, *FALSE_WORDS)
    is_unknown = isinstance(error, ProgramNotFoundError)
    if is_unknown and is_value and line.options:
        option, _ = line.options[-1]
        if not option.takes_value:
            yield f"To give {option.flag} a value, write {option.flag}={first}."
    elif is_unknown and first.isdigit() and others and others[0][:1] != "-":
        yield f"For {first} instances write: poprun -n {first} {' '.join(others)}"
    if isinstance(error, TopologyError):
        yield from explain_misplaced(find_misplaced(line.program))


def _no_program(line: "CommandLine", argv: Sequence[str]) -> PoprunError:
    from poprun.options.refusals import quoted, refusal

    option, text = line.options[-1] if line.options else (None, "")
    if option and argv[-1] == text:
        hint = f"{option.flag} took {quoted(text)} as its value."
    else:
        hint = "The program comes after the options: poprun [OPTIONS] PROGRAM."
    return refusal("The program to run is missing.", hint)


def _has_color(
    argv: Sequence[str], environ: Mapping[str, str], descriptor: int
) -> bool:
    """Return whether what is written to a descriptor is to have colours.

    The command line may be wrong: what stands before that is known.
    """
    from poprun.color import CHOICES, uses_color
    from poprun.options.grammar import options_before_error
    from poprun.options.types import variable

    given = [text for o, text in options_before_error(argv) if o.name == "color"]
    choice = (given or [environ.get(variable("color"), "")])[-1].lower()
    return uses_color(choice if choice in CHOICES else "auto", environ, descriptor)


def _help(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    from poprun.options.help import full_page, painted
    from poprun.output.terminal import own_size

    columns = environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit():
        width = int(columns[:6])
    else:
        # In a pipe to a pager, stderr has the terminal.
        width = own_size()[1]
    page = full_page(min(max(width, 60), 100))
    return painted(page) if _has_color(argv, environ, 1) else page


def _topics(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    from poprun.options.help import painted
    from poprun.options.topics import topics_page

    # It starts man, which inherits the signals that are blocked.
    early_signals.unblock()
    page = topics_page(environ)
    return painted(page) if _has_color(argv, environ, 1) else page


def _versions(settings: "Settings", environ: Mapping[str, str]) -> str:
    form = settings["version-format"]
    if settings["json"] and not settings.is_given("version-format"):
        form = "full-json"
    if form == "text":
        return f"poprun {__version__}\n"

    from poprun.reach import versions

    # What it starts inherits the signals that are blocked.
    early_signals.unblock()
    by_name = versions.collect(environ, settings["mpirun"])
    if form == "full-text":
        return "".join(f"{name} {version}\n" for name, version in by_name.items())

    import json

    return json.dumps(by_name, indent=2) + "\n"


def _print(text: str) -> int:
    """Write a text to stdout; return the exit code."""
    try:
        write_stdout(text)
    except BrokenPipeError:
        discard_unwritten(sys.stdout)
        return OUTPUT_CLOSED
    except OSError as error:
        discard_unwritten(sys.stdout)
        reason = error.strerror or str(error)
        _report("error", f"The standard output cannot be written: {reason}.")
        return UNWRITTEN
    return 0


def _report(kind: str, text: str, *, has_color: bool = False) -> None:
    from poprun.log import message

    _print_error(message(kind, text, has_color=has_color))


def _print_error(text: str) -> None:
    if sys.stderr is None:  # print(file=None) would write to stdout
        return
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:  # no other stream to report it on; the exit code remains
        discard_unwritten(sys.stderr)

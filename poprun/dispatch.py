"""A command line -> a page about its settings, or its job, which run carries out."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from poprun import __version__, early_signals
from poprun.color import uses_color
from poprun.errors import (
    OptionError,
    PoprunError,
    ProgramNotFoundError,
    TopologyError,
)
from poprun.mpirun.arguments import find_question
from poprun.mpirun.find import ask_mpirun
from poprun.options.grammar import CommandLine, Given, text_given
from poprun.options.programs import Program, explain_misplaced, resolve_programs
from poprun.options.settings import Settings, show_object, show_table
from poprun.options.table import OPTIONS
from poprun.options.types import item
from poprun.plan.instance_count import with_tasks_of_slurm
from poprun.result.recorder import Recorder
from poprun.supervise.guard_start import continue_guards, start_guard
from poprun.texts.stdout import print_text, report
from poprun.trace.job_trace import open_trace
from poprun.words import FALSE_WORDS, TRUE_WORDS, quoted

# STATE: the recorder of this process, once the files of --result and --events are open.
_recorder: Recorder | None = None


def carry_out(
    line: CommandLine, argv: Sequence[str], environ: Mapping[str, str]
) -> int:
    """Carry out a command line, and return poprun's exit code.

    Raises:
        PoprunError: The options are not valid, or the job could not be started.
    """
    settings, programs = resolve_programs(line, environ)
    has_color = uses_color(settings["color"], environ, 2)
    for warning in () if settings["quiet"] else settings.warnings:
        report("warning", warning, has_color=has_color)
    if settings["version"] or settings.is_given("version-format"):
        return print_text(_versions(settings, environ))
    if settings["show-config"]:
        settings = with_tasks_of_slurm(settings, environ)
        if settings["json"]:
            return print_text(json.dumps(show_object(settings), indent=2) + "\n")
        return print_text(show_table(settings))
    if question := find_question("\n".join(settings["mpi-global-args"])):
        early_signals.unblock()
        text, code = ask_mpirun(question, settings["mpirun"], environ)
        return print_text(text) or code
    if file := settings["export-config"]:
        # Imports yaml, which takes 10 ms.
        from poprun.options.config_file import export  # noqa: PLC0415

        export(settings, file, overwrite=settings["overwrite-config"])
        # Without a program, writing the file was all there was to do.
        if not line.program:
            return 0
    if not line.program:
        raise _no_program(line, argv)
    return _run(line, settings, programs, environ)


def _run(
    line: CommandLine,
    settings: Settings,
    programs: Sequence[Program],
    environ: Mapping[str, str],
) -> int:
    """Run the job, or show it for --dry-run, and return poprun's exit code."""
    global _recorder
    is_job, recorder = not settings["dry-run"], Recorder(line.words)
    if is_job:
        recorder = _recorder = Recorder(
            line.words,
            result=settings["result"],
            events=settings["events"],
            on_stdout=settings["json"],
        )
        refuse = partial(recorder.refuse, outcome="interrupted")
        early_signals.call_after_message(refuse)
    trace = open_trace(settings["trace"]) if is_job and settings["trace"] else None
    early_signals.unblock()
    guard = start_guard(environ) if is_job else None
    # The guard starts at the same time as this import, which is a third of a launch.
    from poprun import run  # noqa: PLC0415

    try:
        code = run.run(settings, programs, guard, environ, recorder, trace)
        for sentence in recorder.finish(code):
            report("error", sentence)
        return code
    except PoprunError as error:
        for hint in _hints(line, error):
            error.add_note(hint)
        raise
    finally:
        continue_guards()


def record_refusal(
    words: Sequence[str],
    options: Sequence[Given],
    environ: Mapping[str, str],
    error: PoprunError,
) -> None:
    """Write the result of a job that an error has ended, if an option asks for it.

    Args:
        options: The options before the error, if the command line is wrong.
    """
    recorder = _recorder
    if recorder is None:
        try:
            # It may not be possible to make settings of all options.
            result, events, as_json = (
                text and item(OPTIONS[name], text, f"--{name}")
                for name in ("result", "events", "json")
                for text in [text_given(name, options, environ)]
            )
            recorder = Recorder(
                words, result=str(result), events=str(events), on_stdout=bool(as_json)
            )
        except OptionError:
            return  # `error` reports the same, or a mistake before it
    for sentence in recorder.refuse(error.exit_code, str(error), error.hints):
        report("error", sentence)


def _hints(line: CommandLine, error: PoprunError) -> Iterator[str]:
    """Yield the likely causes of an error that the command line shows."""
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
        yield from explain_misplaced(line.program)


def _no_program(line: CommandLine, argv: Sequence[str]) -> PoprunError:
    option, text = line.options[-1] if line.options else (None, "")
    if option and argv[-1] == text:
        hint = f"{option.flag} took {quoted(text)} as its value."
    else:
        hint = "The program comes after the options: poprun [OPTIONS] PROGRAM."
    return OptionError("The program to run is missing.", hint)


def _versions(settings: Settings, environ: Mapping[str, str]) -> str:
    form = settings["version-format"]
    if settings["json"] and not settings.is_given("version-format"):
        form = "full-json"
    if form == "text":
        return f"poprun {__version__}\n"
    # importlib.metadata takes 10 ms to import.
    from poprun.reach.own_host import versions  # noqa: PLC0415

    # The programs that it starts inherit the blocked signals.
    early_signals.unblock()
    by_name = versions.collect(environ, settings["mpirun"])
    if form == "full-text":
        return "".join(f"{name} {version}\n" for name, version in by_name.items())
    return json.dumps(by_name, indent=2) + "\n"

"""One run of poprun, from settings to an exit code: the order in which things happen.

settings -> Setup -> Job -> Ended -> Outcome -> words
"""

import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence

from poprun.errors import LaunchError, OptionError
from poprun.job import prepare, supervisor
from poprun.job.event_log import Narrator
from poprun.job.events import Event
from poprun.job.guard_start import StartedGuard
from poprun.job.values import Job
from poprun.log import DEBUG, Log
from poprun.options.settings import Settings
from poprun.plan import planner
from poprun.plan.hosts import SLURM_NODE_NAME
from poprun.plan.outer_job import without_outer_job
from poprun.plan.planner import Setup
from poprun.plan.program import resolve
from poprun.plan.unsupported import refuse_what_cannot_start
from poprun.result import out_of_memory
from poprun.result.progress import Progress
from poprun.stdio import terminal
from poprun.stdio.router import Relay, Routes, open_file
from poprun.stdio.screen import Screen
from poprun.stdio.writer import Sink

# What Python sets LC_CTYPE to, in its own environment, when it finds the C locale.
PYTHONS_OWN_LOCALES = ("C.UTF-8", "C.utf8", "UTF-8")


def run(settings: Settings, program: Sequence[str], guard: StartedGuard | None) -> int:
    """Run a program once per instance, or show what would be run.

    Args:
        guard: Has been started already; nobody's if nothing is to be started.
    """
    environ = without_outer_job(_callers_environment())
    verbosity = DEBUG if settings["debug"] else settings.verbosity
    log = Log(verbosity, _write_stderr)
    made = planner.make(settings, environ, prepare.temporary_directory(environ))
    for note in made.notes:
        log.warn(note)
    # Before anything is shown of a job that is refused.
    job = None if guard is None else _make_job(made, settings, program, environ)
    if _shows_topology(settings) or verbosity >= DEBUG:
        code = _print(_topology(settings, made), log)
        if code:
            return code
    if verbosity:
        _log_plan(log, made, settings, program, environ)
    if guard is None or job is None:
        from poprun.plan import dry_run

        return _print(dry_run.render(made, program), log)
    return _run_job(job, guard, made, settings, verbosity)


def _make_job(
    made: Setup,
    settings: Settings,
    program: Sequence[str],
    environ: Mapping[str, str],
) -> Job:
    """Describe a job to launch; what cannot be started is refused here at the latest.

    The directories that the user names are made.
    """
    refuse_what_cannot_start(settings, made.hosts, environ.get(SLURM_NODE_NAME, ""))
    paths = _find_program(made, program, environ)
    width = _routes(made, settings).width_of_mark(len(made.plan.assignments))
    job = prepare.make_job(
        made,
        paths,
        program,
        environ,
        grace=settings["grace"],
        keep_going=settings["keep-going"],
        timeout=settings["timeout"],
        start_timeout=settings["start-timeout"],
        terminals=terminal.choose(settings["tty"], width),
    )
    _check_output_directory(made)
    _make_cache_directory(made.named_cache)
    return job


def _routes(made: Setup, settings: Settings) -> Routes:
    return Routes(
        tag=made.arguments.tag_output,
        timestamp=made.arguments.timestamp_output,
        xml=made.arguments.xml,
        merged=made.arguments.merge_stderr,
        only_instance=settings["only-output-from-instance"],
        directory=made.arguments.output_filename,
        only_files=made.arguments.output_nocopy,
    )


def _run_job(
    job: Job,
    guard: StartedGuard,
    made: Setup,
    settings: Settings,
    verbosity: int,
) -> int:
    if job.stdin.is_own and not terminal.wait_until_readable(0):
        raise OptionError(
            "--stdin would read the terminal, which another job has, and no shell "
            "could continue poprun when it is free. Run poprun in the foreground, or "
            "give it another input, such as < /dev/null."
        )
    progress = Progress(len(job.specs), time.monotonic())
    has_status = settings["progress"] and terminal.has_status_line(os.environ)
    # Who types on the terminal would type behind the status.
    has_status &= not (job.stdin.is_own and os.isatty(0))
    relay = Relay(
        _routes(made, settings),
        screens=_screens(),
        status=progress.text if has_status else None,
    )
    log = Log(verbosity, relay.say)
    memory = out_of_memory.read()
    narrator = Narrator(log, keep_going=job.keep_going)

    def listen(event: Event) -> None:
        progress.listen(event)
        narrator.listen(event)

    running = supervisor.Launch(job, guard, relay, listen)
    # It takes a while until the first instance runs: time to import what comes last.
    from poprun.result import conclusion

    try:
        ended = running.to_the_end()
    finally:
        relay.hide_status(forever=True)
    relay.end()
    exit_code = conclusion.conclude(
        ended, made, relay, log, memory, debug=settings["debug"]
    )
    running.write_out()
    # Python gives signals back their default action on its way out, and one of them
    # would replace the exit code.
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.HANDLED_SIGNALS)
    return exit_code


def _screens() -> dict[str, Screen]:
    """Return what is known of the terminals that poprun writes to."""
    if terminal.is_dumb(os.environ):
        return {}
    _, columns = terminal.own_size()
    named = (("stdout", 1), ("stderr", 2))
    return {name: Screen(columns) for name, number in named if os.isatty(number)}


def _callers_environment() -> Mapping[str, str]:
    """Return the environment as it was given, without what Python has added to it."""
    # exec accepts no variable without a name, and no program can read one.
    environ = {name: value for name, value in os.environ.items() if name}
    if environ.get("LC_CTYPE") in PYTHONS_OWN_LOCALES:
        with open("/proc/self/environ", "rb") as file:
            given = file.read().split(b"\0")
        del environ["LC_CTYPE"]
        for word in given:
            name, _, value = word.partition(b"=")
            if name == b"LC_CTYPE":
                environ["LC_CTYPE"] = os.fsdecode(value)
    return environ


def _shows_topology(settings: Settings) -> bool:
    # To say how it is to be shown is to ask for it, if nobody says no.
    if settings.given("topology-format") and not settings.given("print-topology"):
        return True
    return bool(settings["print-topology"])


def _topology(settings: Settings, made: Setup) -> str:
    from poprun.plan import drawing

    shape, hosts = made.plan.topology, made.plan.hosts
    if settings["topology-format"] == "json":
        return drawing.as_json(shape, hosts) + "\n"
    text = drawing.render(shape, hosts)
    if os.isatty(1):
        width = os.get_terminal_size(1).columns
        if width and max(map(len, text.splitlines())) > width:
            text = drawing.render_compact(shape, hosts, width)
    return text + "\n"


def _log_plan(
    log: Log,
    made: Setup,
    settings: Settings,
    program: Sequence[str],
    environ: Mapping[str, str],
) -> None:
    from poprun.plan.assignments import compact
    from poprun.plan.dry_run import command_line

    given = planner.given_target_options(environ)
    log.debug(f"Target options from environment: {compact(given)}")
    if not (settings["host"] or settings["hostfile"]):
        log.debug("No hosts specified; ignoring host-subnet setting")
    log.debug("Default network/RNIC for host communication: None")
    log.debug(f"Using {made.mpi.title} ({made.mpi.path})")
    log.info(f"Running command: {command_line(made, program)}")


def _check_output_directory(made: Setup) -> None:
    """Make the directory of --output-filename while nothing has been started."""
    directory = made.arguments.output_filename
    if directory is None:
        return
    for assignment in made.plan.assignments:
        try:
            os.close(open_file(directory, assignment.rank, "stdout"))
            os.close(open_file(directory, assignment.rank, "stderr"))
        except OSError as error:
            refusal = LaunchError(
                f"--output-filename {directory}: {error.filename} cannot be written: "
                f"{error.strerror}. Name a directory that can."
            )
            raise refusal from None


def _make_cache_directory(path: str | None) -> None:
    """Make the directory of --executable-cache-path, in which instances write."""
    if path is None:
        return
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise OptionError(
            f"--executable-cache-path {path!r} cannot be used: {error.strerror}. Name "
            "a directory in which you may write."
        ) from None


def _find_program(
    made: Setup, program: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Return the program's file for each instance: each may have a PATH of its own."""
    cwd = _current_directory()
    found: dict[tuple[str | None, str], str] = {}
    paths = []
    for assignment in made.plan.assignments:
        search_path = assignment.variables.get("PATH", environ.get("PATH"))
        key = search_path, assignment.directory or cwd
        if key not in found:
            found[key] = resolve(program, *key)
        paths.append(found[key])
    return paths


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise LaunchError(
            "The current directory has been deleted, so no program can start in it. "
            "Go to another one with cd."
        ) from None


def _write_stderr(text: str) -> None:
    _write(2, text)


def _write(descriptor: int, text: str) -> int:
    """Write a text whole, and return the errno if that cannot be done."""
    sink = Sink(descriptor)
    sink.write(text.encode(errors="surrogateescape"))
    sink.drain()
    sink.close()
    return sink.failure


def _print(text: str, log: Log) -> int:
    """Write what was asked for to stdout, and return the exit code for how it went."""
    failure = _write(1, text)
    if not failure:
        return 0
    from poprun.result.conclusion import UNWRITTEN
    from poprun.result.outcome import OUTPUT_CLOSED

    if failure == errno.EPIPE:
        return OUTPUT_CLOSED
    log.error(f"The standard output cannot be written: {os.strerror(failure)}.")
    return UNWRITTEN

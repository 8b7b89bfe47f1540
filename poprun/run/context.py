"""The context of a run, which its stages and attempts share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from poprun.color import uses_color
from poprun.log import Log
from poprun.options.settings import Settings
from poprun.output.phase_line import PhaseLine
from poprun.output.terminal import has_status_line
from poprun.plan.values import Request
from poprun.reach.hosts import Preflight, Preflights
from poprun.reach.remote import open_hosts_of_settings
from poprun.result.recorder import Recorder
from poprun.supervise.clients.preparing_job import PreparingJob
from poprun.supervise.guard_start import StartedGuard
from poprun.trace.job_trace import JobTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    settings: Settings
    # The environment that poprun was started with, and the instances' part of it.
    caller_environ: Mapping[str, str]
    environ: Mapping[str, str]
    # The caller's.
    umask: int
    log: Log
    # Shows on a terminal what poprun does before the job runs.
    phase_line: PhaseLine
    hosts: Preflights
    # Reaches hosts; its arguments are a function that tells the guard, and the hosts.
    open_hosts: Callable[..., Sequence[Preflight]]
    # Serves clients until the first attempt.
    preparing: PreparingJob
    # Writes the files of --result and --events.
    recorder: Recorder | None = None
    # Writes the file of --trace.
    trace: JobTrace | None = None

    def enter(self, phase: str) -> None:
        """Begin a phase of the run in the trace."""
        if self.trace is not None:
            self.trace.enter(phase)

    def reopen_hosts(self, request: Request, guard: StartedGuard) -> int:
        """Reach the hosts again before another attempt; return a port for rank 0."""
        reopen = partial(self.open_hosts, guard.tell, again=True)
        self.hosts.reopen(request.hosts, reopen)
        self.hosts.check_mpi(request.mpi)
        return self.hosts.describe(request.hosts[:1])[0].free_port


def make_context(
    *,
    settings: Settings,
    caller_environ: Mapping[str, str],
    environ: Mapping[str, str],
    umask: int,
    tell_guard: Callable[[bytes], None] | None,
    preparing: PreparingJob,
    recorder: Recorder | None,
    trace: JobTrace | None,
) -> RunContext:
    """Return the context of a run.

    Args:
        tell_guard: Sends a message to the guard; None for a dry run.
    """
    has_line = tell_guard is not None and settings.shows_progress
    phase_line = PhaseLine(
        is_possible=has_line and has_status_line(environ), on_phase=preparing.enter
    )
    log = make_log(settings, environ, phase_line.write)
    open_hosts = partial(
        open_hosts_of_settings, settings, environ, log, phase_line.show
    )
    # A dry run plans a job on several hosts as if all were this one.
    opener = None if tell_guard is None else partial(open_hosts, tell_guard)
    return RunContext(
        settings=settings,
        caller_environ=caller_environ,
        environ=environ,
        umask=umask,
        log=log,
        phase_line=phase_line,
        hosts=Preflights(opener),
        open_hosts=open_hosts,
        preparing=preparing,
        recorder=recorder,
        trace=trace,
    )


def make_log(
    settings: Settings, environ: Mapping[str, str], write: Callable[[str], object]
) -> Log:
    """Return poprun's log, which writes to its stderr by a function."""
    return Log(
        settings.verbosity,
        write,
        has_color=uses_color(settings["color"], environ, 2),
        is_quiet=settings["quiet"],
    )

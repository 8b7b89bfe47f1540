"""The context of a run, which its stages and attempts share."""

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from poprun.color import uses_color
from poprun.helpers.own_process import without_own_changes
from poprun.host_specs import HostSpec
from poprun.log import Log
from poprun.mpirun.environment import without_outer_poprun
from poprun.options.settings import Settings
from poprun.options.types import AUTO
from poprun.output.phase_line import PhaseLine
from poprun.output.terminal import has_status_line
from poprun.plan.values import Request
from poprun.reach.hosts import Preflights
from poprun.reach.remote import HostOpener
from poprun.result.recorder import Recorder
from poprun.supervise.clients.preparing_job import PreparingJob
from poprun.supervise.guard_start import StartedGuard
from poprun.trace.job_trace import JobTrace


class RunContext:
    """The settings of a run, its hosts, and its ways to report.

    Args:
        caller_environ: The environment that poprun was started with.
        umask: The caller's, which the instances have.
        guard: None for a dry run, which plans a job on several hosts as if all were
            this one.
        recorder: Writes the files of --result and --events.
        trace: Writes the file of --trace.
        words: The command line of the programs.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        caller_environ: Mapping[str, str],
        umask: int,
        guard: StartedGuard | None,
        recorder: Recorder,
        trace: JobTrace | None,
        words: Sequence[str],
    ) -> None:
        self.caller_environ, self.umask = caller_environ, umask
        # The instances' part of it.
        environ = without_outer_poprun(without_own_changes(caller_environ))
        self.environ = environ
        # The caller's limits of open files; poprun raises its own.
        self.descriptor_limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        # It may be deleted while the job runs.
        self.directory = os.getcwd()
        self.settings, self.recorder, self.trace = settings, recorder, trace
        # The id of the job.
        self.identity = os.urandom(16).hex()
        # Serves clients until the first attempt; `auto` stands for a number that is not
        # known yet.
        shape = settings["num-instances"], settings["num-replicas"]
        instances, replicas = (0 if number == AUTO else number for number in shape)
        self.preparing = PreparingJob(self.identity, words, (instances, replicas))
        # Shows on a terminal what poprun does before the job runs.
        has_line = guard is not None and settings.shows_progress
        self.phase_line = PhaseLine(
            is_possible=has_line and has_status_line(environ),
            on_phase=self.preparing.enter,
        )
        self.log = make_log(settings, environ, self.phase_line.write)
        self.opener = HostOpener(
            settings=settings,
            environ=environ,
            log=self.log,
            show_phase=self.phase_line.show,
        )
        opened = None if guard is None else replace(self.opener, tell=guard.tell).open
        self.hosts = Preflights(opened)
        # The hosts of an elastic job that have the folder of --sync.
        self.synced: set[str] = set()

    def enter(self, phase: str) -> None:
        """Begin a phase of the run in the trace."""
        if self.trace is not None:
            self.trace.enter(phase)

    def reopen_hosts(self, request: Request, guard: StartedGuard) -> None:
        """Reach all hosts of a job again before another attempt."""
        names = [host.name for host in request.hosts]
        opener = replace(self.opener, tell=guard.tell, synced=names)
        self.hosts.reopen(request.hosts, opener.open)
        self.hosts.check_mpi(request.mpi)

    def open_usable_hosts(
        self, hosts: Sequence[HostSpec], guard: StartedGuard | None
    ) -> dict[HostSpec, str]:
        """Reach those hosts that can be used; return a sentence for each other one.

        Args:
            guard: None for a dry run, which reaches none.
        """
        failures: dict[HostSpec, str] = {}
        if guard is not None:
            opener = replace(
                self.opener, tell=guard.tell, synced=self.synced, failures=failures
            )
            self.hosts.reopen(hosts, opener.open)
            self.synced |= {host.name for host in hosts if host not in failures}
        return failures

    def name_hosts(self, guard: StartedGuard | None) -> Sequence[HostSpec] | None:
        """Return the hosts that the options name; None if they name none."""
        opener = self.opener if guard is None else replace(self.opener, tell=guard.tell)
        return opener.name_hosts()


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

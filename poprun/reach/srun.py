"""Reaches the nodes of the Slurm job that poprun runs in by srun, without ssh.

Each agent is a step of the job with one task, which shares the node with all others.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poprun.plan.hosts import HostSpec
from poprun.plan.slurm import SlurmJob, is_of_slurm
from poprun.reach.srun_port import SRUN
from poprun.words import printable

OPTIONS = (
    # The step takes nothing from others, and has all that the job has on the node: its
    # processors, memory and devices are the instances' to use.
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--mem=0",
    "--cpu-bind=none",
    # Otherwise only whole lines are passed on.
    "--unbuffered",
    "--export=ALL",
    # The agent changes to poprun's directory itself, and says if it cannot.
    "--chdir=/",
    "--mpi=none",
    "--job-name=poprun-agent",
)
# These lead srun to Slurm. The others are defaults for its options, such as those of
# the step that poprun itself runs in.
_MOST_LINES = 2
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Srun:
    """What starts agents on the nodes of a job."""

    path: str
    allocation: SlurmJob

    def reaches(self, host: HostSpec) -> bool:
        """Return whether a host is a node of the job, and its user the job's."""
        names = {node.name for node in self.allocation.nodes}
        return host.user is None and host.name in names

    @property
    def remote_shell(self) -> list[str]:
        """The words before a node and a command: a remote shell, for rsync."""
        return [self.path, f"--jobid={self.allocation.job_id}", *OPTIONS, "--nodelist"]

    def argv(self, host: HostSpec, command: str) -> list[str]:
        """Return the argv that runs a shell command on a node."""
        return [*self.remote_shell, host.name, "sh", "-c", command]

    def agent_argv(self, host: HostSpec, words: Sequence[str]) -> list[str]:
        """Return the argv that runs an agent on a node."""
        return [*self.remote_shell, host.name, *words, SRUN]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of srun, which becomes that of the agent."""
        return {
            name: value
            for name, value in environ.items()
            if name in _KEPT or not is_of_slurm(name)
        }

    def shown(self, host: HostSpec, command: str = "true") -> str:
        """Return a command for the user to type."""
        job = self.allocation.job_id
        return f"srun --jobid={job} --overlap -n1 -w {host.name} {command}"

    def explain(self, host: HostSpec, text: str, entry: str) -> str:
        """Return a sentence about an srun that could not start an agent.

        Args:
            text: What it has written.
            entry: The file of the agent.
        """
        lines = [line.strip().rstrip(".") for line in text.splitlines()]
        words = printable("; ".join(filter(None, lines[:_MOST_LINES])))
        said = f" srun says: '{words}'." if words else ""
        files = [file for file in (sys.executable, entry) if file in text]
        if files and "o such file" in text:
            return (
                f"The host {host.name} cannot be used: it has no {files[0]}.{said} "
                "Install the same Python and poprun at the same paths there."
            )
        return (
            f"The host {host.name} cannot be used: srun cannot start a step on "
            f"it.{said} Try: {self.shown(host)}"
        )


def find_srun(allocation: SlurmJob | None, environ: Mapping[str, str]) -> Srun | None:
    """Return what starts agents in a job; None outside one, or if there is no srun.

    Containers often have none; then ssh reaches the nodes, if anything does.
    """
    if allocation is None:
        return None
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, SRUN)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return Srun(path=path, allocation=allocation)
    return None

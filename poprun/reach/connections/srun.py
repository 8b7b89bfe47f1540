"""Reaches the nodes of the Slurm job that poprun runs in by srun, without ssh.

Each agent is a step of the job with one task, which shares the node with all others.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poprun.helpers import processes
from poprun.host_specs import HostSpec
from poprun.plan.slurm import SlurmJob, is_of_slurm, node_environment
from poprun.reach.connections.connector import (
    MOST_LINES,
    CommandEnd,
    Connector,
    unusable,
)

SRUN_OPTIONS = (
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
# These lead srun to Slurm. The other variables are defaults for its options, for
# example from the step that poprun itself runs in.
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Srun(Connector):
    """The Connector to the nodes of a Slurm job."""

    path: str
    allocation: SlurmJob

    name = "srun"
    # If srun is killed, Slurm reports a failed step.
    exit_s = 5.0

    def reaches(self, host: HostSpec) -> bool:
        """Return whether a host is a node of the job, and its user the job's."""
        names = {node.name for node in self.allocation.nodes}
        return host.user is None and host.name in names

    @property
    def remote_shell(self) -> list[str]:
        return [
            self.path,
            f"--jobid={self.allocation.job_id}",
            *SRUN_OPTIONS,
            "--nodelist",
        ]

    def argv(self, host: HostSpec, program: Sequence[str]) -> list[str]:
        return [*self.remote_shell, host.name, *program]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {
            name: value
            for name, value in environ.items()
            if name in _KEPT or not is_of_slurm(name)
        }

    def shown(self, host: HostSpec, command: str = "true") -> str:
        job = self.allocation.job_id
        return f"srun --jobid={job} --overlap -n1 -w {host.name} {command}"

    def explain(self, host: HostSpec, end: CommandEnd, entry: str = "") -> str:
        meaning = "srun cannot start a step on it"
        advice = f"Try: {self.shown(host)}"
        missing = [f for f in (sys.executable, entry) if f and f in end.errors]
        if missing and end.has("no such file"):
            meaning = f"it has no {missing[0]}"
            advice = "Install the same Python and poprun at the same paths there."
        return unusable(host, meaning, self.name, end.lines[:MOST_LINES], advice)

    def on_hello(self, pid: int) -> None:
        """End the child of srun that kills the agent's step when srun is killed.

        The agent detects the end of srun itself, ends its part of the job and removes
        its files, for which a SIGKILL leaves it no time.
        """
        for child in processes.descendants([pid]):
            processes.send(9, child)

    def host_environment(
        self, agent: Mapping[str, str], own: Mapping[str, str]
    ) -> dict[str, str]:
        return node_environment(agent, own)


def find_srun(allocation: SlurmJob | None, environ: Mapping[str, str]) -> Srun | None:
    """Return the Connector of a job; None outside one, or if there is no srun.

    Containers often have none; then ssh reaches the nodes, if anything does.
    """
    path = shutil.which("srun", path=environ.get("PATH", os.defpath))
    if allocation is None or path is None:
        return None
    return Srun(path=path, allocation=allocation)

"""poprun's own launcher in the place of an mpirun: how it is called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from poprun import __version__
from poprun.helpers.helper_commands import PYTHON, REMOTE_SHELL
from poprun.helpers.local_launcher import SURVIVE
from poprun.mpirun.environment import without_outer_mpi
from poprun.mpirun.values import Context, Mpi, MpirunArguments, MpirunFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLauncher(Mpi):
    """poprun's own launcher. Its instances get no MPI."""

    path: str = PYTHON[0]
    version: str = __version__

    vendor: ClassVar[str] = "poprun's own launcher"
    launcher: ClassVar[str] = "poprun's own launcher"
    has_mpi: ClassVar[bool] = False
    messages: ClassVar[Sequence[tuple[str, MpirunFailure]]] = (
        ("the local launcher ends the others", MpirunFailure.OTHER),
    )

    def job_arguments(
        self, arguments: MpirunArguments, hosts: Mapping[str, int]
    ) -> list[str]:
        """Return what follows Python."""
        del hosts
        return [*PYTHON[1:], "local", *([SURVIVE] if arguments.survives else [])]

    def instance_arguments(self, context: Context) -> list[str]:
        """Return the command that starts an instance on another host, or nothing.

        python entry.py local shim 0 : remote_shell node-1 shim 1

        An instance gets its variables by the control channel.
        """
        return [] if context.host is None else [REMOTE_SHELL, context.host]

    def environment(self, caller: Mapping[str, str], directory: str) -> dict[str, str]:
        return without_outer_mpi(caller) | {"TMPDIR": directory}

"""Options.Distributed."""

import os
from typing import Self

from popdist import environment as env

from .option_values import OptionValues


class _DistributedOptions(OptionValues):
    """This process among the processes that train together."""

    def __init__(self) -> None:
        super().__init__(
            num_distributed_processes=1, distributed_process_id=0, ipuof_configs={}
        )
        _DistributedOptions.setEnvVarNames(self, env.OMPI_SIZE, env.OMPI_RANK)

    def disable(self) -> Self:
        """Make this the only process, whatever the environment has."""
        return self.set(num_distributed_processes=1, distributed_process_id=0)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read the number of processes, and which this is, from these variables."""
        processes = int(os.environ.get(var_num_processes, "1"))
        process = int(os.environ.get(var_process_id, "0"))
        return _DistributedOptions.configureProcessId(self, process, processes)

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Set which process this is, and how many there are."""
        return self.set(
            distributed_process_id=process_id, num_distributed_processes=num_processes
        )

    @property
    def processId(self) -> int:
        """The index of this process."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """How many processes there are."""
        return int(self.num_distributed_processes)

"""PopART's sessions on all ranks."""

import logging
from typing import Any

import popart

from ..torch.mpi_ops import rank, size

logger = logging.getLogger("horovod.popart")


def broadcast_weights(
    session: popart.TrainingSession | popart.InferenceSession, root_rank: int = 0
) -> None:
    """Overwrite the weights on the hosts of all ranks with those of one.

    All ranks must call it. The session's weightsFromHost() copies them to the device.

    Raises:
        ValueError: init() has not been called, or there is no such rank.
    """
    if not 0 <= root_rank < size():
        raise ValueError(
            f"broadcast_weights got root_rank={root_rank}, but the ranks are 0 to "
            f"{size() - 1}."
        )
    session.broadcastWeights(root_rank)


class DistributedTrainingSession(popart.TrainingSession):
    """A session that trains with those of all other ranks.

    popdist.popart.configureSessionOptions sets its replicas: gradients are reduced over
    those of all ranks.
    """

    # Any: whatever popart.TrainingSession takes.
    def __init__(
        self, *args: Any, enableEngineCaching: bool = True, **kwargs: Any
    ) -> None:
        """Create the session, as all ranks must, in the same order.

        Args:
            *args: As of popart.TrainingSession.
            enableEngineCaching: Without effect: nothing is compiled.
            **kwargs: As of popart.TrainingSession.

        Raises:
            ValueError: init() has not been called.
        """
        size()
        super().__init__(*args, **kwargs)


class DistributedOptimizer:
    """Averages the gradients of a session over all ranks, which each train alone."""

    def __init__(
        self,
        optimizer: popart.Optimizer,
        session: popart.TrainingSession,
        session_options: popart.SessionOptions,
    ) -> None:
        """Let the session average its gradients from now on. All ranks must call it.

        Args:
            optimizer: The optimizer of the session, or a replacement of it, as for
                `updateOptimizerFromHost`.
            session: The session.
            session_options: Its options. Without `hostAllReduce`, which Graphcore's
                PopART needs, a warning says so.

        Raises:
            ValueError: init() has not been called.
            popart_exception: The optimizer changes what never changes.
        """
        if not session_options.hostAllReduce and rank() == 0:
            # As an example of PopART's user guide does.
            logger.warning(
                "DistributedOptimizer averages gradients although SessionOptions."
                "hostAllReduce is False. Graphcore's PopART needs it: set it to True "
                "before the session is created."
            )
        session.updateOptimizerFromHost(optimizer)
        session.average_over_instances()

    def insert_host_allreduce(self) -> None:
        """Do nothing: the session averages its gradients already."""

"""How many replicas a program for IPUs has, and which of them this process is."""

import popdist

from .config import current, is_configured
from .refusals import refuse


def selected_ipus(device: int = 0) -> int:
    """Return how many IPUs the configuration selects for a device of this process."""
    config = current()
    counts = config.auto_select_ipus
    if counts and isinstance(counts, int):
        return counts if device == 0 else 0
    if counts:
        return int(counts[device]) if device < len(counts) else 0
    if process_count():
        return popdist.getNumLocalReplicas() * popdist.getNumIpusPerReplica()
    return 1


def process_count() -> int:
    """Return how many processes the replicas are distributed over; 0 if they are not.

    It follows from the configuration: without it each process of a job is alone, as
    those are that exchange by Horovod.
    """
    distribution = current().experimental.multi_replica_distribution
    return int(distribution.process_count)


def require_configuration(name: str) -> None:
    """Refuse an operation if its shape depends on a later configuration."""
    if not is_configured() and popdist.getNumInstances() > 1:
        refuse(
            f"{name} before the system is configured",
            "it has as many parts as there are replicas. Call configure_ipu_system() "
            "before the program is compiled.",
        )


def check_replication_factor(factor: int | None) -> None:
    """Refuse an operation over another number of replicas than the program has."""
    replicas = process_count() or 1
    if factor not in (None, replicas):
        raise ValueError(
            f"replication_factor is {factor}, but the program has {replicas} replicas. "
            "Leave it out, or start as many instances (poprun --num-instances "
            f"{factor}), after popdist.tensorflow.set_ipu_config."
        )


def process_index() -> int:
    """Return which of these processes this is."""
    return int(current().experimental.multi_replica_distribution.process_index)


def check_replicas(used_ipus: int = 1, has: int = 1) -> None:
    """Refuse a program with more replicas in this process than the job has here.

    Args:
        used_ipus: How many IPUs one replica of the program uses.
        has: How many replicas the program has in this process: several in the run of a
            PopDistStrategy.
    """
    if process_count():
        replicas = popdist.getNumLocalReplicas()
        way_out = (
            "Start as many instances as there are replicas (poprun --num-instances "
            f"{popdist.getNumTotalReplicas()}); the results are the same."
        )
    else:
        replicas = selected_ipus() // used_ipus
        way_out = (
            f"Select as many IPUs as one replica uses, which is {used_ipus}; more "
            "replicas are more instances (poprun --num-instances), after "
            "popdist.tensorflow.set_ipu_config."
        )
    if replicas > has:
        refuse(
            "replicas in one process",
            f"the configuration gives this program {replicas}. {way_out}",
        )

"""What the arguments of a DataLoader mean, and which do not go together."""

from typing import Any

from popdist.replicated.settings import ReplicatedSettings

from .._logging import logger
from ..errors import ArgumentsError, require
from ..options import Options


def batches_per_call(options: Options) -> int:
    """Return how many batches of the data set one call of a model takes."""
    replicas, grouped = options.replication_factor, options.input_group_size
    require(
        replicas % grouped == 0,
        f"inputReplicaGrouping has groups of {grouped}, but {replicas} replicas cannot "
        "be divided into such.",
    )
    return ReplicatedSettings(
        device_iterations=options.device_iterations,
        gradient_accumulation=options.Training.gradient_accumulation,
        replicas=replicas,
        input_group_size=grouped,
    ).micro_batches


def check_sampler(
    batch_size: int | None,
    shuffle: bool | None,
    is_divided: bool,
    rebatched_worker_size: int | None,
) -> None:
    """Raise an AssertionError if an argument does not go with a batch_sampler."""
    if batch_size != 1 or shuffle:
        raise ArgumentsError(
            "`batch_sampler` option is mutually exclusive with batch_size, shuffle."
        )
    if is_divided:
        raise ArgumentsError(
            "`batch_sampler` option is mutually exclusive with "
            "auto_distributed_partitioning=True."
        )
    require(
        rebatched_worker_size is None,
        "rebatched_worker_size does not go with a batch_sampler, whose batches are "
        "what a worker loads. Leave one of them out.",
    )


def check_iterable(
    is_divided: bool, num_workers: int, arguments: dict[str, Any]
) -> None:
    """Check the arguments for an IterableDataset, which only the program can divide."""
    require(
        not is_divided,
        "An IterableDataset cannot be divided among processes here. Divide it in the "
        "program, and set auto_distributed_partitioning=False.",
    )
    if num_workers > 1 and "worker_init_fn" not in arguments:
        logger.warning(
            "Each of %d workers loads the whole IterableDataset, so that its samples "
            "come %d times. A worker_init_fn can give each its part.",
            num_workers,
            num_workers,
        )

"""torch's generator: seeded for the replicas of a model, and restored after it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from popdist.replicated.seeds import ReplicaStreams


def torch_streams(seed: int | None) -> ReplicaStreams:
    """Return the streams of a model that draws from torch's generator.

    Args:
        seed: The seed of the model; None for torch's, at the time of the first use.
    """
    set_seed = torch.default_generator.manual_seed
    return ReplicaStreams(seed, torch.initial_seed, set_seed)


@contextmanager
def host_random_state_kept() -> Iterator[None]:
    """Leave torch's generator as it was: models do not draw from the host's."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)

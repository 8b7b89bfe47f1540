"""Where a process stands, before Horovod is initialised."""

import os

from popdist.job import Place


def get_env_rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks, by its environment."""
    place = Place.decode(os.environ)
    return place.rank, place.size

"""Look-ups in tables of embeddings."""

from typing import Any

import tensorflow as tf

from ..refusals import refused


def embedding_lookup(
    params: Any,
    ids: Any,
    name: str | None = None,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
    **kwargs: Any,
) -> Any:
    """Return rows of a table.

    Args:
        params: The table.
        ids: The numbers of the rows.
        name: The name of the operation.
        serialization_factor: In how many parts an IPU reads the table.
        indices_are_sorted: Whether the numbers ascend.
        kwargs: Settings of older releases, which change no result.
    """
    return tf.gather(params, ids, name=name)


_REASON = (
    "its table lies in the host's memory and changes outside of the graph. Use "
    "embedding_lookup: here all memory is the host's."
)
HostEmbedding = refused("HostEmbedding", _REASON)
create_host_embedding = refused("create_host_embedding", _REASON)
HostEmbeddingOptimizerSpec = refused("HostEmbeddingOptimizerSpec", _REASON)
HostEmbeddingSGDGAOptimizerSpec = refused("HostEmbeddingSGDGAOptimizerSpec", _REASON)

"""Operations for IPUs."""

from ..refusals import add_modules
from . import (
    all_to_all_op,
    control_flow_ops,
    cross_replica_ops,
    custom_ops,
    embedding_ops,
    functional_ops,
    image_ops,
    internal_ops,
    math_ops,
    nn_ops,
    normalization_ops,
    pipelining_ops,
    rand_ops,
    reduce_scatter_op,
    replication_ops,
    rnn_ops,
    slicing_ops,
    statistics_ops,
)

add_modules(__name__)

"""tensorflow.python.ipu.horovod, by the names that public programs use."""

from typing import Any

import tensorflow as tf

import popdist.tensorflow
from tests.popdist.engine.members import error_of
from tests.popdist.sdk.horovod.tensorflow.ranks import results

# isort: split
from tensorflow.python.ipu import horovod as hvd
from tensorflow.python.ipu.horovod import gen_horovod_ops, ipu_horovod_strategy
from tensorflow.python.ipu.horovod.basics import HorovodBasics
from tensorflow.python.ipu.horovod.popdist_strategy import PopDistStrategy


def test_collectives_are_those_of_horovod() -> None:
    def rank(me: int) -> list[Any]:
        x = tf.constant([1.0, 3.0]) * (me + 1)
        traced = tf.function(lambda x: hvd.broadcast(x, 1))
        found = [
            hvd.allreduce(x),
            hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0),
            hvd.allgather(x[: me + 1], name="rows"),
            traced(x),
            gen_horovod_ops.horovod_allreduce(x, reduce_op=hvd.Average),
            gen_horovod_ops.horovod_allgather(x[:1]),
            gen_horovod_ops.horovod_broadcast(x, root_rank=0, name="root"),
        ]
        return [value.numpy().tolist() for value in found]

    assert (
        results(2, rank)
        == [[[1.5, 4.5], [6, 18], [1, 2, 6], [2, 6], [1.5, 4.5], [1, 2], [1, 3]]] * 2
    )


def test_ranks_are_those_of_all_modules_of_horovod() -> None:
    def rank(me: int) -> list[Any]:
        basics = HorovodBasics(__file__, "library")
        places = [(each.rank(), each.size()) for each in (hvd, basics)]
        hosts = hvd.local_rank(), hvd.local_size(), hvd.is_homogeneous()
        built = hvd.gloo_built(), hvd.gloo_enabled(), hvd.mpi_built(), hvd.nccl_built()
        return [places, hosts, built]

    for me, found in enumerate(results(2, rank)):
        assert found == [[(me, 2)] * 2, (me, 2, True), (True, True, False, 0)]


def test_strategies_are_popdists_or_refuse() -> None:
    assert PopDistStrategy is popdist.tensorflow.PopDistStrategy
    name, text = error_of(ipu_horovod_strategy.IPUHorovodStrategyV1)
    assert name == "NotImplementedError"
    assert "distributed.popdist_strategy.PopDistStrategy under poprun" in text

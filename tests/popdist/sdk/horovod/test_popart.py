"""horovod.popart: weights and gradients of sessions on all ranks."""

import logging

import numpy as np
import pytest

import popdist.sdk

popdist.sdk.install()

from popart_models import device, options, weights_of  # noqa: E402

import horovod.popart as hvd  # noqa: E402
import popart  # noqa: E402
import popdist.popart  # noqa: E402
from tests.popdist.engine.members import error_of  # noqa: E402
from tests.popdist.sdk.torch_instances import results  # noqa: E402


def session_of(
    rank: int,
    made: popart.SessionOptions,
    kind: type[popart.TrainingSession] = popart.TrainingSession,
) -> popart.TrainingSession:
    """Return a session whose weight is 5 on rank 0, and 15 on rank 1."""
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [1], "x")
    initial = np.full(1, 10 * rank + 5, np.float32)
    w = builder.addInitializedInputTensor(initial, "w")
    loss = builder.aiGraphcore.identityloss([builder.aiOnnx.mul([x, w])])
    session = kind(
        fnModel=builder.getModelProto(),
        dataFlow=popart.DataFlow(1, []),
        loss=loss,
        optimizer=popart.ConstSGD(1.0),
        deviceInfo=device(),
        userOptions=made,
    )
    session.prepareDevice()
    return session


def step(rank: int, session: popart.TrainingSession) -> float:
    """Run one update with the gradient 1 on rank 0 and 2 on rank 1."""
    session.weightsFromHost()
    session.run(popart.PyStepIO({"x": np.full(1, rank + 1, np.float32)}, {}))
    return float(weights_of(session, "w")["w"][0])


def test_sessions_that_train_alone_average_their_gradients() -> None:
    def averaged(rank: int) -> tuple[int, int, float]:
        hvd.init()
        made = options(hostAllReduce=True)
        session = session_of(rank, made)
        optimizer = hvd.DistributedOptimizer(popart.ConstSGD(1.0), session, made)
        optimizer.insert_host_allreduce()
        hvd.broadcast_weights(session, root_rank=1)
        return hvd.rank(), hvd.size(), step(rank, session)

    assert results((1, 1), averaged) == [(0, 2, 13.5), (1, 2, 13.5)]


def test_an_optimizer_without_the_option_averages_and_warns_once() -> None:
    """As in the example of PopART's user guide."""

    def averaged(rank: int) -> tuple[list[str], float]:
        hvd.init()
        records: list[logging.LogRecord] = []
        logging.getLogger("horovod.popart").addFilter(
            lambda record: records.append(record) is not None
        )
        made = options()
        session = session_of(rank, made)
        hvd.DistributedOptimizer(popart.ConstSGD(1.0), session, made)
        hvd.broadcast_weights(session, root_rank=1)
        return [record.getMessage() for record in records], step(rank, session)

    assert results((1, 1), averaged) == [
        (
            [
                "DistributedOptimizer averages gradients although SessionOptions."
                "hostAllReduce is False. Graphcore's PopART needs it: set it to True "
                "before the session is created."
            ],
            13.5,
        ),
        ([], 13.5),
    ]


def test_a_distributed_session_reduces_over_the_replicas_of_all_ranks() -> None:
    def distributed(rank: int) -> float:
        hvd.init()
        made = options()
        popdist.popart.configureSessionOptions(made)
        session = session_of(rank, made, hvd.DistributedTrainingSession)
        hvd.broadcast_weights(session)
        return step(rank, session)

    assert results((1, 1), distributed) == [2.0, 2.0]


def before_init(rank: int) -> object:
    return session_of(rank, options(), hvd.DistributedTrainingSession)


def of_another_rank(rank: int) -> object:
    hvd.init()
    return hvd.broadcast_weights(session_of(rank, options()), 2)


def with_another_optimizer(rank: int) -> object:
    hvd.init()
    made = options(hostAllReduce=True)
    session = session_of(rank, made)
    return hvd.DistributedOptimizer(popart.ConstSGD(0.5), session, made)


def without_the_optimizer(rank: int) -> object:
    return step(rank, session_of(rank, options(hostAllReduce=True)))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            before_init,
            "Horovod has not been initialized; use hvd.init() before any other call of "
            "it.",
        ),
        (
            of_another_rank,
            "broadcast_weights got root_rank=2, but the ranks are 0 to 1.",
        ),
        (
            with_another_optimizer,
            "The optimizer's learningRate is constant and cannot change from 1.0 to "
            "0.5. Create the session with a value that is not constant, such as (1.0, "
            "False).",
        ),
        (
            without_the_optimizer,
            "SessionOptions.hostAllReduce is True, but nothing reduces the gradients "
            "of this session. Create a horovod.popart.DistributedOptimizer of it "
            "before run().",
        ),
    ],
)
def test_a_mistake_is_explained(mistake, message) -> None:  # type: ignore[no-untyped-def]
    errors = results((1, 1), lambda rank: error_of(lambda: mistake(rank))[1])

    assert errors == [message] * 2

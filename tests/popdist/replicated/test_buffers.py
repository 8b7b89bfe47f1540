from popdist.replicated.buffers import ReplicaBuffers


def test_each_replica_has_its_own_buffers_until_a_reset() -> None:
    model = {"mean": [0]}
    buffers = ReplicaBuffers([(model, "mean")], 3, list[int])

    buffers.prepare()
    for replica in range(3):
        with buffers.of(replica):
            model["mean"].append(replica)
    with buffers.of(2):
        model["mean"] = [*model["mean"], 7]

    held = []
    for replica in range(3):
        with buffers.of(replica):
            held.append(model["mean"])
    assert held == [[0, 0], [0, 1], [0, 2, 7]]

    buffers.reset()
    buffers.prepare()
    with buffers.of(1):
        assert model["mean"] == [0, 0]


def test_a_model_without_buffers_exchanges_nothing() -> None:
    buffers = ReplicaBuffers[int]([], 2, int)

    buffers.prepare()
    with buffers.of(1):
        assert buffers.current() == []

"""A user's program, whose types a type checker knows.

test_types.py checks it with mypy in strict mode, and runs it on 2 instances with 2
replicas each.
"""

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import popdist
from popdist import Group, Handle, ReplicaGroups, collectives

Floats = NDArray[np.float32]

here = popdist.getInstanceIndex() == 0
x: Floats = popdist.rows(np.ones((2, 4), np.float32))
blocks: Floats = popdist.rows(np.ones((2, 4, 3), np.float32))
rows: list[Floats] = [x[0], x[1]]
all_rows: Floats = np.ones((4, 4), np.float32)
listed: list[Floats] = [np.empty(4, np.float32) for _ in range(4)]

# --- One group: an array for an array, a list for a list, a handle with async_op.

group = popdist.replica_group()
assert_type(group, Group)
assert_type(group.all_reduce(x), Floats)
assert_type(group.all_reduce(x, "mean", out=x), Floats)
assert_type(group.all_reduce(rows), list[Floats])
assert_type(group.all_reduce(x, async_op=True), Handle[Floats])
assert_type(group.all_reduce(x, async_op=True).wait(), Floats)
assert_type(group.grouped_all_reduce([x, blocks]), list[Floats])
assert_type(group.grouped_all_reduce([x], async_op=True).wait(), list[Floats])
assert_type(group.broadcast(x, 1), Floats)
assert_type(group.reduce_scatter(blocks), Floats)
assert_type(group.all_to_all(blocks, async_op=True).wait(), Floats)
assert_type(group.reduce(x, root=1), Floats | None)
assert_type(group.reduce(x, out=np.ones(4, np.float32)), Floats | None)
assert_type(group.all_gather(x), list[Floats])
assert_type(group.all_gather(x, out=all_rows), Floats)
assert_type(group.all_gather(x, out=listed), list[Floats])
assert_type(group.all_gather(x, async_op=True), Handle[list[Floats]])
assert_type(group.gather(x), list[Floats] | None)
assert_type(group.gather(x, async_op=True).wait(), list[Floats] | None)
assert_type(group.scatter(all_rows if here else None), Floats)
assert_type(group.scatter(all_rows if here else None, out=x), Floats)
assert_type(group.barrier(async_op=True), Handle[None])

instances = popdist.instance_group()
assert_type(instances, Group)
received: Floats = np.empty(4, np.float32)
if here:
    assert_type(instances.send(x[0], 1, async_op=True), Handle[None])
else:
    assert_type(instances.recv(received, 0), Floats)

# --- Groups of replicas: an entry for each local replica.

groups = popdist.replica_group("orthogonal", 2)
assert_type(groups, ReplicaGroups)
assert_type(groups.all_reduce(x), Floats)
assert_type(groups.all_reduce(rows, async_op=True).wait(), list[Floats])
assert_type(groups.reduce_scatter(blocks), Floats)
assert_type(groups.reduce(x), list[Floats | None])
assert_type(groups.reduce(x, out=x.copy()), Floats)
assert_type(groups.all_gather(x), list[list[Floats]])
assert_type(groups.gather(x), list[list[Floats] | None])
given = blocks[:, :2] if here else None
assert_type(groups.scatter(given), list[Floats])
assert_type(groups.scatter(given, async_op=True), Handle[list[Floats]])
assert_type(groups.barrier(), None)

# --- Arrays in the arena, and PopDist's own functions.

assert_type(popdist.empty(3), Floats)
assert_type(popdist.zeros((2, 3), np.int8), NDArray[np.int8])
assert_type(popdist.empty_like(x), Floats)
assert_type(groups.empty((2, 3)), Floats)
assert_type(group.empty(3, np.float64), NDArray[np.float64])
assert_type(collectives.allReduceSum(x, "x"), Floats)
assert_type(collectives.broadcast(x, 0, "x", async_op=True), Handle[Floats])
assert_type(collectives.allGather(x, name="g"), Floats)
assert_type(popdist.execute_on_instances([0], popdist.getNumInstances), int | None)


def average(several: Group | ReplicaGroups, gradients: Floats) -> Floats:
    return several.all_reduce(gradients, "mean", out=gradients)


assert_type(average(groups, x), Floats)

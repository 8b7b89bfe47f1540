"""Every operation in each of several groups, held to numpy."""

import inspect
from collections.abc import Sequence
from typing import Any

import jobs
import pytest
from jobs import Ended, outputs

from popdist.engine.group import Group
from popdist.groups.partitioned import ReplicaGroups


def run(rows: Sequence[int], body: str) -> list[Ended]:
    """Run a program that gives arrays with a leading axis in both forms.

    Of those that are not marked by popdist.rows() it would be warned.
    """
    return jobs.run(rows, body, {"PYTHONWARNINGS": "ignore"})


# What each replica brings are small whole numbers, so that every sum is exact. An
# operation's line says whether the call and its async form gave what numpy gives.
PRELUDE = """
groups = popdist.replica_group(kind, size)
total, first = popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset()
mine = range(first, first + popdist.getNumLocalReplicas())
count = total // size
each = [
    range(j * size, (j + 1) * size) if kind == "consecutive" else range(j, total, count)
    for j in range(count)
]
of = {replica: group for group in each for replica in group}

def value(replica, *shape):
    return np.random.default_rng(replica).integers(-9, 9, shape).astype(np.float32)

def stack(values):
    return np.stack(list(values))

def rows(*shape):
    return popdist.rows(stack(value(replica, *shape) for replica in mine))

def same(found, expected):
    if isinstance(expected, list):
        alike = isinstance(found, list) or isinstance(found, np.ndarray)
        return alike and len(found) == len(expected) and all(map(same, found, expected))
    if expected is None:
        return found is None
    return found.dtype == expected.dtype and np.array_equal(found, expected)

def told(name, call, expected):
    print(name, same(call(), expected), same(call(async_op=True).wait(), expected))

def zeros_like(expected):
    if isinstance(expected, list):
        return [zeros_like(one) for one in expected]
    return None if expected is None else np.zeros_like(expected)

def told_out(name, call, expected):
    told(name, call, expected)
    for async_op in (False, True):
        out = zeros_like(expected)
        found = call(out=out, async_op=async_op)
        found = found.wait() if async_op else found
        print(name, "written", found is out and same(out, expected))
    if isinstance(expected, list) and not any(one is None for one in expected):
        out = np.zeros_like(np.array(expected))
        print(name, "array", call(out=out) is out and same(list(out), expected))
    else:
        print(name, "array", same(call(), expected))

def all_of(replica, *shape):
    return stack(value(one, *shape) for one in of[replica])
"""

OPERATIONS = """
x, y, blocks = rows(5, 3), rows(2), rows(size, 3)
sums = stack(all_of(replica, 5, 3).sum(0) for replica in mine)
least = stack(all_of(replica, 2).min(0) for replica in mine)
root = size - 1
roots = [of[replica][root] == replica for replica in mine]

told_out("all_reduce", lambda **more: groups.all_reduce(x, **more), sums)
told_out("of a list", lambda **more: groups.all_reduce(list(x), **more), list(sums))
told("of a tuple", lambda **more: groups.all_reduce(tuple(x), **more), list(sums))
told("in place", lambda **more: (
    groups.all_reduce(held := x.copy(), out=held, **more)
), sums)
told("named", lambda **more: groups.all_reduce(y, "min", name="y", **more), least)
told("grouped_all_reduce", lambda **more: (
    groups.grouped_all_reduce([y, tuple(y), y[:, :1]], "min", **more)
), [least, list(least), least[:, :1]])
told_out("broadcast", lambda **more: groups.broadcast(x, root, **more), stack(
    value(of[replica][root], 5, 3) for replica in mine
))
told_out("reduce", lambda **more: groups.reduce(x, "max", root, **more), [
    all_of(replica, 5, 3).max(0) if is_root else None
    for replica, is_root in zip(mine, roots)
])
told_out("reduce_scatter", lambda **more: groups.reduce_scatter(blocks, **more), stack(
    all_of(replica, size, 3).sum(0)[[of[replica].index(replica)]] for replica in mine
))
told("parts of a list", lambda **more: groups.reduce_scatter(list(blocks), **more), [
    all_of(replica, size, 3).sum(0)[[of[replica].index(replica)]] for replica in mine
])
told_out("all_gather", lambda **more: groups.all_gather(x, **more), [
    list(all_of(replica, 5, 3)) for replica in mine
])
told_out("gather", lambda **more: groups.gather(x, root, **more), [
    list(all_of(replica, 5, 3)) if is_root else None
    for replica, is_root in zip(mine, roots)
])
scattered = [block if is_root else None for block, is_root in zip(blocks, roots)]
told_out("scatter", lambda **more: (
    groups.scatter(scattered if any(roots) else None, root, **more)
), [value(of[r][root], size, 3)[of[r].index(r)] for r in mine])
told_out("all_to_all", lambda **more: groups.all_to_all(blocks, **more), stack(
    all_of(replica, size, 3)[:, of[replica].index(replica)] for replica in mine
))
told("barrier", groups.barrier, None)
"""

NAMES = [
    "all_reduce",
    "of a list",
    "of a tuple",
    "in place",
    "named",
    "grouped_all_reduce",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "parts of a list",
    "all_gather",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
]
WITH_OUT = {
    *NAMES,
} - {
    "of a tuple",
    "in place",
    "named",
    "grouped_all_reduce",
    "parts of a list",
    "barrier",
}


@pytest.mark.parametrize(
    ("rows", "kind", "size"),
    [
        pytest.param((2, 2), "orthogonal", 2, id="every-group-in-every-instance"),
        pytest.param((2, 2, 2), "consecutive", 3, id="a-row-in-each-of-two-groups"),
        pytest.param((3, 1, 2), "orthogonal", 3, id="several-rows-of-one-group"),
        pytest.param((1, 4, 1), "consecutive", 2, id="instances-without-a-row"),
        pytest.param((2, 1, 3), "orthogonal", 1, id="each-replica-alone"),
        pytest.param((4, 2), "consecutive", 6, id="one-group"),
    ],
)
def test_every_operation_gives_what_numpy_gives_in_each_group(
    rows: tuple[int, ...], kind: str, size: int
) -> None:
    divided = f"kind, size = {kind!r}, {size}\n"

    expected = []
    for name in NAMES:
        expected.append(f"{name} True True")
        if name in WITH_OUT:
            expected += [f"{name} written True"] * 2 + [f"{name} array True"]

    found = outputs(run(rows, divided + PRELUDE + OPERATIONS))

    assert [lines.splitlines() for lines in found] == [expected] * len(rows)


Signature = dict[str, tuple[Any, Any]]


def operations(of: type) -> dict[str, Signature]:
    """Return kind and default of each parameter of all that has an async form."""
    found = {
        name: {
            p.name: (p.kind, p.default)
            for p in inspect.signature(function).parameters.values()
            if p.name != "self"
        }
        for name, function in inspect.getmembers(of, inspect.isroutine)
        if not name.startswith("_")
    }
    return {
        n: parameters for n, parameters in found.items() if "async_op" in parameters
    }


def test_groups_of_replicas_have_every_operation_on_arrays_but_two() -> None:
    # Two are between members, whatever their replicas; one is for adapters.
    own = {"send", "recv", "submit"}
    assert {*operations(ReplicaGroups)} | own == {*operations(Group)}
    assert len(operations(ReplicaGroups)) == 10


@pytest.mark.parametrize("name", operations(ReplicaGroups))
def test_an_operation_in_groups_of_replicas_is_called_as_that_of_one_group(
    name: str,
) -> None:
    ours, theirs = operations(ReplicaGroups)[name], operations(Group)[name]

    assert list(ours.items()) == list(theirs.items())


def test_groups_of_replicas_tell_how_many_there_are() -> None:
    body = """
    groups = popdist.replica_group("orthogonal", 2)
    print(len(groups), groups.num_replicas, groups.num_local_replicas)
    """

    assert outputs(run((1, 3), body)) == ["2 2 1", "2 2 3"]


def test_the_last_reduction_says_how_it_was_carried_out() -> None:
    body = """
    groups = popdist.replica_group("orthogonal", 2)
    for algorithm in ("ring", "direct"):
        groups.all_reduce(np.ones((2, 4)), algorithm=algorithm)
        print(groups.last_algorithm)
    """

    assert outputs(run((2, 2), body)) == ["ring\ndirect"] * 2


def test_arrays_in_the_arena_are_reduced_where_they_lie() -> None:
    body = """
    groups = popdist.replica_group("orthogonal", 2)
    x = groups.empty((2, 100_000), np.float32)
    x[...] = rank + 1
    print(groups.all_reduce(x, out=x) is x, groups.last_algorithm, x.min(), x.max())
    """

    assert outputs(run((2, 2), body)) == ["True arena 3.0 3.0"] * 2


def test_a_result_may_be_written_over_what_a_later_group_reads() -> None:
    body = """
    groups = popdist.replica_group("orthogonal", 2)
    x = np.array([[1.0], [10.0]]) * (rank + 1)
    groups.all_reduce(x, out=x[::-1])
    print(x.tolist())
    y = np.array([[1.0], [10.0]]) * (rank + 1)
    groups.grouped_all_reduce([y], out=[y[::-1]])
    print(y.tolist())
    z = np.array([[1.0], [10.0]]) * (rank + 1)
    groups.broadcast(z, 1, out=z[::-1])
    print(z.tolist())
    """

    said = "[[30.0], [3.0]]\n[[30.0], [3.0]]\n[[20.0], [2.0]]"
    assert outputs(run((2, 2), body)) == [said] * 2


def test_groups_with_unlike_arrays_give_a_list() -> None:
    body = """
    groups = popdist.replica_group("orthogonal", 2)
    x = [np.arange(2.0), np.arange(4, dtype=np.int32)]
    print([(part.tolist(), part.dtype.name) for part in groups.reduce_scatter(x)])
    print([row.tolist() for row in groups.all_reduce(tuple(x))])
    """

    rest = "\n[[0.0, 2.0], [0, 2, 4, 6]]"
    assert outputs(run((2, 2), body)) == [
        "[([0.0], 'float64'), ([0, 2], 'int32')]" + rest,
        "[([2.0], 'float64'), ([4, 6], 'int32')]" + rest,
    ]


def test_calls_of_several_groups_may_be_under_way_at_once() -> None:
    body = """
    groups = popdist.replica_group("orthogonal", 2)
    x = np.arange(2.0)
    handle = groups.all_reduce(x, out=x, async_op=True)
    print(handle.wait() is x, handle.test(), handle.result().tolist())
    """

    assert outputs(run((2, 2), body)) == ["True True [0.0, 2.0]"] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(
            "all_reduce(np.ones((3, 2)))",
            "3 rows are given, but this instance has 2 replicas in the group. Give "
            "popdist.rows(x), where x has a leading axis of 2, one row for each local "
            "replica, or a list of 2 arrays. popdist.instance_group() takes arrays as "
            "they are, without that axis.",
            id="too-many-rows",
        ),
        pytest.param(
            "all_reduce(np.ones(()))",
            "0 rows are given, but this instance has 2 replicas in the group. Give "
            "popdist.rows(x), where x has a leading axis of 2, one row for each local "
            "replica, or a list of 2 arrays. popdist.instance_group() takes arrays as "
            "they are, without that axis.",
            id="no-axis",
        ),
        pytest.param(
            "all_reduce(np.ones((2, 2)), out=[1, 2])",
            "out is int, but a result is written to it. Give a numpy array.",
            id="no-array-to-write-to",
        ),
        pytest.param(
            "grouped_all_reduce([np.ones((2, 2))], out=[])",
            "1 arrays are given, but 0 to write to. Give one for each.",
            id="too-few-to-write-to",
        ),
        pytest.param(
            "reduce(np.ones((2, 2)), root=1)",
            "The root is replica 1, but the group has replicas 0 to 0.",
            id="no-such-root",
        ),
        pytest.param(
            "scatter([np.ones((1, 2)), None])",
            "Local replica 1 is the root of its group, but has nothing to scatter. "
            "Give an entry for each local replica, which for a root is an array with a "
            "leading axis of 1.",
            id="a-root-without-a-block",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call: str, message: str) -> None:
    body = f"""
    try:
        popdist.replica_group("consecutive", 1).{call}
    except (TypeError, ValueError) as error:
        print(error)
    """

    assert outputs(run((2,), body)) == [message]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(
            "reduce(x, out=[np.ones(2), None])",
            "Local replica 1 is the root of its group, but out[1] is None. Give an "
            "array there, or no out.",
            id="a-root-without-out",
        ),
        pytest.param(
            "reduce(x, out=[np.ones(2)])",
            "1 rows are given, but this instance has 2 replicas in the group. Give "
            "popdist.rows(x), where x has a leading axis of 2, one row for each local "
            "replica, or a list of 2 arrays. popdist.instance_group() takes arrays as "
            "they are, without that axis.",
            id="too-few-entries",
        ),
        pytest.param(
            "reduce(x, out=[np.ones(2), np.ones(3)])",
            "out has float64 of shape (3,), but the result has float64 of shape (2,). "
            "Give an array like the result, or no out.",
            id="reduce-shape",
        ),
        pytest.param(
            "gather(x, out=[np.ones((1, 2)), np.ones((2, 2))])",
            "out has 2 entries, but the result has 1: one for each replica of the "
            "group. Give a list of 1 arrays, or an array with a leading axis of 1.",
            id="gather-count",
        ),
        pytest.param(
            "all_gather(x, out=[np.ones((1, 2)), np.ones((1, 2), np.int8)])",
            "out has int8 of shape (2,), but the result has float64 of shape (2,). "
            "Give an array like the result, or no out.",
            id="all_gather-dtype",
        ),
        pytest.param(
            "all_gather(x, out=[held := np.ones((1, 2)), held])",
            "Arrays 0 and 1 of out share memory, but each of them gets a different "
            "result. Give arrays that do not overlap.",
            id="all_gather-overlap",
        ),
        pytest.param(
            "reduce_scatter(x, out=[held := np.ones(2), held])",
            "Arrays 0 and 1 of out share memory, but each of them gets a different "
            "result. Give arrays that do not overlap.",
            id="reduce_scatter-overlap",
        ),
        pytest.param(
            "scatter(x[:, None], out=np.ones((2, 3)))",
            "out has float64 of shape (3,), but the result has float64 of shape (2,). "
            "Give an array like the result, or no out.",
            id="scatter-shape",
        ),
    ],
)
def test_an_out_that_cannot_take_the_results_is_refused_before_any_group_calls(
    call: str, message: str
) -> None:
    body = f"""
    groups = popdist.replica_group("consecutive", 1)
    x = np.ones((2, 2))
    before = x.copy()
    for one in groups._groups:
        one.group.transport = None
    try:
        groups.{call}
    except (TypeError, ValueError) as error:
        print(error)
    """

    assert outputs(run((2,), body)) == [message]


def test_results_may_be_written_over_what_later_groups_read() -> None:
    body = """
    groups = popdist.replica_group("orthogonal", 2)
    x = np.arange(4.0).reshape(2, 2) + 10 * rank

    def both(call, out_of):
        fresh = x.copy()
        expected = call(x, None)
        out = out_of(fresh)
        found = call(fresh, out)
        return found is out and np.array_equal(np.array(found), np.array(expected))

    print(both(lambda x, out: groups.all_to_all(x, out=out), lambda x: x[::-1]))
    print(both(lambda x, out: groups.reduce_scatter(x, out=out), lambda x: x[::-1, :1]))
    given = lambda x: x[:, :, None]
    print(both(
        lambda x, out: groups.scatter(given(x) if rank == 0 else None, out=out),
        lambda x: x[::-1, :1],
    ))
    """

    assert outputs(run((2, 2), body)) == ["True\nTrue\nTrue"] * 2


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("2", "The root is replica 2, but the group has replicas 0 to 1."),
        ("-1", "The root is replica -1, but the group has replicas 0 to 1."),
        ("'0'", "The root is '0', but must be a whole number."),
    ],
)
@pytest.mark.parametrize("call", ["reduce", "gather", "scatter", "broadcast"])
def test_a_root_is_the_number_of_a_replica_in_its_group(
    call: str, root: str, message: str
) -> None:
    body = f"""
    x = np.ones((4, 2))
    for group in (popdist.replica_group("consecutive", 2), popdist.replica_group()):
        try:
            group.{call}(x, root={root})
        except (TypeError, ValueError) as error:
            print(error)
    """

    # All four replicas are in one instance, so numbers to 3 are roots of all of them.
    whole = message.replace("0 to 1", "0 to 3")
    expected = [message] if root == "2" else [message, whole]
    assert outputs(run((4,), body)) == ["\n".join(expected)]

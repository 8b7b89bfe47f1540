from typing import Any

import pytest

from poprun.popctl.job_table import Rates, instance_lines, late_joins, rates_of, summary
from poprun.popctl.ps import _row


def instance(index: int, **fields: Any) -> dict[str, Any]:
    return {
        "index": index,
        "host": "localhost",
        "is_local": True,
        "pid": 100 + index,
        "phase": "running",
        "elapsed": 10.0,
        "exit_code": None,
        "first_replica": 2 * index,
        "num_replicas": 2,
        "num_ipus": 4,
        "cpu_seconds": 5.0,
        "memory_kib": 2048,
        "num_processes": 1,
        "num_calls": None,
        "total_bytes": None,
        "call": None,
        "last_line": f"step {index}",
        **fields,
    }


def job(*instances: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "cafe" * 8,
        "program": ["python", "my train.py"],
        "phase": "running",
        "elapsed": 61.0,
        "hosts": ["localhost"],
        "num_instances": len(instances),
        "num_running": sum(i["phase"] == "running" for i in instances),
        "num_replicas": 2 * len(instances),
        "num_ipus": 4 * len(instances),
        "instances": instances,
        **fields,
    }


def rates(cpu: float, calls: float = 0.0, num_bytes: float = 0.0) -> Rates:
    return Rates(cpu, calls, num_bytes)


def test_each_instance_is_a_line_below_the_head() -> None:
    ended = {"phase": "ended", "cpu_seconds": None, "memory_kib": None}
    view = job(
        instance(0),
        instance(1, memory_kib=3 << 20, last_line="loss 0.5"),
        instance(2, **ended, exit_code=137),
        instance(3, **ended, last_line=""),
        instance(4, phase="waiting", cpu_seconds=None, memory_kib=None, elapsed=None),
    )

    assert instance_lines(view, {0: rates(50.4), 1: rates(199.6)}) == [
        "INSTANCE       CPU  MEMORY  REPLICAS  IPUS  LAST LINE",
        "       0      50 %   2 MiB       0-1     4  step 0",
        "       1     200 %   3 GiB       2-3     4  loss 0.5",
        "       2  exit 137               4-5     4  step 2",
        "       3      lost               6-7     4",
        "       4   waiting               8-9     4  step 4",
    ]


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (0, "INSTANCE CPU MEMORY REPLICAS IPUS RATE CALL LAST LINE"),
        (81, "INSTANCE CPU MEMORY REPLICAS IPUS RATE CALL LAST LINE"),
        (80, "INSTANCE CPU MEMORY REPLICAS RATE CALL LAST LINE"),
        (74, "INSTANCE CPU MEMORY RATE CALL LAST LINE"),
        (64, "INSTANCE CPU MEMORY CALL LAST LINE"),
        (20, "INSTANCE CPU MEMORY CALL LAST LINE"),
    ],
)
def test_a_narrow_terminal_has_the_columns_that_change_most(
    width: int, head: str
) -> None:
    call = {"operation": "all_reduce", "bytes": 4 << 20, "waited": 0.0, "missing": []}
    view = job(instance(0, num_calls=7, total_bytes=1, call=call))

    first, row = instance_lines(view, {0: rates(99, 20, 300 << 20)}, width)
    assert first.split() == head.split()
    assert "all_reduce 4 MiB  step 0" in row


def test_hosts_have_a_column_where_there_are_several_and_ipus_where_there_are_any() -> (
    None
):
    view = job(
        instance(0, host="node1", num_ipus=0, num_replicas=1),
        instance(1, host="n2", num_ipus=0, num_replicas=1),
        hosts=["node1", "n2"],
        num_ipus=0,
    )

    assert instance_lines(view, {}) == [
        "INSTANCE  CPU  MEMORY  REPLICAS  HOST   LAST LINE",
        "       0        2 MiB         0  node1  step 0",
        "       1        2 MiB         2  n2     step 1",
    ]


def test_the_job_is_two_lines() -> None:
    view = job(instance(0), instance(1, phase="ended", memory_kib=None))

    assert summary(view, {0: rates(12.6)}) == [
        "Job cafecafe: python 'my train.py'",
        "running for 1:01, 13 % CPU, 2 MiB, 1 of 2 instances, 4 replicas, 8 IPUs",
    ]


def test_what_is_not_known_yet_is_left_out_of_the_summary() -> None:
    view = job(instance(0, cpu_seconds=None, memory_kib=None), num_ipus=0)

    assert summary(view, {})[1] == "running for 1:01, 1 instance, 2 replicas"


def test_a_later_attempt_says_why_the_one_before_has_ended() -> None:
    view = job(instance(0), attempt=2, changed="The job grows.", num_ipus=0)

    assert summary(view, {})[1].endswith("2 replicas, attempt 2: The job grows.")
    assert _row(view)[4] == "running, attempt 2"


def test_a_reason_of_several_lines_is_shown_in_one() -> None:
    view = job(instance(0), attempt=2, changed="a is away.\nb is away.", num_ipus=0)

    assert summary(view, {})[1].endswith(", attempt 2: a is away. b is away.")


def test_a_generation_says_why_the_members_have_changed() -> None:
    why = "Instance 3 (b) was killed by SIGKILL."
    view = job(instance(0), attempt=1, generation=2, changed=why, num_ipus=0)

    assert summary(view, {})[1].endswith(f"2 replicas, generation 2: {why}")
    assert _row(view)[4] == "running, attempt 1, generation 2"


def test_instances_that_have_not_joined_are_named_with_the_longest_time() -> None:
    assert late_joins(job(instance(0))) == ""
    assert late_joins(job(instance(0), joining={})) == ""
    one, two = {"3": 7.9}, {"3": 7.9, "5": 61.0}
    assert late_joins(job(instance(0), joining=one)) == (
        "instance 3 has not joined yet (0:07)"
    )
    assert late_joins(job(instance(0), joining=two)) == (
        "instances 3 and 5 have not joined yet (1:01)"
    )


def test_a_program_with_control_characters_stays_on_its_line() -> None:
    view = job(instance(0), program=["sh", "-c", "a\nb\x1b[2J"])

    assert summary(view, {})[0] == "Job cafecafe: sh -c 'a\\nb\\x1b[2J'"


def test_collectives_have_columns_where_there_are_any() -> None:
    def in_call(index: int, waited: float, *missing: int, size: int = 4 << 20) -> Any:
        call = {"operation": "all_reduce", "bytes": size}
        call |= {"waited": waited, "missing": missing}
        return instance(index, num_calls=7, total_bytes=1, call=call)

    view = job(
        in_call(0, 0.0),
        in_call(1, 75.0, 4, 5, 6, 9),
        in_call(2, 0.9, 4, size=0),
        instance(3, num_calls=7, total_bytes=0),
        num_ipus=0,
    )
    own = {
        0: rates(9, 20, 3 << 30),
        1: rates(9),
        2: rates(9, 20, 0),
        3: rates(9, 20.4, 0),
    }

    # From the end of "REPLICAS" on.
    assert [line[31:] for line in instance_lines(view, own)] == [
        "        RATE  CALL                             LAST LINE",
        "     3 GiB/s  all_reduce 4 MiB                 step 0",
        "              all_reduce waits 1:15 for 4-6,9  step 1",
        "  20 calls/s  all_reduce                       step 2",
        "  20 calls/s                                   step 3",
    ]


@pytest.mark.parametrize(
    ("before", "after", "cpu"),
    [
        (None, {}, [50.0]),
        ({"cpu_seconds": 4.0, "elapsed": 8.0}, {}, [50.0]),
        ({"cpu_seconds": 1.0, "elapsed": 8.0}, {}, [200.0]),
        # A child has ended whose time its parent has not got.
        ({"cpu_seconds": 6.0, "elapsed": 8.0}, {}, [0.0]),
        # Another attempt, or not measured then or now.
        ({"cpu_seconds": 4.9, "elapsed": 9.0, "pid": 7}, {}, [50.0]),
        ({"cpu_seconds": None, "elapsed": 9.0}, {}, [50.0]),
        ({"cpu_seconds": 4.0, "elapsed": 9.0}, {"cpu_seconds": None}, []),
        # Too short to tell.
        ({"cpu_seconds": 4.9, "elapsed": 9.9}, {}, []),
    ],
)
def test_the_use_of_the_cpu_is_that_since_the_last_look(
    before: dict[str, Any] | None, after: dict[str, Any], cpu: list[float]
) -> None:
    earlier = None if before is None else job(instance(0, **before))

    rates = rates_of(job(instance(0, **after)), earlier)

    assert [rate.cpu for rate in rates.values()] == pytest.approx(cpu)


def test_two_looks_give_the_rate_of_calls() -> None:
    before = job(instance(0, elapsed=8.0, num_calls=10, total_bytes=1000))
    first = job(instance(0, elapsed=8.0))
    now = job(instance(0, num_calls=40, total_bytes=5000))

    assert rates_of(now, before)[0][1:] == (15.0, 2000.0)
    assert rates_of(now, first)[0][1:] == (20.0, 2500.0)
    assert rates_of(first, None)[0][1:] == (0.0, 0.0)

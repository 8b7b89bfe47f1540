from typing import Any

import pytest

from poprun.popctl.job_table import cpu_percent, instance_lines, summary


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


def test_each_instance_is_a_line_below_the_head() -> None:
    ended = {"phase": "ended", "cpu_seconds": None, "memory_kib": None}
    view = job(
        instance(0),
        instance(1, memory_kib=3 << 20, last_line="loss 0.5"),
        instance(2, **ended, exit_code=137),
        instance(3, **ended, last_line=""),
        instance(4, phase="waiting", cpu_seconds=None, memory_kib=None, elapsed=None),
    )

    assert instance_lines(view, {0: 50.4, 1: 199.6}) == [
        "INSTANCE       CPU    MEMORY  REPLICAS  IPUS  LAST LINE",
        "       0      50 %  2.00 MiB       0-1     4  step 0",
        "       1     200 %  3.00 GiB       2-3     4  loss 0.5",
        "       2  exit 137                 4-5     4  step 2",
        "       3      lost                 6-7     4",
        "       4   waiting                 8-9     4  step 4",
    ]


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
        "INSTANCE  CPU    MEMORY  REPLICAS  HOST   LAST LINE",
        "       0       2.00 MiB         0  node1  step 0",
        "       1       2.00 MiB         2  n2     step 1",
    ]


def test_the_job_is_two_lines() -> None:
    view = job(instance(0), instance(1, phase="ended", memory_kib=None))

    assert summary(view, {0: 12.6}) == [
        "Job cafecafe: python 'my train.py'",
        "running for 1:01, 13 % CPU, 2.00 MiB, 1 of 2 instances, 4 replicas, 8 IPUs",
    ]


def test_what_is_not_known_yet_is_left_out_of_the_summary() -> None:
    view = job(instance(0, cpu_seconds=None, memory_kib=None), num_ipus=0)

    assert summary(view, {})[1] == "running for 1:01, 1 instance, 2 replicas"


def test_a_program_with_control_characters_stays_on_its_line() -> None:
    view = job(instance(0), program=["sh", "-c", "a\nb\x1b[2J"])

    assert summary(view, {})[0] == "Job cafecafe: sh -c 'a\\nb\\x1b[2J'"


@pytest.mark.parametrize(
    ("before", "after", "percent"),
    [
        (None, {}, {0: 50.0}),
        ({"cpu_seconds": 4.0, "elapsed": 8.0}, {}, {0: 50.0}),
        ({"cpu_seconds": 1.0, "elapsed": 8.0}, {}, {0: 200.0}),
        # A child has ended whose time its parent has not got.
        ({"cpu_seconds": 6.0, "elapsed": 8.0}, {}, {0: 0.0}),
        # Another attempt, or not measured then or now.
        ({"cpu_seconds": 4.9, "elapsed": 9.0, "pid": 7}, {}, {0: 50.0}),
        ({"cpu_seconds": None, "elapsed": 9.0}, {}, {0: 50.0}),
        ({"cpu_seconds": 4.0, "elapsed": 9.0}, {"cpu_seconds": None}, {}),
        # Too short to tell.
        ({"cpu_seconds": 4.9, "elapsed": 9.9}, {}, {}),
    ],
)
def test_the_use_of_the_cpu_is_that_since_the_last_look(
    before: dict[str, Any] | None, after: dict[str, Any], percent: dict[int, float]
) -> None:
    earlier = None if before is None else job(instance(0, **before))

    assert cpu_percent(job(instance(0, **after)), earlier) == pytest.approx(percent)

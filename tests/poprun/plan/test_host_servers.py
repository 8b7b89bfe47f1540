"""Which host servers of a cluster a job goes to that is too large for one."""

from collections.abc import Mapping

import pytest

from poprun.options import grammar
from poprun.options.settings import resolve_settings
from poprun.plan.partition import choose_host_servers
from poprun.plan.values import HostServers
from poprun.vipu.launch.values import PartitionOptions

# A POD128 with 8 hosts, as the original's recipes have it.
POD128 = HostServers(names=[f"n{number}" for number in range(8)], ipus_per_host=16)


def chosen(
    *words: str, servers: HostServers | None = POD128
) -> tuple[int, list[int | None]]:
    """Return how many of the first hosts are chosen, and for how many IPUs."""
    asked: list[int | None] = []

    def find(
        options: PartitionOptions, environ: Mapping[str, str], num_ipus: int
    ) -> HostServers | None:
        asked.append(num_ipus)
        return servers

    settings = resolve_settings(grammar.parse([*words, "program"]).options, {})
    names = choose_host_servers(settings, {}, find)
    assert list(names) == POD128.names[: len(names)]
    return len(names), asked


@pytest.mark.parametrize(
    ("instances", "replicas", "ipus", "number"),
    [
        pytest.param(32, 32, 4, 8, id="POD128"),
        pytest.param(16, 16, 4, 4, id="POD64"),
        pytest.param(16, 16, 1, 0, id="POD16"),
        pytest.param(6, 48, 1, 3, id="no-power-of-two"),
        # Three would be enough, but cannot share the instances equally.
        pytest.param(4, 48, 1, 4, id="equal-shares"),
        # Fewer instances than hosts: each serves more IPUs than it is meant for.
        pytest.param(2, 16, 8, 2, id="two-large-instances"),
        pytest.param(1, 16, 8, 0, id="one-instance"),
        pytest.param(11, 22, 1, 0, id="cannot-be-shared"),
    ],
)
def test_a_job_goes_to_as_few_hosts_as_are_enough(
    instances: int, replicas: int, ipus: int, number: int
) -> None:
    sizes = f"--num-instances={instances} --num-replicas={replicas}".split()

    assert chosen(*sizes, f"--ipus-per-replica={ipus}")[0] == number


@pytest.mark.parametrize(
    "words",
    [
        "--num-instances 4 --num-replicas 4",
        "-n 1 --ipus-per-replica 64",
        "-n 32 --num-replicas 32 --offline-mode=yes",
        "-n 64",
    ],
)
def test_a_job_that_needs_one_host_does_not_ask(words: str) -> None:
    assert chosen(*words.split()) == (0, [])


def test_a_job_stays_here_where_no_hosts_are_known() -> None:
    assert chosen("-n", "64", "--num-replicas", "64", servers=None) == (0, [64])

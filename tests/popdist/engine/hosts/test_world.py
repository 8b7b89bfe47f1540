"""What an instance tells others when some of them cannot be reached."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from popdist.engine.hosts import world
from popdist.engine.hosts.links import Links
from popdist.engine.hosts.world import JobHosts, World


class PartlyStoppedLinks:
    """Links of instance 0, on whose clock the stopped instances never answer."""

    most_tag = 100

    def __init__(self, size: int, stopped: set[int]) -> None:
        self._size, self._stopped = size, stopped
        self.failed: dict[int, int] = {}
        self.now = 0.0
        self.posted: list[tuple[int, Any]] = []

    def gather(self, data: bytes) -> list[bytes]:
        return [data] * self._size

    def take(self) -> None:
        return None

    def post(self, instance: int, data: bytes) -> None:
        self.posted.append((instance, json.loads(data)))

    def prepare(
        self,
        instance: int,
        count_deaths: Callable[[], int],
        is_over: Callable[[], bool],
    ) -> bool:
        while instance in self._stopped and not is_over():
            self.now += 0.25
        return instance not in self._stopped


def test_stopped_instances_delay_a_message_to_all_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = PartlyStoppedLinks(10, {1, *range(3, 9)})
    monkeypatch.setattr(world, "monotonic", lambda: links.now)
    job = World(JobHosts(0, 10, "host", per_host=(1, 9)), cast(Links, links))

    job.tell_others({"kind": "died"})

    assert links.posted == [(2, {"kind": "died"}), (9, {"kind": "died"})]
    # The first one takes 6 s, and six others 0.5 s each, to the next quarter.
    assert links.now == 6.25 + 6 * 0.75

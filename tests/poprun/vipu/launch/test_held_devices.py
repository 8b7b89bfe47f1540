"""What a job does with its devices: attach, renew, lose them, release them."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import pytest

from poprun.vipu import liveness
from poprun.vipu.errors import (
    InventoryBusyError,
    LeaseEndedError,
    ServerUnreachableError,
    VipuError,
)
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.launch.held_devices import Answer, HeldDevices
from poprun.vipu.leases import CUT_OFF_S, PARENT, Grant, ProcessIdentity

Launch = Callable[..., Grant]
# For what must happen; a test that waits for it in vain fails.
SOON_S = 200.0
# What `deliver` has replied with.
ANSWERS: list[Answer] = []


class Recorder:
    """An inventory that notes what it is asked, and fails as the test wants."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failures: dict[str, list[VipuError]] = {}
        self.threads: set[int] = set()
        self.waits_s: list[float] = []
        self.closed = 0

    def _do(self, what: str, detail: str = "") -> None:
        self.threads.add(threading.get_ident())
        self.calls.append(f"{what} {detail}".strip())
        if self.failures.get(what):
            raise self.failures[what].pop(0)

    def attach(
        self, lease: str, child: int, process: object, host: str | None = None
    ) -> None:
        self._do("attach", str(child) if host is None else f"{child} on {host}")

    def detach(self, lease: str, child: int, process: object) -> None:
        self._do("detach", str(child))

    def renew(self, lease: str) -> None:
        self._do("renew")

    def get_lease(self, lease: str) -> None:
        self._do("get_lease")

    def release(self, lease: str, wait_s: float = 0.0) -> None:
        self.waits_s.append(wait_s)
        self._do("release", lease)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def grant(launch: Launch) -> Grant:
    return launch("P", instances=2, replicas=4)


@pytest.fixture
def held(recorder: Recorder, grant: Grant) -> Iterator[HeldDevices]:
    ANSWERS.clear()
    # It is not renewed during a test.
    lasting = with_lease_s(grant, 12 * SOON_S)
    devices = HeldDevices(lambda: cast("Inventory", recorder), lasting, SOON_S)
    yield devices
    devices.release()


def with_lease_s(grant: Grant, lease_s: float) -> Grant:
    return replace(grant, lease=replace(grant.lease, lease_s=lease_s))


def until(holds: Callable[[], object]) -> None:
    limit = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.005)


def delivered(devices: HeldDevices) -> list[Answer]:
    devices.deliver()
    answers = list(ANSWERS)
    ANSWERS.clear()
    return answers


def answer_of(devices: HeldDevices) -> Answer:
    """Wait as the loop of the supervisor does, and return the one answer."""
    assert select.select([devices.fileno()], [], [], SOON_S)[0]
    [answer] = delivered(devices)
    return answer


def test_an_instance_is_attached_by_a_thread_that_takes_no_signals(
    held: HeldDevices, recorder: Recorder
) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    held.attach(1, os.getpid(), ANSWERS.append)

    assert answer_of(held) == Answer(instance=1, pid=os.getpid())
    assert recorder.calls == ["attach 1"]
    assert recorder.threads.isdisjoint({threading.get_ident()})
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert not select.select([held.fileno()], [], [], 0)[0]


def test_a_refused_attach_says_which_device_of_which_instance(
    held: HeldDevices, recorder: Recorder
) -> None:
    recorder.failures["attach"] = [ServerUnreachableError("No server answers.")]
    held.attach(1, os.getpid(), ANSWERS.append)

    device = held.grant.children[1].id
    assert answer_of(held) == Answer(
        instance=1,
        pid=os.getpid(),
        refusal=f"Instance 1 cannot attach to device {device} (2 IPUs) of partition P: "
        "No server answers.",
    )


def test_a_process_that_has_ended_is_not_attached(
    held: HeldDevices, recorder: Recorder
) -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    held.attach(0, child, ANSWERS.append)

    assert answer_of(held).refusal.endswith(f"There is no process {child}.")
    assert recorder.calls == []


def test_a_process_of_another_host_is_attached_as_that_knows_it(
    held: HeldDevices, recorder: Recorder
) -> None:
    theirs = ProcessIdentity(
        pid=7, start_time=5, boot_id="another boot", pid_namespace="pid:[1]"
    )
    held.attach_on("h2", 1, theirs, ANSWERS.append)

    assert answer_of(held) == Answer(instance=1, pid=7)
    held.detach(1, 7)
    held.release()
    assert recorder.calls[:2] == ["attach 1 on h2", "detach 1"]


def test_only_what_was_attached_is_detached(
    held: HeldDevices, recorder: Recorder
) -> None:
    held.detach(0, os.getpid())
    held.attach(0, os.getpid(), ANSWERS.append)
    answer_of(held)
    held.detach(0, os.getpid())
    held.detach(0, os.getpid())
    held.release()

    lease = held.grant.lease.id
    assert recorder.calls == ["attach 0", "detach 0", "get_lease", f"release {lease}"]


def test_a_job_that_asks_for_nothing_needs_no_thread(
    held: HeldDevices, recorder: Recorder
) -> None:
    assert held.fileno() == -1
    held.tick(time.monotonic())
    assert held.release()

    held.attach(0, os.getpid(), ANSWERS.append)
    held.tick(time.monotonic() + 1000)

    assert recorder.calls == ["get_lease", f"release {held.grant.lease.id}"]
    assert recorder.threads == {threading.get_ident()}
    assert recorder.closed == 1
    assert held.fileno() == -1


def test_the_lease_is_renewed_until_it_is_released(
    recorder: Recorder, grant: Grant
) -> None:
    held = HeldDevices(
        lambda: cast("Inventory", recorder), with_lease_s(grant, 0.03), SOON_S
    )
    until(lambda: time.monotonic() >= held.deadline(0.0))
    held.tick(time.monotonic())
    until(lambda: recorder.calls.count("renew") >= 3)

    assert held.release()
    assert recorder.calls[-1] == f"release {grant.lease.id}"
    assert held.loss == ""


def test_it_is_not_renewed_before_it_is_time(recorder: Recorder, grant: Grant) -> None:
    before = time.monotonic()
    held = HeldDevices(
        lambda: cast("Inventory", recorder), with_lease_s(grant, 60.0), SOON_S
    )
    after = time.monotonic()
    assert before + 5 <= held.deadline(0.0) <= after + 5
    held.tick(held.deadline(0.0) - 0.1)

    assert held.fileno() == -1
    held.release()


@pytest.mark.parametrize(
    "error",
    [ServerUnreachableError("No server answers."), InventoryBusyError("It is locked.")],
)
def test_an_inventory_that_is_away_for_a_while_takes_nothing(
    recorder: Recorder, grant: Grant, error: VipuError
) -> None:
    recorder.failures["renew"] = [error, error]
    held = HeldDevices(
        lambda: cast("Inventory", recorder), with_lease_s(grant, 0.03), SOON_S
    )
    held.tick(time.monotonic() + 1)
    until(lambda: recorder.calls.count("renew") >= 4)
    held.attach(0, os.getpid(), ANSWERS.append)

    assert answer_of(held).refusal == ""
    assert held.loss == ""
    held.release()


def test_a_lost_lease_is_reported_once(recorder: Recorder, grant: Grant) -> None:
    recorder.failures["renew"] = [LeaseEndedError("It is over."), LeaseEndedError("X")]
    held = HeldDevices(
        lambda: cast("Inventory", recorder), with_lease_s(grant, 0.03), SOON_S
    )
    held.tick(time.monotonic() + 1)

    assert select.select([held.fileno()], [], [], SOON_S)[0]
    assert delivered(held) == []
    until(lambda: recorder.calls.count("renew") >= 3)
    assert held.loss == "It is over."
    assert not select.select([held.fileno()], [], [], 0)[0]
    held.release()


def test_a_job_learns_at_its_end_that_it_had_lost_its_lease(
    held: HeldDevices, recorder: Recorder
) -> None:
    recorder.failures["get_lease"] = [LeaseEndedError("It is over.")]

    assert held.release()
    assert held.loss == "It is over."


def test_a_lease_that_a_failed_release_has_ended_is_not_lost(
    held: HeldDevices, recorder: Recorder
) -> None:
    recorder.failures["release"] = [ServerUnreachableError("No reply.")]
    assert not held.release()
    recorder.failures["get_lease"] = [LeaseEndedError("It is over.")]

    assert held.release()
    assert held.loss == ""


def test_it_is_released_once(held: HeldDevices, recorder: Recorder) -> None:
    held.attach(0, os.getpid(), ANSWERS.append)
    answer_of(held)

    assert [held.release(), held.release()] == [True, True]
    assert recorder.calls.count(f"release {held.grant.lease.id}") == 1
    assert held.fileno() == -1
    held.attach(0, os.getpid(), ANSWERS.append)
    held.tick(time.monotonic() + 1000)
    assert recorder.calls[-1].startswith("release")


def test_devices_are_held_as_long_as_instances_of_a_lost_host_may_live(
    held: HeldDevices, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    held.note_lost_host()
    monkeypatch.setattr(time, "monotonic", lambda: 1010.0)
    assert held.release()

    assert recorder.waits_s == [CUT_OFF_S - 10.0]


def test_devices_are_free_at_the_end_of_a_job_that_has_lost_no_host(
    held: HeldDevices, recorder: Recorder
) -> None:
    assert held.release()

    assert recorder.waits_s == [0.0]


def test_a_release_that_fails_is_left_to_the_end_action(
    held: HeldDevices, recorder: Recorder
) -> None:
    recorder.failures["release"] = [ServerUnreachableError("No server answers.")]

    assert not held.release()
    assert held.release()


def test_a_new_guard_keeps_the_lease(held: HeldDevices, recorder: Recorder) -> None:
    recorder.failures["attach"] = [ServerUnreachableError("No server answers.")]
    held.live_with(os.getpid())
    held.live_with(os.getpid())
    until(lambda: len(recorder.calls) == 2)

    assert recorder.calls == [f"attach {PARENT}"] * 2
    assert delivered(held) == []


def test_without_a_thread_it_is_done_at_once(
    held: HeldDevices, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    # The call of threading that asks the kernel for a thread.
    monkeypatch.setattr("threading._start_new_thread", refuse)
    held.attach(0, os.getpid(), ANSWERS.append)

    assert answer_of(held) == Answer(instance=0, pid=os.getpid())
    assert recorder.threads == {threading.get_ident()}


def test_in_a_real_inventory_the_ipus_are_free_again(
    inventory: EmbeddedInventory, launch: Launch
) -> None:
    grant = launch("P", instances=2, replicas=4)
    path = inventory.location
    held = HeldDevices(lambda: EmbeddedInventory(path, host="h1"), grant, SOON_S)
    held.attach(1, os.getpid(), ANSWERS.append)
    assert answer_of(held).refusal == ""

    [attached] = [r for r in inventory.list_reservations("P") if r.child == 1]
    assert attached.process == liveness.identify()
    assert held.release()
    assert inventory.list_leases() == ()
    assert inventory.list_partitions() == ()

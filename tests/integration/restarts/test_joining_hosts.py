"""Hosts that come or return while the instances of an elastic job run on.

A host that was lost is looked for 20 seconds later: most of a test is that wait.
"""

import json
import signal
import subprocess
from collections.abc import Callable, Sequence

import pytest
from beds.bed import Bed
from beds.host import Host
from conftest import ROOT, wait_for

# See there: it writes its steps, and the pid of each instance, to a folder.
PROGRAM = str(ROOT / "tests" / "elastic_program.py")
STATE = "/root/state"
# Ends at once where instances join and there is the file, and counts how often.
CRASHES = f"""
if [ "$POPDIST_ELASTIC_JOINS" = 1 ] && [ -e {STATE}/crash ]
then echo x >> {STATE}/crash; exit 3; fi
exec python3 {PROGRAM} {STATE}
"""
# Accepts connections in the place of sshd, and says nothing.
SILENT = f"""
import pathlib, socket
server = socket.create_server(("", 22))
pathlib.Path("{STATE}/up").touch()
kept = []
while True:
    kept.append(server.accept())
    pathlib.Path("{STATE}/tried").touch()
"""


class JoinedJob:
    """An elastic job on the hosts of a bed, which share the folder of its state."""

    def __init__(
        self, bed: Bed, *options: str, program: Sequence[str] = ("python3", PROGRAM)
    ) -> None:
        self.bed = bed
        self.folder = bed.front.path(STATE)
        self.folder.mkdir()
        self.log = bed.front.path("/root/errors")
        words = program if program[0] == "sh" else (*program, STATE)
        with self.log.open("wb") as errors:
            self.process: subprocess.Popen[str] = bed.front.start(
                *("poprun", "--mpirun", "local", "--max-restarts", "3"),
                *("--grace", "1", "--result", "/root/result"),
                *("--events", "/root/events", *options, *words),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.wait(lambda: self.steps > 0, "the first step")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(lambda: condition() or self.process.poll() is not None, what)
        assert self.process.poll() is None, self.text

    def wait_for_text(self, text: str) -> None:
        self.wait(lambda: text in self.text, text)

    def wait_for_steps(self) -> None:
        before = self.steps
        self.wait(lambda: self.steps > before + 1, "more steps")

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def steps(self) -> int:
        counter = self.folder / "steps"
        return int(counter.read_text()) if counter.exists() else 0

    def pids(self, *indices: int) -> list[str]:
        return [(self.folder / f"pid-{index}").read_text() for index in indices]

    def finish(self) -> list[str]:
        """Let it end; return what the instances say, but for the generation."""
        (self.folder / "stop").touch()
        out, _ = self.process.communicate(timeout=200)
        assert self.process.returncode == 0, self.text
        self.bed.assert_nothing_is_left()
        return sorted(line.partition(": ")[2] for line in out.splitlines())

    def result(self) -> dict[str, object]:
        text = self.bed.front.path("/root/result").read_text()
        [attempt] = json.loads(text)["attempts"]
        return dict(attempt)

    def events(self, name: str) -> list[dict[str, object]]:
        lines = self.bed.front.path("/root/events").read_text().splitlines()
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if event["event"] == name]


def start_on_three(bed: Bed, *options: str, **named: Sequence[str]) -> JoinedJob:
    words = ("--host", "h0,h1,h2", "-n", "6", "--min-instances", "1")
    return JoinedJob(bed, *words, *options, **named)


def lose(host: Host) -> None:
    """Let poprun lose a host whose sshd goes on."""
    host.run("pkill", "-KILL", "-f", "host/agent_entry.py")


@pytest.fixture
def bed(make_bed: Callable[..., Bed]) -> Bed:
    return make_bed(hosts=3, shared_home=True)


def test_a_host_that_returns_joins_the_running_instances(bed: Bed) -> None:
    job = start_on_three(bed, "--trace", "/root/trace.json", "--log-dir", "/root/logs")
    before = job.pids(0, 1, 4, 5)
    lose(bed["h1"])
    job.wait_for_text("4 instances go on as generation 1")
    job.wait_for_text("The host h1 can be used: starting instances 2 and 3 there.")
    job.wait_for_text("The host h1 has joined with instances 2 and 3; 6 instances go")
    job.wait_for_steps()
    shown = json.loads(bed.front.output("popctl", "ps", "--json"))
    [shown] = shown if isinstance(shown, list) else [shown]
    assert job.pids(0, 1, 4, 5) == before
    said = job.finish()

    assert said == [f"{rank} 6 6 2" for rank in range(6)]
    assert (shown["num_running"], shown["generation"]) == (6, 2)
    assert shown["changed"] == "The host h1 has joined with instances 2 and 3."
    result = job.result()
    changes = result["changes"]
    assert isinstance(changes, list)
    assert [(c["lost"], c["added"]) for c in changes] == [([2, 3], []), ([], [2, 3])]
    instances = result["instances"]
    assert isinstance(instances, list)
    assert {each["state"] for each in instances} == {"succeeded"}
    [joins] = job.events("host_joins")
    assert (joins["host"], joins["instances"]) == ("h1", [2, 3])
    trace = bed.front.path("/root/trace.json").read_text()
    assert "generation 2: The host h1 has joined with instances 2 and 3." in trace


def test_a_host_that_the_script_prints_later_joins(bed: Bed) -> None:
    hosts = bed.front.path("/root/hosts")
    hosts.write_text("h0:2\nh1:2\n")
    script = ("--host-discovery-script", "cat /root/hosts")
    job = JoinedJob(bed, *script, "-n", "6", "--nnodes", "1:3")
    hosts.write_text("h2:2\nh0:2\nh1:2\n")
    job.wait_for_text("The host h2 has joined with instances 4 and 5; 6 instances go")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 6 6 2" for rank in range(6)]
    instances = job.result()["instances"]
    assert isinstance(instances, list)
    assert [each["host"] for each in instances] == [f"h{i // 2}" for i in range(6)]


def test_the_job_outlives_its_first_hosts(bed: Bed) -> None:
    """Its launcher ends when the last instance is lost that it has started."""
    hosts = bed.front.path("/root/hosts")
    hosts.write_text("h1:1\n")
    script = ("--host-discovery-script", "cat /root/hosts")
    job = JoinedJob(bed, *script, "-n", "2", "--nnodes", "1:2")
    hosts.write_text("h1:1\nh2:1\n")
    job.wait_for_text("The host h2 has joined with instance 1; 2 instances go on")
    lose(bed["h1"])
    job.wait_for_text("1 instance goes on as generation 2")
    job.wait_for_text("The host h1 has joined with instance 0; 2 instances go on")
    job.wait_for_steps()

    assert job.finish() == ["0 2 2 1", "1 2 2 1"]


def test_two_hosts_return_at_once(bed: Bed) -> None:
    job = start_on_three(bed)
    lose(bed["h1"])
    lose(bed["h2"])
    job.wait_for_text("2 instances go on as generation")
    job.wait_for_text("6 instances go on as generation")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 6 6 2" for rank in range(6)]


def test_a_host_that_is_cut_off_for_a_moment_leaves_no_old_instances(bed: Bed) -> None:
    job = start_on_three(bed)
    old = job.pids(2, 3)
    bed["h1"].link.cut()
    job.wait_for_text("4 instances go on as generation 1")
    bed["h1"].link.mend()
    # They are told so by the end of the connection, or find it out.
    wait_for(lambda: not any(runs(bed["h1"], pid) for pid in old), "their end")
    job.wait_for_text("The host h1 has joined with instances 2 and 3; 6 instances go")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 6 6 2" for rank in range(6)]


def runs(host: Host, pid: str) -> bool:
    return host.path(f"/proc/{pid}").exists()


def test_a_host_returns_while_the_others_re_form(bed: Bed) -> None:
    job = start_on_three(bed)
    lose(bed["h1"])
    job.wait_for_text("4 instances go on as generation 1")
    # It lives and does not re-form, so the others wait for it.
    [stopped, killed] = job.pids(4, 5)
    bed["h2"].run("kill", "-STOP", stopped)
    bed["h2"].run("kill", "-KILL", killed)
    job.wait_for_text("The host h1 can be used: starting instances 2 and 3 there.")
    wait_for_event_of(job, 3)
    bed["h2"].run("kill", "-CONT", stopped)
    job.wait_for_text("6 instances go on as generation")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 6 6 2" for rank in range(6)]


def wait_for_event_of(job: JoinedJob, instance: int) -> None:
    """Wait until an instance has been started twice."""
    job.wait(
        lambda: (
            [e["instance"] for e in job.events("instance_started")].count(instance) == 2
        ),
        "its start",
    )


def test_a_program_that_fails_as_it_joins_uses_up_the_restarts(bed: Bed) -> None:
    job = start_on_three(bed, program=("sh", "-c", CRASHES))
    crash = job.folder / "crash"
    crash.touch()
    lose(bed["h1"])
    job.wait_for_text("The host h1 can be used: starting instances 2 and 3 there.")
    # Two starts, and the three of --max-restarts.
    job.wait(lambda: crash.read_text().count("x") == 5, "five failures")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 4 4 2" for rank in range(4)]


def test_a_host_that_is_lost_while_it_joins_is_looked_for_again(bed: Bed) -> None:
    job = start_on_three(bed)
    lose(bed["h1"])
    job.wait_for_text("The host h1 can be used: starting instances 2 and 3 there.")
    lose(bed["h1"])
    job.wait(lambda: job.text.count("Lost the host h1") == 2, "its second loss")
    job.wait_for_steps()
    job.wait(lambda: job.text.count("The host h1 can be used") == 2, "its return")
    job.wait_for_text("6 instances go on as generation")

    assert job.finish() == [f"{rank} 6 6 2" for rank in range(6)]


def test_a_host_that_answers_no_ssh_changes_nothing(bed: Bed) -> None:
    job = start_on_three(bed)
    bed["h1"].stop_sshd()
    lose(bed["h1"])
    job.wait_for_text("4 instances go on as generation 1")
    # It gets connections, and never answers them.
    bed["h1"].start("python3", "-c", SILENT)
    wait_for((job.folder / "up").exists, "the silent server")
    bed["h1"].note_own()
    job.wait((job.folder / "tried").exists, "the search")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 4 4 2" for rank in range(4)]
    assert "can be used" not in job.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_poprun_ends_while_a_host_joins(
    bed: Bed, number: int
) -> None:
    job = start_on_three(bed)
    lose(bed["h1"])
    job.wait_for_text("The host h1 can be used: starting instances 2 and 3 there.")
    bed.front.output("pkill", f"-{number}", "-f", "bin/poprun --mpirun")
    job.process.communicate(timeout=200)

    code = -9 if number == signal.SIGKILL else 128 + number
    assert job.process.returncode == code
    bed.assert_nothing_is_left()

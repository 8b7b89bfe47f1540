"""Hosts that come or return while the instances of an elastic job run on.

A host that was lost is looked for 2 seconds later, and not 20: see POPRUN.
"""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Sequence

import pytest
from beds import slurm
from beds.bed import Bed
from beds.host import Host
from conftest import ROOT, wait_for

# See there: it writes its steps, and the pid of each instance, to a folder.
PROGRAM = str(ROOT / "tests" / "elastic_program.py")
POPRUN = str(ROOT / "tests" / "often_searching_poprun.py")
STATE = "/root/state"
# Instance 2 fails at once the first two times that it joins.
CRASHES = f"""
if [ "$POPDIST_ELASTIC_JOINS, $RANK" = "1, 2" ] && ! [ -e {STATE}/second ]
then mkdir {STATE}/first 2>/dev/null || mkdir {STATE}/second
echo the driver is missing >&2; exit 3; fi
exec python3 {PROGRAM} {STATE}
"""
# Instances that join wait for a file.
HOLDS = f"""
while [ "$POPDIST_ELASTIC_JOINS" = 1 ] && ! [ -e {STATE}/go ]; do sleep 0.1; done
exec python3 {PROGRAM} {STATE}
"""
# Adds up numbers by popdist's links between the hosts.
LINKED = """
import sys, time
from pathlib import Path
import numpy as np
import popdist
from popdist import elastic

folder = Path(sys.argv[1])
state = elastic.State(step=0)

@elastic.run
def work(state):
    group = popdist.instance_group()
    stops = 0
    while not stops:
        own = group.rank == 0 and (folder / "stop").exists()
        stops = group.all_reduce(np.array([own], np.int64))[0]
        state.step += 1
        if group.rank == 0:
            (folder / "draft").write_text(str(state.step))
            (folder / "draft").rename(folder / "steps")
        state.commit()
        time.sleep(0.01)
    return group.size

print(f"size: {work(state)}")
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
        self,
        bed: Bed,
        *options: str,
        program: Sequence[str] = ("python3", PROGRAM),
        launcher: Sequence[str] = (),
    ) -> None:
        self.bed = bed
        self.folder = bed.front.path(STATE)
        self.folder.mkdir()
        self.log = bed.front.path("/root/errors")
        words = program if program[0] == "sh" else (*program, STATE)
        with self.log.open("wb") as errors:
            self.process: subprocess.Popen[str] = bed.front.start(
                *(*launcher, "python3", POPRUN),
                *("--mpirun", "local", "--max-restarts", "3"),
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


def start_on_three(
    bed: Bed, *options: str, hosts: str = "h0,h1,h2", **named: Sequence[str]
) -> JoinedJob:
    words = ("--host", hosts, "-n", "6", "--min-instances", "1")
    return JoinedJob(bed, *words, *options, **named)


def lose(host: Host) -> None:
    """Let poprun lose a host whose sshd goes on."""
    host.output("pkill", "-KILL", "-f", "host/agent_entry.py")


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
    assert shown["hosts"] == ["h0", "h1", "h2"]
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


def test_a_host_that_the_script_no_longer_prints_leaves_and_may_return(
    bed: Bed,
) -> None:
    hosts = bed.front.path("/root/hosts")
    hosts.write_text("h0:2\nh1:2\nh2:2\n")
    script = ("--host-discovery-script", "cat /root/hosts")
    job = JoinedJob(bed, *script, "-n", "6", "--min-instances", "4")
    stays = job.pids(0, 1, 4, 5)
    hosts.write_text("h0:2\nh2:2\n")
    why = "The discovery script no longer prints h1"
    job.wait_for_text(f"{why}; 4 instances go on as generation 1 after")
    job.wait_for_text("The host h1 has left the job.")
    job.wait_for_steps()
    shown = json.loads(bed.front.output("popctl", "ps", "--json"))
    [shown] = shown if isinstance(shown, list) else [shown]
    # The others are too few now.
    hosts.write_text("h0:2\n")
    job.wait_for_text(f"{why[:-2]}h2, but the job keeps its hosts: the others are")
    hosts.write_text("h0:2\nh1:2\nh2:2\n")
    job.wait_for_text("The host h1 has joined with instances 2 and 3; 6 instances go")
    job.wait_for_steps()
    assert job.pids(0, 1, 4, 5) == stays

    assert job.finish() == [f"{rank} 6 6 2" for rank in range(6)]
    assert (shown["hosts"], shown["changed"]) == (["h0", "h2"], f"{why}.")
    assert job.text.count("but the job keeps its hosts") == 1
    assert f"left: {why}, so instance 2 (h1) has left the job." in job.text
    [leaves] = job.events("host_leaves")
    assert (leaves["host"], leaves["instances"]) == ("h1", [2, 3])
    [lost] = job.events("host_lost")
    assert lost["why"] == leaves["why"] == f"t{why[1:]}"
    changes = job.result()["changes"]
    assert isinstance(changes, list)
    assert [(c["lost"], c["added"]) for c in changes] == [([2, 3], []), ([], [2, 3])]
    assert not job.events("instance_started_again")


@pytest.mark.parametrize("size", [("--min-instances", "4"), ("--nnodes", "2")])
def test_a_host_takes_the_place_of_one_without_which_the_job_is_too_small(
    bed: Bed, size: Sequence[str]
) -> None:
    hosts = bed.front.path("/root/hosts")
    hosts.write_text("h0:2\nh1:2\n")
    script = ("--host-discovery-script", "cat /root/hosts")
    job = JoinedJob(bed, *script, "-n", "4", *size)
    stays = job.pids(0, 1)
    hosts.write_text("h0:2\nh2:2\n")
    why = "The discovery script no longer prints h1"
    change = f"{why}; the host h2 has joined with instances 4 and 5"
    job.wait_for_text(f"{change}; 4 instances go on as generation 1 after")
    job.wait_for_text("The host h1 has left the job.")
    job.wait_for_steps()
    # The places of h1 are free again.
    hosts.write_text("h0:2\nh1:2\n")
    change = f"{why[:-1]}2; the host h1 has joined with instances 2 and 3"
    job.wait_for_text(f"{change}; 4 instances go on as generation 2 after")
    job.wait_for_steps()
    assert job.pids(0, 1) == stays

    assert job.finish() == [f"{rank} 4 4 2" for rank in range(4)]
    changes = job.result()["changes"]
    assert isinstance(changes, list)
    changes = [(change["lost"], change["added"]) for change in changes]
    assert changes == [([2, 3], [4, 5]), ([4, 5], [2, 3])]


def test_one_machine_joins_under_one_of_its_names(bed: Bed) -> None:
    hosts = bed.front.path("/root/hosts")
    hosts.write_text("h0:2\n")
    script = ("--host-discovery-script", "cat /root/hosts")
    job = JoinedJob(bed, *script, "-n", "6", "--nnodes", "1:3")
    hosts.write_text("h0:2\nh1:2\nh1.bed:2\n")
    job.wait_for_text("The host h1 has joined with instances 2 and 3; 4 instances go")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 4 4 2" for rank in range(4)]
    assert (
        "The host h1.bed cannot join the job: it is the machine of another host."
    ) in job.text


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


def test_a_node_of_a_slurm_job_joins_by_srun(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=2, slurm_cpus=2, shared_home=True)
    bed["h1"].stop_sshd()
    nodes = ("salloc", "--quiet", "--nodes=2")
    job = JoinedJob(bed, "-n", "4", "--min-instances", "1", launcher=nodes)
    lose(bed["h1"])
    job.wait_for_text("2 instances go on as generation 1")
    job.wait_for_text("The host h1 has joined with instances 2 and 3; 4 instances go")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 4 4 2" for rank in range(4)]


def test_nodes_join_that_slurm_gives_to_the_job(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=3, slurm_cpus=2, shared_home=True)
    for host in bed.hosts:
        host.stop_sshd()
    nodes = ("salloc", "--quiet", "--nodelist=h0,h1")
    job = JoinedJob(bed, "-n", "4", "--nnodes", "1:2", launcher=nodes)
    [number] = bed.front.output("squeue", "--noheader", "--format=%A").split()
    bed.front.output("scontrol", "update", f"JobId={number}", "NodeList=h0", cwd="/tmp")
    job.wait_for_text("2 instances go on as generation 1")
    # Slurm has killed the processes, which leaves their files.
    wait_for(lambda: not bed["h1"].processes(), "the end of all processes on h1")
    bed["h1"].clean()
    slurm.add_nodes(bed.front, number, "h2")
    job.wait_for_text("The host h2 has joined with instances 2 and 3; 4 instances go")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 4 4 2" for rank in range(4)]
    assert "The host h1 c" not in job.text


def test_two_hosts_return_at_once(bed: Bed) -> None:
    job = start_on_three(bed)
    # The first one must not be back before the second one is lost.
    send_to_sshds(bed, signal.SIGSTOP)
    lose(bed["h1"])
    lose(bed["h2"])
    job.wait_for_text("2 instances go on as generation")
    send_to_sshds(bed, signal.SIGCONT)
    job.wait_for_text("6 instances go on as generation")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 6 6 2" for rank in range(6)]


def send_to_sshds(bed: Bed, number: int) -> None:
    """Send a signal to what listens for sshd on all hosts but the first."""
    for host in bed.hosts[1:]:
        host.output("sh", "-c", f"kill -{number} $(cat /run/sshd.pid)")


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
    job = start_on_three(bed, program=("sh", "-c", HOLDS))
    lose(bed["h1"])
    job.wait_for_text("4 instances go on as generation 1")
    # It lives and does not re-form, so the others wait for it.
    [stopped, killed] = job.pids(4, 5)
    bed["h2"].run("kill", "-STOP", stopped)
    bed["h2"].run("kill", "-KILL", killed)
    (job.folder / "go").touch()
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


def part(one: Host, other: Host) -> None:
    """Let two hosts reach each other no more, but all others."""
    wrong = ("lladdr", "02:00:00:00:ff:ff", "nud", "permanent", "dev", "eth0")
    for host, peer in ((one, other), (other, one)):
        host.output("ip", "neighbour", "replace", peer.address, *wrong)


# The first instance, by which links begin, is on a host that all reach, or on one that
# is silent to another.
@pytest.mark.parametrize("hosts", ["h0,h1,h2", "h1,h0,h2"])
@pytest.mark.parametrize("from_start", [False, True])
def test_a_host_that_others_do_not_reach_is_left(
    bed: Bed, hosts: str, *, from_start: bool
) -> None:
    bed.front.path("/root/linked.py").write_text(LINKED)
    program = ("python3", "/root/linked.py")
    if from_start:
        part(bed["h1"], bed["h2"])
    job = start_on_three(bed, program=program, hosts=hosts)
    if not from_start:
        part(bed["h1"], bed["h2"])
    job.wait_for_text("Others had no answer from h")
    job.wait_for_text("other hosts get no answer from it, only poprun")
    job.wait_for_text("4 instances go on as generation")
    job.wait_for_steps()

    # It may have joined again by now.
    assert len({*job.finish()}) == 1


@pytest.mark.parametrize("hosts", ["h1,h2", "h0,h1,h2"])
def test_a_job_that_is_not_elastic_ends_if_its_hosts_do_not_reach_each_other(
    bed: Bed, hosts: str
) -> None:
    part(bed["h1"], bed["h2"])
    code = "import popdist; popdist.instance_group().barrier()"
    number = str(hosts.count(",") + 1)
    ran = bed.front.run(
        *("poprun", "--mpirun", "local", "--host", hosts, "-n", number),
        *("python3", "-c", code),
    )

    assert ran.returncode == 1
    expected = r"Instance \d on h\d has not answered for 5 s, while instance \d on h\d"
    if hosts == "h1,h2":
        # All others wait for instance 0 at the start.
        expected = (
            r"Instance 0 at 10\.\S+:\d+ has not answered instance 1 on h2 for 30 s"
        )
    assert re.search(expected, ran.stderr), ran.stderr


def test_a_host_whose_program_fails_as_it_joins_takes_no_restart(bed: Bed) -> None:
    options = ("--max-restarts", "1")
    job = start_on_three(bed, *options, program=("sh", "-c", CRASHES))
    lose(bed["h1"])
    ending = "exited with code 3 before the host had joined."
    job.wait(lambda: job.text.count(ending) == 2, "two failures")
    job.wait_for_steps()
    job.wait_for_text("The host h1 has joined with instances 2 and 3; 6 instances go")
    # The restart is there for another instance.
    bed["h0"].run("kill", "-KILL", *job.pids(0))
    job.wait_for_text("nstance 0 was started again; 6 instances go on")
    job.wait_for_steps()

    assert job.finish() == [f"{rank} 6 6 2" for rank in range(6)]
    assert "the driver is missing" in job.text
    assert len(job.events("host_joins")) == 3
    assert "Lost the host h1: instance " in job.text


def test_a_host_that_is_lost_while_it_joins_is_looked_for_again(bed: Bed) -> None:
    job = start_on_three(bed, program=("sh", "-c", HOLDS))
    lose(bed["h1"])
    job.wait_for_text("The host h1 can be used: starting instances 2 and 3 there.")
    lose(bed["h1"])
    job.wait(lambda: job.text.count("Lost the host h1") == 2, "its second loss")
    (job.folder / "go").touch()
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


def test_a_host_that_returns_with_a_full_disk_is_a_warning(bed: Bed) -> None:
    job = start_on_three(bed)
    bed["h1"].kill()
    job.wait_for_text("4 instances go on as generation 1")
    head, row, change = bed.front.output("popctl", "ps").splitlines()
    bed.power_on("h1", "mount -o remount,ro /tmp")
    job.wait_for_text("The host h1 cannot be used: no file can be created in /tmp")
    job.wait_for_steps()

    assert re.search(r" 4 of 6 +2 hosts +running, generation 1 ", row), (head, row)
    assert re.match("[0-9a-f]{8}, generation 1: The host h1 was lost with ", change)
    assert job.finish() == [f"{rank} 4 4 2" for rank in range(4)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_poprun_ends_while_a_host_joins(
    bed: Bed, number: int
) -> None:
    job = start_on_three(bed)
    lose(bed["h1"])
    job.wait_for_text("The host h1 can be used: starting instances 2 and 3 there.")
    bed.front.output("pkill", f"-{number}", "-f", f"{POPRUN} --mpirun")
    job.process.communicate(timeout=200)

    code = -9 if number == signal.SIGKILL else 128 + number
    assert job.process.returncode == code
    bed.assert_nothing_is_left()

"""Kill instances and hosts of elastic jobs at random, and check each sum after that.

    sudo python scripts/chaos_elastic.py --rounds 100

Each round starts a job of two instances on each of three hosts, which add up a number
of their own again and again. Once to four times it kills one or two instances, kills or
cuts off a host, or cuts one off for a moment, at a random time after the last harm. The
others must go on: each member checks that each sum is that of the members. Then the job
is told to end, and must exit with 0 if enough instances were left; 15 seconds later
nothing of it may be left on any host. --harm chooses one kind of harm, and --seed and
--first repeat a round.

At the end it prints how often each harm was done, and the times from a harm to the next
right sum.
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from chaos_round import ChaosRound, make_parser, run_rounds

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from beds.bed import Bed  # noqa: E402
from beds.host import Host  # noqa: E402

FOLDER = "/root/state"
SIZE, LEAST = 6, 2
# A host that is cut off is lost for poprun after five to six seconds.
GOES_ON_S, ENDS_S, GONE_S = 60.0, 60.0, 15.0
HARMS = ("kill", "kill-two", "kill-host", "cut", "blink")
PROGRAM = """
import os, sys, time
from pathlib import Path
import numpy as np
import popdist
from popdist import elastic

folder = Path(sys.argv[1])
index = int(os.environ["OMPI_COMM_WORLD_RANK"])
(folder / f"pid-{index}").write_text(f"{os.getpid()} {os.uname().nodename}")
state = elastic.State(step=0)

@elastic.run
def work(state):
    own = np.array([1 << index, 0], np.int64)
    while True:
        group = popdist.instance_group()
        own[1] = (folder / "stop").exists() and group.rank == 0
        total, stops = map(int, group.all_reduce(own))
        state.step += 1
        wrong = total.bit_count() != group.size or not total >> index & 1
        with open(folder / f"sums-{index}", "a") as file:
            now = time.monotonic()
            file.write(f"{now} {elastic.generation()} {state.step} {wrong:d}\\n")
        if stops:
            return
        state.commit()
        time.sleep(0.02)

work(state)
"""


class ElasticRound(ChaosRound):
    """One elastic job, and what is done to it."""

    # In all rounds: how often each harm was done, and the seconds until the next sum.
    counts: ClassVar[Counter[str]] = Counter()
    times: ClassVar[list[tuple[str, float]]] = []

    def __init__(self, number: int, options: argparse.Namespace) -> None:
        super().__init__(number, options.seed)
        self.options = options
        self.bed = Bed(hosts=3, shared_home=True)
        self.folder = self.bed.front.path(FOLDER)
        self.folder.mkdir()
        (self.folder / "program.py").write_text(PROGRAM)
        restarts = self.dice.choice((0, 0, 3))
        self.story.append(f"--max-restarts {restarts}")
        self.job = self.bed.front.start(
            *("poprun", "--mpirun", "local", "--host", "h0,h1,h2", "-n", str(SIZE)),
            *("--min-instances", str(LEAST), "--max-restarts", str(restarts)),
            *("--grace", "1", "python3", f"{FOLDER}/program.py", FOLDER),
            stdout=self.log,
            stderr=self.log,
        )
        self.lost: list[Host] = []

    def run(self) -> list[str]:
        """Harm the job, and return what is wrong after that."""
        try:
            wrong = self._run()
        finally:
            self.job.kill()
            self.job.wait()
            self.bed.close()
        return wrong

    def _run(self) -> list[str]:
        if not self._wait(lambda: len(self._sums()) > 6, GOES_ON_S):
            return ["the job has not begun"]
        if len(living := self._living()) != SIZE:
            return [f"the job has begun with {len(living)} instances"]
        for _ in range(self.dice.choice((1, 2, 3, 4))):
            time.sleep(self.dice.uniform(0, 1.5))
            harm = self.options.harm or self.dice.choice(HARMS)
            is_done, loses = self._harm(harm)
            if not is_done:
                continue
            ElasticRound.counts[harm] += 1
            began, generation = time.monotonic(), self._generation()

            def goes_on(began: float = began, before: int = generation) -> bool:
                return any(at > began and new > before for at, new, _ in self._sums())

            if not loses:
                continue
            if not self._wait(goes_on, GOES_ON_S):
                return [f"no sum came after {harm} within {GOES_ON_S} s"]
            first = min(
                at for at, new, _ in self._sums() if at > began and new > generation
            )
            ElasticRound.times.append((harm, first - began))
            self.story.append(f"the next sum came after {first - began:.2f} s")
        return self._end()

    def _end(self) -> list[str]:
        (self.folder / "stop").touch()
        wrong = []
        if not self._wait(lambda: self.job.poll() is not None, ENDS_S):
            return [f"poprun was still there after {ENDS_S} s"]
        if self.job.returncode:
            wrong.append(f"exit code {self.job.returncode}")
        if num := sum(is_wrong for _, _, is_wrong in self._sums()):
            wrong.append(f"{num} wrong sums")
        if not self._wait(lambda: not self._left(), GONE_S + 5):
            wrong += self._left()
        return wrong

    def _left(self) -> list[str]:
        """Return what is left: sshd need not know yet that a host is cut off."""
        return [one for one in self.bed.leftovers() if "sshd" not in one]

    def _wait(self, condition: Callable[[], bool], limit: float) -> bool:
        ends_by = time.monotonic() + limit
        while not condition():
            if time.monotonic() >= ends_by:
                return False
            time.sleep(0.02)
        return True

    def _sums(self) -> list[tuple[float, int, bool]]:
        """Return the time and the generation of each sum, and whether it is wrong."""
        sums = []
        for path in self.folder.glob("sums-*"):
            # The last line may not be complete.
            for line in path.read_text().split("\n")[:-1]:
                at, generation, _, wrong = line.split()
                sums.append((float(at), int(generation), wrong == "1"))
        return sums

    def _generation(self) -> int:
        return max(generation for _, generation, _ in self._sums())

    def _living(self) -> list[tuple[Host, int]]:
        """Return the instances on hosts that are not lost, with their pids there."""
        living = []
        for path in self.folder.glob("pid-*"):
            pid, name = path.read_text().split()
            host = self.bed[name]
            if host not in self.lost and host.path(f"/proc/{pid}").exists():
                living.append((host, int(pid)))
        return living

    def _harm(self, harm: str) -> tuple[bool, bool]:
        """Harm the job if enough is left after that.

        Returns:
            Whether it was harmed, and whether it must re-form: a host that is lost may
            have no living instance.
        """
        living = self._living()
        others = [h for h in self.bed.hosts[1:] if h not in self.lost]
        if harm in ("kill", "kill-two"):
            number = 1 + (harm == "kill-two")
            if len(living) - number < LEAST:
                return False, False
            for host, pid in self.dice.sample(living, number):
                self.story.append(f"SIGKILL to {pid} on {host.name}")
                host.run("kill", "-KILL", str(pid))
            return True, True
        if not others:
            return False, False
        host = self.dice.choice(others)
        if harm == "blink":
            seconds = self.dice.uniform(0.1, 2)
            self.story.append(f"{host.name} is cut off for {seconds:.1f} s")
            host.link.cut()
            time.sleep(seconds)
            host.link.mend()
            return True, False
        if sum(other is not host for other, _ in living) < LEAST:
            return False, False
        self.story.append(f"{host.name}: {harm}")
        self.lost.append(host)
        if harm == "cut":
            host.link.cut()
        else:
            host.kill()
        return True, any(other is host for other, _ in living)


def main() -> int:
    parser = make_parser(str(__doc__), rounds=20)
    parser.add_argument("--harm", choices=HARMS)
    options = parser.parse_args()
    failed = run_rounds(options, lambda number: ElasticRound(number, options))
    print(f"{options.rounds} rounds, {failed} of them failed; harms:")
    for harm in HARMS:
        seconds = [s for name, s in ElasticRound.times if name == harm]
        text = f"    {harm}: {ElasticRound.counts[harm]}"
        if seconds:
            middle = statistics.median(seconds)
            text += f"; next sum after {middle:.2f} s (median), {max(seconds):.2f} s"
        print(text, "at most" if seconds else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

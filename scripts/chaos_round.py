"""What the scripts share that kill parts of random jobs at random moments."""

import argparse
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from poprun.helpers.own_process import default_signals

BIN = Path(sys.executable).parent


class ChaosRound:
    """Some jobs and what is done to them, all of it chosen by a seed and a number."""

    def __init__(self, number: int, seed: int) -> None:
        self.dice = random.Random(f"{seed}/{number}")
        # In the environment or on the command line of every process of the jobs.
        self.word = f"98765.{self.dice.randrange(10**12)}"
        self.story = [f"round {number}"]
        self.log = os.memfd_create("log")

    def run(self) -> list[str]:
        """Start the jobs and harm them; return what is wrong after that."""
        raise NotImplementedError

    def start(
        self, options: Sequence[str], program: Sequence[str], environ: Mapping[str, str]
    ) -> psutil.Popen:
        self.story.append(" ".join(options))
        return psutil.Popen(
            [str(BIN / "poprun"), *options, *program],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env={**environ, "CHAOS": self.word},
            # Background jobs of a script and nohup ignore signals that are sent here.
            preexec_fn=default_signals,
        )

    def kill(self, victim: psutil.Process) -> bool:
        """Kill a process; return whether it was there."""
        try:
            self.story.append(f"SIGKILL to {' '.join(victim.cmdline()[:6])[-60:]}")
            victim.kill()
        except psutil.NoSuchProcess:
            self.story.append("which has ended already")
            return False
        return True

    def end(self, job: psutil.Popen) -> None:
        """End a job that still runs, by a signal that users send."""
        number = self.dice.choice([signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
        if number == signal.SIGKILL:
            self.kill(job)
        elif job.poll() is None:
            self.story.append(f"{number.name} to poprun {job.pid}")
            job.send_signal(number)

    def find_processes(self) -> list[str]:
        return [f"process {p.pid}" for p in psutil.process_iter() if self._owns(p)]

    def _owns(self, process: psutil.Process) -> bool:
        try:
            marked = process.environ().get("CHAOS") == self.word
            return marked or self.word in process.cmdline()
        except psutil.Error:
            return False

    def report(self) -> str:
        """Return what was done, and what the jobs wrote."""
        output = os.pread(self.log, 1 << 20, 0).decode(errors="replace")
        return "\n  ".join(self.story) + (f"\n{output.rstrip()}" if output else "")


def command_line(process: psutil.Process) -> list[str]:
    """Return the words of a process, none if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def make_parser(description: str, *, rounds: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--first", type=int, default=0, help="The first round.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    return parser


def run_rounds(
    options: argparse.Namespace, make_round: Callable[[int], ChaosRound]
) -> int:
    """Run the rounds that the options ask for; return how many have failed."""
    print(f"seed {options.seed}", flush=True)
    failed = 0
    for number in range(options.first, options.first + options.rounds):
        chaos = make_round(number)
        if wrong := chaos.run():
            failed += 1
            print(f"{chaos.report()}\nWRONG: {'; '.join(wrong)}\n", flush=True)
        os.close(chaos.log)
    return failed

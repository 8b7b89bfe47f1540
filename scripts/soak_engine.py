"""Kill members of the engine's groups at random moments, many times over.

    python scripts/soak_engine.py --rounds 1000

Each round starts a group, lets it make random calls whose results are checked, and
kills some of its members with SIGKILL. All others must report it, and none may hang.
The seed of a round that fails is printed; --seed and --first repeat it.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.popdist.engine.rounds import Round, Wrong, play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=os.getpid())
    parser.add_argument("--first", type=int, default=0, help="the first round's number")
    options = parser.parse_args()

    played: list[Round] = []
    failed = 0
    for number in range(options.first, options.first + options.rounds):
        try:
            played.append(play(f"{options.seed}/{number}"))
        except (Wrong, TimeoutError, AssertionError) as error:
            failed += 1
            print(f"--seed {options.seed} --first {number}: {error}", flush=True)
        if (number + 1 - options.first) % 100 == 0:
            print(f"{number + 1 - options.first} rounds, {failed} failed", flush=True)
    report(played, failed)
    return 1 if failed else 0


def report(played: list[Round], failed: int) -> None:
    """Print how many members were killed, and how soon the others ended."""
    killed = sum(len(played_round.victims) for played_round in played)
    print(f"{len(played) + failed} rounds, {killed} members killed, {failed} failed.")
    if played:
        seconds = [played_round.seconds for played_round in played]
        print(
            "From the kill to the end of all others: "
            f"{statistics.median(seconds) * 1e3:.0f} ms in the median, "
            f"{max(seconds) * 1e3:.0f} ms at most."
        )


if __name__ == "__main__":
    sys.exit(main())

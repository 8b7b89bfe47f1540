"""The report of the algorithms that have run, which POPDIST_LOG_LEVEL requests."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping


def report_runs(instance: int, counts: Iterable[Mapping[str, int]]) -> None:
    """Print to stderr how often each algorithm ran.

    Args:
        counts: Of each group, how many reductions each algorithm has carried out.
    """
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    runs = [f"{number} {name}" for name, number in total.items() if number]
    print(
        f"popdist: instance {instance}: reductions by algorithm: "
        f"{', '.join(runs) or 'none'}.",
        file=sys.stderr,
        flush=True,
    )

"""The command `python -m popdist.bench`: from its arguments to tables and files."""

import argparse
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from popdist.bench import peers, plot, sizes, table, tune
from popdist.bench.cells import Bench
from popdist.bench.communicator import (
    Communicator,
    GroupCommunicator,
    placement,
    refuse,
)
from popdist.bench.inputs import DTYPES, most_members
from popdist.bench.load import busy_processes
from popdist.bench.machine_state import Probe
from popdist.bench.peers import NAMES as PEERS
from popdist.bench.results import Result
from popdist.bench.runners import Engine
from popdist.bench.sizes import DEFAULT as DEFAULT_SIZES
from popdist.bench.tasks import OPERATIONS
from popdist.durations import read_duration
from popdist.engine.group import Group
from popdist.engine.spec.operations import CHOICES
from popdist.groups.instance_group import instance_group


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """The options of the command line."""

    op: tuple[str, ...] = ("all_reduce",)
    sizes: tuple[int, ...] = DEFAULT_SIZES
    dtypes: tuple[str, ...] = ("float32", "float16")
    seconds: float = 2.0
    peers: tuple[str, ...] = ("mpi", "gloo")
    torch: bool = False
    algorithm: str | None = None
    in_arena: bool = False
    read_result: bool = True
    load: int = 0
    json: Path | None = None
    plot: Path | None = None
    tune: Path | None = None


# The other options select parts of the comparison, and have no meaning with --tune.
_FOR_TUNING = {"tune", "seconds"}
_MOST_LOAD = 1024


def read(argv: Sequence[str] | None) -> Arguments:
    """Return what the arguments ask for, or end with a sentence about them."""
    parser = argparse.ArgumentParser(
        prog="python -m popdist.bench",
        description="Measure the engine next to its peers, all in turn: run it under "
        "poprun, as in: poprun --num-instances 2 --num-replicas 2 python -m "
        "popdist.bench",
        # Options that are not given are left out.
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("--op", type=_among(OPERATIONS), metavar="OP,...", help=", ".join(OPERATIONS))
    add("--sizes", type=sizes.parse, metavar="4,1K,...")
    add("--dtypes", type=_among(DTYPES))
    add("--seconds", type=_seconds, help="for each size (default: 2)")
    add("--peers", type=_among((*PEERS, "none")))
    add("--torch", action="store_true", help="call the engine through torch")
    add("--algorithm", choices=sorted(CHOICES), help="instead of the engine's choice")
    add("--in-arena", action="store_true", help="give the engine arrays of its arena")
    add(
        "--read-result",
        action=argparse.BooleanOptionalAction,
        help="read each result of 1M and more within the timed part (default: yes)",
    )
    add("--load", type=_count, metavar="N", help="keep N processes busy beside")
    add("--json", type=_file, metavar="FILE", help="write the results as JSON")
    add("--plot", type=_picture, metavar="FILE.png", help="draw them")
    add("--tune", type=_file, metavar="FILE", help="measure the engine's table instead")
    given = vars(parser.parse_args(argv))
    _check_together(parser, given)
    return Arguments(**given)


def _check_together(parser: argparse.ArgumentParser, given: Mapping[str, Any]) -> None:
    """End with a sentence about arguments that cannot be given together."""
    if "tune" in given and (unused := sorted(given.keys() - _FOR_TUNING)):
        options = ", ".join(
            f"--{'no-' if given[name] is False else ''}{name.replace('_', '-')}"
            for name in unused
        )
        parser.error(
            "--tune measures the engine's table with fixed sizes and dtypes and "
            "without peers, so it can be combined with --seconds only. Leave out "
            f"{options}, or --tune."
        )
    if given.keys() >= {"torch", "algorithm"}:
        parser.error(
            "--algorithm is for calls of numpy, but --torch measures those of torch, "
            "which take none. Leave out one of them."
        )
    others = set(given.get("op", ())) - {"all_reduce"}
    for name in ("algorithm", "in_arena"):
        if others and name in given:
            parser.error(
                f"--{name.replace('_', '-')} is for all_reduce only, but --op also has "
                f"{', '.join(sorted(others))}. Measure them apart."
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the bench. All instances of the job must."""
    arguments = read(argv)
    if arguments.plot:
        plot.figure_module()
    # One array an instance, however many replicas it has, as a peer's process has.
    group = instance_group()
    comm = GroupCommunicator(group)
    _check_dtypes(comm, arguments.dtypes)
    if arguments.tune:
        tune.run(comm, arguments.tune, arguments.seconds)
        return
    with busy_processes(arguments.load if comm.rank == 0 else 0):
        results = list(_results(arguments, group, comm))
    if comm.rank == 0 and arguments.json:
        text = json.dumps([asdict(result) for result in results], indent=1)
        arguments.json.write_text(f"{text}\n", encoding="utf-8")
    if comm.rank == 0 and arguments.plot:
        plot.draw(results, arguments.plot)


def _check_dtypes(comm: Communicator, dtypes: Sequence[str]) -> None:
    """End all members, unless they can measure these dtypes."""
    if "bfloat16" in dtypes:
        try:
            # numpy knows the name once this is imported.
            importlib.import_module("ml_dtypes")
        except ImportError:
            refuse(comm, "numpy has no bfloat16 without ml_dtypes. Install that.")
    most = most_members(dtypes)
    if comm.size > most:
        refuse(
            comm,
            f"{comm.size} instances are more than the {most} whose sums are exact in "
            f"{' and '.join(dtypes)}. Start fewer.",
        )


def _results(
    arguments: Arguments, group: Group, comm: Communicator
) -> Iterator[Result]:
    """Measure cell after cell, and show each as soon as it is there."""
    fitting_sizes, sentences = _fitting(arguments, comm)
    _show(comm, *sentences)
    bench = _bench(arguments, group, comm)
    for operation, dtype in product(arguments.op, arguments.dtypes):
        names = [peer.name for peer in bench.peers_of(operation)]
        heading = table.heading(operation, dtype, comm.size, bench.placement, names)
        _show(comm, "", heading)
        # Sizes that are rounded to the same one are measured once.
        item = np.dtype(dtype).itemsize
        unit = item if operation == "all_reduce" else item * comm.size
        results: list[Result] = []
        for nbytes in dict.fromkeys(-(-n // unit) * unit for n in fitting_sizes):
            result = bench.cell(operation, dtype, nbytes)
            _show(comm, table.line(result, names), *table.sentences(result))
            results.append(result)
            yield result
        if results:
            notes = filter(None, [table.blocks(results), table.reading(results)])
            _show(comm, table.waits(results), *notes)
    _show(comm, "", table.LEGEND)


def _bench(arguments: Arguments, group: Group, comm: Communicator) -> Bench:
    """Return the bench, with the peers that can take part; show which these are."""
    caller = None
    if arguments.torch:
        try:
            caller, group = peers.connect_popdist(comm)
        except peers.PeerMissingError as error:
            refuse(comm, f"--torch cannot be measured: {error}")
    names = [name for name in arguments.peers if name != "none"]
    present, missing = peers.find(names, comm)
    _show(comm, *missing, *(f"{peer.name} is {peer.library}" for peer in present))
    for peer, operation in product(present, arguments.op):
        if operation not in peer.operations:
            _show(comm, f"{peer.name} is left out of {operation}: it has none.")
    cpus = placement(comm)
    return Bench(
        comm=comm,
        engine=Engine(group, arguments.algorithm, caller=caller),
        peers=present,
        probe=Probe(comm, cpus),
        placement=cpus,
        seconds=arguments.seconds,
        in_arena=arguments.in_arena,
        reads=arguments.read_result,
        load=arguments.load,
    )


def _show(comm: Communicator, *lines: str) -> None:
    """Print lines in the first member, at once."""
    for line in lines if comm.rank == 0 else ():
        print(line, flush=True)


def _fitting(arguments: Arguments, comm: Communicator) -> tuple[list[int], list[str]]:
    """Return the sizes for which all have memory, and a sentence about each other."""
    others = arguments.op != ("all_reduce",)
    copies = sizes.COPIES + arguments.in_arena + 2 * others
    free = -comm.greatest(np.array([-sizes.available_memory()], np.float64))[0]
    return sizes.fitting(arguments.sizes, comm.size, copies, int(free))


def _among(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a function that reads a list of words and refuses unknown ones."""

    def read_list(text: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in text.split(","))
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(
                    f"{word!r} is not one of {', '.join(known)}."
                )
        return words

    return read_list


def _seconds(text: str) -> float:
    seconds = read_duration(text)
    if seconds is None or not 0 < seconds < 3600:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time. Give seconds above 0 and below 3600, as in 0.5."
        )
    return seconds


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= _MOST_LOAD):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of processes. Give one from 0 to {_MOST_LOAD}."
        )
    return int(text)


def _file(text: str) -> Path:
    # Looked at now: the files are written after minutes of measuring.
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written: it is a folder, or its folder does not "
            "exist. Name a file in an existing folder."
        )
    return path


def _picture(text: str) -> Path:
    path = _file(text)
    if path.suffix != ".png":
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the name of a picture. Name a file that ends in .png."
        )
    return path


if __name__ == "__main__":
    main()

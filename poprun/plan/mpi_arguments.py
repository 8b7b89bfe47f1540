"""Reads the arguments for mpirun, of the job and of single instances."""

import os
import time
from collections.abc import Mapping, Sequence

from popdist import environment as env
from poprun.errors import OptionError
from poprun.mpirun.arguments import (
    merge,
    parse_arguments,
    parse_output_directory,
)
from poprun.mpirun.option_table import INSTANCE_ARGS, LOCAL_ARGS
from poprun.mpirun.values import Mpi, MpirunArguments
from poprun.options.settings import Settings
from poprun.plan.host_facts import HostFacts
from poprun.plan.topology import Topology, check_rank
from poprun.plan.values import GivenArguments
from poprun.stdio.output_files import OutputFolder


def read_arguments(settings: Settings, mpi: Mpi, topology: Topology) -> GivenArguments:
    """Return the arguments for mpirun that all options give.

    Raises:
        PoprunError: An argument is unknown, or contradicts another option.
    """
    job = parse_arguments("\n".join(settings["mpi-global-args"]), mpi.flavour)
    each = parse_arguments(
        "\n".join(settings["mpi-local-args"]), mpi.flavour, LOCAL_ARGS
    )
    single = _instance_arguments(settings, mpi, topology.num_instances)
    _check_npernode((job.npernode, each.npernode), topology)
    others = [each, *single.values()]
    if settings["output-filename"] is not None:
        directory, nocopy = parse_output_directory(
            settings["output-filename"], "--output-filename"
        )
        others.append(MpirunArguments(output_filename=directory, output_nocopy=nocopy))
    others.append(_read_root_option(settings))
    return GivenArguments(job=merge(job, others), each=each, single=single)


def read_output_folder(
    settings: Settings, job: MpirunArguments, identity: str
) -> OutputFolder | None:
    """Return where the output of a job is written to files, if anywhere.

    Raises:
        OptionError: Two options name different places.
    """
    if settings["log-dir"] is None:
        if job.output_filename is None:
            return None
        name = job.output_filename
        return OutputFolder("--output-filename", name, job.output_nocopy)
    if job.output_filename is not None:
        raise OptionError(
            f"--log-dir is {settings['log-dir']!r}, and the arguments for mpirun have "
            f"--output-filename {job.output_filename!r}, but a job writes to one of "
            "them. Leave the other one out."
        )
    directory, only_files = parse_output_directory(settings["log-dir"], "--log-dir")
    run = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{identity[:8]}"
    return OutputFolder("--log-dir", directory, only_files, run)


def _read_root_option(settings: Settings) -> MpirunArguments:
    """Read --allow-run-as-root; an error if it is "no" and the user is root."""
    if settings["allow-run-as-root"] is False and os.geteuid() == 0:
        raise OptionError(
            "You are root, and --allow-run-as-root is no "
            f"({settings.origin('allow-run-as-root')}). Leave it out, or run poprun "
            "as another user."
        )
    return MpirunArguments(allow_run_as_root=bool(settings["allow-run-as-root"]))


def find_directories(
    arguments: GivenArguments, topology: Topology, facts: Sequence[HostFacts]
) -> list[str | None]:
    """Return the absolute path of the directory of each instance, if it has its own."""
    ranks = range(topology.num_instances)
    directories = [arguments.directory(rank) for rank in ranks]
    for directory in filter(None, dict.fromkeys(directories)):
        if not os.path.isdir(directory):
            problem = (
                "is not a directory" if os.path.exists(directory) else "does not exist"
            )
            raise OptionError(
                f"--wdir {directory!r} {problem}, so no instance can run in it. "
                "Create it, or name another."
            )
    cwds = [facts[topology.host_of(rank)].cwd for rank in ranks]
    return [
        None if directory is None else os.path.normpath(os.path.join(cwd, directory))
        for cwd, directory in zip(cwds, directories, strict=True)
    ]


def _instance_arguments(
    settings: Settings, mpi: Mpi, num_instances: int
) -> dict[int, MpirunArguments]:
    texts: dict[int, list[str]] = {}
    for rank, text in settings["instance-mpi-local-args"]:
        texts.setdefault(rank, []).append(text)
    for rank in texts:
        check_rank(rank, num_instances, f"{INSTANCE_ARGS} names instance {rank}")
    return {
        rank: parse_arguments("\n".join(own_texts), mpi.flavour, INSTANCE_ARGS)
        for rank, own_texts in texts.items()
    }


def _check_npernode(numbers: Sequence[int | None], topology: Topology) -> None:
    for number in numbers:
        if number is not None and number != topology.instances_per_host:
            raise OptionError(
                f"--npernode {number} contradicts --num-instances and --host, by which "
                f"each host gets {topology.instances_per_host}. Leave --npernode out."
            )


def look_up_exports(
    exports: Mapping[str, str | None], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables to forward, with their values; unset ones are left out."""
    forwarded: dict[str, str] = {}
    for name, value in exports.items():
        if value is not None:
            forwarded[name] = value
        elif name.endswith("*"):
            forwarded |= {
                n: v for n, v in environ.items() if _is_forwarded(n, name[:-1])
            }
        elif name in environ:
            forwarded[name] = environ[name]
    return forwarded


def _is_forwarded(name: str, beginning: str) -> bool:
    is_own = name in env.TOPOLOGY_VARIABLES or name in env.JOB_VARIABLES
    return name.startswith(beginning) and not is_own

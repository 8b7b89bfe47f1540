"""Reads the arguments for mpirun, of the job and of single instances."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence

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
from poprun.plan.topology import Topology, check_rank
from poprun.plan.values import GivenArguments
from poprun.stdio import selection
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
    _check_directory_options(settings, job, each)
    others = [each, *single.values()]
    if settings["output-filename"] is not None:
        directory, nocopy = parse_output_directory(
            settings["output-filename"], "--output-filename"
        )
        others.append(MpirunArguments(output_filename=directory, output_nocopy=nocopy))
    others.append(_read_root_option(settings))
    job = merge(job, others)
    return GivenArguments(job=job, each=each, single=single, cwd=settings["cwd"])


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


def _check_directory_options(
    settings: Settings, job: MpirunArguments, each: MpirunArguments
) -> None:
    wdir = each.wdir or job.wdir
    if settings["cwd"] is not None and wdir is not None and wdir != settings["cwd"]:
        raise OptionError(
            f"--cwd is {settings['cwd']!r}, and the arguments for mpirun have --wdir "
            f"{wdir!r}, but an instance runs in one directory. Leave one of them out."
        )


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


def read_exports(
    settings: Settings,
    arguments: GivenArguments,
    topology: Topology,
    environ: Mapping[str, str],
) -> tuple[dict[str, str], dict[int, dict[str, str]]]:
    """Return the variables that options set in all instances, and in single ones.

    --env counts more than -x, and what names an instance more than what names none.

    Raises:
        OptionError: --env names an instance that the job does not have.
    """
    each: dict[str, str | None] = {}
    single: dict[int, dict[str, str | None]] = {}
    for instances, name, value in settings["env"]:
        if not instances:
            each[name] = value
            continue
        chosen = selection.parse(instances)
        problem = f"--env {instances}:{name} names instance {chosen.largest}"
        check_rank(chosen.largest, topology.num_instances, problem)
        for rank in range(topology.num_instances):
            if rank in chosen:
                single.setdefault(rank, {})[name] = value
    of_each = {**arguments.job.exports, **arguments.each.exports, **each}
    of_single = {
        rank: {**_exports_of(arguments.single.get(rank)), **single.get(rank, {})}
        for rank in {*arguments.single, *single}
    }
    return look_up_exports(of_each, environ), {
        rank: look_up_exports(exports, environ) for rank, exports in of_single.items()
    }


def _exports_of(arguments: MpirunArguments | None) -> Mapping[str, str | None]:
    return {} if arguments is None else arguments.exports


def missing_variables(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable that --env would pass on if it were set."""
    for _, name, value in settings["env"]:
        if value is None and not look_up_exports({name: None}, environ):
            begins = name.removesuffix("*")
            why = f"{name} is not set in poprun's own environment"
            if begins != name:
                why = (
                    "poprun's own environment has no variable that begins with "
                    f"{begins}"
                )
            yield f"--env {name} passes nothing on: {why}."


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

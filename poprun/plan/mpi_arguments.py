"""Reads the arguments for mpirun, of the job and of single instances."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from popdist import environment as env
from poprun.errors import OptionError
from poprun.mpirun.arguments import merge, parse_arguments, parse_output_directory
from poprun.mpirun.option_table import INSTANCE_ARGS, LOCAL_ARGS
from poprun.mpirun.values import Mpi, MpirunArguments
from poprun.options.programs import Program
from poprun.options.settings import Settings
from poprun.output import selection
from poprun.output.output_files import OutputFolder
from poprun.output.selection import Selection
from poprun.plan.topology import Topology, check_rank
from poprun.words import counted, format_ranges


def read_arguments(
    settings: Settings, programs: Sequence[Program], mpi: Mpi, topology: Topology
) -> tuple[MpirunArguments, list[MpirunArguments]]:
    """Return the arguments for mpirun of the job, and of each instance, in rank order.

    The directory for all instances is also in those of each. The variables for all
    are in the job's alone.

    Raises:
        PoprunError: An argument is unknown, or contradicts another option.
    """
    job = parse_arguments("\n".join(settings["mpi-global-args"]), type(mpi))
    each = parse_arguments("\n".join(settings["mpi-local-args"]), type(mpi), LOCAL_ARGS)
    single = _instance_arguments(settings, mpi, topology.num_instances)
    _check_npernode((job.npernode, each.npernode), topology)
    _check_directory_options(programs, job, each)
    others = [each, *single.values(), _read_root_option(settings)]
    if settings["output-filename"] is not None:
        directory, nocopy = parse_output_directory(
            settings["output-filename"], "--output-filename"
        )
        others.append(MpirunArguments(output_filename=directory, output_nocopy=nocopy))
    instances = []
    for rank in range(topology.num_instances):
        own = single.get(rank, MpirunArguments())
        wdir = own.wdir or each.wdir or job.wdir
        passed_on = (*each.passed_on, *own.passed_on)
        instances.append(replace(own, wdir=wdir, passed_on=passed_on))
    exports = {**job.exports, **each.exports}
    return replace(merge(job, others), exports=exports), instances


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
        return OutputFolder(
            option="--output-filename", directory=name, only_files=job.output_nocopy
        )
    if job.output_filename is not None:
        raise OptionError(
            f"--log-dir is {settings['log-dir']!r}, and the arguments for "
            f"mpirun contain --output-filename {job.output_filename!r}, but a "
            "job can write only to one of them. Leave the other one out."
        )
    directory, only_files = parse_output_directory(settings["log-dir"], "--log-dir")
    run = f"{time.strftime('%Y-%m-%d-%H%M%S')}-{identity[:8]}"
    return OutputFolder(
        option="--log-dir", directory=directory, only_files=only_files, run=run
    )


def _read_root_option(settings: Settings) -> MpirunArguments:
    """Read --allow-run-as-root; an error if it is "no" and the user is root."""
    is_root, is_allowed = os.geteuid() == 0, settings["allow-run-as-root"]
    if is_allowed is False and is_root:
        raise OptionError(
            "You are root, and --allow-run-as-root is no "
            f"({settings.origin('allow-run-as-root')}). Leave it out, or run "
            "poprun as another user."
        )
    return MpirunArguments(allow_run_as_root=is_root or bool(is_allowed))


def _check_directory_options(
    programs: Sequence[Program], job: MpirunArguments, each: MpirunArguments
) -> None:
    wdir = each.wdir or job.wdir
    for program in programs:
        if wdir is not None and program.cwd not in (None, wdir):
            raise OptionError(
                f"--cwd is {program.cwd!r}, and the arguments for mpirun have --wdir "
                f"{wdir!r}, but an instance runs in one directory. Leave one of them "
                "out."
            )


def _instance_arguments(
    settings: Settings, mpi: Mpi, num_instances: int
) -> dict[int, MpirunArguments]:
    texts: dict[int, list[str]] = {}
    for rank, text in settings["instance-mpi-local-args"]:
        check_rank(rank, num_instances, f"{INSTANCE_ARGS} names instance {rank}")
        texts.setdefault(rank, []).append(text)
    return {
        rank: parse_arguments("\n".join(own_texts), type(mpi), INSTANCE_ARGS)
        for rank, own_texts in texts.items()
    }


def _check_npernode(numbers: Sequence[int | None], topology: Topology) -> None:
    for number in numbers:
        if number is not None and number != topology.instances_per_host:
            share = counted(topology.instances_per_host, "instance")
            raise OptionError(
                f"--npernode {number} contradicts --num-instances and --host, which "
                f"give each host {share}. Leave --npernode out."
            )


def read_exports(
    programs: Sequence[Program],
    job: MpirunArguments,
    instances: Sequence[MpirunArguments],
    environ: Mapping[str, str],
) -> list[dict[str, str]]:
    """Return the variables that options set in each instance, in rank order.

    --env overrides -x. An option for some instances overrides one for all of them.

    Raises:
        OptionError: --env names an instance that does not run its program.
    """
    single: dict[int, dict[str, str | None]] = {}
    total = programs[-1].instances.stop
    for program in programs:
        of_all = {n: v for ranks, n, v in program.variables if not ranks}
        for rank in program.instances:
            single[rank] = {**of_all, **instances[rank].exports}
        for ranks, name, value in program.variables:
            if ranks:
                chosen = selection.parse(ranks)
                _check_chosen(chosen, program, total, f"--env {ranks}:{name}")
                for rank in filter(chosen.__contains__, program.instances):
                    single[rank][name] = value
    of_job = look_up_exports(job.exports, environ)
    return [{**of_job, **look_up_exports(own, environ)} for own in single.values()]


def _check_chosen(chosen: Selection, program: Program, total: int, option: str) -> None:
    """Check that an option names only instances of the program after it."""
    own = program.instances
    for rank in chain(*(chosen.ranges or ())):
        check_rank(rank, total, f"{option} names instance {rank}")
        if rank not in own:
            raise OptionError(
                f"{option} names instance {rank}, but it stands before "
                f"{program.name!r}, which runs as instance {format_ranges(own)}. Write "
                "it before the program of that instance."
            )


def missing_variables(
    programs: Sequence[Program], environ: Mapping[str, str]
) -> Iterator[str]:
    """Yield a warning for each variable that --env would pass on if it were set."""
    variables = chain(*(program.variables for program in programs))
    for name in dict.fromkeys(n for _, n, value in variables if value is None):
        if not look_up_exports({name: None}, environ):
            problem = f"{name} is not set in poprun's own environment"
            if name.endswith("*"):
                beginning = f"variable that begins with {name[:-1]}"
                problem = f"poprun's own environment has no {beginning}"
            yield f"--env {name} has nothing to pass on: {problem}."


def look_up_exports(
    exports: Mapping[str, str | None], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables to forward, with their values; unset ones are left out."""
    own = {*env.TOPOLOGY_VARIABLES, *env.JOB_VARIABLES}
    forwarded: dict[str, str] = {}
    for name, value in exports.items():
        if value is not None:
            forwarded[name] = value
        elif name.endswith("*"):
            names = [n for n in environ if n.startswith(name[:-1]) and n not in own]
            forwarded |= {n: environ[n] for n in names}
        elif name in environ:
            forwarded[name] = environ[name]
    return forwarded

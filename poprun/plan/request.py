"""Settings -> Request: the mistakes of a job are reported here.

It looks at the machine, the hosts and the mpirun, and changes nothing. Nothing has been
reserved or started when it reports a mistake.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from itertools import count
from typing import Any

from popdist import environment as env
from poprun.errors import HostError, OptionError, TopologyError
from poprun.host_specs import HostSpec, parse_hostfile, parse_hosts
from poprun.log import DEBUG
from poprun.mpirun.find import find_mpirun
from poprun.mpirun.values import Mpi, MpirunArguments
from poprun.options.programs import Program
from poprun.options.settings import Settings
from poprun.options.types import AUTO
from poprun.plan import partition, placement, slurm
from poprun.plan.directories import check_synchronised, find_directory
from poprun.plan.host_facts import HostFacts
from poprun.plan.instance_count import settle_auto
from poprun.plan.mpi_arguments import (
    missing_variables,
    read_arguments,
    read_exports,
    read_output_folder,
)
from poprun.plan.stdin_option import choose_stdin
from poprun.plan.topology import Topology, check_rank
from poprun.plan.values import Assignment, Describe, FindHostServers, Request
from poprun.words import counted

FOR_SEVERAL_HOSTS = ("host-subnet", "synchronise-poplar-sdk")
# They have an effect on a single host, too, if that is not poprun's own.
FOR_OTHER_HOSTS = ("sync", "synchronise-python-venv", "distribute-ssh-key")
_LONGEST_HOSTFILE = 1 << 20
# This many instances on each CPU are probably a mistake.
MANY_INSTANCES = 10
# How long the other instances of a debugged one wait for it in a collective.
DEBUGGED_TIMEOUT_S = 7 * 24 * 3600
# The original forwards these to its instances by name if the caller has them.
FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


def read_request(
    settings: Settings,
    programs: Sequence[Program],
    environ: Mapping[str, str],
    temporary: str,
    describe: Describe,
    find_servers: FindHostServers = lambda options, environ, num_ipus: None,
    identity: str = "",
) -> Request:
    """Return the request of a job, with all that is known before it has its IPUs.

    Args:
        temporary: Where temporary directories are made.
        describe: Returns the facts of each host.
        find_servers: Returns the host servers that a job may go to.
        identity: The id of the job; a new one by default.

    Raises:
        PoprunError: The settings contradict each other, or what they name is missing.
    """
    slurm.check_is_only_task(environ)
    if settings["sync"] is not None:
        check_synchronised(settings["sync"])
    settings, hosts, notes = _read_hosts(settings, environ, find_servers, describe)
    topology = _read_topology(settings, hosts)
    if len(programs) == 1:
        programs = [replace(programs[0], instances=range(topology.num_instances))]
    mpi = find_mpirun(settings["mpirun"], environ)
    job, instances = read_arguments(settings, programs, mpi, topology)
    identity = identity or os.urandom(16).hex()
    output_folder = read_output_folder(settings, job, identity)
    stdin = choose_stdin(settings, topology.num_instances, output_folder)
    facts = describe(hosts)
    request = Request(
        identity=identity,
        topology=topology,
        programs=programs,
        hosts=hosts,
        facts=facts,
        mpi=mpi,
        arguments=job,
        assignments=[],
        stdin=stdin,
        output_folder=output_folder,
        needs_ipus=settings.needs_ipus,
        subnet=_read_subnet(settings["host-subnet"], hosts, facts),
    )
    assignments = list(_assignments(request, settings, environ, instances))
    notes = [*_notes(request, settings, environ), *notes]
    request = replace(request, assignments=assignments, notes=notes)
    return _add_variables(request, settings, environ, temporary)


def _add_variables(
    request: Request, settings: Settings, environ: Mapping[str, str], temporary: str
) -> Request:
    """Add all that becomes variables of the instances."""
    cache_path = settings["executable-cache-path"]
    cache_path = cache_path or environ.get(env.EXECUTABLE_CACHE_PATH)
    shares_host = request.topology.instances_per_host > 1
    cache_is_temporary = cache_path is None and shares_host
    if cache_is_temporary:
        cache_path = f"{temporary}/poprun-cache-{request.identity}"
    elif cache_path is not None:
        # Instances may run in directories of their own.
        cache_path = os.path.abspath(cache_path)
    return replace(
        request,
        cache_path=cache_path,
        cache_is_temporary=cache_is_temporary,
        target_options=_target_options(environ),
        settings_variables=_settings_variables(settings, environ, request.mpi),
        forwarded=[name for name in FORWARDED if name in environ],
        partition_options=partition.read_options(settings, environ),
    )


def _read_subnet(
    subnet: str | None, hosts: Sequence[HostSpec], facts: Sequence[HostFacts]
) -> str:
    """Return the network between the hosts that MPI uses, "" if it is not known.

    Args:
        subnet: The value of --host-subnet.

    Raises:
        HostError: A host has addresses, but none in that network.
    """
    if not subnet:
        networks = {host.network for host in facts}
        return networks.pop() if len(networks) == 1 else ""
    network = ip_network(subnet, strict=False)
    strays = [
        f"The host {host.name} is not on the network {network} of --host-subnet: its "
        f"addresses are {', '.join(host_facts.addresses)}. Name a network that all "
        "hosts are on, or leave the option out."
        for host, host_facts in zip(hosts, facts, strict=True)
        if host_facts.addresses
        and not any(ip_address(text) in network for text in host_facts.addresses)
    ]
    if strays:
        raise HostError("\n".join(strays))
    return subnet


def _notes(
    request: Request, settings: Settings, environ: Mapping[str, str]
) -> Iterator[str]:
    """Yield warnings about options without effect, and about too many instances."""
    yield from request.arguments.warnings
    yield from missing_variables(request.programs, environ)
    is_named = settings.is_given("host") or settings.is_given("hostfile")
    # A dry run connects to no host: it learns neither which one it is nor its CPUs.
    is_unknown = settings["dry-run"] and is_named
    if len(request.hosts) > 1:
        if settings["synchronise-poplar-sdk"]:
            yield (
                "--synchronise-poplar-sdk copies nothing: there is no Poplar SDK here, "
                "because programs use the stand-in that comes with popdist."
            )
    else:
        may_be_other = is_unknown or request.names_hosts
        for name in FOR_SEVERAL_HOSTS + (() if may_be_other else FOR_OTHER_HOSTS):
            if settings[name]:
                yield f"--{name} has no effect on a job on a single host."
    share = request.topology.instances_per_host
    num_cpus = [host_facts.num_usable_cpus for host_facts in request.facts]
    fewest = min(num_cpus)
    if share >= MANY_INSTANCES * fewest and not is_unknown:
        yield (
            f"{share} instances share the {counted(fewest, 'usable CPU')} of "
            f"{request.hosts[num_cpus.index(fewest)].name}. -n auto starts one for "
            "each CPU."
        )


def _read_hosts(
    settings: Settings,
    environ: Mapping[str, str],
    find_servers: FindHostServers,
    describe: Describe,
) -> tuple[Settings, Sequence[HostSpec], list[str]]:
    """Return the settings without auto, the hosts of the job, and notes for the user.

    If the user names none, they are the nodes of the Slurm job that poprun runs in;
    outside of Slurm it is this machine, or as many host servers of the job's cluster
    as it needs, if it is too large for one.
    """
    notes = []
    named = read_named_hosts(settings)
    # Below Slurm the node has a name that its users know it by.
    here = HostSpec(name=environ.get(slurm.NODE_NAME) or "localhost")
    hosts, allocation = named or [here], None
    if named is None:
        try:
            allocation = slurm.read_job(environ)
        except HostError as error:
            notes.append(f"{error} All instances run on this machine.")
    if allocation is not None:
        hosts = allocation.nodes
    settings, auto_notes = settle_auto(settings, hosts, describe)
    if allocation is not None:
        number = settings["num-instances"]
        hosts, notes = slurm.choose_nodes(allocation, number, environ)
    elif named is None and not notes:
        servers = partition.choose_host_servers(settings, environ, find_servers)
        hosts = parse_hosts(",".join(servers)) if servers else hosts
    return settings, hosts, auto_notes + notes


def read_named_hosts(
    settings: Settings | Mapping[str, Any],
) -> Sequence[HostSpec] | None:
    """Return the hosts that the user names."""
    if settings["host"] is not None:
        return parse_hosts(settings["host"])
    if settings["hostfile"] is not None:
        path = settings["hostfile"]
        try:
            with open(path, encoding="utf-8", newline="") as file:
                text = file.read(_LONGEST_HOSTFILE + 1)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise OptionError(
                f"--hostfile {path!r} cannot be read: {reason}."
            ) from None
        if len(text) > _LONGEST_HOSTFILE:
            raise OptionError(
                f"--hostfile {path!r} has more than {_LONGEST_HOSTFILE} characters, "
                "more than any list of hosts has. Name another file."
            )
        return parse_hostfile(text, path)
    return None


def _check_topology(
    settings: Settings, hosts: Sequence[HostSpec], topology: Topology
) -> None:
    """Check the slots of each host and the number in --only-output-from-instance."""
    if (selection := settings["only-output-from-instance"]) is not None:
        problem = f"--only-output-from-instance names {selection.largest}"
        check_rank(selection.largest, topology.num_instances, problem)
    share = topology.instances_per_host
    for host in hosts:
        if host.slots is not None and host.slots < share:
            raise OptionError(
                f"The host {host} has fewer slots than instances: each host gets "
                f"{counted(share, 'instance')}. Give it {share} slots, or ask for "
                "fewer instances with --num-instances."
            )


def _read_topology(settings: Settings, hosts: Sequence[HostSpec]) -> Topology:
    instances = settings["num-instances"]
    try:
        topology = Topology(
            num_instances=instances,
            num_replicas=settings["num-replicas"],
            ipus_per_replica=settings["ipus-per-replica"],
            num_ilds=settings["num-ilds"],
            num_hosts=len(hosts),
        )
    except TopologyError as error:
        texts = settings.entries["num-instances"].texts
        is_auto = bool(texts) and texts[-1].lower() == AUTO
        if not settings.is_given("num-replicas"):
            number = AUTO if is_auto else instances
            error.add_note(
                "Without --num-replicas a job has 1 replica. For one replica in "
                f"each instance add --num-replicas {number}, or write -n {number} "
                f"instead of --num-instances {number}."
            )
        elif is_auto:
            error.add_note(
                f"--num-instances auto is {instances} here. Write a number instead."
            )
        elif slurm.is_of_slurm(settings.origin("num-instances")):
            error.add_note(
                "The instances are the tasks of the Slurm job. For another number "
                "write --num-instances N."
            )
        raise
    _check_topology(settings, hosts, topology)
    return topology


def _target_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Read the Poplar target options that the caller has set."""
    text = environ.get(env.POPLAR_TARGET_OPTIONS, "")
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise OptionError(
            f"{env.POPLAR_TARGET_OPTIONS} is {text[:100]!r}, but must be a JSON object "
            'such as {"ipuLinkTopology":"mesh"}. Unset it if you do not need it.'
        )
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in options.items()
    }


def _settings_variables(
    settings: Settings, environ: Mapping[str, str], mpi: Mpi
) -> dict[str, str]:
    """Return the variables that pass options on to popdist in every instance."""
    # -vv and --debug make popdist log, unless the caller has set a level.
    logs = settings.verbosity >= DEBUG
    waits = settings["pdb"] is not None and not environ.get(env.TIMEOUT)
    variables = {
        env.TIMEOUT: str(DEBUGGED_TIMEOUT_S) if waits else None,
        env.MPI4PY_LIBMPI: None if env.MPI4PY_LIBMPI in environ else mpi.libmpi,
        env.LOG_LEVEL: "debug" if logs and not environ.get(env.LOG_LEVEL) else None,
        env.SDK: settings["emulate-sdk"] if settings.is_given("emulate-sdk") else None,
        env.TORCH_BACKEND: _torch_backend(settings, environ),
        env.TORCH_MAX_RESTARTS: str(settings["max-restarts"]),
        env.OFFLINE_BECAUSE_OF: settings.offline_because_of or None,
    }
    return {name: value for name, value in variables.items() if value is not None}


def _torch_backend(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Return what --torch-backend asks for; None where the caller's own value counts.

    Raises:
        OptionError: The backend would not be used.
    """
    option = settings["torch-backend"] if settings.is_given("torch-backend") else None
    backend = option or environ.get(env.TORCH_BACKEND) or "gloo"
    if backend not in ("gloo", "popdist"):
        raise OptionError(
            f"{env.TORCH_BACKEND} is {backend!r}, but must be gloo or popdist. Unset "
            "it, or use --torch-backend."
        )
    if backend == "popdist" and environ.get(env.TORCH_AUTOLOAD) == "0":
        raise OptionError(
            f"--torch-backend=popdist has no effect with {env.TORCH_AUTOLOAD}=0, which "
            "keeps torch from loading backends that are installed. Unset that variable."
        )
    return option


def _assignments(
    request: Request,
    settings: Settings,
    environ: Mapping[str, str],
    instances: Sequence[MpirunArguments],
) -> Iterator[Assignment]:
    """Yield the instances in rank order, without the variables that a plan adds.

    Args:
        request: A request without assignments.
        instances: The arguments for mpirun of each instance.
    """
    job, programs = request.arguments, request.programs
    option, share = "process-placement", request.topology.instances_per_host
    chosen = settings[option] if settings.is_given(option) else job.placement
    strategy = placement.choose_strategy(settings["numa-aware"], chosen, share)
    all_exports = read_exports(programs, job, instances, environ)
    programs = [program for program in programs for _ in program.instances]
    of_ranks = zip(count(), programs, instances, all_exports, strict=False)
    for host, facts in zip(request.hosts, request.facts, strict=True):
        bindings = placement.place(strategy, share, facts.machine)
        threads = placement.fair_threads(bindings, facts.machine)
        for binding, number in zip(bindings, threads, strict=True):
            rank, program, own, exports = next(of_ranks)
            yield Assignment(
                rank=rank,
                program=program,
                host=host,
                facts=facts,
                binding=binding,
                directory=find_directory(own.wdir or program.cwd, facts),
                threads=None if env.OMP_NUM_THREADS in environ else number,
                passed_on=own.passed_on,
                exports=exports,
            )

"""The one table of all options.

The command line, the help, completion, variables, configuration files and the docs all
read the options from it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from poprun.options import types
from poprun.options.types import Item, Option

_SPELLING = re.compile(
    r"(?:-(?P<short>\w), )?(?P<names>--[\w-]+(?:, --[\w-]+)*) ?(?P<metavar>.*)"
)


# Any, because the fields of an option have various types; the tests check the table.
def _option(
    read: Callable[[Option, str], Item], spelling: str, **fields: Any
) -> Option:
    """Return an option; the table adds its help.

    Args:
        spelling: All names and the placeholder of the value: -H, --host HOSTS.
        fields: Other fields of Option.
    """
    match = _SPELLING.fullmatch(spelling)
    assert match, spelling
    name, *aliases = match["names"].removeprefix("--").split(", --")
    metavar = match["metavar"]
    if read is types.read_choice:
        fields.setdefault("choices", tuple(metavar.split("|")))
    return Option(
        read=read,
        name=name,
        spelling=spelling,
        metavar=metavar,
        short=match["short"] or "",
        aliases=tuple(aliases),
        flag=f"--{name}",
        **fields,
    )


def _switch(name: str, **fields: Any) -> Option:
    return _option(types.read_boolean, f"{name} YES|NO", **{"default": False, **fields})


_number = partial(_option, types.read_whole)
_number_or_auto = partial(_option, types.read_whole, takes_auto=True)
_seconds = partial(_option, types.read_seconds)
_text = partial(_option, types.read_text)
_path = partial(_option, types.read_path)
_choice = partial(_option, types.read_choice)
_flag = partial(_option, types.read_boolean, takes_value=False, default=False)
_repeated = partial(_option, default=(), multiple=True)
_mpi_arguments = partial(_repeated, types.read_mpi_arguments)
_instance_arguments = partial(_repeated, types.read_instance_arguments)
_variables = partial(_repeated, types.read_environment)

# Each option with its help, in the order of the help.
_TABLE: Mapping[str, Mapping[Option, str]] = {
    "Topology": {
        _number_or_auto("--num-instances N", default=1): "How many processes of the "
        "program to start. The replicas are divided equally among them. auto: one for "
        "each usable CPU, or for each slot of the hosts. In a Slurm job the default "
        "is the number of its tasks.",
        _number_or_auto("--num-replicas R", default=1): "How many copies of the model "
        "the job has in total. auto: one for each instance.",
        _number_or_auto("-n, --num-processes, --np, --nproc N"): "Start N instances "
        "with one replica each, like mpirun's -n: the same as --num-instances N, with "
        "--num-replicas N unless that is given. N may be auto. The job has no IPUs "
        "unless another option is about replicas, IPUs or V-IPU.",
        _number("--ipus-per-replica P", default=1): "How many IPUs each replica gets.",
        _number("--num-ilds D", default=1): "How many IPU-Link domains the replicas "
        "are spread over.",
        _switch("--print-topology"): "Show which replicas belong to which "
        "instance, and on which host.",
        _choice("--topology-format text|json", default="text"): "The format of "
        "--print-topology: a table, or JSON for other programs.",
    },
    "Program": {
        _variables("--env [SET:]NAME[=VALUE]"): "Set a variable in all instances on "
        "all hosts, or in some of them, as in 0,2-3:NAME=VALUE. NAME alone passes on "
        "poprun's own value, and NAME* all variables that begin with NAME. Can be "
        "repeated; all are used.",
        _path("--cwd, --wdir DIR", unset="poprun's own"): "The directory in which the "
        "instances run, on all hosts.",
    },
    "Hosts": {
        _text("-H, --host HOSTS", unset="this host"): "The hosts to start instances "
        "on, such as a,b or node[0-2,4]. The instances are divided equally among "
        "them.",
        _path("--hostfile, --host-file FILE"): "A file that lists the hosts, one per "
        "line. Cannot be combined with --host.",
        _choice(
            "--process-placement spreadnuma|spreadcores|disabled", default="spreadnuma"
        ): "Which cores each instance may use: its share of the host's NUMA nodes "
        "(spreadnuma), its share of the cores (spreadcores), or all of them "
        "(disabled).",
        _switch(
            "--numa-aware",
            default=None,
            unset="automatic: yes with several instances on a host",
        ): "Assign the instances to the NUMA nodes in turn. This is the older form of "
        "--process-placement, which overrides it.",
        _option(
            types.read_subnet, "--host-subnet CIDR", unset="automatic"
        ): "The network that instances use between the hosts, such as 10.5.0.0/16.",
        _text("--ssh COMMAND", default="ssh"): "The command that runs programs on "
        "the other hosts: ssh with options, such as 'ssh -F my_config', or another.",
        _path("--sync DIR"): "First copy this folder to the same path on the other "
        "hosts; --sync . copies the current directory. Nothing is deleted there. "
        ".git, caches and virtual environments are left out.",
        _switch("--synchronise-python-venv"): "First copy the active virtual "
        "environment to the other hosts.",
        _switch("--synchronise-poplar-sdk"): "Has no effect: programs use the "
        "stand-in for the SDK that comes with popdist.",
        _switch("--distribute-ssh-key"): "First install your SSH key on the "
        "other hosts, which may ask for passwords.",
    },
    "V-IPU": {
        _switch(
            "--offline-mode",
            default=None,
            unset="automatic: yes with -n, unless an option is about replicas, IPUs or "
            "V-IPU; otherwise only if no option asks for IPUs and no inventory can be "
            "stored",
        ): "Run without IPUs and without V-IPU.",
        _text("--vipu-server-host HOST", default="localhost"): "The name or address "
        "of the V-IPU server. By default it is the server that the environment or "
        "vipu's configuration names; if there is none, the inventory of emulated IPUs "
        "of this user on this machine.",
        _number(
            "--vipu-server-port PORT", default=8090, maximum=65535
        ): "The port of the V-IPU server.",
        _option(
            types.read_whole_seconds, "--vipu-server-timeout TIME", default=10
        ): "How long to wait for the V-IPU server to reply.",
        _text(
            "--vipu-partition NAME",
            unset="the only existing one, or a new one for this job",
        ): "The partition to run on. It is created if it does not exist.",
        _number("--vipu-partition-attempts N", default=1): "How many times to try to "
        "activate the partition.",
        _option(
            types.read_wait, "--wait-for-ipus[=TIME]", default=False, takes_value=False
        ): "If the IPUs are in use, wait until they are free, for at most TIME. "
        "Waiting jobs get them in the order in which they started to wait.",
        _switch("--update-partition"): "Change an existing partition if it "
        "does not fit the job.",
        _switch(
            "--reset-partition",
            default=None,
            unset="automatic: yes unless the partition is reconfigurable",
        ): "Reset the partition before the program starts.",
        _switch("--remove-partition", default=True): "Remove the partition "
        "afterwards if this job created it.",
        _text("--vipu-allocation NAME"): "The allocation from which a new partition "
        "takes its IPUs.",
        _text("--vipu-cluster NAME"): "The cluster from which a new partition takes "
        "its IPUs. Deprecated: use --vipu-allocation.",
        _choice(
            "--ipu-link-routing-type TYPE",
            choices=("default", "dnc", "swnc", "ringswnc", "btnc"),
            prefixes=("rt_", "irt_"),
            unset="chosen by V-IPU",
        ): "How the partition routes over IPU-Links: default, dnc, swnc, ringswnc or "
        "btnc.",
        _choice(
            "--gw-link-routing-type TYPE",
            choices=("default",),
            prefixes=("rt_",),
            unset="chosen by V-IPU",
        ): "How the partition routes over GW-Links: default.",
        _choice(
            "--sync-type TYPE",
            choices=("c2-compatible", "pod-native-default"),
            prefixes=("st_",),
            unset="chosen by V-IPU",
        ): "How the IPUs of the partition synchronise: c2-compatible or "
        "pod-native-default, also written as ST_POD_NATIVE_DEFAULT.",
        _path(
            "--executable-cache-path DIR",
            unset="a temporary directory if instances share a host",
        ): "Where compiled executables are kept for later runs.",
    },
    "MPI": {
        _mpi_arguments("--mpi-global-args ARGS"): "Arguments for mpirun itself, such "
        'as "--tag-output". Can be repeated; all are used.',
        _mpi_arguments("--mpi-local-args ARGS"): "Arguments for mpirun that apply to "
        'every instance, such as "-x NAME=VALUE". Can be repeated; all are used.',
        _instance_arguments("--instance-mpi-local-args INDEX:ARGS"): "Arguments for "
        'mpirun that apply to one instance, such as "1:-x NAME=VALUE". Can be '
        "repeated; all are used.",
        _switch(
            "--allow-run-as-root", default=None, unset="yes"
        ): "Whether root may start the job. With no, poprun refuses to run as root.",
        _path(
            "--mpirun PATH",
            unset="the one in this virtual environment, or the first on PATH",
        ): "The mpirun to use.",
    },
    "Output": {
        _path("--output-filename DIR"): "Also write the output of each instance to "
        "DIR/1/rank.N/stdout and stderr; with :nocopy after DIR, write it only there. "
        "As with mpirun, the next run writes to the same files.",
        _path("--log-dir DIR"): "Like --output-filename, but in a new folder for each "
        "run: DIR/RUN/attempt-0 has rank.N/stdout and stderr, and DIR/latest is a "
        "link to the last RUN.",
        _option(
            types.read_instances,
            "--only-output-from-instance SET",
            choices=("all", "first", "failed"),
            unset="all",
        ): "Show only the output of these instances, such as 0,4-7. first means "
        "instance 0. failed means the instances that fail: the last 1 MiB of their "
        "output is shown when they do. Both can be combined, as in first,failed. Use "
        "this option with care, because it also hides the errors of the other "
        "instances.",
        _option(
            types.read_tag_format,
            "--tag-format FORMAT",
            default="auto",
            choices=("auto", "none", "short", "poprun"),
        ): "The tag in front of each line of output: none, short (the index of the "
        "instance), poprun (PopRun's form), or a template of {instance}, {host}, "
        "{local_instance}, {stream} and {time}, such as '{time:%H:%M:%S} "
        "{host}/{instance} '. Times are in UTC. auto: the form that --tag-output in "
        "--mpi-global-args asks for; without it, short for several instances on a "
        "terminal.",
        _choice(
            "--color auto|always|never", default="auto", in_file=False
        ): "Whether tags, messages and help are coloured. auto: on a terminal, or if "
        "FORCE_COLOR is set; in both cases not if NO_COLOR is set.",
        _path("--trace FILE"): "Write a timeline of the job to this file: what the "
        "launcher and the instances do, and all their collectives. Perfetto and "
        "'popctl trace' read it.",
        _path("--stdin none|INDEX|all|FILE", default="none"): "Which instances read "
        "poprun's standard input: none, the one with this INDEX, or all; or a file "
        "that all of them read instead.",
        _switch("--progress", default=True): "Show a status line on stderr "
        "while the job runs, if stderr is a terminal.",
        _flag(
            "--summary",
            default=None,
            unset="after a failure, one line about all instances",
        ): "At the end, show for each instance how it ended, how long it ran, its CPU "
        "time and its peak memory.",
        _path("--result FILE"): "Write how the job ended to this file as JSON, even "
        "if it could not be started.",
        _path("--events FILE"): "Write what happens during the job to this file while "
        "it runs, as one JSON object per line.",
        _choice("--tty auto|yes|no", default="auto"): "Whether the instances' stdout "
        "and stderr are terminals. auto: only those that are terminals for poprun.",
        _flag("-q, --quiet"): "Show nothing from poprun itself but errors: no "
        "warnings, no status line, no summary.",
        _option(
            types.read_count, "-v, --verbose", default=0, takes_value=False, minimum=0
        ): "Log what poprun does.",
        _flag("--vv"): "Log in detail what poprun does, with the topology. The same "
        "as -vv.",
    },
    "Limits": {
        _seconds("--timeout TIME", unset="no limit"): "Stop the job after this time.",
        _seconds("--start-timeout TIME", default=60.0): "Stop the job if not all "
        "instances have started after this time.",
        _seconds("--grace TIME", default=5.0): "How long to wait for instances to "
        "exit before killing them.",
        _flag("--keep-going"): "Do not stop the other instances when one fails.",
        _number("--max-restarts N", default=0, minimum=0): "How many times to start "
        "the job again after an instance, a host or mpirun has failed. poprun waits "
        "1, 2, 4, ... and at most 60 seconds before each restart.",
    },
    "Elastic jobs": {
        _number("--min-instances M", unset="--num-instances"): "Start the job, and "
        "start it again, as long as the hosts that can be used have room for M "
        "instances. It has as many as they have room for, but at most --num-instances. "
        "With --max-restarts it is stopped and started again when there is more room.",
        _option(types.read_range, "--nnodes MIN:MAX", unset="all hosts"): "The same in "
        "hosts, as in torchrun: the job starts on at least MIN hosts and at most MAX. "
        "--num-instances is the number on MAX hosts.",
        _text("--host-discovery-script COMMAND"): "A command that prints the hosts "
        "that can be used now, one per line, such as node-1:2 with its slots. It is "
        "run before each attempt, and with --max-restarts every 10 s. A host that it "
        "no longer prints leaves the job. Cannot be combined with --host and "
        "--hostfile.",
        _flag("--fixed-replicas"): "Keep the number of replicas of the whole job when "
        "the number of instances changes. Otherwise each instance keeps its own.",
    },
    "Frameworks": {
        _choice("--emulate-sdk auto|yes|no", default="auto"): "Whether instances can "
        "import popdist's stand-ins for poptorch, horovod, popart and "
        "tensorflow.python.ipu. Packages that are installed are used instead. yes: if "
        "the stand-ins cannot be imported, stop with an error that says why.",
        _choice("--torch-backend gloo|popdist", default="gloo"): "What "
        "torch.distributed uses when a program asks for gloo, or for no backend on a "
        "machine without a GPU: gloo itself, or popdist's shared memory.",
    },
    "Debug and general": {
        _flag("-h, --help", in_environment=False, in_file=False): "Show this page.",
        # Not from the environment: many users name a variable POPRUN_VERSION that holds
        # the version to install.
        _flag("--version", in_environment=False, in_file=False): "Show the version.",
        _choice(
            "--version-format text|full-text|full-json",
            default="text",
            in_environment=False,
            in_file=False,
        ): "The format of --version. The full ones list everything that poprun uses.",
        _flag("--dry-run", in_file=False): "Show the mpirun command and every "
        "instance's environment without starting anything.",
        _flag("--show-config", in_file=False): "Show the value of every option and "
        "where it comes from.",
        _path("--import-config FILE", in_file=False): "Read options from this YAML "
        "file. Variables named POPRUN_<OPTION> override it, and the command line "
        "overrides both.",
        _path("--export-config FILE", in_file=False): "Write the options that are "
        "given to this YAML file.",
        _switch("--overwrite-config", in_file=False): "Let --export-config "
        "replace an existing file.",
        _flag("--json"): "Print JSON with --dry-run, --show-config, --version and "
        "--print-topology. For a job, print its result as the last line of stdout.",
        _number("--pdb INSTANCE", minimum=0, in_file=False): "Give the terminal to "
        "the debugger of this instance, which must be a Python program: at "
        "breakpoint(), at an uncaught exception and at Ctrl-C. The other instances "
        "keep running until it ends, and --timeout does not count the time at its "
        "prompt.",
        _switch("--debug"): "Show more about why a job fails.",
    },
}

GROUPS: Mapping[str, tuple[Option, ...]] = {
    title: tuple(replace(option, help=text) for option, text in group.items())
    for title, group in _TABLE.items()
}
OPTIONS: Mapping[str, Option] = {o.name: o for group in GROUPS.values() for o in group}
# Every long name, aliases too.
BY_NAME: Mapping[str, Option] = {
    name: option for option in OPTIONS.values() for name in option.names
}
BY_SHORT: Mapping[str, Option] = {o.short: o for o in OPTIONS.values() if o.short}

# Two options about the same thing: given nearer to the user (say, on the command
# line), either of them silences the other farther away (in a file).
_EXCLUSIVE_PAIRS = (
    ("num-instances", "num-processes"),
    ("host", "hostfile"),
    ("output-filename", "log-dir"),
    ("min-instances", "nnodes"),
)
_RIVAL_PAIRS = (
    *_EXCLUSIVE_PAIRS,
    ("process-placement", "numa-aware"),
    ("vipu-allocation", "vipu-cluster"),
    ("verbose", "vv"),
)
RIVALS = {a: b for pair in _RIVAL_PAIRS for a, b in (pair, pair[::-1])}
# The rivals that may not be given in one place at all.
EXCLUSIVE = {name for pair in _EXCLUSIVE_PAIRS for name in pair}

# The options before each program, where a job has several programs.
OF_ONE_PROGRAM = ("num-instances", "num-processes", "env", "cwd")

# Each of these asks for a partition, unless --offline-mode is given.
VIPU_OPTIONS = [
    option.name
    for option in GROUPS["V-IPU"]
    if option.name not in ("offline-mode", "executable-cache-path")
]

# A job with -n runs without IPUs if none of these is given.
IPU_OPTIONS = ["num-replicas", "ipus-per-replica", "num-ilds", *VIPU_OPTIONS]

# The options that PopRun does not have. Prefixes are looked up among the others first,
# so that none of these makes a vendor's command line ambiguous.
_ADDED = """
    num-processes topology-format wait-for-ipus mpirun output-filename log-dir
    tag-format color trace stdin progress tty timeout start-timeout grace keep-going
    emulate-sdk torch-backend dry-run show-config ssh summary result events json
    max-restarts pdb quiet env cwd sync min-instances nnodes host-discovery-script
    fixed-replicas
"""
ADDED = frozenset(_ADDED.split())

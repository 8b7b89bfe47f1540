"""The one table of all options.

The command line, the help, completion, variables, configuration files and the docs all
read the options from it.
"""

from collections.abc import Mapping
from functools import partial

from poprun.options import types
from poprun.options.types import Option
from poprun.stdio import selection
from poprun.texts import color

_switch = partial(Option, types.read_boolean, metavar="YES|NO", default=False)
_flag = partial(Option, types.read_boolean, takes_value=False, default=False)
_number = partial(Option, types.read_whole)
_number_or_auto = partial(Option, types.read_whole_or_auto)
_seconds = partial(Option, types.read_seconds, metavar="TIME")
_text = partial(Option, types.read_text)
_path = partial(Option, types.read_path)
_choice = partial(Option, types.read_choice)
_arguments = partial(
    Option, types.read_mpi_arguments, metavar="ARGS", default=(), multiple=True
)

# In the order of the help.

_TOPOLOGY = (
    _number_or_auto(
        "num-instances",
        "How many processes of the program to start. The replicas are divided equally "
        "among them. auto: one for each CPU that may be used, or for each slot of the "
        "hosts. In a Slurm job the default is the number of its tasks.",
        "N",
        default=1,
        rival="num-processes",
        exclusive=True,
    ),
    _number_or_auto(
        "num-replicas",
        "How many copies of the model the whole job has. auto: one for each instance.",
        "R",
        default=1,
    ),
    _number_or_auto(
        "num-processes",
        "N instances of one replica each, as mpirun's -n: the same as --num-instances "
        "N, and as --num-replicas N where that is not given. N may be auto. Such a job "
        "has no IPUs, unless an option about replicas, IPUs or V-IPU is given, too.",
        "N",
        short="n",
        aliases=("np", "nproc"),
        rival="num-instances",
        exclusive=True,
    ),
    _number("ipus-per-replica", "How many IPUs each replica gets.", "P", default=1),
    _number(
        "num-ilds",
        "How many IPU-Link domains the replicas are spread over.",
        "D",
        default=1,
    ),
    _switch(
        "print-topology", "Show which replicas belong to which instance, on which host."
    ),
    _choice(
        "topology-format",
        "Show it, as a table or for other programs.",
        choices=("text", "json"),
        default="text",
    ),
)

_PROGRAM = (
    Option(
        types.read_environment,
        "env",
        "Set a variable in all instances on all hosts, or in some, as in "
        "0,2-3:NAME=VALUE. NAME alone passes on the value in poprun's own "
        "environment, and NAME* all that begin so. May be repeated; all are used.",
        metavar="[SET:]NAME[=VALUE]",
        default=(),
        multiple=True,
    ),
    _path(
        "cwd",
        "The directory that the instances run in, on all hosts.",
        "DIR",
        aliases=("wdir",),
        unset="that of poprun",
    ),
)

_HOSTS = (
    _text(
        "host",
        "The hosts to start instances on, as in a,b or node[0-2,4]. They share the "
        "instances equally.",
        "HOSTS",
        short="H",
        unset="this host",
        rival="hostfile",
        exclusive=True,
    ),
    _path(
        "hostfile",
        "A file that lists the hosts, one per line. Not together with --host.",
        "FILE",
        aliases=("host-file",),
        rival="host",
        exclusive=True,
    ),
    _choice(
        "process-placement",
        "Which cores each instance may use: its share of the host's NUMA nodes, its "
        "share of the cores, or all.",
        choices=("spreadnuma", "spreadcores", "disabled"),
        default="spreadnuma",
        rival="numa-aware",
    ),
    _switch(
        "numa-aware",
        "Assign the instances to the NUMA nodes in turn. The older form of "
        "--process-placement, which overrides it.",
        unset="automatic: yes with several instances on a host",
        rival="process-placement",
        default=None,
    ),
    Option(
        types.read_subnet,
        "host-subnet",
        "The network between the hosts that MPI uses, such as 10.5.0.0/16.",
        metavar="CIDR",
        unset="automatic",
    ),
    _text(
        "ssh",
        "The command that reaches other hosts, with options, as in 'ssh -F my_config'.",
        "COMMAND",
        default="ssh",
    ),
    _path(
        "sync",
        "Copy this folder to the same path on the other hosts first, as in --sync . "
        "for the current directory. Nothing is deleted there, and .git, caches and "
        "virtual environments are left out.",
        "DIR",
    ),
    _switch(
        "synchronise-python-venv",
        "Copy the active virtual environment to the other hosts first.",
    ),
    _switch(
        "synchronise-poplar-sdk",
        "Copies nothing: programs use the stand-in for the SDK that popdist has.",
    ),
    _switch(
        "distribute-ssh-key",
        "Make the other hosts accept your SSH key first; they may ask for passwords.",
    ),
)

_VIPU = (
    _switch(
        "offline-mode",
        "Run without IPUs and without V-IPU.",
        unset="automatic: yes with -n, unless an option is about replicas, IPUs or "
        "V-IPU; otherwise only if no option asks for IPUs and no inventory can be kept",
        default=None,
    ),
    _text(
        "vipu-server-host",
        "Name or address of the V-IPU server. Without it the server that the "
        "environment or the configuration of vipu names, else the inventory of "
        "emulated IPUs of this user on this machine.",
        "HOST",
        default="localhost",
    ),
    _number(
        "vipu-server-port",
        "Port of the V-IPU server.",
        "PORT",
        default=8090,
        maximum=65535,
    ),
    Option(
        types.read_whole_seconds,
        "vipu-server-timeout",
        "How long to wait for a reply of the V-IPU server.",
        metavar="TIME",
        default=10,
    ),
    _text(
        "vipu-partition",
        "The partition to run on. It is created if it does not exist.",
        "NAME",
        unset="the only one there is, or one for this job",
    ),
    _number(
        "vipu-partition-attempts",
        "How often to try to activate the partition.",
        "N",
        default=1,
    ),
    Option(
        types.read_wait,
        "wait-for-ipus",
        "If the IPUs are in use, wait until they are free, for so long at most. Jobs "
        "get them in the order in which they have begun to wait.",
        takes_value=False,
        metavar="[=TIME]",
        default=False,
    ),
    _switch(
        "update-partition", "Change an existing partition that does not fit the job."
    ),
    _switch(
        "reset-partition",
        "Reset the partition before the program starts.",
        unset="automatic: yes unless the partition is reconfigurable",
        default=None,
    ),
    _switch(
        "remove-partition",
        "Remove the partition afterwards, if this job created it.",
        default=True,
    ),
    _text(
        "vipu-allocation",
        "The allocation to take the IPUs of a new partition from.",
        "NAME",
        rival="vipu-cluster",
    ),
    _text(
        "vipu-cluster",
        "The cluster to take the IPUs of a new partition from. Deprecated: "
        "use --vipu-allocation.",
        "NAME",
        rival="vipu-allocation",
    ),
    _choice(
        "ipu-link-routing-type",
        "How the partition routes over IPU-Links: default, dnc, swnc, ringswnc or "
        "btnc.",
        metavar="TYPE",
        choices=("default", "dnc", "swnc", "ringswnc", "btnc"),
        prefixes=("rt_", "irt_"),
        unset="V-IPU's",
    ),
    _choice(
        "gw-link-routing-type",
        "How the partition routes over GW-Links: default.",
        metavar="TYPE",
        choices=("default",),
        prefixes=("rt_",),
        unset="V-IPU's",
    ),
    _choice(
        "sync-type",
        "How the IPUs of the partition synchronise: c2-compatible or "
        "pod-native-default, also written as ST_POD_NATIVE_DEFAULT.",
        metavar="TYPE",
        choices=("c2-compatible", "pod-native-default"),
        prefixes=("st_",),
        unset="V-IPU's",
    ),
    _path(
        "executable-cache-path",
        "Where compiled executables are kept for the next run.",
        "DIR",
        unset="a temporary one where instances share a host",
    ),
)

_MPI = (
    _arguments(
        "mpi-global-args",
        'Arguments for mpirun as a whole, as in "--tag-output". '
        "May be repeated; all are used.",
    ),
    _arguments(
        "mpi-local-args",
        'Arguments for mpirun about every instance, as in "-x NAME=VALUE". '
        "May be repeated; all are used.",
    ),
    Option(
        types.read_instance_arguments,
        "instance-mpi-local-args",
        'The same for one instance, as in "1:-x NAME=VALUE". '
        "May be repeated; all are used.",
        metavar="INDEX:ARGS",
        default=(),
        multiple=True,
    ),
    _switch(
        "allow-run-as-root",
        "Whether root may start the job; with no, it is an error for root.",
        unset="yes",
        default=None,
    ),
    _path(
        "mpirun",
        "The mpirun to use.",
        "PATH",
        unset="this virtual environment's, or the first on PATH",
    ),
)

_OUTPUT = (
    _path(
        "output-filename",
        "Write the output of each instance to DIR/1/rank.N/stdout and stderr, too; "
        "with :nocopy after DIR, only there. The same as mpirun's: the next run writes "
        "to the same files.",
        "DIR",
        rival="log-dir",
        exclusive=True,
    ),
    _path(
        "log-dir",
        "The same in a new folder for each run: DIR/RUN/attempt-0 has rank.N/stdout "
        "and stderr, and DIR/latest is a link to the last RUN.",
        "DIR",
        rival="output-filename",
        exclusive=True,
    ),
    Option(
        types.read_instances,
        "only-output-from-instance",
        "Show the output of these instances only, as in 0,4-7. first is instance 0. "
        "failed: those that fail, when they do, with the last 1 MiB of what they have "
        "written, as in first,failed. Warning: use it with great care, because the "
        "errors of the other instances are hidden, too.",
        metavar="SET",
        choices=(selection.ALL, selection.FIRST, selection.FAILED),
        unset="all",
    ),
    Option(
        types.read_tag_format,
        "tag-format",
        "What stands before each line of output on the console: none, the index of "
        "the instance (short), PopRun's form (poprun), or a template of {instance}, "
        "{host}, {local_instance}, {stream} and {time}, as in '{time:%H:%M:%S} "
        "{host}/{instance} '. Times are UTC. auto: short for several instances on a "
        "terminal; what --tag-output in --mpi-global-args asks for.",
        metavar="FORMAT",
        choices=("auto", "none", "short", "poprun"),
        default="auto",
    ),
    _choice(
        "color",
        "Whether tags, messages and help have colours; auto: on a terminal, unless "
        "NO_COLOR is set, and where FORCE_COLOR is.",
        choices=color.CHOICES,
        default="auto",
        in_file=False,
    ),
    _path(
        "trace",
        "Write a timeline of the whole job to this file, for Perfetto and 'popctl "
        "trace': what the launcher and the instances do, and all their collectives.",
        "FILE",
    ),
    _path(
        "stdin",
        "Which instances read the standard input of poprun: none, one or all; or a "
        "file that all read instead.",
        "none|INDEX|all|FILE",
        default="none",
    ),
    _switch(
        "progress",
        "Show the progress of the job in a status line on stderr, if that is a "
        "terminal.",
        default=True,
    ),
    _flag(
        "summary",
        "Show at the end, for each instance, how it ended, how long it ran, its CPU "
        "time and its peak memory.",
        default=None,
        unset="after a failure one line about all",
    ),
    _path(
        "result",
        "Write how the job ended to this file, as JSON; also when it could not be "
        "started.",
        "FILE",
    ),
    _path(
        "events",
        "Write what happens to the job to this file while it runs, as one JSON object "
        "on each line.",
        "FILE",
    ),
    _choice(
        "tty",
        "Whether stdout and stderr of the instances are terminals; auto: those that "
        "are terminals for poprun.",
        choices=("auto", "yes", "no"),
        default="auto",
    ),
    _flag(
        "quiet",
        "Show nothing of poprun's own but errors: no warnings, no status line, no "
        "summary.",
        short="q",
    ),
    Option(
        types.read_count,
        "verbose",
        "Log what poprun does.",
        takes_value=False,
        short="v",
        default=0,
        minimum=0,
        rival="vv",
    ),
    _flag(
        "vv", "Log it in detail, with the topology. The same as -vv.", rival="verbose"
    ),
)

_LIMITS = (
    _seconds("timeout", "Stop the job after this time.", unset="no limit"),
    _seconds(
        "start-timeout",
        "Stop the job if not all instances have started after this time.",
        default=60.0,
    ),
    _seconds(
        "grace",
        "How long to wait for instances to exit before they are killed.",
        default=5.0,
    ),
    _flag("keep-going", "Do not stop the other instances when one fails."),
    _number(
        "max-restarts",
        "How often to start the job again after an instance, a host or mpirun has "
        "failed: after 1, 2, 4, ... and at most 60 seconds.",
        "N",
        default=0,
        minimum=0,
    ),
)

_FRAMEWORKS = (
    _choice(
        "emulate-sdk",
        "Whether instances can import popdist's stand-ins for poptorch, horovod, "
        "popart and tensorflow.python.ipu. What is installed is imported instead. "
        "yes: where the stand-ins cannot be imported, an error says why.",
        choices=("auto", "yes", "no"),
        default="auto",
    ),
    _choice(
        "torch-backend",
        "What torch.distributed reduces with where a program names gloo, or no backend "
        "on a machine without GPU: gloo, or popdist's shared memory.",
        choices=("gloo", "popdist"),
        default="gloo",
    ),
)

_GENERAL = (
    _flag("help", "Show this page.", short="h", in_environment=False, in_file=False),
    # Not from the environment: POPRUN_VERSION is what people call the variable
    # that holds the version they want installed.
    _flag("version", "Show the version.", in_environment=False, in_file=False),
    _choice(
        "version-format",
        "Show the version in this form; the full ones name all that poprun uses.",
        choices=("text", "full-text", "full-json"),
        default="text",
        in_environment=False,
        in_file=False,
    ),
    _flag(
        "dry-run",
        "Show the mpirun command and every instance's environment; start nothing.",
        in_file=False,
    ),
    _flag(
        "show-config",
        "Show the value of every option and where it comes from.",
        in_file=False,
    ),
    _path(
        "import-config",
        "Read options from this YAML file. Variables named POPRUN_<OPTION> override "
        "it, and the command line overrides both.",
        "FILE",
        in_file=False,
    ),
    _path(
        "export-config",
        "Write the options that are given to this YAML file.",
        "FILE",
        in_file=False,
    ),
    _switch("overwrite-config", "Let --export-config replace a file.", in_file=False),
    _flag(
        "json",
        "Print JSON: in a dry run, with --show-config, --version and "
        "--print-topology; of a job its result, as the last line of stdout.",
    ),
    _number(
        "pdb",
        "Give the terminal to the debugger of this instance, which must be a Python: "
        "at breakpoint(), at an exception that nothing catches, and at Ctrl-C. The "
        "other instances run on until it ends, and --timeout does not count the time "
        "at its prompt.",
        "INSTANCE",
        minimum=0,
        in_file=False,
    ),
    _switch("debug", "Show what helps to find out why a job fails."),
)

# Each of these asks for a partition, unless --offline-mode is given.
VIPU_OPTIONS = [
    option.name
    for option in _VIPU
    if option.name not in ("offline-mode", "executable-cache-path")
]

GROUPS: Mapping[str, tuple[Option, ...]] = {
    "Topology": _TOPOLOGY,
    "Program": _PROGRAM,
    "Hosts": _HOSTS,
    "V-IPU": _VIPU,
    "MPI": _MPI,
    "Output": _OUTPUT,
    "Limits": _LIMITS,
    "Frameworks": _FRAMEWORKS,
    "Debug and general": _GENERAL,
}

# With none of these, a job whose size is given as mpirun's -n runs without IPUs.
IPU_OPTIONS = ["num-replicas", "ipus-per-replica", "num-ilds", *VIPU_OPTIONS]

# The options that PopRun does not have. Prefixes are looked up among the others first,
# so that none of these makes a vendor's command line ambiguous.
_ADDED = """
    num-processes topology-format wait-for-ipus mpirun output-filename log-dir
    tag-format color trace stdin progress tty timeout start-timeout grace keep-going
    emulate-sdk torch-backend dry-run show-config ssh summary result events json
    max-restarts pdb quiet env cwd sync
"""
ADDED = frozenset(_ADDED.split())

OPTIONS: Mapping[str, Option] = {o.name: o for group in GROUPS.values() for o in group}
# Every long name, aliases too.
BY_NAME: Mapping[str, Option] = {
    name: option for option in OPTIONS.values() for name in option.names
}
BY_SHORT: Mapping[str, Option] = {o.short: o for o in OPTIONS.values() if o.short}

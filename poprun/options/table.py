"""The one table of all options.

The command line, the help, completion, variables, configuration files and the docs all
read the options from it.
"""

from collections.abc import Mapping
from functools import partial

from poprun import color
from poprun.options import types
from poprun.options.types import Option
from poprun.output import selection

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
        "among them. auto: one for each usable CPU, or for each slot of the hosts. In "
        "a Slurm job the default is the number of its tasks.",
        "N",
        default=1,
        rival="num-processes",
        exclusive=True,
    ),
    _number_or_auto(
        "num-replicas",
        "How many copies of the model the job has in total. auto: one for each "
        "instance.",
        "R",
        default=1,
    ),
    _number_or_auto(
        "num-processes",
        "Start N instances with one replica each, like mpirun's -n: the same as "
        "--num-instances N, with --num-replicas N unless that is given. N may be "
        "auto. The job has no IPUs unless another option is about replicas, IPUs or "
        "V-IPU.",
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
        "print-topology",
        "Show which replicas belong to which instance, and on which host.",
    ),
    _choice(
        "topology-format",
        "The format of --print-topology: a table, or JSON for other programs.",
        choices=("text", "json"),
        default="text",
    ),
)

_PROGRAM = (
    Option(
        types.read_environment,
        "env",
        "Set a variable in all instances on all hosts, or in some of them, as in "
        "0,2-3:NAME=VALUE. NAME alone passes on poprun's own value, and NAME* all "
        "variables that begin with NAME. Can be repeated; all are used.",
        metavar="[SET:]NAME[=VALUE]",
        default=(),
        multiple=True,
    ),
    _path(
        "cwd",
        "The directory in which the instances run, on all hosts.",
        "DIR",
        aliases=("wdir",),
        unset="poprun's own",
    ),
)

_HOSTS = (
    _text(
        "host",
        "The hosts to start instances on, such as a,b or node[0-2,4]. The instances "
        "are divided equally among them.",
        "HOSTS",
        short="H",
        unset="this host",
        rival="hostfile",
        exclusive=True,
    ),
    _path(
        "hostfile",
        "A file that lists the hosts, one per line. Cannot be combined with --host.",
        "FILE",
        aliases=("host-file",),
        rival="host",
        exclusive=True,
    ),
    _choice(
        "process-placement",
        "Which cores each instance may use: its share of the host's NUMA nodes "
        "(spreadnuma), its share of the cores (spreadcores), or all of them "
        "(disabled).",
        choices=("spreadnuma", "spreadcores", "disabled"),
        default="spreadnuma",
        rival="numa-aware",
    ),
    _switch(
        "numa-aware",
        "Assign the instances to the NUMA nodes in turn. This is the older form of "
        "--process-placement, which overrides it.",
        unset="automatic: yes with several instances on a host",
        rival="process-placement",
        default=None,
    ),
    Option(
        types.read_subnet,
        "host-subnet",
        "The network that MPI uses between the hosts, such as 10.5.0.0/16.",
        metavar="CIDR",
        unset="automatic",
    ),
    _text(
        "ssh",
        "The command that connects to other hosts, with its options, such as 'ssh -F "
        "my_config'.",
        "COMMAND",
        default="ssh",
    ),
    _path(
        "sync",
        "First copy this folder to the same path on the other hosts; --sync . copies "
        "the current directory. Nothing is deleted there. .git, caches and virtual "
        "environments are left out.",
        "DIR",
    ),
    _switch(
        "synchronise-python-venv",
        "First copy the active virtual environment to the other hosts.",
    ),
    _switch(
        "synchronise-poplar-sdk",
        "Has no effect: programs use the stand-in for the SDK that comes with popdist.",
    ),
    _switch(
        "distribute-ssh-key",
        "First install your SSH key on the other hosts, which may ask for passwords.",
    ),
)

_VIPU = (
    _switch(
        "offline-mode",
        "Run without IPUs and without V-IPU.",
        unset="automatic: yes with -n, unless an option is about replicas, IPUs or "
        "V-IPU; otherwise only if no option asks for IPUs and no inventory can be "
        "stored",
        default=None,
    ),
    _text(
        "vipu-server-host",
        "The name or address of the V-IPU server. By default it is the server that "
        "the environment or vipu's configuration names; if there is none, the "
        "inventory of emulated IPUs of this user on this machine.",
        "HOST",
        default="localhost",
    ),
    _number(
        "vipu-server-port",
        "The port of the V-IPU server.",
        "PORT",
        default=8090,
        maximum=65535,
    ),
    Option(
        types.read_whole_seconds,
        "vipu-server-timeout",
        "How long to wait for the V-IPU server to reply.",
        metavar="TIME",
        default=10,
    ),
    _text(
        "vipu-partition",
        "The partition to run on. It is created if it does not exist.",
        "NAME",
        unset="the only existing one, or a new one for this job",
    ),
    _number(
        "vipu-partition-attempts",
        "How many times to try to activate the partition.",
        "N",
        default=1,
    ),
    Option(
        types.read_wait,
        "wait-for-ipus",
        "If the IPUs are in use, wait until they are free, for at most TIME. Waiting "
        "jobs get them in the order in which they started to wait.",
        takes_value=False,
        metavar="[=TIME]",
        default=False,
    ),
    _switch(
        "update-partition", "Change an existing partition if it does not fit the job."
    ),
    _switch(
        "reset-partition",
        "Reset the partition before the program starts.",
        unset="automatic: yes unless the partition is reconfigurable",
        default=None,
    ),
    _switch(
        "remove-partition",
        "Remove the partition afterwards if this job created it.",
        default=True,
    ),
    _text(
        "vipu-allocation",
        "The allocation from which a new partition takes its IPUs.",
        "NAME",
        rival="vipu-cluster",
    ),
    _text(
        "vipu-cluster",
        "The cluster from which a new partition takes its IPUs. Deprecated: use "
        "--vipu-allocation.",
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
        unset="chosen by V-IPU",
    ),
    _choice(
        "gw-link-routing-type",
        "How the partition routes over GW-Links: default.",
        metavar="TYPE",
        choices=("default",),
        prefixes=("rt_",),
        unset="chosen by V-IPU",
    ),
    _choice(
        "sync-type",
        "How the IPUs of the partition synchronise: c2-compatible or "
        "pod-native-default, also written as ST_POD_NATIVE_DEFAULT.",
        metavar="TYPE",
        choices=("c2-compatible", "pod-native-default"),
        prefixes=("st_",),
        unset="chosen by V-IPU",
    ),
    _path(
        "executable-cache-path",
        "Where compiled executables are kept for later runs.",
        "DIR",
        unset="a temporary directory if instances share a host",
    ),
)

_MPI = (
    _arguments(
        "mpi-global-args",
        'Arguments for mpirun itself, such as "--tag-output". Can be repeated; all '
        "are used.",
    ),
    _arguments(
        "mpi-local-args",
        'Arguments for mpirun that apply to every instance, such as "-x NAME=VALUE". '
        "Can be repeated; all are used.",
    ),
    Option(
        types.read_instance_arguments,
        "instance-mpi-local-args",
        'Arguments for mpirun that apply to one instance, such as "1:-x NAME=VALUE". '
        "Can be repeated; all are used.",
        metavar="INDEX:ARGS",
        default=(),
        multiple=True,
    ),
    _switch(
        "allow-run-as-root",
        "Whether root may start the job. With no, poprun refuses to run as root.",
        unset="yes",
        default=None,
    ),
    _path(
        "mpirun",
        "The mpirun to use.",
        "PATH",
        unset="the one in this virtual environment, or the first on PATH",
    ),
)

_OUTPUT = (
    _path(
        "output-filename",
        "Also write the output of each instance to DIR/1/rank.N/stdout and stderr; "
        "with :nocopy after DIR, write it only there. As with mpirun, the next run "
        "writes to the same files.",
        "DIR",
        rival="log-dir",
        exclusive=True,
    ),
    _path(
        "log-dir",
        "Like --output-filename, but in a new folder for each run: DIR/RUN/attempt-0 "
        "has rank.N/stdout and stderr, and DIR/latest is a link to the last RUN.",
        "DIR",
        rival="output-filename",
        exclusive=True,
    ),
    Option(
        types.read_instances,
        "only-output-from-instance",
        "Show only the output of these instances, such as 0,4-7. first means instance "
        "0. failed means the instances that fail: the last 1 MiB of their output is "
        "shown when they do. Both can be combined, as in first,failed. Use this "
        "option with care, because it also hides the errors of the other instances.",
        metavar="SET",
        choices=(selection.ALL, selection.FIRST, selection.FAILED),
        unset="all",
    ),
    Option(
        types.read_tag_format,
        "tag-format",
        "The tag in front of each line of output: none, short (the index of the "
        "instance), poprun (PopRun's form), or a template of {instance}, {host}, "
        "{local_instance}, {stream} and {time}, such as '{time:%H:%M:%S} "
        "{host}/{instance} '. Times are in UTC. auto: the form that --tag-output in "
        "--mpi-global-args asks for; without it, short for several instances on a "
        "terminal.",
        metavar="FORMAT",
        choices=("auto", "none", "short", "poprun"),
        default="auto",
    ),
    _choice(
        "color",
        "Whether tags, messages and help are coloured. auto: on a terminal, or if "
        "FORCE_COLOR is set; in both cases not if NO_COLOR is set.",
        choices=color.CHOICES,
        default="auto",
        in_file=False,
    ),
    _path(
        "trace",
        "Write a timeline of the job to this file: what the launcher and the "
        "instances do, and all their collectives. Perfetto and 'popctl trace' read "
        "it.",
        "FILE",
    ),
    _path(
        "stdin",
        "Which instances read poprun's standard input: none, the one with this INDEX, "
        "or all; or a file that all of them read instead.",
        "none|INDEX|all|FILE",
        default="none",
    ),
    _switch(
        "progress",
        "Show a status line on stderr while the job runs, if stderr is a terminal.",
        default=True,
    ),
    _flag(
        "summary",
        "At the end, show for each instance how it ended, how long it ran, its CPU "
        "time and its peak memory.",
        default=None,
        unset="after a failure, one line about all instances",
    ),
    _path(
        "result",
        "Write how the job ended to this file as JSON, even if it could not be "
        "started.",
        "FILE",
    ),
    _path(
        "events",
        "Write what happens during the job to this file while it runs, as one JSON "
        "object per line.",
        "FILE",
    ),
    _choice(
        "tty",
        "Whether the instances' stdout and stderr are terminals. auto: only those "
        "that are terminals for poprun.",
        choices=("auto", "yes", "no"),
        default="auto",
    ),
    _flag(
        "quiet",
        "Show nothing from poprun itself but errors: no warnings, no status line, no "
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
        "vv",
        "Log in detail what poprun does, with the topology. The same as -vv.",
        rival="verbose",
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
        "How long to wait for instances to exit before killing them.",
        default=5.0,
    ),
    _flag("keep-going", "Do not stop the other instances when one fails."),
    _number(
        "max-restarts",
        "How many times to start the job again after an instance, a host or mpirun "
        "has failed. poprun waits 1, 2, 4, ... and at most 60 seconds before each "
        "restart.",
        "N",
        default=0,
        minimum=0,
    ),
)

_FRAMEWORKS = (
    _choice(
        "emulate-sdk",
        "Whether instances can import popdist's stand-ins for poptorch, horovod, "
        "popart and tensorflow.python.ipu. Packages that are installed are used "
        "instead. yes: if the stand-ins cannot be imported, stop with an error that "
        "says why.",
        choices=("auto", "yes", "no"),
        default="auto",
    ),
    _choice(
        "torch-backend",
        "What torch.distributed uses when a program asks for gloo, or for no backend "
        "on a machine without a GPU: gloo itself, or popdist's shared memory.",
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
        "The format of --version. The full ones list everything that poprun uses.",
        choices=("text", "full-text", "full-json"),
        default="text",
        in_environment=False,
        in_file=False,
    ),
    _flag(
        "dry-run",
        "Show the mpirun command and every instance's environment without starting "
        "anything.",
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
    _switch(
        "overwrite-config",
        "Let --export-config replace an existing file.",
        in_file=False,
    ),
    _flag(
        "json",
        "Print JSON with --dry-run, --show-config, --version and --print-topology. "
        "For a job, print its result as the last line of stdout.",
    ),
    _number(
        "pdb",
        "Give the terminal to the debugger of this instance, which must be a Python "
        "program: at breakpoint(), at an uncaught exception and at Ctrl-C. The other "
        "instances keep running until it ends, and --timeout does not count the time "
        "at its prompt.",
        "INSTANCE",
        minimum=0,
        in_file=False,
    ),
    _switch("debug", "Show more about why a job fails."),
)

# Where a job has several programs, these are those of one.
OF_ONE_PROGRAM = ("num-instances", "num-processes", "env", "cwd")

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

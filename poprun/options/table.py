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

_switch = partial(Option, read=types.read_boolean, metavar="YES|NO", default=False)
_flag = partial(Option, read=types.read_boolean, takes_value=False, default=False)
_number = partial(Option, read=types.read_whole)
_number_or_auto = partial(Option, read=types.read_whole_or_auto)
_seconds = partial(Option, read=types.read_seconds, metavar="TIME")
_text = partial(Option, read=types.read_text)
_path = partial(Option, read=types.read_path)
_choice = partial(Option, read=types.read_choice)
_arguments = partial(
    Option, read=types.read_mpi_arguments, metavar="ARGS", default=(), multiple=True
)

# In the order of the help.

_TOPOLOGY = (
    _number_or_auto(
        name="num-instances",
        help="How many processes of the program to start. The replicas are divided "
        "equally among them. auto: one for each usable CPU, or for each slot of the "
        "hosts. In a Slurm job the default is the number of its tasks.",
        metavar="N",
        default=1,
        rival="num-processes",
        exclusive=True,
    ),
    _number_or_auto(
        name="num-replicas",
        help="How many copies of the model the job has in total. auto: one for each "
        "instance.",
        metavar="R",
        default=1,
    ),
    _number_or_auto(
        name="num-processes",
        help="Start N instances with one replica each, like mpirun's -n: the same as "
        "--num-instances N, with --num-replicas N unless that is given. N may be "
        "auto. The job has no IPUs unless another option is about replicas, IPUs or "
        "V-IPU.",
        metavar="N",
        short="n",
        aliases=("np", "nproc"),
        rival="num-instances",
        exclusive=True,
    ),
    _number(
        name="ipus-per-replica",
        help="How many IPUs each replica gets.",
        metavar="P",
        default=1,
    ),
    _number(
        name="num-ilds",
        help="How many IPU-Link domains the replicas are spread over.",
        metavar="D",
        default=1,
    ),
    _switch(
        name="print-topology",
        help="Show which replicas belong to which instance, and on which host.",
    ),
    _choice(
        name="topology-format",
        help="The format of --print-topology: a table, or JSON for other programs.",
        choices=("text", "json"),
        default="text",
    ),
)

_PROGRAM = (
    Option(
        read=types.read_environment,
        name="env",
        help="Set a variable in all instances on all hosts, or in some of them, as in "
        "0,2-3:NAME=VALUE. NAME alone passes on poprun's own value, and NAME* all "
        "variables that begin with NAME. Can be repeated; all are used.",
        metavar="[SET:]NAME[=VALUE]",
        default=(),
        multiple=True,
    ),
    _path(
        name="cwd",
        help="The directory in which the instances run, on all hosts.",
        metavar="DIR",
        aliases=("wdir",),
        unset="poprun's own",
    ),
)

_HOSTS = (
    _text(
        name="host",
        help="The hosts to start instances on, such as a,b or node[0-2,4]. The "
        "instances are divided equally among them.",
        metavar="HOSTS",
        short="H",
        unset="this host",
        rival="hostfile",
        exclusive=True,
    ),
    _path(
        name="hostfile",
        help="A file that lists the hosts, one per line. Cannot be combined with "
        "--host.",
        metavar="FILE",
        aliases=("host-file",),
        rival="host",
        exclusive=True,
    ),
    _choice(
        name="process-placement",
        help="Which cores each instance may use: its share of the host's NUMA nodes "
        "(spreadnuma), its share of the cores (spreadcores), or all of them "
        "(disabled).",
        choices=("spreadnuma", "spreadcores", "disabled"),
        default="spreadnuma",
        rival="numa-aware",
    ),
    _switch(
        name="numa-aware",
        help="Assign the instances to the NUMA nodes in turn. This is the older form "
        "of --process-placement, which overrides it.",
        unset="automatic: yes with several instances on a host",
        rival="process-placement",
        default=None,
    ),
    Option(
        read=types.read_subnet,
        name="host-subnet",
        help="The network that MPI uses between the hosts, such as 10.5.0.0/16.",
        metavar="CIDR",
        unset="automatic",
    ),
    _text(
        name="ssh",
        help="The command that connects to other hosts, with its options, such as 'ssh "
        "-F my_config'.",
        metavar="COMMAND",
        default="ssh",
    ),
    _path(
        name="sync",
        help="First copy this folder to the same path on the other hosts; --sync . "
        "copies the current directory. Nothing is deleted there. .git, caches and "
        "virtual environments are left out.",
        metavar="DIR",
    ),
    _switch(
        name="synchronise-python-venv",
        help="First copy the active virtual environment to the other hosts.",
    ),
    _switch(
        name="synchronise-poplar-sdk",
        help="Has no effect: programs use the stand-in for the SDK that comes with "
        "popdist.",
    ),
    _switch(
        name="distribute-ssh-key",
        help="First install your SSH key on the other hosts, which may ask for "
        "passwords.",
    ),
)

_VIPU = (
    _switch(
        name="offline-mode",
        help="Run without IPUs and without V-IPU.",
        unset="automatic: yes with -n, unless an option is about replicas, IPUs or "
        "V-IPU; otherwise only if no option asks for IPUs and no inventory can be "
        "stored",
        default=None,
    ),
    _text(
        name="vipu-server-host",
        help="The name or address of the V-IPU server. By default it is the server "
        "that the environment or vipu's configuration names; if there is none, the "
        "inventory of emulated IPUs of this user on this machine.",
        metavar="HOST",
        default="localhost",
    ),
    _number(
        name="vipu-server-port",
        help="The port of the V-IPU server.",
        metavar="PORT",
        default=8090,
        maximum=65535,
    ),
    Option(
        read=types.read_whole_seconds,
        name="vipu-server-timeout",
        help="How long to wait for the V-IPU server to reply.",
        metavar="TIME",
        default=10,
    ),
    _text(
        name="vipu-partition",
        help="The partition to run on. It is created if it does not exist.",
        metavar="NAME",
        unset="the only existing one, or a new one for this job",
    ),
    _number(
        name="vipu-partition-attempts",
        help="How many times to try to activate the partition.",
        metavar="N",
        default=1,
    ),
    Option(
        read=types.read_wait,
        name="wait-for-ipus",
        help="If the IPUs are in use, wait until they are free, for at most TIME. "
        "Waiting jobs get them in the order in which they started to wait.",
        takes_value=False,
        metavar="[=TIME]",
        default=False,
    ),
    _switch(
        name="update-partition",
        help="Change an existing partition if it does not fit the job.",
    ),
    _switch(
        name="reset-partition",
        help="Reset the partition before the program starts.",
        unset="automatic: yes unless the partition is reconfigurable",
        default=None,
    ),
    _switch(
        name="remove-partition",
        help="Remove the partition afterwards if this job created it.",
        default=True,
    ),
    _text(
        name="vipu-allocation",
        help="The allocation from which a new partition takes its IPUs.",
        metavar="NAME",
        rival="vipu-cluster",
    ),
    _text(
        name="vipu-cluster",
        help="The cluster from which a new partition takes its IPUs. Deprecated: use "
        "--vipu-allocation.",
        metavar="NAME",
        rival="vipu-allocation",
    ),
    _choice(
        name="ipu-link-routing-type",
        help="How the partition routes over IPU-Links: default, dnc, swnc, ringswnc or "
        "btnc.",
        metavar="TYPE",
        choices=("default", "dnc", "swnc", "ringswnc", "btnc"),
        prefixes=("rt_", "irt_"),
        unset="chosen by V-IPU",
    ),
    _choice(
        name="gw-link-routing-type",
        help="How the partition routes over GW-Links: default.",
        metavar="TYPE",
        choices=("default",),
        prefixes=("rt_",),
        unset="chosen by V-IPU",
    ),
    _choice(
        name="sync-type",
        help="How the IPUs of the partition synchronise: c2-compatible or "
        "pod-native-default, also written as ST_POD_NATIVE_DEFAULT.",
        metavar="TYPE",
        choices=("c2-compatible", "pod-native-default"),
        prefixes=("st_",),
        unset="chosen by V-IPU",
    ),
    _path(
        name="executable-cache-path",
        help="Where compiled executables are kept for later runs.",
        metavar="DIR",
        unset="a temporary directory if instances share a host",
    ),
)

_MPI = (
    _arguments(
        name="mpi-global-args",
        help='Arguments for mpirun itself, such as "--tag-output". Can be repeated; '
        "all are used.",
    ),
    _arguments(
        name="mpi-local-args",
        help='Arguments for mpirun that apply to every instance, such as "-x '
        'NAME=VALUE". '
        "Can be repeated; all are used.",
    ),
    Option(
        read=types.read_instance_arguments,
        name="instance-mpi-local-args",
        help='Arguments for mpirun that apply to one instance, such as "1:-x '
        'NAME=VALUE". '
        "Can be repeated; all are used.",
        metavar="INDEX:ARGS",
        default=(),
        multiple=True,
    ),
    _switch(
        name="allow-run-as-root",
        help="Whether root may start the job. With no, poprun refuses to run as root.",
        unset="yes",
        default=None,
    ),
    _path(
        name="mpirun",
        help="The mpirun to use.",
        metavar="PATH",
        unset="the one in this virtual environment, or the first on PATH",
    ),
)

_OUTPUT = (
    _path(
        name="output-filename",
        help="Also write the output of each instance to DIR/1/rank.N/stdout and "
        "stderr; with :nocopy after DIR, write it only there. As with mpirun, the next "
        "run writes to the same files.",
        metavar="DIR",
        rival="log-dir",
        exclusive=True,
    ),
    _path(
        name="log-dir",
        help="Like --output-filename, but in a new folder for each run: "
        "DIR/RUN/attempt-0 has rank.N/stdout and stderr, and DIR/latest is a link to "
        "the last RUN.",
        metavar="DIR",
        rival="output-filename",
        exclusive=True,
    ),
    Option(
        read=types.read_instances,
        name="only-output-from-instance",
        help="Show only the output of these instances, such as 0,4-7. first means "
        "instance 0. failed means the instances that fail: the last 1 MiB of their "
        "output is shown when they do. Both can be combined, as in first,failed. Use "
        "this option with care, because it also hides the errors of the other "
        "instances.",
        metavar="SET",
        choices=(selection.ALL, selection.FIRST, selection.FAILED),
        unset="all",
    ),
    Option(
        read=types.read_tag_format,
        name="tag-format",
        help="The tag in front of each line of output: none, short (the index of the "
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
        name="color",
        help="Whether tags, messages and help are coloured. auto: on a terminal, or if "
        "FORCE_COLOR is set; in both cases not if NO_COLOR is set.",
        choices=color.CHOICES,
        default="auto",
        in_file=False,
    ),
    _path(
        name="trace",
        help="Write a timeline of the job to this file: what the launcher and the "
        "instances do, and all their collectives. Perfetto and 'popctl trace' read "
        "it.",
        metavar="FILE",
    ),
    _path(
        name="stdin",
        help="Which instances read poprun's standard input: none, the one with this "
        "INDEX, or all; or a file that all of them read instead.",
        metavar="none|INDEX|all|FILE",
        default="none",
    ),
    _switch(
        name="progress",
        help="Show a status line on stderr while the job runs, if stderr is a "
        "terminal.",
        default=True,
    ),
    _flag(
        name="summary",
        help="At the end, show for each instance how it ended, how long it ran, its "
        "CPU time and its peak memory.",
        default=None,
        unset="after a failure, one line about all instances",
    ),
    _path(
        name="result",
        help="Write how the job ended to this file as JSON, even if it could not be "
        "started.",
        metavar="FILE",
    ),
    _path(
        name="events",
        help="Write what happens during the job to this file while it runs, as one "
        "JSON object per line.",
        metavar="FILE",
    ),
    _choice(
        name="tty",
        help="Whether the instances' stdout and stderr are terminals. auto: only those "
        "that are terminals for poprun.",
        choices=("auto", "yes", "no"),
        default="auto",
    ),
    _flag(
        name="quiet",
        help="Show nothing from poprun itself but errors: no warnings, no status line, "
        "no summary.",
        short="q",
    ),
    Option(
        read=types.read_count,
        name="verbose",
        help="Log what poprun does.",
        takes_value=False,
        short="v",
        default=0,
        minimum=0,
        rival="vv",
    ),
    _flag(
        name="vv",
        help="Log in detail what poprun does, with the topology. The same as -vv.",
        rival="verbose",
    ),
)

_LIMITS = (
    _seconds(name="timeout", help="Stop the job after this time.", unset="no limit"),
    _seconds(
        name="start-timeout",
        help="Stop the job if not all instances have started after this time.",
        default=60.0,
    ),
    _seconds(
        name="grace",
        help="How long to wait for instances to exit before killing them.",
        default=5.0,
    ),
    _flag(name="keep-going", help="Do not stop the other instances when one fails."),
    _number(
        name="max-restarts",
        help="How many times to start the job again after an instance, a host or "
        "mpirun has failed. poprun waits 1, 2, 4, ... and at most 60 seconds before "
        "each restart.",
        metavar="N",
        default=0,
        minimum=0,
    ),
)

_FRAMEWORKS = (
    _choice(
        name="emulate-sdk",
        help="Whether instances can import popdist's stand-ins for poptorch, horovod, "
        "popart and tensorflow.python.ipu. Packages that are installed are used "
        "instead. yes: if the stand-ins cannot be imported, stop with an error that "
        "says why.",
        choices=("auto", "yes", "no"),
        default="auto",
    ),
    _choice(
        name="torch-backend",
        help="What torch.distributed uses when a program asks for gloo, or for no "
        "backend on a machine without a GPU: gloo itself, or popdist's shared memory.",
        choices=("gloo", "popdist"),
        default="gloo",
    ),
)

_GENERAL = (
    _flag(
        name="help",
        help="Show this page.",
        short="h",
        in_environment=False,
        in_file=False,
    ),
    # Not from the environment: POPRUN_VERSION is what people call the variable
    # that holds the version they want installed.
    _flag(
        name="version", help="Show the version.", in_environment=False, in_file=False
    ),
    _choice(
        name="version-format",
        help="The format of --version. The full ones list everything that poprun uses.",
        choices=("text", "full-text", "full-json"),
        default="text",
        in_environment=False,
        in_file=False,
    ),
    _flag(
        name="dry-run",
        help="Show the mpirun command and every instance's environment without "
        "starting anything.",
        in_file=False,
    ),
    _flag(
        name="show-config",
        help="Show the value of every option and where it comes from.",
        in_file=False,
    ),
    _path(
        name="import-config",
        help="Read options from this YAML file. Variables named POPRUN_<OPTION> "
        "override it, and the command line overrides both.",
        metavar="FILE",
        in_file=False,
    ),
    _path(
        name="export-config",
        help="Write the options that are given to this YAML file.",
        metavar="FILE",
        in_file=False,
    ),
    _switch(
        name="overwrite-config",
        help="Let --export-config replace an existing file.",
        in_file=False,
    ),
    _flag(
        name="json",
        help="Print JSON with --dry-run, --show-config, --version and "
        "--print-topology. For a job, print its result as the last line of stdout.",
    ),
    _number(
        name="pdb",
        help="Give the terminal to the debugger of this instance, which must be a "
        "Python program: at breakpoint(), at an uncaught exception and at Ctrl-C. The "
        "other instances keep running until it ends, and --timeout does not count the "
        "time at its prompt.",
        metavar="INSTANCE",
        minimum=0,
        in_file=False,
    ),
    _switch(name="debug", help="Show more about why a job fails."),
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

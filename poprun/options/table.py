"""The one table of all options.

The command line, the help, completion, variables, configuration files and docs are all
fed from it; none of them knows an option that does not stand here.
"""

from collections.abc import Mapping

from poprun.options.types import Kind, Option

# In the order of the help.

_TOPOLOGY = (
    Option(
        "num-instances",
        Kind.WHOLE,
        "N",
        "How many processes of the program to start. The replicas are divided equally "
        "among them.",
        default=1,
        rival="num-processes",
        exclusive=True,
    ),
    Option(
        "num-replicas",
        Kind.WHOLE,
        "R",
        "How many copies of the model the whole job has.",
        default=1,
    ),
    Option(
        "num-processes",
        Kind.WHOLE,
        "N",
        "N instances of one replica each, as mpirun's -n: the same as --num-instances "
        "N, and as --num-replicas N where that is not given.",
        short="n",
        aliases=("np",),
        rival="num-instances",
        exclusive=True,
        vendor=False,
    ),
    Option(
        "ipus-per-replica",
        Kind.WHOLE,
        "P",
        "How many IPUs each replica gets.",
        default=1,
    ),
    Option(
        "num-ilds",
        Kind.WHOLE,
        "D",
        "How many IPU-Link domains the replicas are spread over.",
        default=1,
    ),
    Option(
        "print-topology",
        Kind.BOOLEAN,
        "YES|NO",
        "Show which replicas belong to which instance, on which host.",
        default=False,
    ),
    Option(
        "topology-format",
        Kind.CHOICE,
        "",
        "Show it, as a table or for other programs.",
        choices=("text", "json"),
        default="text",
        vendor=False,
    ),
)

_HOSTS = (
    Option(
        "host",
        Kind.TEXT,
        "HOSTS",
        "The hosts to start instances on, as in a,b or node[0-2,4]. They share the "
        "instances equally.",
        short="H",
        unset="this host",
        rival="hostfile",
        exclusive=True,
    ),
    Option(
        "hostfile",
        Kind.PATH,
        "FILE",
        "A file that lists the hosts, one per line. Not together with --host.",
        aliases=("host-file",),
        rival="host",
        exclusive=True,
    ),
    Option(
        "process-placement",
        Kind.CHOICE,
        "",
        "Which cores each instance may use: its share of the host's NUMA nodes, its "
        "share of the cores, or all.",
        choices=("spreadnuma", "spreadcores", "disabled"),
        default="spreadnuma",
        rival="numa-aware",
    ),
    Option(
        "numa-aware",
        Kind.BOOLEAN,
        "YES|NO",
        "Assign the instances to the NUMA nodes in turn. The older form of "
        "--process-placement, which overrides it.",
        unset="automatic: yes with several instances on a host",
        rival="process-placement",
    ),
    Option(
        "host-subnet",
        Kind.SUBNET,
        "CIDR",
        "The network between the hosts that MPI uses, such as 10.5.0.0/16.",
        unset="automatic",
    ),
    Option(
        "synchronise-python-venv",
        Kind.BOOLEAN,
        "YES|NO",
        "Copy the active virtual environment to the other hosts first.",
        default=False,
    ),
    Option(
        "synchronise-poplar-sdk",
        Kind.BOOLEAN,
        "YES|NO",
        "Copy the Poplar SDK to the other hosts first.",
        default=False,
    ),
    Option(
        "distribute-ssh-key",
        Kind.BOOLEAN,
        "YES|NO",
        "Make the other hosts accept your SSH key first; they may ask for passwords.",
        default=False,
    ),
)

_VIPU = (
    Option(
        "offline-mode",
        Kind.BOOLEAN,
        "YES|NO",
        "Run without IPUs and without V-IPU.",
        unset="automatic: yes only if no option asks for IPUs and no inventory can be "
        "kept",
    ),
    Option(
        "vipu-server-host",
        Kind.TEXT,
        "HOST",
        "Name or address of the V-IPU server. Without it the server that the "
        "environment or the configuration of vipu names, else the inventory of "
        "emulated IPUs of this user on this machine.",
        default="localhost",
    ),
    Option(
        "vipu-server-port",
        Kind.WHOLE,
        "PORT",
        "Port of the V-IPU server.",
        default=8090,
        maximum=65535,
    ),
    Option(
        "vipu-server-timeout",
        Kind.WHOLE,
        "SECONDS",
        "How long to wait for a reply of the V-IPU server.",
        default=10,
    ),
    Option(
        "vipu-partition",
        Kind.TEXT,
        "NAME",
        "The partition to run on. It is created if it does not exist.",
        unset="the only one there is, or one for this job",
    ),
    Option(
        "vipu-partition-attempts",
        Kind.WHOLE,
        "N",
        "How often to try to activate the partition.",
        default=1,
    ),
    Option(
        "wait-for-ipus",
        Kind.WAIT,
        "[=SECONDS]",
        "If the IPUs are in use, wait until they are free, for so long at most. Jobs "
        "get them in the order in which they have begun to wait.",
        default=False,
        vendor=False,
    ),
    Option(
        "update-partition",
        Kind.BOOLEAN,
        "YES|NO",
        "Change an existing partition that does not fit the job.",
        default=False,
    ),
    Option(
        "reset-partition",
        Kind.BOOLEAN,
        "YES|NO",
        "Reset the partition before the program starts.",
        unset="automatic: yes unless the partition is reconfigurable",
    ),
    Option(
        "remove-partition",
        Kind.BOOLEAN,
        "YES|NO",
        "Remove the partition afterwards, if this job created it.",
        default=True,
    ),
    Option(
        "vipu-allocation",
        Kind.TEXT,
        "NAME",
        "The allocation to take the IPUs of a new partition from.",
        rival="vipu-cluster",
    ),
    Option(
        "vipu-cluster",
        Kind.TEXT,
        "NAME",
        "The cluster to take the IPUs of a new partition from. Deprecated: "
        "use --vipu-allocation.",
        rival="vipu-allocation",
    ),
    Option(
        "ipu-link-routing-type",
        Kind.CHOICE,
        "TYPE",
        "How the partition routes over IPU-Links: default, dnc, swnc, ringswnc or "
        "btnc.",
        choices=("default", "dnc", "swnc", "ringswnc", "btnc"),
        prefixes=("rt_", "irt_"),
        unset="V-IPU's",
    ),
    Option(
        "gw-link-routing-type",
        Kind.CHOICE,
        "TYPE",
        "How the partition routes over GW-Links: default.",
        choices=("default",),
        prefixes=("rt_",),
        unset="V-IPU's",
    ),
    Option(
        "sync-type",
        Kind.CHOICE,
        "TYPE",
        "How the IPUs of the partition synchronise: c2-compatible or "
        "pod-native-default, also written as ST_POD_NATIVE_DEFAULT.",
        choices=("c2-compatible", "pod-native-default"),
        prefixes=("st_",),
        unset="V-IPU's",
    ),
    Option(
        "executable-cache-path",
        Kind.PATH,
        "DIR",
        "Where compiled executables are kept for the next run.",
        unset="a temporary one where instances share a host",
    ),
)

_MPI = (
    Option(
        "mpi-global-args",
        Kind.MPI_ARGUMENTS,
        "ARGS",
        'Arguments for mpirun as a whole, as in "--tag-output". '
        "May be repeated; all are used.",
        default=(),
        multiple=True,
    ),
    Option(
        "mpi-local-args",
        Kind.MPI_ARGUMENTS,
        "ARGS",
        'Arguments for mpirun about every instance, as in "-x NAME=VALUE". '
        "May be repeated; all are used.",
        default=(),
        multiple=True,
    ),
    Option(
        "instance-mpi-local-args",
        Kind.INSTANCE_ARGUMENTS,
        "INDEX:ARGS",
        'The same for one instance, as in "1:-x NAME=VALUE". '
        "May be repeated; all are used.",
        default=(),
        multiple=True,
    ),
    Option(
        "allow-run-as-root",
        Kind.BOOLEAN,
        "YES|NO",
        "Whether root may start the job; with no, it is an error for root.",
        unset="yes",
    ),
    Option(
        "mpirun",
        Kind.PATH,
        "PATH",
        "The mpirun to use.",
        unset="this virtual environment's, or the first on PATH",
        vendor=False,
    ),
)

_OUTPUT = (
    Option(
        "output-filename",
        Kind.PATH,
        "DIR",
        "Write the output of each instance to DIR/1/rank.N/stdout and stderr, too; "
        "with :nocopy after DIR, only there. The same as mpirun's.",
        aliases=("log-dir",),
        vendor=False,
    ),
    Option(
        "only-output-from-instance",
        Kind.WHOLE,
        "INDEX",
        "Show the output of this instance only. Warning: use it with great care, "
        "because the errors of the other instances are hidden, too.",
        minimum=0,
        unset="all",
    ),
    Option(
        "stdin",
        Kind.PATH,
        "none|INDEX|all|FILE",
        "Which instances read the standard input of poprun: none, one or all; or a "
        "file that all read instead.",
        default="none",
        vendor=False,
    ),
    Option(
        "progress",
        Kind.BOOLEAN,
        "YES|NO",
        "Show the progress of the job in a status line on stderr, if that is a "
        "terminal.",
        default=True,
        vendor=False,
    ),
    Option(
        "tty",
        Kind.CHOICE,
        "",
        "Whether stdout and stderr of the instances are terminals; auto: those that "
        "are terminals for poprun.",
        choices=("auto", "yes", "no"),
        default="auto",
        vendor=False,
    ),
    Option(
        "verbose",
        Kind.COUNT,
        "",
        "Log what poprun does.",
        short="v",
        default=0,
        minimum=0,
        rival="vv",
    ),
    Option(
        "vv",
        Kind.FLAG,
        "",
        "Log it in detail, with the topology. The same as -vv.",
        default=False,
        rival="verbose",
    ),
)

_LIMITS = (
    Option(
        "timeout",
        Kind.SECONDS,
        "SECONDS",
        "Stop the job after this time.",
        unset="no limit",
        vendor=False,
    ),
    Option(
        "start-timeout",
        Kind.SECONDS,
        "SECONDS",
        "Stop the job if not all instances have started after this time.",
        default=60.0,
        vendor=False,
    ),
    Option(
        "grace",
        Kind.SECONDS,
        "SECONDS",
        "How long to wait for instances to exit before they are killed.",
        default=5.0,
        vendor=False,
    ),
    Option(
        "keep-going",
        Kind.FLAG,
        "",
        "Do not stop the other instances when one fails.",
        default=False,
        vendor=False,
    ),
)

_FRAMEWORKS = (
    Option(
        "emulate-sdk",
        Kind.CHOICE,
        "",
        "Whether instances can import popdist's stand-ins for poptorch, horovod and "
        "popart. What is installed is imported instead. yes: where the stand-ins "
        "cannot be imported, an error says why.",
        choices=("auto", "yes", "no"),
        default="auto",
        vendor=False,
    ),
    Option(
        "torch-backend",
        Kind.CHOICE,
        "",
        "What torch.distributed reduces with where a program names gloo, or no backend "
        "on a machine without GPU: gloo, or popdist's shared memory.",
        choices=("gloo", "popdist"),
        default="gloo",
        vendor=False,
    ),
)

_GENERAL = (
    Option(
        "help",
        Kind.FLAG,
        "",
        "Show this page.",
        short="h",
        default=False,
        in_environment=False,
        in_file=False,
    ),
    # Not from the environment: POPRUN_VERSION is what people call the variable
    # that holds the version they want installed.
    Option(
        "version",
        Kind.FLAG,
        "",
        "Show the version.",
        default=False,
        in_environment=False,
        in_file=False,
    ),
    Option(
        "version-format",
        Kind.CHOICE,
        "",
        "Show the version in this form; the full ones name all that poprun uses.",
        choices=("text", "full-text", "full-json"),
        default="text",
        in_environment=False,
        in_file=False,
    ),
    Option(
        "dry-run",
        Kind.FLAG,
        "",
        "Show the mpirun command and every instance's environment; start nothing.",
        default=False,
        vendor=False,
        in_file=False,
    ),
    Option(
        "show-config",
        Kind.FLAG,
        "",
        "Show the value of every option and where it comes from.",
        default=False,
        vendor=False,
        in_file=False,
    ),
    Option(
        "import-config",
        Kind.PATH,
        "FILE",
        "Read options from this YAML file. Variables named POPRUN_<OPTION> override "
        "it, and the command line overrides both.",
        in_file=False,
    ),
    Option(
        "export-config",
        Kind.PATH,
        "FILE",
        "Write the options that are given to this YAML file.",
        in_file=False,
    ),
    Option(
        "overwrite-config",
        Kind.BOOLEAN,
        "YES|NO",
        "Let --export-config replace a file.",
        default=False,
        in_file=False,
    ),
    Option(
        "debug",
        Kind.BOOLEAN,
        "YES|NO",
        "Show what helps to find out why a job fails.",
        default=False,
    ),
)

# Each of these asks for a partition, unless --offline-mode is given.
VIPU_OPTIONS = (
    "vipu-partition",
    "vipu-server-host",
    "vipu-server-port",
    "vipu-server-timeout",
    "vipu-partition-attempts",
    "wait-for-ipus",
    "update-partition",
    "reset-partition",
    "remove-partition",
    "vipu-cluster",
    "vipu-allocation",
    "ipu-link-routing-type",
    "gw-link-routing-type",
    "sync-type",
)

GROUPS: Mapping[str, tuple[Option, ...]] = {
    "Topology": _TOPOLOGY,
    "Hosts": _HOSTS,
    "V-IPU": _VIPU,
    "MPI": _MPI,
    "Output": _OUTPUT,
    "Limits": _LIMITS,
    "Frameworks": _FRAMEWORKS,
    "Debug and general": _GENERAL,
}

# What this version cannot do yet, by group.
NOT_BUILT_YET: Mapping[str, str] = {
    "Hosts": "This version plans jobs on several hosts (--dry-run), and starts jobs on "
    "this host only.",
}

OPTIONS: Mapping[str, Option] = {o.name: o for group in GROUPS.values() for o in group}
# Every long name, aliases too.
BY_NAME: Mapping[str, Option] = {
    name: option for option in OPTIONS.values() for name in option.names
}
BY_SHORT: Mapping[str, Option] = {o.short: o for o in OPTIONS.values() if o.short}

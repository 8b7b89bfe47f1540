"""The options of mpirun that poprun knows, whatever the MPI, as tables."""

# Where a user gives them.
GLOBAL_ARGS = "--mpi-global-args"
LOCAL_ARGS = "--mpi-local-args"
INSTANCE_ARGS = "--instance-mpi-local-args"

# The other names under which each is known.
_SYNONYMS = {
    "n": "np c",
    "host": "hosts H add-host nolocal",
    "hostfile": "machinefile default-hostfile add-hostfile f",
    "wdir": "wd",
    "npernode": "N ppn",
    "tag-output": "tagoutput l prepend-rank",
    "quiet": "q",
    "verbose": "v",
    "version": "V",
    "help": "h",
    "debug-devel": "d debug-daemons debug-daemons-file report-events",
    "preload-binary": "s preload-files",
    "tune": "am",
    "rank-by": "bynode cartofile cf npersocket ppr rankfile rf",
    "cpus-per-proc": "cpus-per-rank",
    "cpu-set": "cpu-list",
    "x": "set-env",
    "append-env": "unset-env prepend-env",
    "genv": "env envlist genvlist",
    "xml-file": "outfile-pattern errfile-pattern",
    "debug": "debugger tv xterm stop-on-exec stop-in-init stop-in-app output-proctable",
    "timeout": "get-stack-traces report-state-on-timeout",
    "start-timeout": "spawn-timeout",
    "runtime-options": "enable-recovery max-restarts continuous",
    "dvm": "hnp keepalive max-vm-size system-server singleton",
}
_CANONICAL = {
    synonym: name
    for name, synonyms in _SYNONYMS.items()
    for synonym in synonyms.split()
}

# The options that have a meaning here, by how many values follow each.
_BY_NUMBER_OF_VALUES = {
    0: """
        tag-output timestamp-output merge-stderr-to-stdout xml allow-run-as-root
        bind-to-core bind-to-socket bycore byslot pernode quiet verbose
        report-child-jobs-separately disable-recovery oversubscribe use-hwthread-cpus
        report-bindings display-map display-allocation display-topo display-devel-map
        display-devel-allocation display-diffable-map show-progress noprefix
        no-app-prefix leave-session-attached do-not-resolve enable-instant-on-support
        fwd-mpirun-port hetero-nodes novm use-regexp
    """,
    1: """
        x output output-filename wdir bind-to map-by npernode display report-pid
        report-uri prefix pmix-prefix app-pmix-prefix tune launch-agent ompi-server
        stream-buffering gpu-support pset with-ft
    """,
    2: """
        mca gmca prtemca pmixmca gpmixmca
    """,
}
NUMBER_OF_VALUES = {
    name: number
    for number, names in _BY_NUMBER_OF_VALUES.items()
    for name in names.split()
}

# poprun does what these ask for in any case.
FULFILLED = ("quiet", "report-child-jobs-separately", "disable-recovery")

# These make mpirun print hosts, instances and bindings: poprun prints them itself.
_SHOWS_INSTANCES = """
    report-bindings display-map display-allocation display-devel-map
    display-devel-allocation display-diffable-map display
"""
# The option, and its value, that an option stands for.
MEANINGS = {
    "bind-to-core": ("bind-to", "core"),
    "bind-to-socket": ("bind-to", "socket"),
    "bycore": ("map-by", "core"),
    "byslot": ("map-by", "slot"),
    "pernode": ("npernode", "1"),
    **dict.fromkeys(_SHOWS_INSTANCES.split(), ("show instances", "")),
}
# mpirun prints what these ask for, and poprun shows mpirun's output only when it fails.
NOT_SHOWN = {
    "verbose": "-vv logs what poprun does",
    "display-topo": "lstopo shows the topology of a machine",
    "show-progress": "-v shows each instance as it starts",
}

# The values of --bind-to, with the same in --process-placement.
PLACEMENTS = {
    "none": "disabled",
    "core": "spreadcores",
    "hwthread": "spreadcores",
    "numa": "spreadnuma",
    "socket": "spreadnuma",
    "package": "spreadnuma",
}

# The values of --map-by, with the same in --process-placement; None for its default.
# With sockets and NUMA nodes instances take turns, as with --numa-aware=yes.
MAPPINGS = {
    "": None,
    "slot": None,
    "core": "spreadcores",
    "hwthread": "spreadcores",
    "numa": "roundrobin",
    "socket": "roundrobin",
    "package": "roundrobin",
}

# mpirun answers these and starts nothing.
QUESTIONS = ("version", "help")

_PROCESS_PLACEMENT = "Use poprun's own --process-placement."
_QUESTION = f"It asks mpirun a question: give it in {GLOBAL_ARGS}."
_PROGRAMS = "Write programs after poprun's own options: poprun -n 1 a : -n 3 b"

# Options that contradict poprun's own, each with the reason and the way out.
REFUSED = {
    "n": "poprun starts one process for each instance. Ask for --num-instances.",
    "host": "poprun decides where instances run. Use poprun's own --host.",
    "hostfile": "poprun decides where instances run. Use poprun's own --host.",
    "timeout": "poprun stops the job itself. Use poprun's own --timeout.",
    "start-timeout": "poprun stops the job itself. Use poprun's own --start-timeout.",
    "stdin": "poprun handles the input itself. Use poprun's own --stdin.",
    "rank-by": (
        "Instances are numbered in the order of hosts, and poprun assigns their "
        f"cores itself. {_PROCESS_PLACEMENT}"
    ),
    "cpus-per-proc": f"poprun assigns the cores of the instances. {_PROCESS_PLACEMENT}",
    "cpu-set": (
        "poprun assigns the cores of the instances from those that it may "
        "use. Start it with taskset --cpu-list LIST poprun ..."
    ),
    "app": _PROGRAMS,
    "configfile": _PROGRAMS,
    ":": _PROGRAMS,
    "index-argv-by-rank": (
        "All instances have the same arguments. A program finds its instance's index "
        "in the variable RANK."
    ),
    "personality": "poprun starts programs of the MPI that mpirun belongs to.",
    "path": "Each instance looks for the program on its PATH. Write -x PATH=DIR:...",
    "preload-binary": (
        "poprun copies no files. Put the program and its files where all "
        "hosts see them."
    ),
    "set-cwd-to-session-dir": (
        "The session directory is removed with the job. Use --wdir DIR."
    ),
    "genv": "It is written in the same way for all MPIs: -x NAME=VALUE.",
    "append-env": "Write the whole value: -x NAME=VALUE.",
    "forward-signals": (
        "poprun forwards SIGUSR1, SIGUSR2 and all signals that end or stop a job. "
        "Leave it out."
    ),
    "xml-file": (
        "poprun handles the output of the instances itself. Use --xml, or "
        "--output-filename DIR."
    ),
    "debug": (
        "It is for a debugger that controls mpirun's processes, and those are poprun's "
        "supervisors. Attach the debugger to an instance by its PID, which -vv shows."
    ),
    "debug-devel": (
        "It debugs mpirun itself, whose output poprun shows only when it "
        "fails. Run mpirun without poprun for that."
    ),
    "runtime-options": (
        "poprun decides what happens when an instance fails. Use poprun's "
        "own --keep-going."
    ),
    "dvm": "Each job has an mpirun of its own, which ends with it. Leave it out.",
    "set-sid": "poprun cannot supervise processes in other sessions. Leave it out.",
    "tmpdir": "poprun gives each job a directory of its own. Set the variable TMPDIR.",
    "do-not-launch": "Use poprun's own --dry-run.",
    "nooversubscribe": (
        "poprun starts as many instances as are asked for. Ask for fewer instances."
    ),
    "version": _QUESTION,
    "help": _QUESTION,
}


def canonical(name: str) -> str:
    """Return the one name of an option that has several, without its dashes."""
    return _CANONICAL.get(name, name)

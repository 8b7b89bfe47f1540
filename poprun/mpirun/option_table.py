"""The options of mpirun that poprun knows, whatever the MPI, as tables."""

# Where a user gives them.
GLOBAL_ARGS = "--mpi-global-args"
LOCAL_ARGS = "--mpi-local-args"
INSTANCE_ARGS = "--instance-mpi-local-args"

# The other names under which one is known.
_SYNONYMS = {
    "np": "n",
    "c": "n",
    "hosts": "host",
    "H": "host",
    "add-host": "host",
    "nolocal": "host",
    "machinefile": "hostfile",
    "default-hostfile": "hostfile",
    "add-hostfile": "hostfile",
    "f": "hostfile",
    "wd": "wdir",
    "N": "npernode",
    "ppn": "npernode",
    "tagoutput": "tag-output",
    "l": "tag-output",
    "prepend-rank": "tag-output",
    "q": "quiet",
    "v": "verbose",
    "V": "version",
    "h": "help",
    "d": "debug-devel",
    "s": "preload-binary",
    "preload-files": "preload-binary",
    "am": "tune",
    "bycore": "map-by",
    "bynode": "map-by",
    "byslot": "map-by",
    "cartofile": "map-by",
    "cf": "map-by",
    "npersocket": "map-by",
    "ppr": "map-by",
    "rank-by": "map-by",
    "rankfile": "map-by",
    "rf": "map-by",
    "cpus-per-rank": "cpus-per-proc",
    "cpu-list": "cpu-set",
    "set-env": "x",
    "unset-env": "append-env",
    "prepend-env": "append-env",
    "env": "genv",
    "envlist": "genv",
    "genvlist": "genv",
    "outfile-pattern": "xml-file",
    "errfile-pattern": "xml-file",
    "debugger": "debug",
    "tv": "debug",
    "xterm": "debug",
    "stop-on-exec": "debug",
    "stop-in-init": "debug",
    "stop-in-app": "debug",
    "output-proctable": "debug",
    "debug-daemons": "debug-devel",
    "debug-daemons-file": "debug-devel",
    "report-events": "debug-devel",
    "get-stack-traces": "timeout",
    "report-state-on-timeout": "timeout",
    "spawn-timeout": "start-timeout",
    "enable-recovery": "runtime-options",
    "max-restarts": "runtime-options",
    "continuous": "runtime-options",
    "hnp": "dvm",
    "keepalive": "dvm",
    "max-vm-size": "dvm",
    "system-server": "dvm",
    "singleton": "dvm",
}

# How many values follow each that has a meaning here.
NUMBER_OF_VALUES = {
    "x": 1,
    "tag-output": 0,
    "timestamp-output": 0,
    "merge-stderr-to-stdout": 0,
    "xml": 0,
    "output": 1,
    "output-filename": 1,
    "wdir": 1,
    "allow-run-as-root": 0,
    "bind-to": 1,
    "bind-to-core": 0,
    "bind-to-socket": 0,
    "npernode": 1,
    "pernode": 0,
    "mca": 2,
    "gmca": 2,
    "prtemca": 2,
    "pmixmca": 2,
    "gpmixmca": 2,
    "quiet": 0,
    "verbose": 0,
    "report-child-jobs-separately": 0,
    "disable-recovery": 0,
    "oversubscribe": 0,
    "use-hwthread-cpus": 0,
    "report-bindings": 0,
    "display-map": 0,
    "display-allocation": 0,
    "display-topo": 0,
    "display-devel-map": 0,
    "display-devel-allocation": 0,
    "display-diffable-map": 0,
    "display": 1,
    "show-progress": 0,
    "report-pid": 1,
    "report-uri": 1,
    "prefix": 1,
    "noprefix": 0,
    "pmix-prefix": 1,
    "app-pmix-prefix": 1,
    "no-app-prefix": 0,
    "tune": 1,
    "launch-agent": 1,
    "leave-session-attached": 0,
    "do-not-resolve": 0,
    "enable-instant-on-support": 0,
    "fwd-mpirun-port": 0,
    "hetero-nodes": 0,
    "novm": 0,
    "use-regexp": 0,
    "ompi-server": 1,
    "stream-buffering": 1,
    "gpu-support": 1,
    "pset": 1,
    "with-ft": 1,
}

# poprun does what these ask for in any case.
FULFILLED = ("quiet", "report-child-jobs-separately", "disable-recovery")

# What these ask mpirun to print of hosts, instances and bindings, poprun prints itself.
SHOWS_INSTANCES = (
    "report-bindings",
    "display-map",
    "display-allocation",
    "display-devel-map",
    "display-devel-allocation",
    "display-diffable-map",
    "display",
)
# mpirun prints what these ask for, and poprun shows mpirun's output only when it fails.
NOT_SHOWN = {
    "verbose": "-vv logs what poprun does",
    "display-topo": "lstopo shows the topology of a machine",
    "show-progress": "-v shows each instance as it starts",
}

# The value of --process-placement that does what this value of --bind-to does.
PLACEMENTS = {
    "none": "disabled",
    "core": "spreadcores",
    "hwthread": "spreadcores",
    "numa": "spreadnuma",
    "socket": "spreadnuma",
    "package": "spreadnuma",
}

_PROCESS_PLACEMENT = "Use poprun's own --process-placement."
_QUESTION = "It asks mpirun a question: call mpirun itself for that."
_ONE_PROGRAM = "poprun starts one program. Give it after poprun's own options."

# What contradicts poprun's own arguments, with the reason and the way out.
REFUSED = {
    "n": "poprun starts one process for each instance. Ask for --num-instances.",
    "host": "poprun decides where instances run. Use poprun's own --host.",
    "hostfile": "poprun decides where instances run. Use poprun's own --host.",
    "timeout": "poprun stops the job itself. Use poprun's own --timeout.",
    "start-timeout": "poprun stops the job itself. Use poprun's own --start-timeout.",
    "stdin": "poprun handles the input itself. Use poprun's own --stdin.",
    "map-by": (
        "Instances are numbered in the order of hosts, and poprun assigns their "
        f"cores itself. {_PROCESS_PLACEMENT}"
    ),
    "cpus-per-proc": f"poprun assigns the cores of the instances. {_PROCESS_PLACEMENT}",
    "cpu-set": (
        "poprun assigns the cores of the instances from those that it may use. "
        "Start it by taskset --cpu-list LIST poprun ..."
    ),
    "app": _ONE_PROGRAM,
    "configfile": _ONE_PROGRAM,
    ":": _ONE_PROGRAM,
    "index-argv-by-rank": (
        "All instances have the same arguments. A program finds its instance's index "
        "in the variable RANK."
    ),
    "personality": "poprun starts programs of the MPI that mpirun belongs to.",
    "path": "Each instance looks for the program on its PATH: -x PATH=DIR:...",
    "preload-binary": (
        "poprun copies no files. Put the program and its files where all hosts see "
        "them."
    ),
    "set-cwd-to-session-dir": (
        "The session directory is removed with the job. Ask for --wdir DIR."
    ),
    "genv": "It is written in the same way for all MPIs: -x NAME=VALUE.",
    "append-env": "Write the whole value: -x NAME=VALUE.",
    "forward-signals": (
        "poprun forwards SIGUSR1, SIGUSR2 and all signals that end or stop a job. "
        "Leave it out."
    ),
    "xml-file": (
        "poprun handles the output of the instances itself. Ask for --xml, or for "
        "--output-filename DIR."
    ),
    "debug": (
        "It is for a debugger that controls mpirun's processes, and those are poprun's "
        "supervisors. Attach the debugger to an instance by its PID, which -vv shows."
    ),
    "debug-devel": (
        "It debugs mpirun itself, whose output poprun shows only when it fails. Call "
        "mpirun without poprun for that."
    ),
    "runtime-options": (
        "poprun decides what the failure of an instance does. Use poprun's own "
        "--keep-going."
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
    return _SYNONYMS.get(name, name)

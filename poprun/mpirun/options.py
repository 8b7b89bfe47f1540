"""The options of mpirun that poprun knows, whatever the MPI, as tables."""

# Where a user says them.
GLOBAL = "--mpi-global-args"
LOCAL = "--mpi-local-args"
INSTANCE = "--instance-mpi-local-args"

# The other names under which one is known.
_SYNONYMS = {
    "np": "n",
    "c": "n",
    "hosts": "host",
    "H": "host",
    "machinefile": "hostfile",
    "default-hostfile": "hostfile",
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
    "am": "tune",
    "rank-by": "map-by",
    "env": "genv",
    "envlist": "genv",
    "genvlist": "genv",
    "outfile-pattern": "output",
    "errfile-pattern": "output",
}

# How many words follow each that has a meaning here.
NUMBER_OF_VALUES = {
    "x": 1,
    "tag-output": 0,
    "allow-run-as-root": 0,
    "output-filename": 1,
    "bind-to": 1,
    "npernode": 1,
    "mca": 2,
    "gmca": 2,
    "prtemca": 2,
    "pmixmca": 2,
    "quiet": 0,
    "verbose": 0,
    "oversubscribe": 0,
    "nooversubscribe": 0,
    "use-hwthread-cpus": 0,
    "report-bindings": 0,
    "display-map": 0,
    "display-allocation": 0,
    "display-topo": 0,
    "display-devel-map": 0,
    "display": 1,
    "prefix": 1,
    "tune": 1,
}

# What --bind-to means in the words of --process-placement.
PLACEMENTS = {
    "none": "disabled",
    "core": "spreadcores",
    "hwthread": "spreadcores",
    "numa": "spreadnuma",
    "socket": "spreadnuma",
    "package": "spreadnuma",
}

_OUTPUT = (
    "poprun carries the output of the instances itself. Ask for --tag-output, or for "
    "--output-filename DIRECTORY."
)
_QUESTION = "It asks mpirun a question: call mpirun itself for that."

# What contradicts poprun's own arguments, with the reason and the way out.
REFUSED = {
    "n": "poprun starts one process for each instance. Ask for --num-instances.",
    "host": "poprun says itself where instances run. Use poprun's own --host.",
    "hostfile": "poprun says itself where instances run. Use poprun's own --host.",
    "timeout": "poprun stops the job itself. Use poprun's own --timeout.",
    "stdin": "poprun carries the input itself. Use poprun's own --stdin.",
    "wdir": (
        "The instances run in the directory in which poprun is called. "
        "Change to another before you call it."
    ),
    "map-by": (
        "Instances are numbered in the order of hosts, and poprun gives them their "
        "cores itself. Use poprun's own --process-placement."
    ),
    "cpus-per-proc": (
        "poprun gives the instances their cores itself. "
        "Use poprun's own --process-placement."
    ),
    "app": "poprun starts one program. Give it after poprun's own options.",
    "configfile": "poprun starts one program. Give it after poprun's own options.",
    ":": "poprun starts one program. Give it after poprun's own options.",
    "genv": "It is written in the same way for all MPIs: -x NAME=VALUE.",
    "output": _OUTPUT,
    "xml": _OUTPUT,
    "timestamp-output": _OUTPUT,
    "merge-stderr-to-stdout": _OUTPUT,
    "do-not-launch": "Use poprun's own --dry-run.",
    "version": _QUESTION,
    "help": _QUESTION,
}


def canonical(name: str) -> str:
    """Return the one name of an option that has several, without its dashes."""
    return _SYNONYMS.get(name, name)

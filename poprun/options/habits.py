"""Options of other launchers: what each is there, and what to write instead."""

from collections.abc import Mapping, Sequence

from poprun.mpirun.option_table import NUMBER_OF_VALUES, REFUSED, canonical

_PER_NODE = "It is the number of processes of each host. Write -n N, the number in all."
_NODES = "It is the number of hosts. Name them: --host a,b."
_NODE_RANK = "One poprun starts the instances of all hosts. Leave it out."
_RENDEZVOUS = "poprun chooses MASTER_ADDR and MASTER_PORT for each job. Leave it out."
_MODULE = "It names a module of Python. Write: poprun [OPTIONS] python -m MODULE."
_LABEL = 'It tags each line of output. Write --mpi-global-args="--tag-output".'
_CORES = "It assigns cores. Use --process-placement."
_FILES = "It writes output to files. Write --output-filename DIR."
_ELASTIC = "A job of poprun has a fixed number of instances. Write -n N."
_CONTROLLER = "poprun starts instances with mpirun, whatever they use. Leave it out."
_OF_PROGRAM = "poprun does not change how a program computes. Leave it out."
_UNBUFFERED = "Instances have a terminal where poprun has one; else write --tty=yes."
_GPUS = "poprun assigns no GPUs. Leave it out."

# In lower case with hyphens, as accelerate's own underscores are read.
HABITS: Mapping[str, str] = {
    # Of mpirun.
    "-N": "Did you mean -n, the number of instances?",
    "-V": "Did you mean --version?",
    "-x": 'It exports variables. Write --mpi-local-args="-x NAME=VALUE".',
    "--mca": 'It is mpirun\'s: write --mpi-global-args="--mca NAME VALUE".',
    "--oversubscribe": "poprun starts more instances than cores without it.",
    "--nprocs": "It is the number of processes. Write -n N.",
    # Of the vendor's other tools.
    "--num-ipus": "poprun counts replicas. Write --num-replicas N, and "
    "--ipus-per-replica N if a replica has several IPUs.",
    # Of torchrun.
    "--nproc-per-node": _PER_NODE,
    "--nnodes": _NODES,
    "--node-rank": _NODE_RANK,
    "--master-addr": _RENDEZVOUS,
    "--master-port": _RENDEZVOUS,
    "--rdzv-backend": _RENDEZVOUS,
    "--rdzv-endpoint": _RENDEZVOUS,
    "--rdzv-id": _RENDEZVOUS,
    "--rdzv-conf": _RENDEZVOUS,
    "--standalone": "A job on this host alone needs no option. Leave it out.",
    "--max-restarts": "poprun starts a job once and never again. Leave it out.",
    "--monitor-interval": "poprun notices at once when an instance ends. Leave it out.",
    "-m": _MODULE,
    "--module": _MODULE,
    "--no-python": "poprun runs any program as it is. Leave it out.",
    "--tee": "It writes output to files and shows it. Write --output-filename DIR.",
    "-t": "For a limit of time write --timeout SECONDS, for files of the output "
    "--output-filename DIR.",
    "--redirects": "It writes output to files. Write --output-filename DIR:nocopy.",
    "-r": "It writes output to files. Write --output-filename DIR:nocopy.",
    "--local-ranks-filter": "It shows one output. Write --only-output-from-instance N.",
    "--role": "All instances have the same role. Leave it out.",
    "--start-method": "poprun starts programs, not functions. Leave it out.",
    # Of srun.
    "--ntasks": "It is the number of processes. Write -n N.",
    "--ntasks-per-node": _PER_NODE,
    "--tasks-per-node": _PER_NODE,
    "--nodes": _NODES,
    "--nodelist": "It names hosts. Write --host a,b.",
    "-w": "It names hosts. Write --host a,b.",
    "--label": _LABEL,
    "-l": _LABEL,
    "--cpus-per-task": _CORES,
    "-c": _CORES,
    "--cpu-bind": _CORES,
    "-o": _FILES,
    "--error": _FILES,
    "-e": _FILES,
    "--chdir": 'It is the directory to run in. Write --mpi-local-args="--wdir DIR".',
    "-D": 'It is the directory to run in. Write --mpi-local-args="--wdir DIR".',
    "--kill-on-bad-exit": "The first failure ends a job, unless --keep-going is given.",
    "-K": "The first failure ends a job, unless --keep-going is given.",
    "--partition": "It names a partition of Slurm, which poprun does not use. For one "
    "of V-IPU write --vipu-partition NAME.",
    "--gpus": _GPUS,
    "--gres": _GPUS,
    "--unbuffered": _UNBUFFERED,
    "-u": _UNBUFFERED,
    # Of horovodrun.
    "--env": 'It passes variables on. Write --mpi-local-args="-x NAME=VALUE".',
    "--min-np": _ELASTIC,
    "--max-np": _ELASTIC,
    "--host-discovery-script": _ELASTIC,
    "--slots-per-host": _ELASTIC,
    "--gloo": _CONTROLLER,
    "--mpi-args": "It passes arguments to mpirun. Write --mpi-global-args.",
    "--network-interfaces": "It chooses a network. Write --host-subnet CIDR.",
    "--timeline-filename": "poprun records no timeline. Leave it out.",
    "--autotune": "The engine adapts itself while it runs. Leave it out.",
    "--check-build": "--version-format=full-text shows what poprun uses.",
    "-p": "It is a port for ssh. Set it for the host in ~/.ssh/config.",
    "--ssh-port": "It is a port for ssh. Set it for the host in ~/.ssh/config.",
    # Of accelerate.
    "--num-machines": _NODES,
    "--machine-rank": _NODE_RANK,
    "--main-process-ip": _RENDEZVOUS,
    "--main-process-port": _RENDEZVOUS,
    "--config-file": "It names a file of options. Write --import-config FILE.",
    "--multi-gpu": _GPUS,
    "--gpu-ids": _GPUS,
    "--cpu": "Instances compute on CPUs. Leave it out.",
    "--mixed-precision": _OF_PROGRAM,
    "--dynamo-backend": _OF_PROGRAM,
    "--num-cpu-threads-per-process": "poprun sets OMP_NUM_THREADS to the share of the "
    "cores. Set that variable for another number.",
}


def explain(word: str, following: Sequence[str]) -> str:
    """Return what to write instead of an option of another launcher, or "".

    Args:
        following: The words after it, its values among them.
    """
    flag, equals, value = word.partition("=")
    long = flag.lower().replace("_", "-")
    if habit := HABITS.get(long if flag.startswith("--") else flag):
        return habit
    name = canonical(flag.lstrip("-"))
    if name in REFUSED:
        return f"It is mpirun's. {REFUSED[name]}"
    count = NUMBER_OF_VALUES.get(name)
    if count is None:
        return ""
    values = [value] if equals else following[:count]
    text = " ".join([flag, *values, *["VALUE"] * (count - len(values))])
    return f'It is mpirun\'s: write --mpi-global-args="{text}".'

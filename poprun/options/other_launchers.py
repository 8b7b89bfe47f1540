"""Options of other launchers, with their meaning and poprun's way to write them."""

from collections.abc import Mapping, Sequence

from poprun.mpirun.option_table import NUMBER_OF_VALUES, REFUSED, canonical

_PER_HOST = (
    "It is the number of processes per host. Write -n N with the total "
    "number, or -n auto for one per CPU."
)
_RENDEZVOUS = "poprun chooses MASTER_ADDR and MASTER_PORT for each job. Leave it out."

# Advice about the options of mpirun, the vendor's tools, torchrun, srun, horovodrun and
# accelerate, in lower case with hyphens: accelerate's underscores count as hyphens.
_GROUPED_ADVICE = {
    "-N": "Did you mean -n, the number of instances?",
    "-V": "Did you mean --version?",
    "-x --genv": "It sets variables. Write --env NAME=VALUE.",
    "--mca": 'It is an option of mpirun: write --mpi-global-args="--mca NAME VALUE".',
    "--oversubscribe": "poprun can start more instances than cores. Leave it out.",
    "--nprocs --ntasks": "It is the number of processes. Write -n N.",
    "--num-ipus": "poprun counts replicas. Write --num-replicas N, and "
    "--ipus-per-replica N if a replica has several IPUs.",
    "--nproc-per-node --ntasks-per-node --tasks-per-node": _PER_HOST,
    "--ppn -perhost --perhost --npernode": _PER_HOST,
    "--nodes --num-machines": "It is the number of hosts. Name them: --host a,b.",
    "--node-rank --machine-rank": "One poprun starts the instances of all hosts. "
    "Leave it out.",
    "--master-addr --master-port --rdzv-backend --rdzv-endpoint": _RENDEZVOUS,
    "--rdzv-id --rdzv-conf --main-process-ip --main-process-port": _RENDEZVOUS,
    "--standalone": "A job on this host needs no option. Leave it out.",
    "--monitor-interval": "poprun notices at once when an instance ends. Leave it out.",
    "-m --module": "It names a Python module. Write: poprun [OPTIONS] python -m "
    "MODULE.",
    "--no-python": "poprun runs any program as it is. Leave it out.",
    "--tee": "It writes output to files and shows it. Write --log-dir DIR.",
    "-t": "For a time limit write --timeout TIME; for output in files, --log-dir DIR.",
    "--redirects -r": "It writes output to files. Write --log-dir DIR:nocopy.",
    "--local-ranks-filter": "It selects whose output is shown. Write "
    "--only-output-from-instance 0,2.",
    "--role": "All instances have the same role. Leave it out.",
    "--start-method": "poprun starts programs, not functions. Leave it out.",
    "--nodelist -w": "It names hosts. Write --host a,b.",
    "--label -l": "It tags each line of output. Write --tag-format=short.",
    "--cpus-per-task --cpu-bind": "It assigns cores. Use --process-placement.",
    "-c": "For the number of processes write -n N; to assign cores use "
    "--process-placement.",
    "-o --error -e": "It writes output to files. Write --log-dir DIR.",
    "--chdir -D --workdir -wd": "It is the directory to run in. Write --cwd DIR.",
    "--kill-on-bad-exit -K": "The first failure ends the job unless --keep-going is "
    "given. Leave it out.",
    "--partition": "It names a partition of Slurm, which poprun does not use. For one "
    "of V-IPU write --vipu-partition NAME.",
    "--gpus --gres --multi-gpu --gpu-ids": "poprun assigns no GPUs. Leave it out.",
    "--unbuffered -u": "Instances have a terminal if poprun has one. Otherwise write "
    "--tty=yes.",
    "--min-np": "It is the smallest number of processes. Write --min-instances M.",
    "--max-np": "It is the largest number of processes. Write -n N.",
    "--reset-limit": "It is the largest number of restarts. Write --max-restarts N.",
    "--blacklist-cooldown-range": "A lost host is tried again after 20 s, 40 s and so "
    "on. Leave it out.",
    "--slots-per-host": "Write the slots after each host: node-1:2.",
    "--gloo": "poprun starts instances with mpirun, whatever they use. Leave it out.",
    "--mpi-args": "It passes arguments to mpirun. Write --mpi-global-args.",
    "-genvall -envall": "Instances have the environment of poprun. Leave it out.",
    "-launcher -bootstrap": "It names the command that connects to other hosts. Write "
    "--ssh COMMAND.",
    "--network-interfaces -iface": "It chooses a network. Write --host-subnet CIDR.",
    "--timeline-filename": "It records a timeline. Write --trace FILE.",
    "--autotune": "The engine adapts itself while it runs. Leave it out.",
    "--check-build": "--version-format=full-text shows what poprun uses.",
    "-p --ssh-port": "It is a port for ssh. Set it for the host in ~/.ssh/config.",
    "--config --config-file": "It names a file of options. Write --import-config FILE.",
    "--cpu": "Instances compute on CPUs. Leave it out.",
    "--mixed-precision --dynamo-backend": "poprun does not change how a program "
    "computes. Leave it out.",
    "--num-cpu-threads-per-process": "poprun sets OMP_NUM_THREADS to each instance's "
    "share of the cores. Set that variable to choose another number.",
}
ADVICE: Mapping[str, str] = {
    option: advice
    for options, advice in _GROUPED_ADVICE.items()
    for option in options.split()
}


def explain(word: str, following: Sequence[str]) -> str:
    """Return advice about an option of another launcher; "" for an unknown one.

    Args:
        following: The words after it, which may be its values.
    """
    flag, equals, value = word.partition("=")
    long = flag.lower().replace("_", "-")
    # Some launchers write long options with one hyphen.
    spellings = [long] if flag.startswith("--") else [flag, f"-{long}"]
    for spelling in spellings:
        if advice := ADVICE.get(spelling):
            return advice
    name = canonical(flag.lstrip("-"))
    if name in REFUSED:
        return f"It is an option of mpirun. {REFUSED[name]}"
    count = NUMBER_OF_VALUES.get(name)
    if count is None:
        return ""
    values = [value] if equals else following[:count]
    text = " ".join([flag, *values, *["VALUE"] * (count - len(values))])
    return f'It is an option of mpirun: write --mpi-global-args="{text}".'

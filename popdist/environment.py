"""The contract between poprun and popdist: the environment of an instance.

poprun encodes an Instance into environment variables, popdist decodes it. Every
variable that either of them sets or reads is named in this file and in no other.
It imports little, and of the standard library only: programs import it first.
"""

from collections.abc import Mapping

from popdist.errors import MissingVariableError, UnreadableVariableError

# The version of this contract. It goes up when a variable changes its meaning,
# not when one is added.
CONTRACT_VERSION = 1

# --- Set in every instance, in the order in which PopRun sets them.

NUM_TOTAL_REPLICAS = "POPDIST_NUM_TOTAL_REPLICAS"
NUM_IPUS_PER_REPLICA = "POPDIST_NUM_IPUS_PER_REPLICA"
NUM_LOCAL_REPLICAS = "POPDIST_NUM_LOCAL_REPLICAS"
UNIFORM_REPLICAS_PER_INSTANCE = "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE"
# The parent device, on a reconfigurable partition only.
NODE_DEVICE_ID = "POPDIST_NODE_DEVICE_ID"
EXECUTABLE_CACHE_PATH = "POPDIST_EXECUTABLE_CACHE_PATH"
REPLICA_INDEX_OFFSET = "POPDIST_REPLICA_INDEX_OFFSET"
LOCAL_INSTANCE_INDEX = "POPDIST_LOCAL_INSTANCE_INDEX"

# The six that describe the topology, as the fields of Instance. Only poprun sets them.
TOPOLOGY_VARIABLES = (
    NUM_TOTAL_REPLICAS,
    NUM_IPUS_PER_REPLICA,
    NUM_LOCAL_REPLICAS,
    UNIFORM_REPLICAS_PER_INSTANCE,
    REPLICA_INDEX_OFFSET,
    LOCAL_INSTANCE_INDEX,
)

# --- Set besides in the instances of a job with a V-IPU partition.

VIPU_API_HOST = "IPUOF_VIPU_API_HOST"
VIPU_API_PORT = "IPUOF_VIPU_API_PORT"
VIPU_API_PARTITION_ID = "IPUOF_VIPU_API_PARTITION_ID"
VIPU_API_TIMEOUT = "IPUOF_VIPU_API_TIMEOUT"
VIPU_API_GCD_ID = "IPUOF_VIPU_API_GCD_ID"
IPUOF_LOG_LEVEL = "IPUOF_LOG_LEVEL"
POPLAR_TARGET_OPTIONS = "POPLAR_TARGET_OPTIONS"

# --- Our own, of one job: poprun sets them for each job, and removes an outer job's
# values.

CONTRACT = "POPDIST_CONTRACT_VERSION"
JOB_ID = "POPDIST_JOB_ID"
# The abstract unix socket of this instance's poprun, a slash, and the key with which a
# client authenticates as part of the job. The key is a secret: it is in environments
# only, and never in argv.
CONTROL = "POPDIST_CONTROL"
OFFLINE_MODE = "POPDIST_OFFLINE_MODE"
# The option or variable for the number of instances (-n), if it rules out IPUs.
OFFLINE_BECAUSE_OF = "POPDIST_OFFLINE_BECAUSE_OF"
# The instances of a host derive from it the address at which they meet for their
# collectives. A secret of the job, as above.
ARENA = "POPDIST_ARENA"
# How many instances each host of the job has, in the order of the hosts, with commas:
# instances 0 to n - 1 are on the first one, and so on. Set where there are several.
INSTANCES_PER_HOST = "POPDIST_INSTANCES_PER_HOST"
# A file with the indices of ended instances, one on a line. poprun appends to it, and
# other instances do not wait for an instance in it.
ENDED_INSTANCES = "POPDIST_ENDED_INSTANCES"
# How often this job has been started again after a failure.
RESTART_COUNT = "POPDIST_RESTART_COUNT"
# Set in an instance that poprun adds to a running job: the other variables of its place
# are not valid before it has joined, by popdist/generations.py.
ELASTIC_JOINS = "POPDIST_ELASTIC_JOINS"
# Set after a change of members: the number in poprun's attempt of each member, in the
# order of their ranks, with commas. The other variables have the ranks.
ELASTIC_MEMBERS = "POPDIST_ELASTIC_MEMBERS"
# Set in the instance that --pdb names, until its first Python has read it.
PDB = "POPDIST_PDB"

JOB_VARIABLES = (
    CONTRACT,
    JOB_ID,
    CONTROL,
    OFFLINE_MODE,
    OFFLINE_BECAUSE_OF,
    ARENA,
    INSTANCES_PER_HOST,
    ENDED_INSTANCES,
    RESTART_COUNT,
    ELASTIC_JOINS,
    ELASTIC_MEMBERS,
    PDB,
)

# --- Our own, set by the user; poprun passes them on.

TIMEOUT = "POPDIST_TIMEOUT"
STALL_TIMEOUT = "POPDIST_STALL_TIMEOUT"
DEFAULT_STALL_S = 60.0
ALGORITHM = "POPDIST_ALGORITHM"
SIMD = "POPDIST_SIMD"
# Lets instances on several hosts reach each other without MPI: the address at which
# instance 0 listens, and a secret, as tcp://HOST:PORT/SECRET.
LINKS = "POPDIST_LINKS"
# The folder in which instances record their calls: see popdist/call_records.py. The
# option --trace sets it for its job.
TRACE = "POPDIST_TRACE"
# "debug" reports at exit which algorithms ran. poprun -vv sets it for its job, if the
# user has not.
LOG_LEVEL = "POPDIST_LOG_LEVEL"
# Whether the stand-ins for packages of the SDK may be imported: auto, yes or no. The
# option --emulate-sdk sets it for its job.
SDK = "POPDIST_SDK"
# Modules with commas between them, which register CPU functions for custom operators.
CUSTOM_OPS = "POPDIST_CUSTOM_OPS"
# The backend that torch.distributed uses for gloo: gloo or popdist. The option
# --torch-backend sets it for its job.
TORCH_BACKEND = "POPDIST_TORCH_BACKEND"

# --- Set for programs that are written for other launchers.

RANK = "RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_RANK = "LOCAL_RANK"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
# torchrun's agents, one for each host.
GROUP_RANK = "GROUP_RANK"
GROUP_WORLD_SIZE = "GROUP_WORLD_SIZE"
# torchrun numbers processes by role, too. All of poprun's have the default one.
ROLE_NAME = "ROLE_NAME"
ROLE_RANK = "ROLE_RANK"
ROLE_WORLD_SIZE = "ROLE_WORLD_SIZE"
# If this is set, torch assumes that torchrun has started the process.
TORCH_RUN_ID = "TORCHELASTIC_RUN_ID"
TORCH_RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
TORCH_MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
# "True" if torchrun's agent serves the store of env://, "False" if rank 0 does.
TORCH_USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
OMPI_RANK = "OMPI_COMM_WORLD_RANK"
OMPI_SIZE = "OMPI_COMM_WORLD_SIZE"
OMPI_LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"
OMPI_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
OMP_NUM_THREADS = "OMP_NUM_THREADS"
# Whether Open MPI 5 lets a process live on when another one has died.
OPEN_MPI_SURVIVES = "OMPI_MCA_mpi_ft_enable"
# The libmpi that an mpi4py wheel loads.
MPI4PY_LIBMPI = "MPI4PY_LIBMPI"

# The variables that instances need besides the topology in order to meet.
MEETING_VARIABLES = (OMPI_RANK, OMPI_SIZE, OMPI_LOCAL_RANK, OMPI_LOCAL_SIZE, ARENA)

# --- Set by an mpirun without poprun.

# Open MPI's: the rank, which any launcher with PMIx sets, the id of the job, and the
# address of its daemon on this host.
PMIX_RANK = "PMIX_RANK"
PMIX_NAMESPACE = "PMIX_NAMESPACE"
PMIX_SERVER = "PMIX_SERVER_URI2"
# Hydra's, in MPICH and in Intel MPI.
PMI_RANK = "PMI_RANK"
PMI_SIZE = "PMI_SIZE"
HYDRA_LOCAL_RANK = "MPI_LOCALRANKID"
HYDRA_LOCAL_SIZE = "MPI_LOCALNRANKS"

# --- Read by torch: 0 if it is not to load the backends that are installed.

TORCH_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"

# --- Set by Slurm's srun.

SLURM_RANK = "SLURM_PROCID"
SLURM_LOCAL_RANK = "SLURM_LOCALID"
SLURM_NODE = "SLURM_NODEID"
SLURM_JOB = "SLURM_JOB_ID"
# The number of tasks: in a step the step's, otherwise the whole allocation's.
SLURM_SIZE = "SLURM_NTASKS"
# Only srun sets these.
SLURM_STEP = "SLURM_STEP_ID"
SLURM_STEP_SIZE = "SLURM_STEP_NUM_TASKS"
SLURM_STEP_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
SLURM_STEP_NODES = "SLURM_STEP_NUM_NODES"
# "BATCH" in a script that sbatch has started.
SLURM_ENVIRONMENT = "ENVIRONMENT"

# The place of an instance in its job and in its partition: only a launcher sets them.
PLACE_VARIABLES = (
    RANK,
    WORLD_SIZE,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    GROUP_RANK,
    GROUP_WORLD_SIZE,
    ROLE_RANK,
    ROLE_WORLD_SIZE,
    TORCH_RUN_ID,
    TORCH_RESTART_COUNT,
    OMPI_RANK,
    OMPI_SIZE,
    OMPI_LOCAL_RANK,
    OMPI_LOCAL_SIZE,
    PMIX_RANK,
    PMI_RANK,
    PMI_SIZE,
    HYDRA_LOCAL_RANK,
    HYDRA_LOCAL_SIZE,
    NODE_DEVICE_ID,
    VIPU_API_PARTITION_ID,
    VIPU_API_GCD_ID,
)

# --- Set by launchers below which popdist cannot tell how processes find each other.

# MVAPICH's mpirun_rsh.
MVAPICH_RANK = "MV2_COMM_WORLD_RANK"
MVAPICH_SIZE = "MV2_COMM_WORLD_SIZE"
FLUX_RANK = "FLUX_TASK_RANK"
FLUX_SIZE = "FLUX_JOB_SIZE"
# LSF's jsrun.
JSRUN_RANK = "JSM_NAMESPACE_RANK"
JSRUN_SIZE = "JSM_NAMESPACE_SIZE"
HOROVOD_RANK = "HOROVOD_RANK"
HOROVOD_SIZE = "HOROVOD_SIZE"


class Instance:
    """The place of one process in the job."""

    # Not a dataclass, nor a named tuple: programs and poprun import this first, and
    # importing dataclasses or typing takes as long as all else here.
    def __init__(
        self,
        num_total_replicas: int = 1,
        num_ipus_per_replica: int = 1,
        num_local_replicas: int = 1,
        uniform: int = 1,
        replica_index_offset: int = 0,
        local_instance_index: int = 0,
    ) -> None:
        # In the order of TOPOLOGY_VARIABLES.
        self.num_total_replicas = num_total_replicas
        self.num_ipus_per_replica = num_ipus_per_replica
        self.num_local_replicas = num_local_replicas
        self.uniform = uniform
        self.replica_index_offset = replica_index_offset
        self.local_instance_index = local_instance_index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instance) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value}" for name, value in vars(self).items())
        return f"Instance({fields})"

    @property
    def replicas(self) -> range:
        """The job-wide indices of this instance's replicas."""
        first = self.replica_index_offset
        return range(first, first + self.num_local_replicas)

    @property
    def index(self) -> int:
        """The index of this instance. Only valid if `uniform` is 1."""
        return self.replica_index_offset // self.num_local_replicas

    @property
    def num_instances(self) -> int:
        """How many instances the job has. Only valid if `uniform` is 1."""
        return self.num_total_replicas // self.num_local_replicas

    def encode(self) -> dict[str, str]:
        """Return the variables that describe this instance."""
        return dict(zip(TOPOLOGY_VARIABLES, map(str, vars(self).values()), strict=True))

    @classmethod
    def decode(cls, environ: Mapping[str, str]) -> "Instance":
        """Return the instance that the variables describe, and check them.

        Raises:
            MissingVariableError: Some of the variables are not set.
            UnreadableVariableError: One is not a number, or contradicts another.
        """
        missing = [name for name in TOPOLOGY_VARIABLES if name not in environ]
        if missing:
            raise MissingVariableError(*missing, *_missing_of_several(environ))
        self = cls(*(whole_number(environ, name) for name in TOPOLOGY_VARIABLES))
        _check(self)
        return self


def is_set(environ: Mapping[str, str]) -> bool:
    """Return whether poprun started this process: programs test for this variable."""
    return NUM_TOTAL_REPLICAS in environ


def topology_number(environ: Mapping[str, str], name: str) -> int:
    """Return the number of one variable of the topology, PopDist's default if not set.

    It reads no other variable, and so cannot tell whether they contradict each other.

    Raises:
        UnreadableVariableError: The value is not one that the variable can have.
    """
    if name not in environ:
        return _DEFAULTS[name]
    value = whole_number(environ, name)
    _check_alone(name, value)
    return value


_DEFAULTS: dict[str, int] = dict(
    zip(TOPOLOGY_VARIABLES, vars(Instance()).values(), strict=True)
)


def whole_number(environ: Mapping[str, str], name: str, by: str = "poprun") -> int:
    """Return the number that a variable holds.

    Args:
        environ: The environment.
        name: The variable.
        by: The launcher that sets it, for the error.

    Raises:
        MissingVariableError: It is not set.
        UnreadableVariableError: It is not a whole number.
    """
    if name not in environ:
        raise MissingVariableError(name)
    text = environ[name]
    # No job has numbers longer than this, and int() refuses much longer ones.
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UnreadableVariableError(name, text[:40], "a whole number", by)
    return int(text)


def _missing_of_several(environ: Mapping[str, str]) -> list[str]:
    """Return the unset variables, if there are several instances that need them."""
    local, total = environ.get(NUM_LOCAL_REPLICAS), environ.get(NUM_TOTAL_REPLICAS)
    if local is not None and local == total:
        return []
    return [name for name in MEETING_VARIABLES if not environ.get(name)]


def _check(instance: Instance) -> None:
    total, local = instance.num_total_replicas, instance.num_local_replicas
    offset, index = instance.replica_index_offset, instance.local_instance_index
    uniform, ipus = instance.uniform, instance.num_ipus_per_replica
    _check_alone(NUM_TOTAL_REPLICAS, total)
    _check_alone(NUM_IPUS_PER_REPLICA, ipus)
    _check_alone(UNIFORM_REPLICAS_PER_INSTANCE, uniform)
    _require(
        NUM_LOCAL_REPLICAS,
        local,
        1 <= local <= total and (not uniform or total % local == 0),
        f"an equal share of the {total} replicas of {NUM_TOTAL_REPLICAS}",
    )
    _require(
        REPLICA_INDEX_OFFSET,
        offset,
        offset <= total - local and (not uniform or offset % local == 0),
        f"at most {total - local} and the first of {local} local replicas",
    )
    most = total // local if uniform else total - local + 1
    _require(LOCAL_INSTANCE_INDEX, index, index < most, f"less than {most}")


def _check_alone(name: str, value: int) -> None:
    """Check what the rule of a variable says without the other variables."""
    if name == UNIFORM_REPLICAS_PER_INSTANCE:
        _require(name, value, value < 2, "0 or 1")
    elif name not in (REPLICA_INDEX_OFFSET, LOCAL_INSTANCE_INDEX):
        _require(name, value, value >= 1, "1 or more")


def _require(name: str, value: int, holds: bool, rule: str) -> None:
    if not holds:
        raise UnreadableVariableError(name, str(value), rule)

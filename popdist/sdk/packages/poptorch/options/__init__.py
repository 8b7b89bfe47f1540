"""The options of a model, and what some of them are made of."""

from ..errors import ConfigFileError
from .distributed_options import _DistributedOptions
from .jit_options import _JitOptions
from .location_options import TensorLocationSettings, _TensorLocationOptions
from .options import Options
from .popart_options import _PopartOptions
from .precision_options import _PrecisionOptions
from .strategies import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    _IExecutionStrategy,
    _IPhasedExecution,
)
from .training_options import _TrainingOptions

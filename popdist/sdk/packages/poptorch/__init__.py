"""PopTorch's interface, emulated on the CPU by PyTorch and popdist."""

from . import autocasting, enums, experimental, optim, options, poptorch_core, profiling
from . import torch_ops as torch_ops
from ._logging import logger, setLogLevel
from .annotations import IPU, BeginBlock, Block, BlockFunction, removeBlocks
from .argument_parsers import ICustomArgParser, registerCustomArgParser
from .autocasting import autocast
from .ctc import ctc_beam_search_decoder
from .custom_ops import custom_op
from .data import AsynchronousDataAccessor, DataLoader, FixedLengthIterableDataset
from .enums import *  # noqa: F403
from .errors import Error, RecoverableError, UnrecoverableError, createPoptorchError
from .model import PoplarExecutor, inferenceModel, load, trainingModel
from .ops import (
    cond,
    dynamic_slice,
    dynamic_update,
    for_loop,
    hasMlirSupportOnPlatform,
    identity_loss,
    ipu_print_tensor,
    ipuHardwareIsAvailable,
    ipuHardwareVersion,
    isRunningOnIpu,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from .options import (
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)
from .points import fps, nearest
from .scopes import CPU, Attribute, MultiConv, NameScope

# The emulated release.
__version__ = "3.4.0"

# popdist.poptorch tells the stand-in from the installed package by it.
__stand_in__ = True

# `from poptorch import *` hides no module of a program by one that PopTorch does not
# have under this name.
_HIDDEN = """
annotations argument_parsers ctc custom_ops data errors execution model points regions
scopes
"""
__all__ = [
    name for name in dir() if not name.startswith("_") and name not in _HIDDEN.split()
]

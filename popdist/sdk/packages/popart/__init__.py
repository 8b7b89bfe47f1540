"""PopART's interface, emulated on the CPU by PyTorch and popdist.

Without onnx or torch there are only the enumerations for the options of PopTorch.
"""

import sys
from typing import NoReturn

from .enums import *  # noqa: F403

# The emulated release.
__version__ = "3.4.0"

# popdist.popart tells the stand-in from the installed package by it.
__stand_in__ = True

# Why there are only the enumerations, if so.
_missing = ""

try:
    from .builder import Builder, DebugContext
    from .data_flow import AnchorReturnType, DataFlow, InputSettings
    from .device import DeviceInfo, DeviceManager
    from .errors import *  # noqa: F403
    from .graph import InputShapeInfo
    from .graph_transformer import GraphTransformer
    from .loggers import Logger, getLogger
    from .optimizers import *  # noqa: F403
    from .patterns import Patterns
    from .session import InferenceSession, TrainingSession
    from .session_options import SessionOptions
    from .settings import (
        AccumulateOuterFragmentSettings,
        AutodiffSettings,
        AutomaticLossScalingSettings,
        BatchSerializationSettings,
        CommGroup,
        DeveloperSettings,
        ExecutionPhaseSettings,
        ReplicatedCollectivesSettings,
        TensorLocation,
        TensorLocationSettings,
        VariableSettings,
    )
    from .step_io import PyStepIO, PyStepIOCallback, PyWeightsIO
    from .tensor_info import TensorInfo
    from .tensor_names import (
        reservedAccl1Prefix,
        reservedAccl2Prefix,
        reservedAccl3Prefix,
        reservedAcclPrefix,
        reservedAccumPrefix,
        reservedGradientPrefix,
        reservedStepPrefix,
        reservedUpdatedVarPrefix,
    )
except ModuleNotFoundError as error:
    if error.name not in ("onnx", "torch"):
        raise
    _missing = error.name

defaultAiOnnxOpset, defaultAiOnnxMlOpset, defaultAiGraphcoreOpset = 10, 1, 1


def versionString() -> str:
    """Return the emulated release."""
    return f"{__version__} (popdist's stand-in)"


def versionNumber() -> tuple[int, int, int]:
    """Return the numbers of that release."""
    major, minor, point = (int(number) for number in __version__.split("."))
    return major, minor, point


def packageHash() -> str:
    """Return no hash: nothing is compiled here."""
    return ""


# Why some names are missing, and the way out.
_REASONS = {
    "ir": "popxl and its predecessor popart.ir are not emulated. Write the model with "
    "popart.Builder",
    "popxl": "popxl is not emulated. Write the model with popart.Builder",
}


def __getattr__(name: str) -> NoReturn:
    if _missing and not name.startswith("_"):
        raise ModuleNotFoundError(
            f"popdist's stand-in for popart needs {_missing} for popart.{name}, and it "
            "is not installed. Install it from poprun's source folder: pip install "
            "'.[popart]'",
            name=_missing,
        )
    reason = f": {_REASONS[name]}" if name in _REASONS else ""
    text = (
        f"popdist's stand-in for popart has no {name}{reason}. docs/popart.md lists "
        "what it supports."
    )
    # `from popart import NAME` asks here, too: it would answer an AttributeError with
    # a sentence of Python's own. `import *` asks for __all__, which need not be there.
    importing = sys._getframe(1).f_code.co_name == "_handle_fromlist"
    if importing and not name.startswith("_"):
        raise ImportError(text, name=__name__)
    raise AttributeError(text, name=name)

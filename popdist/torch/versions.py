"""The versions of torch that popdist.torch is tested with, and its private names."""

import warnings

import torch

from popdist.framework_names import TORCH

# Equal to the bounds in pyproject.toml: from OLDEST on, and before TOO_NEW.
OLDEST, TOO_NEW = (2, 10), (2, 16)


def warn_of(version: str) -> None:
    """Warn of a version of torch that popdist.torch is not tested with."""
    major, minor = map(int, version.split(".")[:2])
    if not OLDEST <= (major, minor) < TOO_NEW:
        warnings.warn(
            f"popdist.torch is tested with torch 2.10 to 2.15, and this is torch "
            f"{version}: where it fails, pip install 'torch>=2.10,<2.16'.",
            RuntimeWarning,
            stacklevel=2,
        )


warn_of(torch.__version__)
TORCH.check()

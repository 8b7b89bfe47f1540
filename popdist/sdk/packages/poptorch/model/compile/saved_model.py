"""Compiled models in files: written by one process, run by others."""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import Error
from ...options import Options
from ..replica_grouping import Grouping
from .compilation import Compiled

_FORMAT = "popdist poptorch 5"
# What pickle raises, as its documentation lists it; and torch, for an incomplete file.
_UNPICKLING_ERRORS = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    RuntimeError,
)


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """The content of a file."""

    training: bool
    compiled: Compiled
    weights: dict[str, Any]
    # None where only the executable was exported.
    module: nn.Module | None
    optimizer: torch.optim.Optimizer | None
    options: Options | None
    random_state: list[int] | None
    # The groupings of parameters that differ between replicas.
    groups: dict[str, Grouping]

    def write(self, filename: str) -> None:
        """Write the file, in place of one of this name only when it is complete."""
        path = path_of(filename)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            torch.save({"format": _FORMAT, **vars(self)}, partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def read(cls, filename: str) -> "SavedModel":
        """Read a file. It is pickled: read only files that you trust.

        Raises:
            Error: The file is missing or unreadable, or contains something else.
        """
        path = path_of(filename)
        try:
            content = torch.load(path, weights_only=False)
        except FileNotFoundError:
            raise Error(
                f"There is no file {path}. Give one that compileAndExport() or save() "
                "of a model has written."
            ) from None
        except _UNPICKLING_ERRORS as error:
            raise Error(
                f"{path} cannot be unpickled ({type(error).__name__}: {error}). It "
                "must be a complete file of compileAndExport() or save(), and the "
                "classes of the model must be importable. Make them importable, or "
                "write the file again."
            ) from error
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise Error(
                f"{path} contains no model of this version of popdist. Write it again "
                "with compileAndExport(): PopTorch's files contain programs for IPUs."
            )
        return cls(**content)


def path_of(filename: str) -> Path:
    """Return the file that a name stands for: in a folder, model.poptorch."""
    path = Path(filename)
    return path / "model.poptorch" if path.is_dir() else path

"""The tables of the names of frameworks that popdist replaces or overrides."""

import json
import subprocess
import sys
import tomllib
from functools import reduce
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import tf_keras
import torch.distributed

from popdist.framework_names import (
    KERAS,
    TENSORFLOW,
    TF_KERAS,
    TORCH,
    FrameworkNames,
)

TABLES = (TENSORFLOW, KERAS, TF_KERAS, TORCH)
NAMES = [(table, name) for table in TABLES for name in table.names]
VERSIONS = {
    "tensorflow": tf.__version__,
    "keras": keras.__version__,
    "tf_keras": tf_keras.__version__,
    "torch": torch.__version__,
}
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.package)
def test_a_framework_that_is_installed_has_all_names(table: FrameworkNames) -> None:
    table.check()

    # A name in a module that is not imported is not looked for.
    assert {name.partition(":")[0] for name in table.names} <= sys.modules.keys()


def without_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place, _, word = name.partition("#")
    module, _, path = place.partition(":")
    *classes, last = path.split(".")
    owner = reduce(getattr, classes, sys.modules[module])
    if word:
        monkeypatch.setattr(owner, last, lambda: None)
    else:
        monkeypatch.delattr(owner, last)


@pytest.mark.parametrize(("table", "name"), NAMES, ids=[name for _, name in NAMES])
def test_each_missing_name_is_an_error_that_says_what_fails_and_names_versions(
    table: FrameworkNames, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_name(monkeypatch, name)
    with pytest.raises(ImportError) as caught:
        table.check()

    assert str(caught.value) == (
        f"popdist needs {name}, which {table.package} {VERSIONS[table.package]} does "
        f"not have. Without it, {table.names[name]}. Install {table.package} "
        f"{table.tried}, with which popdist was tried."
    )


def test_a_missing_module_is_an_error_and_one_that_is_not_imported_is_none() -> None:
    with pytest.raises(ImportError, match=r"torch\.missing\.module:f"):
        FrameworkNames("torch", "1", {"torch.missing.module:f": "it fails"}).check()
    assert "torch.utils.tensorboard" not in sys.modules
    FrameworkNames("torch", "1", {"torch.utils.tensorboard:f": "it fails"}).check()


def test_the_extras_bound_the_versions_that_were_tried() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]

    assert (TORCH.tried, extras["torch"][0]) == ("2.10 to 2.15", "torch>=2.10,<2.16")
    assert TENSORFLOW.tried == TF_KERAS.tried == "2.21"
    assert (KERAS.tried, *extras["tensorflow"][:2]) == (
        "3.12 to 3.15",
        "keras>=3.12,<3.16",
        "tensorflow-cpu==2.21.*",
    )


# Prints the private methods that classes of popdist override, as the tables name them.
OVERRIDES = """
import importlib, inspect, json, pkgutil, sys
import popdist.sdk
popdist.sdk.install()
import horovod.keras, horovod.tensorflow.keras, horovod.torch, popart, poptorch
import popdist.tensorflow.strategy.popdist_strategy, popdist.torch
from tensorflow.python import ipu
packages = horovod, ipu, popart, popdist.tensorflow, popdist.torch, poptorch
for package in packages:
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try: importlib.import_module(each.name)
        # Some names of Horovod refuse to be imported.
        except ImportError: assert each.name.startswith("horovod."), each.name
ours = tuple(package.__name__ for package in packages)
classes = {
    value
    for name, module in list(sys.modules.items()) if name.startswith(ours)
    for value in list(vars(module).values())
    if inspect.isclass(value) and value.__module__.startswith(ours)
}
frameworks = "keras.", "tensorflow.", "tf_keras.", "torch."
print(json.dumps(sorted({
    f"{base.__module__}:{base.__qualname__}.{name}"
    for each in classes
    for name in vars(each) if name.startswith("_") and not name.startswith("__")
    for base in [next((b for b in each.__mro__[1:] if name in vars(b)), None)]
    if base and base.__module__.startswith(frameworks)
    and not base.__module__.startswith(ours)
})))
"""
# Python and torch set the first two in each subclass. The third one does nothing, and
# torch 2.15 does not have it.
NOT_NEEDED = ("._abc_impl", "._backward_cls", "._set_sequence_number_for_group")


def test_each_private_method_that_popdist_overrides_is_in_a_table() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OVERRIDES],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr
    overridden = json.loads(ran.stdout.splitlines()[-1])
    overridden = [x for x in overridden if not x.endswith(NOT_NEEDED)]

    assert len(overridden) > 30
    named = {path_of(name) for _, name in NAMES}
    assert {path_of(name) for name in overridden} - named == set()


def path_of(name: str) -> str:
    # torch gives some of its C classes the name of a module that imports them.
    return name.rpartition(":")[2]

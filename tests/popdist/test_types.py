import ast
import fcntl
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import ROOT, outputs, run

import popdist
from popdist.engine.calls import signatures
from popdist.engine.group import Group
from popdist.groups.partitioned import ReplicaGroups

PROGRAM = Path(__file__).with_name("typed_program.py")
CACHE = "build/mypy"
STUB = ast.parse(Path(signatures.__file__).with_suffix(".pyi").read_text())


def check(program: Path) -> str:
    # Not with this project's own settings: a user has none of them.
    settings = ["--strict", "--config-file=", "--no-error-summary"]
    (ROOT / "build").mkdir(exist_ok=True)
    # One mypy at a time uses the cache: another one fails if it finds it locked.
    with open(ROOT / "build/mypy.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = subprocess.run(
            [sys.executable, "-m", "mypy", *settings, "--cache-dir", CACHE, program],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    return found.stdout + found.stderr


@pytest.mark.timeout(600)
def test_a_type_checker_knows_what_every_call_returns() -> None:
    assert check(PROGRAM) == ""


@pytest.mark.timeout(600)
def test_a_type_checker_refuses_what_does_not_fit(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(
        "import numpy as np, popdist\n"
        "group, x = popdist.replica_group(), np.ones((2, 3), np.float32)\n"
        "n: int = group.all_reduce(x)\n"
        "group.all_reduce(x, async_op=True).tolist()\n"
        "group.reduce(x).sum()\n"
        "popdist.replica_group('ring', 2)\n"
        "popdist.instance_group().send('text', 0)\n"
    )

    # Not by the whole path: mypy's cache has that of an earlier run.
    found = re.findall(r"(?m)^\S*/wrong\.py:(\d+): error: ", check(program))

    assert found == ["3", "4", "5", "6", "7"]


def test_the_typed_program_runs() -> None:
    assert outputs(run((2, 2), PROGRAM.read_text())) == [""] * 2


def test_the_package_says_that_it_has_types() -> None:
    assert Path(popdist.__file__).with_name("py.typed").exists()


def declaration(name: str) -> ast.ClassDef:
    return next(
        node
        for node in STUB.body
        if isinstance(node, ast.ClassDef) and node.name == name
    )


def name_of(generic: ast.expr) -> str:
    return ast.unparse(generic.value if isinstance(generic, ast.Subscript) else generic)


def keywords(typed_dict: str) -> dict[str, bool]:
    """Return the keywords of a TypedDict that is unpacked, and which need not be."""
    found: dict[str, bool] = {}
    if typed_dict in ("TypedDict", "Generic"):
        return found
    node = declaration(typed_dict)
    for base in node.bases:
        found |= keywords(name_of(base))
    total = all(keyword.arg != "total" for keyword in node.keywords)
    for field in node.body:
        if isinstance(field, ast.AnnAssign):
            required = total or "Required" in ast.unparse(field.annotation)
            found[ast.unparse(field.target)] = not required
    return found


def declared(class_name: str) -> list[tuple[str, list[str], dict[str, bool]]]:
    """Return each overload of a class.

    Its positional parameters, and of all of them which have a default.
    """
    found = []
    for method in declaration(class_name).body:
        assert isinstance(method, ast.FunctionDef)
        of = method.args
        required = len(of.args) - len(of.defaults)
        parameters = {a.arg: i >= required for i, a in enumerate(of.args)}
        del parameters["self"]
        positional = list(parameters)
        pairs = zip(of.kwonlyargs, of.kw_defaults, strict=True)
        parameters |= {a.arg: default is not None for a, default in pairs}
        if of.kwarg:
            assert isinstance(of.kwarg.annotation, ast.Subscript)
            parameters |= keywords(name_of(of.kwarg.annotation.slice))
        found.append((method.name, positional, parameters))
    return found


@pytest.mark.parametrize(
    ("of", "declarations"),
    [
        (Group, ["CommonCalls", "GroupCalls"]),
        (ReplicaGroups, ["CommonCalls", "ReplicaGroupsCalls"]),
    ],
)
def test_calls_are_declared_with_the_parameters_that_they_have(
    of: Any, declarations: list[str]
) -> None:
    for class_name in declarations:
        for name, positional, parameters in declared(class_name):
            signature = inspect.signature(getattr(of, name)).parameters.values()
            actual = {
                p.name: p.default is not inspect.Parameter.empty
                for p in signature
                if p.name != "self"
            }
            assert actual.keys() == parameters.keys(), name
            by_name = {p.name for p in signature if p.kind is p.KEYWORD_ONLY}
            assert [p for p in actual if p not in by_name] == positional, name
            # Overloads require some of those that have a default.
            required = {p for p, default in parameters.items() if not default}
            optional = {p for p, default in actual.items() if default}
            assert required & optional <= {"async_op", "dtype", "out"}, name

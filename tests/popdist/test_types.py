import ast
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
STUB = ast.parse(Path(signatures.__file__).with_suffix(".pyi").read_text())


def check(program: Path) -> str:
    # Not with this project's own settings: a user has none of them.
    settings = ["--strict", "--config-file=", "--no-error-summary"]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, "--cache-dir", "build/mypy", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout + found.stderr


@pytest.mark.timeout(300)
def test_a_type_checker_knows_what_every_call_returns() -> None:
    assert check(PROGRAM) == ""


@pytest.mark.timeout(300)
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


def class_body(name: str) -> list[ast.stmt]:
    return next(
        node.body
        for node in STUB.body
        if isinstance(node, ast.ClassDef) and node.name == name
    )


def keywords(annotation: ast.expr) -> dict[str, bool]:
    """Return the keywords of a TypedDict that is unpacked, and which need not be."""
    assert isinstance(annotation, ast.Subscript)
    return {
        ast.unparse(field.target): "Required" not in ast.unparse(field.annotation)
        for field in class_body(ast.unparse(annotation.slice))
        if isinstance(field, ast.AnnAssign)
    }


def declared(class_name: str) -> list[tuple[str, dict[str, bool]]]:
    """Return each overload of a class: its parameters, and which have a default."""
    found = []
    for method in class_body(class_name):
        assert isinstance(method, ast.FunctionDef)
        of = method.args
        required = len(of.args) - len(of.defaults)
        parameters = {a.arg: i >= required for i, a in enumerate(of.args)}
        pairs = zip(of.kwonlyargs, of.kw_defaults, strict=True)
        parameters |= {a.arg: default is not None for a, default in pairs}
        if of.kwarg and of.kwarg.annotation:
            parameters |= keywords(of.kwarg.annotation)
        del parameters["self"]
        found.append((method.name, parameters))
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
    for declaration in declarations:
        for name, parameters in declared(declaration):
            actual = {
                p.name: p.default is not inspect.Parameter.empty
                for p in inspect.signature(getattr(of, name)).parameters.values()
                if p.name != "self"
            }
            assert [*actual] == [*parameters], name
            # Overloads require some of those that have a default.
            required = {p for p, default in parameters.items() if not default}
            optional = {p for p, default in actual.items() if default}
            assert required & optional <= {"async_op", "out"}, name

"""Write docs/reference.md from the docstrings of popdist's and poprun's interfaces.

python scripts/document_api.py

Modules for a framework are read and not imported: the framework may not be installed.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import popdist
import poprun
from popdist import collectives, elastic, errors

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference.md"

INTRODUCTION = """\
# Reference of the Python interfaces

This page is generated from the docstrings by `python scripts/document_api.py`. It
leaves out types, which editors and type checkers show. Other references: the command
line ([options.md](options.md)), variables ([environment.md](environment.md)), JSON
([results.md](results.md)).
"""

# The functions of popdist, by what they are for.
SECTIONS = {
    "Replicas and instances": (
        *("isPopdistEnvSet", "getNumTotalReplicas", "getNumLocalReplicas"),
        *("getReplicaIndexOffset", "getNumInstances", "getInstanceIndex"),
        *("getLocalInstanceIndex", "isUniformReplicasPerInstance"),
        *("getNumIpusPerReplica", "checkNumIpusPerReplica", "getDeviceId"),
    ),
    "Groups and arrays": (
        *("instance_group", "replica_group", "rows", "empty", "zeros", "empty_like"),
    ),
    "Start, end and communicators": (
        *("init", "registerDefaultBackend", "registerBackend", "initializeBackend"),
        *("isBackendInitialized", "finalizeBackend", "registerCommunicator"),
        *("defaultCommunicatorId", "execute_on_instances"),
    ),
    "Spans of a trace": ("trace",),
}
# What programs use of the classes; adapters for frameworks use more.
COMMON = (
    *("all_reduce", "grouped_all_reduce", "reduce", "reduce_scatter", "all_gather"),
    *("gather", "broadcast", "scatter", "all_to_all", "barrier", "empty", "close"),
    "last_algorithm",
)
MEMBERS: dict[str, Sequence[str]] = {
    "Group": (
        *COMMON,
        *("send", "recv", "num_replicas", "num_local_replicas", "cores", "runs"),
        *("waits", "blocks", "set_timeout", "set_trace", "abort"),
    ),
    "ReplicaGroups": COMMON,
    "Handle": ("test", "wait", "result", "add_done_callback"),
}
FRAMEWORKS = ("torch", "poptorch", "popart", "tensorflow")
TITLES = {"Args": "Arguments", "Raises": "Errors", "Returns": "Result"}


def page() -> str:
    """Return the whole document."""
    parts = [INTRODUCTION.rstrip(), "## popdist"]
    for title, names in SECTIONS.items():
        parts.append(f"### {title}")
        parts += [entry(name, getattr(popdist, name)) for name in names]
    for name, members in MEMBERS.items():
        value = getattr(popdist, name)
        parts += [f"### {name}", markdown(inspect.getdoc(value))]
        parts += [entry(member, getattr(value, member)) for member in members]
    parts += ["### Errors", error_table(), "## popdist.collectives"]
    parts.append(markdown(inspect.getdoc(collectives)))
    parts += [entry(name, getattr(collectives, name)) for name in collectives.__all__]
    parts += ["## popdist.elastic", markdown(inspect.getdoc(elastic))]
    documented = (name for name in elastic.__all__ if not name.endswith("Error"))
    parts += [entry(name, getattr(elastic, name)) for name in documented]
    for name in FRAMEWORKS:
        parts += module_entries(ROOT / "popdist", name)
    parts += ["## poprun", "[python_calls.md](python_calls.md) shows them in use."]
    parts += [entry(name, getattr(poprun, name)) for name in poprun.__all__]
    return "\n\n".join(parts) + "\n"


def entry(name: str, value: Any) -> str:
    """Return what is called, and its docstring."""
    arguments = ""
    if inspect.isroutine(value) or name == "trace":
        arguments = arguments_of(inspect.signature(value))
    return f"#### `{name}{arguments}`\n\n{markdown(inspect.getdoc(value))}"


def arguments_of(signature: inspect.Signature) -> str:
    """Return the names and defaults of arguments, without types."""
    plain = [
        argument.replace(annotation=inspect.Parameter.empty)
        for argument in signature.parameters.values()
        if argument.name not in ("self", "cls")
    ]
    text = str(inspect.Signature(plain))
    return re.sub(r"<class '(?:\w+\.)?(\w+)'>", r"\1", text)


def error_table() -> str:
    """Return the errors of popdist."""
    rows = ["| error | when |", "| --- | --- |"]
    for name, value in sorted(vars(errors).items()):
        if inspect.isclass(value) and issubclass(value, errors.PopdistError):
            first, *_ = (value.__doc__ or "").splitlines()
            rows.append(f"| `popdist.errors.{name}` | {first} |")
    return "\n".join(rows)


def module_entries(folder: Path, name: str) -> Iterator[str]:
    """Yield the public names of a module for a framework."""
    path, package = folder / f"{name}.py", f"popdist.{name}"
    tree = parsed(path if path.exists() else folder / name / "__init__.py")
    yield f"## {package}"
    yield markdown(ast.get_docstring(tree))
    for public in public_names(tree):
        node = definition(tree, public)
        arguments = ""
        if isinstance(node, ast.FunctionDef):
            arguments = arguments_in(node.args)
        yield f"#### `{public}{arguments}`\n\n{markdown(ast.get_docstring(node))}"


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def public_names(tree: ast.Module) -> list[str]:
    """Return what `__all__` lists, or else all classes and functions."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    kinds = (ast.ClassDef, ast.FunctionDef)
    defined = [node.name for node in tree.body if isinstance(node, kinds)]
    return [name for name in defined if not name.startswith("_")]


def definition(tree: ast.Module, name: str) -> ast.ClassDef | ast.FunctionDef:
    """Return the class or function of a name, where it is defined."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        names = node.names if isinstance(node, ast.ImportFrom) else ()
        if isinstance(node, ast.ImportFrom) and name in [one.name for one in names]:
            path = ROOT / (node.module or "").replace(".", "/")
            module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            return definition(parsed(module), name)
    raise LookupError(f"{name} is public, but nothing of that name is defined.")


def arguments_in(arguments: ast.arguments) -> str:
    """Return the names and defaults of arguments, without types."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for one in (*every, arguments.vararg, arguments.kwarg):
        if one is not None:
            one.annotation = None
    return f"({ast.unparse(arguments)})"


def markdown(docstring: str | None) -> str:
    """Return a docstring as Markdown: its sections become lists."""
    text = docstring or ""
    lines = []
    for line in text.splitlines():
        if (title := line.removesuffix(":")) in TITLES and line.endswith(":"):
            lines += [f"**{TITLES[title]}**", ""]
        elif item := re.fullmatch(r"    ([\w, *]+): (.*)", line):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif line.startswith("        "):
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

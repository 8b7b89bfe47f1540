"""Rules about modules that import-linter and ruff, in pyproject.toml, cannot say.

A name in a table stands for the module and everything below it.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


# Packages of their own, and submodules of installed ones, which stand in for some that
# are not installed.
STAND_INS = (ROOT / "popdist/sdk/packages", ROOT / "popdist/sdk/submodules")


def name_of(path: Path) -> str:
    top = next((top for top in STAND_INS if path.is_relative_to(top)), ROOT)
    parts = path.relative_to(top).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {
    name_of(path): path
    for package in ("poprun", "popdist")
    for path in sorted((ROOT / package).rglob("*.py"))
}
# The stages of the stand-ins, from the inside out: import-linter cannot import them. A
# module imports of its own package only what stands in its own stage or in one before
# it. Every module stands in one.
STAGES = {
    "poptorch": (
        ("poptorch.errors", "poptorch.enums", "poptorch._logging"),
        ("poptorch.execution",),
        ("poptorch.autocasting",),
        ("poptorch.options",),
        (
            "poptorch.annotations",
            "poptorch.custom_ops",
            "poptorch.ops",
            "poptorch.ctc",
            "poptorch.scopes",
        ),
        ("poptorch.torch_ops", "poptorch.points"),
        ("poptorch.data",),
        ("poptorch.optim",),
        (
            "poptorch.model.run_settings",
            "poptorch.model.replica_grouping",
            "poptorch.model.forward",
        ),
        ("poptorch.model.update", "poptorch.model.compile"),
        ("poptorch.model.timing", "poptorch.model.model_state"),
        ("poptorch.model",),
        ("poptorch.profiling", "poptorch.poptorch_core", "poptorch.argument_parsers"),
        ("poptorch.experimental",),
    ),
    "horovod": (
        ("horovod.common.exceptions",),
        ("horovod.common", "horovod.ray", "horovod.runner", "horovod.spark"),
        ("horovod.torch",),
        # It imports the common part of both packages for Keras when it is asked to.
        (
            "horovod._keras",
            "horovod.keras",
            "horovod.tensorflow",
        ),
        ("horovod.popart",),
    ),
    "popart": (
        ("popart.enums", "popart.errors", "popart.loggers", "popart.tensor_names"),
        ("popart.tensor_info", "popart.settings", "popart.patterns"),
        ("popart.session_options", "popart.data_flow", "popart.device"),
        ("popart.step_io",),
        ("popart.operators",),
        ("popart.nodes",),
        ("popart.inference",),
        ("popart.graph",),
        ("popart.builder", "popart.graph_transformer", "popart.optimizers"),
        ("popart.session",),
    ),
    "popxl": (("popxl",),),
    "libpvti": (("libpvti",),),
    "tensorflow": (
        ("tensorflow.python.ipu.refusals", "tensorflow.python.ipu.side_effects"),
        ("tensorflow.python.ipu.config", "tensorflow.python.ipu.tensorflow_settings"),
        ("tensorflow.python.ipu.replication", "tensorflow.python.ipu.scopes"),
        ("tensorflow.python.ipu.utils", "tensorflow.python.ipu.loops"),
        (
            "tensorflow.python.ipu.gradient_accumulation",
            "tensorflow.python.ipu.ipu_compiler",
            "tensorflow.python.ipu.ipu_infeed_queue",
            "tensorflow.python.ipu.ipu_outfeed_queue",
        ),
        ("tensorflow.python.ipu.ops.cross_replica_ops",),
        ("tensorflow.python.ipu.optimizers",),
        ("tensorflow.python.ipu.ops",),
        ("tensorflow.python.ipu.keras",),
        (
            "tensorflow.python.ipu.dataset_benchmark",
            "tensorflow.python.ipu.distributed",
            "tensorflow.python.ipu.horovod",
            "tensorflow.python.ipu.ipu_session_run_hooks",
            "tensorflow.python.ipu.ipu_strategy",
            "tensorflow.python.ipu.sharding",
            "tensorflow.python.ipu.test_utils",
        ),
        ("tensorflow.compiler.plugin",),
    ),
}
# The packages themselves: what users import, and the version.
PACKAGES = (
    "poprun",
    "popdist",
    "poptorch",
    "horovod",
    "popart",
    "popxl",
    "libpvti",
    "tensorflow.python.ipu",
    "tensorflow.compiler.plugin",
)

# The folders of the C core: a file includes headers of its own one and of those before.
CORE = ROOT / "popdist" / "engine" / "core"
CORE_FOLDERS = ("kernels", "shm", "sync", "move", "reduce", "hosts", "python")

# What a stand-in may import besides itself and the standard library. If several names
# stand for a module, the longest one counts.
STAND_INS_IMPORT = {
    "horovod": {"numpy", "popdist"},
    # It compares versions as TensorFlow does.
    "horovod.common.util": {"packaging"},
    "horovod._keras": {"numpy", "popdist", "tensorflow"},
    "horovod.keras": {"keras"},
    "horovod.popart": {"popart"},
    "horovod.tensorflow": {"numpy", "popdist", "tensorflow"},
    "horovod.torch": {"popdist", "torch"},
    "popart": {"numpy", "onnx", "popdist", "torch"},
    # ONNX stores models by it.
    "popart.graph": {"google", "onnx"},
    "poptorch": {"numpy", "popdist", "torch", "tqdm"},
    "popxl": set(),
    "libpvti": {"popdist"},
    "tensorflow.compiler.plugin": set(),
    "tensorflow.python.ipu": {"numpy", "popdist"},
    "tensorflow.python.ipu.keras": {"popdist", "wrapt"},
    "tensorflow.python.ipu.horovod": {"horovod", "popdist"},
}

# They start once for every instance, in milliseconds, so they import next to nothing.
LIGHT = (
    "poprun.helpers.entry",
    "poprun.wire.channel",
    "poprun.helpers.end_actions",
    "poprun.helpers.guard",
    "poprun.helpers.own_process",
    "poprun.helpers.processes",
    "poprun.helpers.program_start",
    "poprun.helpers.shim",
    "poprun.wire.protocol",
)
FOR_LIGHT = {
    "_collections_abc",
    "_ctypes",
    "_signal",
    "_socket",
    "errno",
    "fcntl",
    "os",
    "poprun",
    "poprun.wire.channel",
    "poprun.helpers.end_actions",
    "poprun.helpers.own_process",
    "poprun.helpers.processes",
    "poprun.helpers.job_files",
    "poprun.helpers.program_start",
    "poprun.wire.protocol",
    "resource",
    "select",
    "stat",
    "sys",
    "termios",
    "time",
}
# Their common entry imports these.
FOR_THE_ENTRY = {
    "poprun.helpers.guard",
    "poprun.helpers.local_launcher",
    "poprun.helpers.remote_shell",
    "poprun.helpers.shim",
}

READS_ENVIRON = (
    "horovod.runner.common.util.env",
    "horovod.common.basics",
    "popdist.elastic.reforming",
    "popdist.popart",
    "popdist.popdist_core",
    "popdist.poptorch",
    "popdist.sdk.custom_ops",
    "popdist.sdk.finder",
    "popdist.sdk.switch",
    "popdist.session",
    "popdist.transports",
    "poprun.__main__",
    "poprun.host.agent",
    "poprun.reach.host_search_entry",
    "poprun.cli",
    "poprun.popctl.doctor",
    "poprun.python_calls.functions",
    "poprun.popctl.machine_checks",
    "poprun.helpers.guard",
    "poprun.interpreter",
    "poprun.helpers.local_launcher",
    "poprun.helpers.program_start",
    "poprun.helpers.remote_shell",
    "poprun.helpers.shim",
    "poprun.vipu.server.serve",
    "poprun.vipu.commands.entry_points",
    "poprun.vipu.release",
    "poptorch._logging",
    "poptorch.options",
    "tensorflow.python.ipu.utils",
)

# The first takes poprun's entry out of the PYTHONPATH of the program that it runs in.
# The second sets what Open MPI reads nowhere else, before MPI is started.
WRITES_ENVIRON = ("poprun.interpreter", "popdist.transports")

# Where the variables of the contract are spelled, and in what runs in Pythons that
# cannot import that.
CONTRACT = "popdist.environment"
SPELLS_VARIABLES = (
    CONTRACT,
    "poprun.interpreter.sitecustomize",
    "poprun.interpreter.torch_backend",
)
VARIABLE = re.compile(r"\b(POPDIST|IPUOF)_")


def below(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def stage_of(module: str) -> int | None:
    """Return the stage of its package in which a module stands."""
    for number, names in enumerate(STAGES[module.partition(".")[0]]):
        if below(module, names):
            return number
    return None


def list_of(strays: list[str]) -> str:
    return "\n".join(["", *strays])


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def when_running(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk through all but what stands there for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith(
            "TYPE_CHECKING"
        ):
            continue
        yield node
        yield from when_running(node)


def imported(nodes: Iterator[ast.AST], package: str = "") -> set[str]:
    """Return what is imported; relative to `package`, unless that is empty."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            if node.level and package:
                parts = package.split(".")
                base = parts[: len(parts) + 1 - node.level]
                name = ".".join([*base, *filter(None, [name])])
            elif node.level:
                name = "." * node.level + name
            submodules = {f"{name}.{alias.name}" for alias in node.names}
            found |= submodules & MODULES.keys() or {name}
    return found


def imports(module: str) -> set[str]:
    path = MODULES[module]
    package = ""
    if any(path.is_relative_to(top) for top in STAND_INS):
        package = name_of(path.parent / "__init__.py")
    return imported(ast.walk(parse(path)), package)


def lines(tree: ast.Module) -> Iterator[tuple[int, ast.AST]]:
    for node in ast.walk(tree):
        yield getattr(node, "lineno", 0), node


def uses_of_environ(tree: ast.Module) -> Iterator[str]:
    """Say where a module reads the environment of its process, or writes to it."""
    environ = ("os.environ", "os.environb")
    changing = {"clear", "pop", "popitem", "setdefault", "update"}
    for line, node in lines(tree):
        reads = writes = False
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            names = {alias.name for alias in node.names}
            reads = bool(names & {"environ", "environb", "getenv", "getenvb"})
            writes = bool(names & {"putenv", "unsetenv"})
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            reads = name in (*environ, "os.getenv", "os.getenvb")
            writes = name in ("os.putenv", "os.unsetenv")
            writes |= node.attr in changing and ast.unparse(node.value) in environ
            writes |= reads and not isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.Subscript):
            stored = not isinstance(node.ctx, ast.Load)
            writes = stored and ast.unparse(node.value) in environ
        if reads:
            yield f"reads it in line {line}"
        if writes:
            yield f"writes to it in line {line}"


def spelled_variables(tree: ast.Module) -> Iterator[str]:
    """Say which variables of the contract are spelled outside sentences."""
    parts: set[ast.AST] = set()
    for line, node in lines(tree):
        text = None
        if isinstance(node, ast.JoinedStr):
            parts |= set(node.values)
            text = ast.unparse(node)
        elif isinstance(node, ast.Constant) and node not in parts:
            if isinstance(node.value, bytes):
                text = node.value.decode("latin-1")
            elif isinstance(node.value, str):
                text = node.value
        if text and VARIABLE.search(text) and not re.search(r"\s", text):
            yield f"{text} in line {line}"


# Horovod's modules for its frameworks have them.
NAMES_OF_VENDORS = {
    "BroadcastGlobalVariablesCallback",
    "Compression",
    "FP16Compressor",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
}


def test_no_two_public_classes_of_a_package_have_the_same_name() -> None:
    count = Counter(
        (package, node.name)
        for package in PACKAGES
        for name, path in MODULES.items()
        if below(name, (package,))
        for node in parse(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    doubles = [
        f"{package} has several classes {name}."
        for (package, name), number in count.items()
        if number > 1 and name not in NAMES_OF_VENDORS
    ]

    assert not doubles, list_of(doubles)


def test_a_module_stands_in_a_stage_and_imports_from_none_after_it() -> None:
    stages = {
        name: stage_of(name)
        for name in MODULES
        if name.split(".")[0] in STAGES and name not in PACKAGES
    }
    strays = [
        f"{name} stands in no stage. Add it to STAGES."
        for name, stage in stages.items()
        if stage is None
    ]
    strays += [
        f"{name} imports {other}, which stands in a later stage."
        for name, stage in stages.items()
        for other in sorted(imports(name) & stages.keys())
        if other.split(".")[0] == name.split(".")[0]
        and (stages[other] or 0) > (stage or 0)
    ]

    assert not strays, list_of(strays)


def test_what_the_tables_name_exists() -> None:
    stages = [
        name for package in STAGES.values() for names in package for name in names
    ]
    tables = {
        *stages,
        *LIGHT,
        *READS_ENVIRON,
        *SPELLS_VARIABLES,
        *STAND_INS_IMPORT,
        *WRITES_ENVIRON,
    }
    missing = sorted(tables - MODULES.keys())

    assert not missing, f"There is no {', '.join(missing)}."


def test_stand_ins_import_only_what_their_originals_have() -> None:
    strays = []
    for module in (name for name in MODULES if below(name, tuple(STAND_INS_IMPORT))):
        known = [name for name in STAND_INS_IMPORT if below(module, (name,))]
        allowed = STAND_INS_IMPORT[max(known, key=len)] | sys.stdlib_module_names
        strays += [
            f"{module} may not import {name}."
            for name in sorted(imports(module))
            if name.split(".")[0] not in {*allowed, module.split(".")[0]}
        ]

    assert not strays, list_of(strays)


def test_what_runs_beside_an_instance_imports_next_to_nothing() -> None:
    strays = []
    for module in LIGHT:
        entry = module == "poprun.helpers.entry"
        allowed = FOR_LIGHT | (FOR_THE_ENTRY if entry else set())
        strays += [
            f"{module} starts once for every instance and may not import {name}."
            for name in sorted(imported(when_running(parse(MODULES[module]))) - allowed)
        ]

    assert not strays, list_of(strays)


def test_the_environment_is_read_at_the_borders_and_handed_on_as_an_argument() -> None:
    strays = [
        f"The environment is an argument, but {module} {use}."
        for module, path in MODULES.items()
        for use in uses_of_environ(parse(path))
        if not below(
            module, READS_ENVIRON if use.startswith("reads") else WRITES_ENVIRON
        )
    ]

    assert not strays, list_of(strays)


def test_variables_of_the_contract_are_spelled_in_one_file() -> None:
    strays = [
        f"{module} spells {variable}; only {CONTRACT} may."
        for module, path in MODULES.items()
        if module not in SPELLS_VARIABLES
        for variable in spelled_variables(parse(path))
    ]

    assert not strays, list_of(strays)


@pytest.mark.parametrize(
    ("code", "uses"),
    [
        ("f(os.environ)", {"reads it in line 1"}),
        ("x = os.getenv('A')", {"reads it in line 1"}),
        ("from os import environ", {"reads it in line 1"}),
        ("f(environ, environ['A'])", set()),
        ("os.putenv('A', 'b')", {"writes to it in line 1"}),
        ("os.environ['A'] = 'b'", {"reads it in line 1", "writes to it in line 1"}),
        ("os.environ |= more", {"reads it in line 1", "writes to it in line 1"}),
        ("del os.environb[b'A']", {"reads it in line 1", "writes to it in line 1"}),
        ("os.environ.pop('A')", {"reads it in line 1", "writes to it in line 1"}),
    ],
)
def test_reading_and_writing_the_environment_is_seen(code: str, uses: set[str]) -> None:
    assert set(uses_of_environ(ast.parse(code))) == uses


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("x = 'POPDIST_A'", ["POPDIST_A in line 1"]),
        ("x = b'IPUOF_A=1'", ["IPUOF_A=1 in line 1"]),
        ("x = f'POPDIST_{y}'", ["f'POPDIST_{y}' in line 1"]),
        ("x = 'Set POPDIST_A.'", []),
        ("x = f'POPDIST_A is {y}.'", []),
        ("x = 'MYPOPDIST_A'", []),
    ],
)
def test_a_spelled_variable_is_told_from_a_sentence(
    code: str, found: list[str]
) -> None:
    assert list(spelled_variables(ast.parse(code))) == found


def test_every_folder_of_the_core_has_its_place() -> None:
    assert {path.parent.name for path in CORE.glob("*/*.[ch]")} == set(CORE_FOLDERS)


def test_includes_of_the_core_run_one_way() -> None:
    strays = [
        f"{path.relative_to(CORE)} includes {header}"
        for number, folder in enumerate(CORE_FOLDERS, 1)
        for path in sorted((CORE / folder).glob("*.[ch]"))
        for header in re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE)
        if header.split("/")[0] not in CORE_FOLDERS[:number]
    ]

    assert not strays, list_of(strays)

"""Which module may know what. The tables are the architecture.

A name in a table stands for the module and everything below it. A helper that no
table names is free to be imported, but hides nothing: what a module imports by way
of helpers counts as its own.
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
SCRIPTS = {
    name_of(path): path
    for folder in ("scripts", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
}

# The stages of a run, from the inside out. A module imports of its own package only
# what stands in its own stage or in one before it. Every module stands in one.
STAGES = {
    "popdist": (
        (
            "popdist.call_records",
            "popdist.durations",
            "popdist.environment",
            "popdist.errors",
        ),
        ("popdist.settings",),
        ("popdist.device",),
        ("popdist.engine.spec", "popdist.engine.cgroups", "popdist.engine.handle"),
        ("popdist.engine.cores", "popdist.engine.failures", "popdist.engine.meet"),
        ("popdist.engine.rows",),
        ("popdist.engine.worker",),
        ("popdist.engine.transport", "popdist.engine.tuning"),
        ("popdist.engine.endpoint", "popdist.engine.shm"),
        ("popdist.engine.hosts",),
        ("popdist.engine.calls",),
        ("popdist.engine.group",),
        ("popdist.job", "popdist.claim", "popdist.recorder"),
        ("popdist.session",),
        ("popdist.spans",),
        (
            "popdist.communicators",
            "popdist.groups",
            "popdist.negotiation",
            "popdist.replicated",
        ),
        ("popdist.collectives", "popdist.backend"),
        ("popdist.popdist_core", "popdist.bench"),
        ("popdist.torch.tensors",),
        (
            "popdist.torch.channels",
            "popdist.torch.monitored_barrier",
            "popdist.torch.replicated",
        ),
        ("popdist.torch.calls",),
        ("popdist.torch.backend",),
        ("popdist.torch",),
        ("popdist.tensorflow.tensors", "popdist.tensorflow.devices"),
        ("popdist.tensorflow",),
        ("popdist.popart", "popdist.poptorch", "popdist.sdk"),
    ),
    "poptorch": (
        ("poptorch.errors", "poptorch.enums", "poptorch._logging"),
        ("poptorch.regions", "poptorch.execution"),
        ("poptorch.autocasting",),
        ("poptorch.options",),
        ("poptorch.annotations", "poptorch.ops", "poptorch.ctc", "poptorch.scopes"),
        ("poptorch.torch_ops", "poptorch.points"),
        ("poptorch.data",),
        ("poptorch.optim",),
        ("poptorch.model.run_settings", "poptorch.model.forward"),
        ("poptorch.model.update", "poptorch.model.compile"),
        ("poptorch.model.replicated_model", "poptorch.model.measurements"),
        ("poptorch.model",),
        ("poptorch.profiling", "poptorch.poptorch_core", "poptorch.argument_parsers"),
        ("poptorch.experimental",),
    ),
    "horovod": (
        ("horovod.common.exceptions",),
        ("horovod.common", "horovod.runner"),
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
    "tensorflow": (
        (
            "tensorflow.python.ipu.enums",
            "tensorflow.python.ipu.refusals",
            "tensorflow.python.ipu.side_effects",
        ),
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
            "tensorflow.python.ipu.ipu_estimator",
            "tensorflow.python.ipu.ipu_multi_worker_strategy",
            "tensorflow.python.ipu.ipu_pipeline_estimator",
            "tensorflow.python.ipu.ipu_run_config",
            "tensorflow.python.ipu.ipu_session_run_hooks",
            "tensorflow.python.ipu.ipu_strategy",
            "tensorflow.python.ipu.serving",
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
    "tensorflow.python.ipu",
    "tensorflow.compiler.plugin",
)

# The folders of poprun are import-linter's, in pyproject.toml.

# They hold modules of several stages, and none of them.
IN_NO_STAGE = (*PACKAGES, "popdist.engine")

# The folders of the C core: a file includes headers of its own one and of those before.
CORE = ROOT / "popdist" / "engine" / "core"
CORE_FOLDERS = ("kernels", "shm", "sync", "move", "reduce", "hosts", "python")

# What a module may import of the other package, or at all of ours.
ACROSS = {
    "poprun": (
        "poprun",
        "popdist.call_records",
        "popdist.durations",
        "popdist.environment",
        "popdist.errors",
    ),
    # It runs in the program's Python, which may have popdist.
    "poprun.interpreter": ("popdist.sdk.finder", "popdist.tensorflow.devices"),
    "poprun.interpreter.torch_backend": (
        "popdist.torch.backend",
        "poprun.interpreter.torch_calls",
    ),
    "poprun.interpreter.torch_calls": (
        "popdist.call_records",
        "poprun.interpreter.sitecustomize",
    ),
    "poprun.interpreter.function_call": ("popdist",),
    "popdist": ("popdist",),
    "popdist.engine": ("popdist.engine", "popdist.errors"),
    "popdist.poptorch": ("popdist", "poptorch"),
    "poptorch": ("poptorch", "popdist"),
    "horovod": ("horovod", "popdist"),
    "popdist.popart": ("popdist", "popart"),
    "horovod.popart": ("horovod", "popart"),
    "popart": ("popart", "popdist"),
    "popxl": (),
    "tensorflow.python.ipu": ("tensorflow.python.ipu", "popdist"),
    "tensorflow.compiler.plugin": (
        "tensorflow.compiler.plugin",
        "tensorflow.python.ipu",
    ),
    "tensorflow.python.ipu.horovod": ("tensorflow.python.ipu", "popdist", "horovod"),
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

HOROVOD_FOR_TENSORFLOW = ("horovod._keras", "horovod.keras", "horovod.tensorflow")

# Who may import what was not written here and is not Python's.
THIRD_PARTY = {
    # cli names the type of its command.
    "click": (
        "poprun.cli",
        "poprun.options.click_command",
        "poprun.popctl",
        "poprun.texts.click_program",
        "poprun.vipu.commands",
        "poprun.vipu.server",
    ),
    "httptools": ("poprun.vipu.server",),
    "mpi4py": ("popdist",),
    "numpy": ("popdist", "poptorch", "horovod", "popart", "tensorflow.python.ipu"),
    # ONNX stores models by it.
    "google": ("popart.graph",),
    "onnx": ("popart",),
    # TensorFlow and Keras need it.
    "packaging": ("horovod.common.util",),
    "prometheus_client": ("poprun.vipu.server",),
    "cloudpickle": (
        "poprun.python_calls.functions",
        "poprun.interpreter.function_call",
    ),
    "psutil": ("poprun",),
    # textual draws by rich.
    "rich": ("poprun.popctl.top_screen",),
    "textual": ("poprun.popctl.top_screen",),
    # The user's own.
    "sitecustomize": ("poprun.interpreter",),
    "keras": ("horovod.keras",),
    "tensorflow": (
        "popdist.tensorflow",
        "tensorflow.compiler.plugin",
        "tensorflow.python.ipu",
        *HOROVOD_FOR_TENSORFLOW,
    ),
    "torch": (
        "popdist.sdk.forkserver_preload",
        "popdist.torch",
        "popdist.poptorch",
        "poprun.interpreter.torch_backend",
        "poprun.interpreter.torch_calls",
        "poptorch",
        "horovod.torch",
        "popart",
    ),
    "tqdm": ("poptorch",),
    "uvloop": ("poprun.vipu.server",),
    # TensorFlow needs it.
    "wrapt": ("popdist.tensorflow",),
    "yaml": ("poprun",),
}

# They serve the adapters of all frameworks, and import none, by way of no module.
WITHOUT_FRAMEWORK = ("popdist.negotiation", "popdist.replicated", "horovod.common")
FRAMEWORKS = ("torch", "tensorflow", "poptorch", "popart")

# What functions import when they run, and why: elsewhere imports stand at the top. A
# launch takes 100 ms of poprun's own process; what it hardly ever needs stays out.
LATE_IMPORTS = {
    # Every process of poprun imports the package, and only Python programs its calls.
    "poprun": {"poprun.python_calls"},
    # An extra, of which one call has no use.
    "poprun.python_calls.functions": {"cloudpickle"},
    # Signals are handled before anything that takes time is imported.
    "poprun.__main__": {"poprun.cli", "poprun.helpers.own_process"},
    # --version needs nothing and takes 30 ms, a page of text no job, and a guard is
    # started before the 30 ms that the rest of a launch takes to import.
    "poprun.cli": {
        "json",
        "poprun.options.click_command",
        "poprun.color",
        "poprun.supervise.guard_start",
        "poprun.log",
        "poprun.mpirun.questions",
        "poprun.options.config_file",
        "poprun.options.grammar",
        "poprun.options.help",
        "poprun.options.misplaced",
        "poprun.options.refusals",
        "poprun.options.programs",
        "poprun.options.show_config",
        "poprun.options.table",
        "poprun.options.topics",
        "poprun.options.types",
        # For a job that is to write JSON.
        "poprun.result.recorder",
        "poprun.plan.instance_count",
        "poprun.run",
        "poprun.output.terminal",
        "poprun.reach.versions",
        "poprun.trace.job_trace",
        "poprun.words",
    },
    # The server shows views of this module.
    "poprun.supervise.clients.preparing_job": {"poprun.supervise.clients.server"},
    # 700 ms, and it may lack what is installed with the extra top.
    "poprun.popctl.top": {"poprun.popctl.top_screen"},
    # 20 and 40 ms, for a job that asks a server.
    "poprun.vipu.client.connection": {"http.client", "ssl"},
    # A job has one inventory: 10 ms for the embedded one, 5 for a server's.
    "poprun.vipu.opening": {
        "poprun.vipu.client.server_inventory",
        "poprun.vipu.inventory.embedded",
    },
    # 1 ms, for an error.
    "poprun.vipu.inventory.database": {"poprun.vipu.inventory.damage"},
    # It may lack what is installed with the extra vipu.
    "poprun.vipu.server.start": {"poprun.vipu.server.serve"},
    # 10 ms, for what only a server can answer.
    "poprun.vipu.commands.entry_points": {"poprun.vipu.client.server_inventory"},
    # A script, which finds its package by its own path first.
    "poprun.vipu.release": {
        "poprun.vipu.opening",
        "poprun.vipu.client.server_address",
        "poprun.vipu.errors",
        "poprun.vipu.leases",
    },
    # 9 ms, for the users of a server.
    "poprun.vipu.inventory.tables.users": {"hashlib", "hmac", "secrets"},
    # 0.3 ms of the 13 that a shim takes, once for every instance.
    "poprun.helpers.own_process": {"fcntl"},
    "poprun.helpers.program_start": {"resource", "termios"},
    # It runs in every Python of an instance, and does nothing in most of them.
    "poprun.interpreter.sitecustomize": {
        "_signal",
        "_socket",
        "atexit",
        "ctypes",
        "faulthandler",
        "fcntl",
        "importlib.metadata",
        "importlib.util",
        "popdist.sdk.finder",
        "popdist.tensorflow.devices",
        "struct",
    },
    # Keras takes a second to import, and not every program for TensorFlow uses it.
    "horovod.tensorflow": {"horovod.tensorflow.sync_batch_norm"},
    "horovod.tensorflow.optimizer": {"horovod._keras.optimizer"},
    # At each `import torch`, where most programs need none of them, and torch may be
    # built without torch.distributed.
    "poprun.interpreter.torch_backend": {
        "popdist.torch.backend.registration",
        "popdist.torch.backend.rendezvous",
        "poprun.interpreter.torch_calls",
        "torch.distributed",
        "torch.distributed.rendezvous",
    },
}

READS_ENVIRON = (
    "horovod.runner.common.util.env",
    "horovod.common.basics",
    "popdist.popart",
    "popdist.popdist_core",
    "popdist.poptorch",
    "popdist.sdk.finder",
    "popdist.sdk.switch",
    "popdist.session",
    "poprun.__main__",
    "poprun.host.agent",
    "poprun.cli",
    "poprun.popctl.doctor",
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
WRITES_ENVIRON = ("poprun.interpreter", "popdist.session")

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


# Hand objects of the program from rank to rank of one job, as their originals do.
PICKLES = (
    "horovod.common.calls.objects",
    # It only writes bytes, for a hash.
    "poptorch.model.compile.executable_cache",
)


def forbidden(tree: ast.Module) -> Iterator[str]:
    """Say what a module does that no module of ours does."""
    for line, node in lines(tree):
        what = None
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("eval", "exec", "os.popen", "os.system", "yaml.load"):
                what = f"calls {name}"
            elif any(
                k.arg == "shell" and ast.unparse(k.value) != "False"
                for k in node.keywords
            ):
                what = "gives a command to a shell"
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            what = "catches everything with a bare except"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            stray = imported(iter([node])) & {"pickle", "shelve", "marshal"}
            what = f"imports {stray.pop()}" if stray else None
        if what:
            yield f"{what} in line {line}"


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
        if name.split(".")[0] in STAGES and name not in IN_NO_STAGE
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


def test_no_modules_of_the_engine_import_each_other_in_a_circle() -> None:
    left = {name for name in MODULES if below(name, ("popdist.engine",))}
    # What imports none of those that are left is in no circle.
    while free := {name for name in left if not imports(name) & (left - {name})}:
        left -= free

    assert not left, f"{', '.join(sorted(left))} import each other in a circle."


def test_what_the_tables_name_exists() -> None:
    stages = {
        name for package in STAGES.values() for names in package for name in names
    }
    tables = {
        *stages,
        *LIGHT,
        *READS_ENVIRON,
        *WRITES_ENVIRON,
        *SPELLS_VARIABLES,
        *LATE_IMPORTS,
        *WITHOUT_FRAMEWORK,
    }
    missing = {name for name in tables if name not in MODULES}

    assert not missing, f"There is no {', '.join(sorted(missing))}."


def test_imports_between_the_packages_run_one_way() -> None:
    strays = []
    for module in MODULES:
        package = max((name for name in ACROSS if below(module, (name,))), key=len)
        strays += [
            f"{module} may not import {name}: of ours, {package} imports only "
            f"{', '.join(ACROSS[package])}."
            for name in sorted(imports(module))
            if below(name, PACKAGES) and not below(name, ACROSS[package])
        ]

    assert not strays, list_of(strays)


def test_imports_are_written_in_full() -> None:
    strays = [
        f"{module} imports {name}, which names no package."
        for module in MODULES
        for name in sorted(imports(module))
        if name.startswith(".")
    ]

    assert not strays, list_of(strays)


def test_third_party_packages_stay_where_they_belong() -> None:
    known = {*sys.stdlib_module_names, *PACKAGES}
    strays = [
        f"{module} may not import {name}, which belongs to "
        f"{' and '.join(THIRD_PARTY.get(name, ())) or 'no module'}."
        for module in MODULES
        for name in sorted({name.split(".")[0] for name in imports(module)} - known)
        if not below(module, THIRD_PARTY.get(name, ()))
    ]

    assert not strays, list_of(strays)


def test_what_adapters_of_all_frameworks_share_imports_none_of_them() -> None:
    strays = []
    for module in (name for name in MODULES if below(name, WITHOUT_FRAMEWORK)):
        reached, rest = set(), {module}
        while rest:
            reached |= rest
            names = {name for one in rest & MODULES.keys() for name in imports(one)}
            rest = names - reached
        strays += [
            f"{module} may not import {name}."
            for name in sorted(reached)
            if below(name, FRAMEWORKS)
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


def test_imports_stand_at_the_top_but_for_those_that_pay() -> None:
    strays = []
    for module in (name for name in MODULES if below(name, ("poprun",))):
        functions = (
            node
            for node in ast.walk(parse(MODULES[module]))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )
        late = imported(node for function in functions for node in ast.walk(function))
        strays += [
            f"{module} imports {name} in a function. Import it at the top, or list it "
            "in LATE_IMPORTS with what that saves."
            for name in sorted(late - LATE_IMPORTS.get(module, set()))
        ]
        strays += [
            f"{module} does not import {name} in a function, as LATE_IMPORTS says."
            for name in sorted(LATE_IMPORTS.get(module, set()) - late)
        ]

    assert not strays, list_of(strays)


def test_no_module_does_what_none_of_ours_does() -> None:
    strays = [
        f"{module} {stray}."
        for module, path in (MODULES | SCRIPTS).items()
        for stray in forbidden(parse(path))
        if module not in PICKLES or not stray.startswith("imports pickle")
    ]

    assert not strays, list_of(strays)


def test_every_public_function_of_popdist_has_a_docstring() -> None:
    without = [
        f"{module} does not say what {node.name} does."
        for module, path in MODULES.items()
        if "popdist" in module
        for node in parse(path).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
        and "overload" not in map(ast.unparse, node.decorator_list)
    ]

    assert not without, list_of(without)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("subprocess.run(words, shell=True)", "gives a command to a shell in line 1"),
        ("run(words, shell=wanted)", "gives a command to a shell in line 1"),
        ("os.system(words)", "calls os.system in line 1"),
        ("yaml.load(text)", "calls yaml.load in line 1"),
        ("x = eval(text)", "calls eval in line 1"),
        ("exec(text)", "calls exec in line 1"),
        ("def f():\n    import pickle", "imports pickle in line 2"),
        ("from marshal import loads", "imports marshal in line 1"),
        ("try: f()\nexcept: g()", "catches everything with a bare except in line 2"),
    ],
)
def test_what_no_module_may_do_is_seen(code: str, found: str) -> None:
    assert list(forbidden(ast.parse(code))) == [found]


@pytest.mark.parametrize(
    "code",
    [
        "run(words, shell=False)",
        "yaml.safe_load(text)",
        "literal_eval(text)",
        "try: f()\nexcept Exception: g()",
    ],
)
def test_what_every_module_may_do_is_not_reported(code: str) -> None:
    assert list(forbidden(ast.parse(code))) == []


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

"""Names of Graphcore's TensorFlow that cannot work here, and the sentence why."""

import logging
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any, NoReturn

PACKAGE = "tensorflow.python.ipu"

# Why there is nothing to read of what an IPU has done.
NO_REPORTS = "no program is compiled for an IPU, so there are no events and reports."
LOSS_SCALING = (
    "it reads statistics of float16 gradients on the chip. Use "
    "tf.keras.mixed_precision.LossScaleOptimizer."
)

_NO_ESTIMATORS = "TensorFlow has had no estimators since 2.16. "
_HOROVOD_STRATEGY = "use distributed.popdist_strategy.PopDistStrategy under poprun."
# Modules with names that all refuse for one reason.
_MODULES = {
    "distributed.ipu_horovod_strategy": (
        "IPUHorovodStrategy IPUHorovodStrategyV1",
        _HOROVOD_STRATEGY,
    ),
    "horovod.ipu_horovod_strategy": (
        "IPUHorovodStrategy IPUHorovodStrategyV1",
        _HOROVOD_STRATEGY,
    ),
    "ipu_estimator": (
        "IPUEstimator IPUEstimatorSpec",
        f"{_NO_ESTIMATORS}Use a Keras model, or a session with ipu_compiler.compile.",
    ),
    "ipu_pipeline_estimator": (
        "IPUPipelineEstimator IPUPipelineEstimatorSpec",
        f"{_NO_ESTIMATORS}Use a session with pipelining_ops.pipeline.",
    ),
    "ipu_run_config": (
        "IPURunConfig RunConfig",
        f"{_NO_ESTIMATORS}Use config.IPUConfig.",
    ),
    "ops.application_compile_op": (
        "experimental_application_compile_op",
        "nothing is compiled for an IPU. Run what ipu_compiler.compile returns.",
    ),
    "ops.embedded_runtime": (
        "embedded_runtime_start embedded_runtime_call embedded_runtime_stop "
        "emb_runtime_start RuntimeContext",
        "an executable for IPUs cannot run here. Call the model's function itself.",
    ),
    "ops.summary_ops": ("ipu_compile_summary get_ipu_reports", NO_REPORTS),
    "ops.within_replica_ops": (
        "all_gather reduce_scatter all_reduce",
        "all IPUs of a replica are one CPU here.",
    ),
    "serving": (
        "export_keras export_pipeline export_single_step",
        "what it exports holds executables for IPUs. Use tf.saved_model.save.",
    ),
}
_OPTIMIZERS = (
    "automatic_loss_scaling_optimizer",
    "cross_replica_optimizer",
    "gradient_accumulation_optimizer",
    "ipu_optimizer",
    "map_gradient_optimizer",
    "sharded_optimizer",
)
# Further names of modules, and the modules.
_ALIASES = {
    "distributed.host_collective_ops": "distributed",
    "horovod.ipu_multi_replica_strategy": "distributed.popdist_strategy",
    "horovod.popdist_strategy": "distributed.popdist_strategy",
    "ipu_multi_worker_strategy": "distributed.popdist_strategy",
    **dict.fromkeys(_OPTIMIZERS, "optimizers"),
    **dict.fromkeys([f"optimizers.{name}" for name in _OPTIMIZERS], "optimizers"),
}

logger = logging.getLogger(PACKAGE)


def add_modules(package: str) -> None:
    """Give a package its modules that only refuse, and its modules' further names."""
    for path, (names, reason) in _MODULES.items():
        # Without a spec, importlib.util.find_spec raises ValueError.
        module = module_from_spec(ModuleSpec(f"{PACKAGE}.{path}", loader=None))
        module.__doc__ = f"Refuses: {reason}"
        vars(module).update({name: refused(name, reason) for name in names.split()})
        _add_module(package, path, module)
    for path, target in _ALIASES.items():
        _add_module(package, path, sys.modules.get(f"{PACKAGE}.{target}"))


def _add_module(package: str, path: str, module: ModuleType | None) -> None:
    parent, _, name = f"{PACKAGE}.{path}".rpartition(".")
    if parent == package and module is not None:
        sys.modules[f"{parent}.{name}"] = module
        setattr(sys.modules[parent], name, module)


def refuse(name: str, reason: str) -> NoReturn:
    """Raise the error for a name that the stand-in cannot offer.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        f"popdist's stand-in for {PACKAGE} has no {name}: {reason}"
    )


def refused(name: str, reason: str) -> type:
    """Return a class that can be named, and refuses to be called or subclassed."""

    # Any: the refusal is the answer to wrong arguments, too.
    def refuse_all(cls: type, *_: Any, **__: Any) -> NoReturn:
        refuse(name, reason)

    methods = {"__new__": refuse_all, "__init_subclass__": refuse_all}
    return type(
        name.rpartition(".")[2], (), {"__doc__": f"Refuses: {reason}", **methods}
    )

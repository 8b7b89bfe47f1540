"""Compiles a model: finds its loss, IPUs and types by one forward pass."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...annotations import count_ipus, count_stages
from ...errors import Error
from ...execution import Execution
from ..forward.casting import casting
from ..forward.constant_attributes import AttributePath, ConstantAttributes
from ..forward.half_precision import HalfPrecision
from ..forward.losses import LossSource, TorchLosses, find_loss
from ..forward.micro_batches import Inputs
from ..forward.replica_state import (
    RandomState,
    ReplicaBuffers,
    check_broadcast,
    host_random_state_kept,
)
from ..forward.signature import Signature
from ..run_settings import RunSettings
from .executable_cache import key_of, read_or_make
from .graph_search import GraphSearch

# What a cache keeps of a compiled model, besides whether its loss is an identity_loss.
_CACHED = ("ipus", "half", "casts", "int64", "changing")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """A model that is ready to run with inputs of one kind."""

    signature: Signature
    # None for inference.
    loss: LossSource | None
    ipus: int
    half: bool
    # Whether regions with automatic casts were entered.
    casts: bool
    # The first operation that yields int64, and where it is; None without any.
    int64: str | None
    # Attributes that forward changes, which are constants of the model.
    changing: Sequence[AttributePath]

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise Error if the inputs are not like those that the model was compiled for.

        This is checked before anything runs.
        """
        mismatch = self.signature.mismatch(inputs.signature())
        if mismatch is not None:
            raise Error(
                f"{mismatch} This error occurred because the inputs passed at runtime "
                "don't match the inputs used to compile the model. To recompile the "
                "model for the new inputs create a new inferenceModel / trainingModel "
                "wrapper or call destroy() on the current one and try again."
            )


def compile_model(
    module: nn.Module,
    inputs: Inputs,
    settings: RunSettings,
    buffers: ReplicaBuffers,
    attributes: ConstantAttributes,
    random_state: RandomState,
    progress: Callable[[int], object],
) -> Compiled:
    """Run one forward pass that leaves no trace, and return what it has shown.

    Raises:
        Error: The model cannot run with these options.
    """
    signature = inputs.signature()
    half, rules = HalfPrecision(), settings.cast_rules
    args, kwargs = inputs.sample()
    objects, values = buffers.objects(), buffers.snapshot()
    progress(0)
    with ExitStack() as contexts:
        contexts.callback(buffers.restore, objects, values)
        contexts.enter_context(host_random_state_kept())
        contexts.enter_context(torch.set_grad_enabled(settings.training))
        random_state.begin(0)
        execution = contexts.enter_context(Execution(settings.training))
        contexts.enter_context(half)
        search = contexts.enter_context(GraphSearch(execution))
        if rules is not None:
            contexts.enter_context(casting(execution, rules))
        with TorchLosses() as recorder:
            output = module(*args, **kwargs)
        progress(50)
        buffers.check_in_place(objects)
        check_broadcast(
            buffers.changed_since(values),
            settings.replicas,
            settings.broadcast_buffers and settings.training,
        )
        loss = None
        if settings.training:
            loss = find_loss(execution, recorder.recorded, output)
    ipus = _check_ipus(execution, settings)
    progress(100)
    casts = rules is not None and execution.regions.casts
    return Compiled(
        signature=signature,
        loss=loss,
        ipus=ipus,
        half=half.used,
        casts=casts,
        int64=search.int64(output),
        changing=attributes.changed(),
    )


def compile_cached(
    cache: Path | None,
    module: nn.Module,
    inputs: Inputs,
    settings: RunSettings,
    make: Callable[[], Compiled],
) -> Compiled:
    """Return what the cache, a folder, has of the model, or compile it by `make`.

    A cache keeps only what each call checks anew: an entry that no longer fits raises
    an error, and never trains on another loss.
    """
    key = None if cache is None else _key_of(module, inputs, settings)
    if cache is None or key is None:
        return make()
    compiled: list[Compiled] = []

    # Any: values of JSON.
    def compile_here() -> dict[str, Any]:
        compiled.append(make())
        loss = compiled[0].loss
        entry = {name: getattr(compiled[0], name) for name in _CACHED}
        return {**entry, "identity_loss": loss is not None and loss.identity_loss}

    entry = read_or_make(cache, key, compile_here)
    if compiled:
        return compiled[0]
    # Where torch's losses are in the outputs is found out in each process.
    if settings.training and not entry["identity_loss"]:
        return make()
    values = {name: entry[name] for name in _CACHED}
    values["changing"] = [(owner, name) for owner, name in entry["changing"]]
    loss = LossSource(identity_loss=True) if settings.training else None
    return Compiled(signature=inputs.signature(), loss=loss, **values)


def _key_of(module: nn.Module, inputs: Inputs, settings: RunSettings) -> str | None:
    """Return the key of a model in the cache; None if its source cannot be read."""
    alike = replace(settings, instance=0, random_seed=None)
    strategy = settings.strategy
    placement = type(strategy).__name__, vars(strategy).get("_auto_stage")
    stages = {name: vars(stage) for name, stage in strategy._block_map.items()}
    leaves = [None if isinstance(x, torch.Tensor) else x for x in inputs.leaves]
    return key_of(module, inputs.signature(), alike, placement, stages, leaves)


def _check_ipus(execution: Execution, settings: RunSettings) -> int:
    """Return how many IPUs the model's blocks are put on.

    Raises:
        Error: A replica has fewer, or a pipeline has too few micro-batches.
    """
    strategy, available = settings.strategy, settings.ipus_per_replica
    ipus = count_ipus(strategy, execution.blocks)
    if available is not None and ipus > available:
        raise Error(
            f"The model's blocks are put on {ipus} IPUs, but each replica has "
            f"{available}. Start the program with poprun --ipus-per-replica "
            f"{ipus}, or put the blocks on fewer IPUs."
        )
    stages = count_stages(strategy, execution.blocks, execution.computes_before_blocks)
    # The backward pass has a stage for each but the last, too.
    backward = stages - 1 if settings.training else 0
    micro_batches, option, reason = settings.device_iterations, "deviceIterations", ""
    if settings.training:
        micro_batches = settings.gradient_accumulation
        option = "Training.gradientAccumulation"
        reason = (
            f"Please note that a model with {stages} pipeline stages in PopTorch will "
            f"have an additional {backward} stages when training. "
        )
    if micro_batches < stages + backward:
        raise Error(
            f"poptorch.Options().{option} must be greater than or equal to the number "
            f"of pipeline stages ({stages + backward}) when using "
            f"poptorch.PipelinedExecution. {reason}It is {micro_batches}: set it to "
            f"{stages + backward} or more, or set a poptorch.ShardedExecution as the "
            "execution strategy."
        )
    return ipus

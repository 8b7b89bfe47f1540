"""Compiles a model: finds its loss, IPUs and types by one forward pass."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from popdist.torch.replicated.replicas import seed_replica

from ...annotations import count_ipus, count_stages
from ...autocasting import casting
from ...errors import Error
from ...execution import Execution
from ..forward.constant_attributes import ConstantAttributes
from ..forward.half_precision import HalfPrecision
from ..forward.losses import IDENTITY_LOSS, LossSource, TorchLosses, find_loss
from ..forward.micro_batches import Inputs
from ..forward.module_buffers import ModuleBuffers
from ..forward.signature import Signature
from ..replica_grouping import PerReplicaParameters
from ..run_settings import RunSettings
from .executable_cache import key_of, read_or_make
from .graph_search import GraphSearch

# The fields of a compiled model in a cache.
_CACHED = ("loss", "ipus", "half", "casts", "int64", "changing")


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
    # The first operation with a result of int64, and its place; None without any.
    int64: str | None
    # Attributes that forward changes: constants of the model.
    changing: Sequence[str]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Compilation:
    """A module that is compiled for inputs of one kind.

    `progress` is called with the percentage that is done.
    """

    module: nn.Module
    inputs: Inputs
    settings: RunSettings
    buffers: ModuleBuffers
    attributes: ConstantAttributes
    grouped: PerReplicaParameters
    progress: Callable[[int], object]

    def cached(self, cache: Path | None) -> Compiled:
        """Return what the cache, a folder, has of the model, or else run().

        A cache keeps only what each call checks anew: an entry that no longer fits
        raises an error, and never trains on another loss.
        """
        key = None if cache is None else self._key()
        if cache is None or key is None:
            return self.run()
        compiled: list[Compiled] = []

        # Any: values of JSON.
        def compile_here() -> dict[str, Any]:
            compiled.append(self.run())
            return {name: getattr(compiled[0], name) for name in _CACHED}

        entry = read_or_make(cache, key, compile_here)
        if compiled:
            return compiled[0]
        # Where torch's losses are in the outputs is found out in each process.
        if entry["loss"] not in (None, IDENTITY_LOSS):
            return self.run()
        return Compiled(signature=self.inputs.signature(), **entry)

    def run(self) -> Compiled:
        """Run one forward pass without lasting effects, and return its findings.

        Raises:
            Error: The model cannot run with these options.
        """
        signature, settings = self.inputs.signature(), self.settings
        half, rules = HalfPrecision(), settings.cast_rules
        execution = Execution(settings.training)
        search = GraphSearch(execution)
        args, kwargs = self.inputs.sample()
        self.progress(0)
        with (
            self.buffers.restored() as check_buffers,
            torch.random.fork_rng(()),
            torch.set_grad_enabled(settings.training),
            execution,
            half,
            search,
            nullcontext() if rules is None else casting(execution, rules),
        ):
            seed = settings.random_seed
            seed_replica(0, torch.initial_seed() if seed is None else seed, 0)
            with TorchLosses() as recorder:
                output = self.grouped.call(self.module, 0, args, kwargs)
            self.progress(50)
            check_buffers(
                settings.broadcast_buffers
                and settings.training
                and settings.replicas > 1
            )
            loss = None
            if settings.training:
                loss = find_loss(execution.losses, recorder.recorded, output)
        ipus = _check_ipus(execution, settings)
        self.progress(100)
        return Compiled(
            signature=signature,
            loss=loss,
            ipus=ipus,
            half=half.used,
            casts=rules is not None and execution.regions.casts,
            int64=search.int64(output),
            changing=self.attributes.changed(),
        )

    def _key(self) -> str | None:
        """Return the key in the cache; None if the module's source cannot be read."""
        alike = replace(self.settings, instance=0, random_seed=None)
        strategy = self.settings.strategy
        placement = type(strategy).__name__, vars(strategy).get("_auto_stage")
        stages = {name: vars(stage) for name, stage in strategy._block_map.items()}
        leaves = [
            None if isinstance(leaf, torch.Tensor) else leaf
            for leaf in self.inputs.leaves
        ]
        signature = self.inputs.signature()
        groups = dict(self.grouped)
        return key_of(self.module, signature, alike, placement, stages, leaves, groups)


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

"""The training of a session: gradients, their exchange, and the updates."""

import warnings
import zlib
from collections.abc import Mapping
from textwrap import shorten

import torch

from popdist.replicated.members import Members
from popdist.replicated.settings import ReplicatedSettings
from popdist.torch.replicated.trainer import Row, Trainer

from ..errors import popart_exception
from ..optimizers.clipping import clipped
from ..optimizers.optimizer import Optimizer, State
from ..session_options import SessionOptions
from ..tensor_info import TensorInfo

# The group of all sessions' calls, in a separate order.
PURPOSE = "popart"


def meet(options: SessionOptions, settings: ReplicatedSettings) -> Members:
    """Return the instances that the options say train one model.

    All of them call this. Without distributed replicated graphs it is this one alone.

    Raises:
        popart_exception: The job has other replicas than the options say.
    """
    if not options.enableDistributedReplicatedGraphs:
        return Members(replicas=settings.replicas)
    if options.globalReplicationFactor == settings.replicas:
        return Members(replicas=settings.replicas)
    members = join(settings)
    named = (options.globalReplicaOffset, options.globalReplicationFactor)
    if named != (members.first_replica, members.replicas):
        raise popart_exception(
            f"The session options say that the replicas of this instance begin at "
            f"{named[0]} of {named[1]}, but they begin at {members.first_replica} of "
            f"{members.replicas} in its job. Start the program with poprun, and let "
            "popdist.popart.configureSessionOptions set these options."
        )
    return members


def join(settings: ReplicatedSettings) -> Members:
    """Return all instances of the job, which must call this too.

    Raises:
        popart_exception: Their options do not fit together.
    """
    alike = {
        "batchesPerStep": settings.device_iterations,
        "SessionOptions.accumulationFactor": settings.gradient_accumulation,
        "SessionOptions.accumulationAndReplicationReductionType": settings.mean,
    }
    return Members.meet(PURPOSE, settings.replicas, alike, popart_exception)


def check_weights(members: Members, weights: Mapping[str, torch.Tensor]) -> None:
    """Compare the weights' names, types and shapes on the instances, which all call it.

    Raises:
        popart_exception: They differ.
    """
    text = ", ".join(f"{name} {TensorInfo.of(w)}" for name, w in weights.items())
    others = members.unlike_first(zlib.crc32(text.encode()))
    if others:
        raise popart_exception(
            f"Instances {others} have different weights from instance 0. Those of this "
            f"one are {shorten(text, 200, placeholder=' and others') or 'none'}. "
            "Create the same model on all instances."
        )


class Training:
    """The optimizer of some weights, and the sums of their gradients."""

    def __init__(
        self,
        settings: ReplicatedSettings,
        members: Members,
        weights: Mapping[str, torch.Tensor],
        state: State,
        optimizer: Optimizer,
        factors: Mapping[str, int],
    ) -> None:
        """Prepare to train.

        Args:
            settings: The replicas and micro-batches.
            members: The instances that train the same model.
            weights: The weights by their names, which autograd knows as leaves.
            state: The optimizer's tensors by their names, which updates change.
            optimizer: How they are updated.
            factors: Further factors of the gradients of some weights.
        """
        self.optimizer, self._state = optimizer, state
        self._factors = factors
        self._settings, self._weights = settings, dict(weights)
        self.train_with(members)

    def train_with(self, members: Members, averaged: bool = False) -> None:
        """Train with these instances from now on.

        Args:
            members: The instances.
            averaged: Whether the sums of the instances are averaged.

        Raises:
            popart_exception: They train other weights.
        """
        check_weights(members, self._weights)
        self._members, self._has_compared = members, members.instances is None
        self.trainer = Trainer(
            *(self._settings, members, [*self._weights.values()], [*self._weights]),
            *(self._update_weights, self._factors),
            averaged=averaged,
        )

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of a micro-batch."""
        self.trainer.backward(loss, self.optimizer.getLossScalingVal())

    def _update_weights(self, total: Row) -> None:
        """Update the weights by the gradients of all replicas of the job."""
        if not self._has_compared:
            self._compare_values()
        scale = 1 / (self.trainer.divisor * self.optimizer.getLossScalingVal())
        gradients = {
            name: gradient * scale if scale != 1 else gradient
            for name, gradient in zip(self._weights, total, strict=True)
            if gradient is not None
        }
        settings = self.optimizer.clip_norm_settings
        for name, gradient in clipped(gradients, settings).items():
            weight = self._weights[name]
            # Weights of 16 bits are updated in float32, and rounded once.
            wide = weight.to(gradient.dtype)
            weight.copy_(self.optimizer.update(name, wide, gradient, self._state))

    def _compare_values(self) -> None:
        """Warn once, on the first instance, if the weights of instances differ.

        All instances call this in their first update: until then a program may
        broadcast weights.
        """
        self._has_compared = True
        digest = 0
        for weight in self._weights.values():
            data = weight.detach().contiguous().reshape(-1).view(torch.uint8)
            digest = zlib.crc32(data.numpy().data, digest)
        others = self._members.unlike_first(digest)
        if others and self._members.first_replica == 0:
            warnings.warn(
                f"Instances {others} train different weights from instance 0: all "
                "apply the same gradients, and their weights stay apart. Load the same "
                "weights on all instances, or call broadcastWeights() and then "
                "weightsFromHost() before the first run().",
                stacklevel=2,
            )

"""Steps of optimizers that no executor makes: they train an instance alone."""

from functools import cache

from torch.optim.optimizer import register_optimizer_step_post_hook

from popdist.replicated.lone_training import note_training

_ADVICE = (
    "Train by calls of the executor that poptorch.trainingModel() returns. Its methods "
    "of the module, such as to() and train(), return the module, which trains alone."
)


@cache
def watch_plain_steps() -> None:
    """Note from now on if an optimizer makes a step.

    The steps of executors count, too: they come after a reduction.
    """
    register_optimizer_step_post_hook(lambda *_: note_training(_ADVICE))

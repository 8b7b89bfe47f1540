"""Launches of programs that lose their executor, and of those that only look so."""

import sys

import pytest
from conftest import Poprun

PROGRAM = """
import sys
import torch
import popdist
import popdist.poptorch
import poptorch

torch.set_num_threads(1)
kind = sys.argv[1]


class Model(torch.nn.Linear):
    def forward(self, x):
        return poptorch.identity_loss(super().forward(x).sum(), reduction="none")


if kind == "finalized":
    popdist.init()
options = popdist.poptorch.Options()
if kind == "alone":
    options = poptorch.Options()
    options.Distributed.disable()
options.showCompilationProgressBar(False)
module = Model(2, 1)
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
model = poptorch.trainingModel(module, options, optimizer)
if kind == "lost":
    model = model.to("cpu")
if kind == "inference":
    model = poptorch.inferenceModel(module, options)
for _ in range(2):
    loss = model(torch.ones(2 * options.replication_factor, 2))
    if kind == "lost":
        loss.backward()
        optimizer.step()
if kind == "finalized":
    popdist.finalizeBackend()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["lost", "trained", "finalized", "alone", "inference"])
def test_a_job_that_has_trained_each_instance_alone_says_so_once(
    poprun: Poprun, kind: str
) -> None:
    program = poprun.script("main.py", PROGRAM)

    ran = poprun("-n", "2", sys.executable, program, kind)

    assert ran.code == 0, ran.stderr
    lines = ran.stderr.splitlines()
    assert [line for line in lines if "trained separately" in line] == (
        [
            "The 2 instances have trained separately: they have reduced nothing, so "
            "each has a different model. Train by calls of the executor that "
            "poptorch.trainingModel() returns. Its methods of the module, such as "
            "to() and train(), return the module, which trains alone."
        ]
        if kind == "lost"
        else []
    )

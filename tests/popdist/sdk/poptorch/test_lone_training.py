"""Launches of programs that lose their executor, and of those that only look so."""

import sys

import pytest
from conftest import Poprun

# Each kind in turn, in a fork of an instance that has imported torch.
PROGRAM = """
import os
import sys
import time
import torch
import torch._dynamo
import popdist
import popdist.poptorch
import poptorch

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
for kind in sys.argv[1:]:
    child = os.fork()
    if not child:
        break
    if status := os.waitpid(child, 0)[1]:
        sys.exit(f"{kind} ended with status {status}")
    open(f"{kind}.{rank}", "w").close()
    while not all(os.path.exists(f"{kind}.{each}") for each in (0, 1)):
        time.sleep(0.01)
    if rank == 0:
        print(f"{kind} has ended", file=sys.stderr, flush=True)
else:
    sys.exit()


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


KINDS = ["trained", "finalized", "alone", "inference", "lost"]
WARNING = (
    "The 2 instances have trained separately: they have reduced nothing, so each has a "
    "different model. Train by calls of the executor that poptorch.trainingModel() "
    "returns. Its methods of the module, such as to() and train(), return the module, "
    "which trains alone."
)


@pytest.mark.mpi
@pytest.mark.timeout(500)
def test_a_job_that_has_trained_each_instance_alone_says_so_once(
    poprun: Poprun,
) -> None:
    program = poprun.script("main.py", PROGRAM)

    ran = poprun("-n", "2", sys.executable, program, *KINDS, timeout=450)

    assert ran.code == 0, ran.stderr
    lines = [
        line for line in ran.stderr.splitlines() if line.endswith((" ended", WARNING))
    ]
    ends = [f"{kind} has ended" for kind in KINDS]
    assert lines == [*ends[:-1], WARNING, ends[-1]]

"""Jobs without poprun: the instances as processes, told what poprun tells them."""

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from popdist.environment import Instance

ROOT = Path(__file__).parent.parent

# What every instance begins with.
PROLOGUE = """
import os, signal, sys, threading, time
import numpy as np
import popdist
from popdist import collectives
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
"""
# What comes before that, in the same line as its empty first one.
BEFORE_PROLOGUE = "TEST_BEFORE_PROLOGUE"


class Ended(NamedTuple):
    """How an instance ended, and what it said."""

    code: int
    out: str
    err: str


def environments(rows: Sequence[int], arena: str = "") -> list[dict[str, str]]:
    """Return what poprun tells each instance; instance i owns rows[i] replicas."""
    arena = arena or f"test-{os.getpid()}-{secrets.token_hex(4)}"
    size = str(len(rows))
    return [
        {
            **Instance(
                num_total_replicas=sum(rows),
                num_local_replicas=own,
                uniform=int(len(set(rows)) == 1),
                replica_index_offset=sum(rows[:rank]),
                local_instance_index=rank,
            ).encode(),
            "POPDIST_ARENA": arena,
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": size,
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": size,
        }
        for rank, own in enumerate(rows)
    ]


def run(
    rows: int | Sequence[int],
    body: str,
    environ: Mapping[str, str] | None = None,
    timeout: float = 200,
) -> list[Ended]:
    """Run a program in every instance; `rows` is their number, or what each owns."""
    rows = (1,) * rows if isinstance(rows, int) else rows
    told = [{**each, **(environ or {})} for each in environments(rows)]
    return _run(told, body, timeout)


def run_alone(body: str) -> list[Ended]:
    """Run a program in a process without any variable of a job."""
    return _run([{}], body)


def _run(
    environs: Sequence[Mapping[str, str]], body: str, timeout: float = 200
) -> list[Ended]:
    before = os.environ.get(BEFORE_PROLOGUE, "")
    with ExitStack() as stack:
        members = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", before + PROLOGUE + dedent(body)],
                    cwd=ROOT,
                    env={**os.environ, **told},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for told in environs
        ]
        # Before the pipes are closed and the processes waited for.
        for member in members:
            stack.callback(member.kill)
        said = [member.communicate(timeout=timeout) for member in members]
    return [
        Ended(member.returncode, *text)
        for member, text in zip(members, said, strict=True)
    ]


def outputs(ended: Sequence[Ended]) -> list[str]:
    """Return what the instances printed, if all of them ended well."""
    assert [(one.code, one.err) for one in ended] == [(0, "")] * len(ended)
    return [one.out.strip() for one in ended]

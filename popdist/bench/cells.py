"""One cell of the bench: all candidates at one size of one operation and dtype."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from popdist.bench import results
from popdist.bench.communicator import Communicator, refuse
from popdist.bench.machine_state import Probe, bandwidth, mode
from popdist.bench.results import ENGINE, FLOOR, Result
from popdist.bench.rounds import READ_FROM_BYTES, Lane, Samples, measure
from popdist.bench.runners import Candidate, Engine, Floor, Peer
from popdist.bench.sizes import in_short
from popdist.bench.tasks import Task, make_task

# In ascending order: the worst verdict of any member counts for all.
_VERDICTS = (
    "",
    "its result does not follow from the members' inputs",
    "it raised an error",
)
_WRONG, _RAISED = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """The members, the engine and the settings that all cells share."""

    comm: Communicator
    engine: Engine
    peers: Sequence[Peer]
    probe: Probe
    placement: Sequence[str]
    seconds: float
    in_arena: bool
    reads: bool = False
    load: int = 0

    def peers_of(self, operation: str) -> list[Peer]:
        """Return the peers that have an operation."""
        return [peer for peer in self.peers if operation in peer.operations]

    def cell(self, operation: str, dtype: str, nbytes: int) -> Result:
        """Measure one size. Every member must call it alike.

        Raises:
            SystemExit: The engine's own result is wrong.
        """
        size, rank = self.comm.size, self.comm.rank
        task = make_task(operation, nbytes, dtype, rank, size)
        engine = self._engine_lane(task)
        if check(self.comm, engine):
            call = f"{operation} of {in_short(task.nbytes)} of {dtype}"
            refuse(self.comm, f"The engine's result of {call} is wrong.")
        # Once more: since the check, members have agreed on its outcome by the engine.
        engine.run(1)
        algorithm = self.engine.algorithm_of(task)
        lanes, errors = self._peer_lanes(task)
        lanes = [engine, *lanes, self._lane(Floor(), task)]
        samples = measure(self.comm, lanes, self.seconds, self.probe)
        return self._result(task, algorithm, lanes, samples, errors)

    def _reads(self, task: Task) -> bool:
        return self.reads and task.nbytes >= READ_FROM_BYTES

    def _lane(self, candidate: Candidate, task: Task) -> Lane:
        return Lane(
            name=candidate.name,
            task=task,
            run=candidate.runner(task),
            reads=self._reads(task),
        )

    def _engine_lane(self, task: Task) -> Lane:
        group = self.engine.group
        if self.in_arena:
            rows = [group.empty(row.shape, row.dtype) for row in task.inputs]
            task = task.on_arrays(rows)
        lane = self._lane(self.engine, task)
        return replace(lane, name=ENGINE, waits=lambda: group.waits)

    def _peer_lanes(self, task: Task) -> tuple[list[Lane], dict[str, str]]:
        """Return the peers with right results, and an error for each other peer."""
        lanes, errors = [], {}
        for peer in self.peers_of(task.operation):
            lane = self._lane(peer, task)
            if why := check(self.comm, lane):
                errors[peer.name] = why
            else:
                lanes.append(lane)
        return lanes, errors

    def _result(
        self,
        task: Task,
        algorithm: str,
        lanes: Sequence[Lane],
        samples: Samples,
        errors: Mapping[str, str],
    ) -> Result:
        waited = np.array(lanes[0].waited)
        waits = self.comm.greatest(waited[1:] / waited[0])
        names = [lane.name for lane in lanes]
        times = results.microseconds(names, samples.seconds)
        read = bandwidth(samples.probed)
        return Result(
            operation=task.operation,
            dtype=task.dtype,
            bytes=task.nbytes,
            members=self.comm.size,
            algorithm=algorithm,
            in_arena=self.in_arena,
            blocks=self.engine.blocks_of(task) if algorithm == "direct" else None,
            reads_result=self._reads(task),
            mode=mode(read),
            read_gb_per_s=read,
            placement=self.placement,
            rounds=len(samples.seconds),
            engine_us=times.pop(ENGINE),
            floor_us=times.pop(FLOOR),
            peers=times,
            ratios=results.ratios(names, samples.seconds),
            errors=errors,
            busy_processes=self.load,
            waits=dict(zip(results.WAITS, waits.tolist(), strict=True)),
        )


def check(comm: Communicator, lane: Lane) -> str:
    """Call once; return the error in the result of any member, "" if there is none."""
    lane.task.reset()
    comm.barrier()
    verdict = 0
    try:
        lane.run(1)
    # An error of a peer is reported in its place; one of the engine ends the bench.
    except Exception as error:
        if lane.name == ENGINE:
            raise
        verdict = _RAISED
        print(f"popdist.bench: {lane.name}: {error}", file=sys.stderr)
    else:
        if not lane.task.is_right(lane.task.results[0]):
            verdict = _WRONG
    worst = comm.greatest(np.array([verdict], np.float64))[0]
    return _VERDICTS[int(worst)]

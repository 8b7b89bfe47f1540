"""One cell of the bench: all candidates at one size of one dtype."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from popdist.bench.candidates.runners import Candidate, Engine, Floor
from popdist.bench.machine.machine_state import Probe, bandwidth, mode
from popdist.bench.measure import inputs
from popdist.bench.measure.inputs import Array
from popdist.bench.measure.meeting import Floats, Meeting, refuse
from popdist.bench.measure.rounds import Lane, Samples, measure
from popdist.bench.output import results
from popdist.bench.output.results import ENGINE, FLOOR, Result
from popdist.bench.sizes import in_short

_RIGHT, _WRONG, _RAISED = range(3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What all cells have in common."""

    meeting: Meeting
    engine: Engine
    peers: Sequence[Candidate]
    probe: Probe
    placement: Sequence[str]
    seconds: float
    in_arena: bool
    load: int = 0

    def cell(self, dtype: str, nbytes: int) -> Result:
        """Measure one size. Every member must call it alike.

        Raises:
            SystemExit: The engine's own sum is wrong.
        """
        length = nbytes // np.dtype(dtype).itemsize
        source = inputs.source(length, dtype, self.meeting.rank)
        rows = inputs.rows(length, dtype)
        engine = self._engine_lane(rows, source)
        if check(self.meeting, engine, source):
            where = f"{in_short(nbytes)} of {dtype}"
            refuse(self.meeting, f"The engine's sum of {where} is wrong.")
        # Once more: since the check, members have agreed on its outcome by the engine.
        engine.run(1)
        algorithm = self.engine.group.last_algorithm
        lanes, errors = self._peer_lanes(rows, source)
        floor = Lane(name=FLOOR, rows=rows, run=Floor().runner(rows, source))
        lanes = [engine, *lanes, floor]
        samples = measure(self.meeting, lanes, source, self.seconds, self.probe)
        waits = self.meeting.greatest(np.array(engine.waited[1:]) / engine.waited[0])
        return self._result(source, algorithm, lanes, samples, errors, waits)

    def _engine_lane(self, rows: Sequence[Array], source: Array) -> Lane:
        if self.in_arena:
            empty = self.engine.group.empty
            rows = [empty(row.shape, row.dtype) for row in rows]
        group = self.engine.group
        return Lane(
            name=ENGINE,
            rows=rows,
            run=self.engine.runner(rows, source),
            waits=lambda: group.waits,
        )

    def _peer_lanes(
        self, rows: Sequence[Array], source: Array
    ) -> tuple[list[Lane], dict[str, str]]:
        """Return the peers that are right, and what is wrong with each other one."""
        lanes, errors = [], {}
        for peer in self.peers:
            lane = Lane(name=peer.name, rows=rows, run=peer.runner(rows, source))
            if why := check(self.meeting, lane, source):
                errors[peer.name] = why
            else:
                lanes.append(lane)
        return lanes, errors

    def _result(
        self,
        source: Array,
        algorithm: str,
        lanes: Sequence[Lane],
        samples: Samples,
        errors: Mapping[str, str],
        waits: Floats,
    ) -> Result:
        names = [lane.name for lane in lanes]
        times = results.microseconds(names, samples.seconds)
        read = bandwidth(samples.probed)
        return Result(
            operation="all_reduce",
            dtype=source.dtype.name,
            bytes=source.nbytes,
            members=self.meeting.size,
            algorithm=algorithm,
            in_arena=self.in_arena,
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


def check(meeting: Meeting, lane: Lane, source: Array) -> str:
    """Reduce once; return what is wrong with it, on whichever member, or nothing."""
    np.copyto(lane.rows[0], source)
    meeting.barrier()
    verdict = _RIGHT
    try:
        lane.run(1)
    # Whatever a peer raises is reported in its place; the engine's ends the bench.
    except Exception as error:
        if lane.name == ENGINE:
            raise
        verdict = _RAISED
        print(f"popdist.bench: {lane.name}: {error}", file=sys.stderr)
    else:
        if not inputs.is_sum(lane.rows[0], meeting.size):
            verdict = _WRONG
    worst = meeting.greatest(np.array([verdict], np.float64))[0]
    return {
        _RIGHT: "",
        _WRONG: "its result is not the sum of what the members brought",
        _RAISED: "it raised an error",
    }[int(worst)]

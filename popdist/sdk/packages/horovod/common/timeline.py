"""A timeline of calls, in a file that chrome://tracing and Perfetto show."""

import json
import os
import threading
from time import monotonic_ns, time_ns
from typing import Any

from popdist.engine.spec.dtypes import name_of
from popdist.engine.spec.operations import Described, Operation
from popdist.negotiation.call_requests import Kind


class Timeline:
    """Writes events of calls to a file, as they happen; each tensor has a line."""

    def __init__(self, path: str, mark_cycles: bool) -> None:
        # Open as long as this object is used. By lines, so that a fork has none of
        # them to write once more.
        self._file = open(path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._mark_cycles = mark_cycles
        self._begun = monotonic_ns()
        self._lines: dict[str, int] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._file.write("[\n")
        self._first = True
        start = {"start_time_since_epoch_in_micros": time_ns() // 1000}
        self._write({"name": "process_name", "ph": "M", "pid": 0, "args": start})

    def requested(self, name: str, kind: Kind) -> None:
        """A call waits for the other ranks from now on."""
        self._event(name, kind, "B", f"NEGOTIATE_{kind.name}")

    def began(self, name: str, kind: Kind) -> None:
        """All ranks have requested a call."""
        self._event(name, kind, "E", f"NEGOTIATE_{kind.name}")
        self._event(name, kind, "B", kind.name)

    def ended(self, name: str, kind: Kind) -> None:
        """A call has its result."""
        self._event(name, kind, "E", kind.name)

    def cycled(self) -> None:
        """A round of announcements begins."""
        if self._mark_cycles:
            mark = {"name": "CYCLE_START", "ph": "i", "s": "g", "pid": 0, "tid": 0}
            with self._lock:
                self._write({**mark, "ts": self._now()})

    def carried_out(
        self, call: Described, began_ns: int, ended_ns: int, succeeded: bool
    ) -> None:
        """The engine has carried out a call, which may be of several tensors."""
        event = {
            "name": f"ENGINE_{Operation(call[0]).name}",
            "ph": "X",
            "pid": 0,
            "tid": 0,
            "ts": (began_ns - self._begun) / 1000,
            "dur": (ended_ns - began_ns) / 1000,
            "args": {"count": call[5], "dtype": name_of(call[1])},
        }
        with self._lock:
            self._write(event)

    def close(self) -> None:
        """Complete the file, unless this process is a fork of the one that writes."""
        if os.getpid() == self._pid:
            with self._lock:
                self._file.write("]\n")
                self._file.close()

    def _event(self, name: str, kind: Kind, phase: str, label: str) -> None:
        with self._lock:
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = len(self._lines) + 1
                # As Horovod names them: by the kind of call, and the call's name.
                prefix = f"{kind.text}."
                full_name = name if name.startswith(prefix) else prefix + name
                line_name = {"name": "thread_name", "ph": "M", "pid": 0, "tid": line}
                self._write({**line_name, "args": {"name": full_name}})
            event = {"name": label, "ph": phase, "pid": 0, "tid": line}
            self._write({**event, "ts": self._now()})

    def _now(self) -> float:
        return (monotonic_ns() - self._begun) / 1000

    def _write(self, event: dict[str, Any]) -> None:
        if self._file.closed or os.getpid() != self._pid:
            return
        # A comma begins each line but the first, as none may end the last.
        self._file.write(("" if self._first else ",") + json.dumps(event) + "\n")
        self._first = False

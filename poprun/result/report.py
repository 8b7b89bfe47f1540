"""The sentences on the end of a job: Outcome -> text. Pure."""

import re
from collections.abc import Sequence

from poprun.preflight.out_of_memory import MemoryCounters
from poprun.record import Record
from poprun.result.hints import CPU_LIMIT, hint_for_signal, hint_for_words
from poprun.result.outcome import Failed, Outcome
from poprun.words import size

LINES = 20
WIDEST = 400
TRACEBACK = "Traceback (most recent call last)"
# Python 3.13 and later colour tracebacks on a terminal.
COLOURS = "\x1b\\[[0-9;]*m"
SYNTAX_ERROR = "(Syntax|Indentation|Tab)Error: "
SYNTAX_FILE = '  File ".*", line [0-9]+$'
# "/usr/bin/python3.11: can't open file 'train.py': [Errno 2] No such file or directory"
NOT_STARTED = (
    "(?:.*/)?(python[^/ ]*: (?:can't open file|can't find '__main__'|No module named|"
    "Error while finding module specification) .*)"
)
# What Python reports of a program that its host does not have.
NO_SCRIPT = (
    "python[^/ ]*: (can't open file .* No such file|can't find '__main__'|"
    "No module named )"
)


class Evidence(Record):
    """What is known besides the outcome, for the instance that failed first."""

    host: str = ""
    stderr: bytes = b""
    # What the instance wrote last is the last thing on the terminal already.
    just_shown: bool = False
    out_of_memory: MemoryCounters | None = None
    peak_kib: int = 0
    at_cpu_limit: bool = False
    # Whether it ran on another host than poprun.
    is_elsewhere: bool = False
    # The value of --stdin to advise, if the instance had an empty standard input.
    stdin_advice: str = ""


def render(outcome: Outcome, evidence: Evidence) -> list[str]:
    """Return the sentences to print, the cause last."""
    sentences = []
    if outcome.quote_mpirun and outcome.mpirun_text.strip():
        text = _indented(outcome.mpirun_text.splitlines())
        sentences.append(f"mpirun printed:\n{text}")
    if outcome.first is None:
        sentences += [f"Also failed: {_list(outcome.also)}."] if outcome.also else []
        return sentences + ([outcome.sentence] if outcome.sentence else [])
    lines = _lines(evidence.stderr)
    cause = outcome.sentence or _cause(outcome.first, evidence, lines)
    if any(line not in cause for line in lines) and not evidence.just_shown:
        sentences.append(
            f"the last lines of instance {outcome.first.rank}'s stderr:\n"
            + _indented(lines[-LINES:])
        )
    if outcome.also:
        sentences.append(f"also failed: {_list(outcome.also)}.")
    return [*sentences, cause]


def _cause(first: Failed, evidence: Evidence, lines: Sequence[str]) -> str:
    who = f"Instance {first.rank} on {evidence.host} {first.how}"
    if evidence.out_of_memory is not None:
        return f"{who}: out of memory{_limit(evidence)}."
    exception = exception_line(lines)
    last_line = exception or (lines[-1] if lines else "")
    hint = hint_for_words(last_line, evidence.stdin_advice)
    if evidence.is_elsewhere and re.match(NO_SCRIPT, last_line):
        hint = (
            f"It must be on {evidence.host}, too: put it in a directory that the hosts "
            "share, or let --sync DIR copy its folder to them."
        )
    if evidence.at_cpu_limit:
        hint = CPU_LIMIT
    elif not hint and first.killed_by is not None:
        hint = hint_for_signal(first.killed_by, evidence.peak_kib)
    if exception and hint:
        return f"{who}: {exception}{'' if exception.endswith('.') else '.'} {hint}"
    cause = f"{who}: {exception}" if exception else f"{who}."
    return f"{cause} {hint}" if hint else cause


def _limit(evidence: Evidence) -> str:
    memory = evidence.out_of_memory
    peak = f"it had used {size(evidence.peak_kib * 1024)}"
    if memory is None or memory.limit is None:
        return f" ({peak})"
    return f" (the limit is {size(memory.limit)}, {peak})"


def exception_line(lines: Sequence[str]) -> str:
    """Return the line by which Python says what was wrong, or nothing.

    Each line of a traceback may have the same text before it, as torch's "[rank1]: ".
    Python reports what it cannot compile or find at its start without a traceback, and
    ends with that line.
    """
    last_line = lines[-1] if lines else ""
    has_file = any(re.match(SYNTAX_FILE, line) for line in lines[-5:])
    if has_file and re.match(SYNTAX_ERROR, last_line):
        return last_line
    if not_started := re.match(NOT_STARTED, last_line):
        return not_started[1]
    positions = [(i, line.find(TRACEBACK)) for i, line in enumerate(lines)]
    tracebacks = [(i, lines[i][:at]) for i, at in positions if at >= 0]
    if not tracebacks:
        return ""
    last, prefix = tracebacks[-1]
    after = [line.removeprefix(prefix) for line in lines[last + 1 :]]
    return next((line for line in after if line[:1].strip()), "")


def _lines(stderr: bytes) -> list[str]:
    text = re.sub(COLOURS, "", stderr.decode(errors="backslashreplace")).rstrip()
    if not text:
        return []
    # Of a progress bar, what is on the terminal: the rest has been written over.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [line[:WIDEST] for line in lines]


def _list(failed: Sequence[Failed]) -> str:
    return ", ".join(f"instance {f.rank} ({f.how})" for f in failed)


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}".rstrip() for line in lines)

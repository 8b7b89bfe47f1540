"""The sentences on the end of a job: Verdict -> text. Pure."""

import re
import signal
from collections.abc import Sequence

from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.result.hints import CPU_LIMIT, hint_for_signal, hint_for_words
from poprun.result.instances import InstanceEnd
from poprun.result.verdict import Verdict
from poprun.words import printable, size

LINES = 20
WIDEST = 400
TRACEBACK = "Traceback (most recent call last)"
# Python 3.13 and later colour tracebacks on a terminal.
COLOURS = "\x1b\\[[0-9;]*m"
# Escape sequences, which move the cursor or set a title, and control characters.
CONTROLS = (
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*\x07?|.)|[\x00-\x08\x0b-\x1f\x7f]"
)
# Lines of faulthandler's report: its title, and the first frame of the thread at fault.
FATAL_ERROR = "Fatal Python error: "
FRAME = '^Current thread 0x.*\n  File "(.*)", line ([0-9]+) in (.*)$'
# Signals that come from another process.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# How Python ends after an interrupt that the program does not handle.
INTERRUPTED = (signal.SIGINT, "KeyboardInterrupt")
# Lines two above the traceback of a chained exception.
CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
SYNTAX_ERROR = "(Syntax|Indentation|Tab)Error: "
SYNTAX_FILE = '  File ".*", line [0-9]+$'
# "/usr/bin/python3.11: can't open file 'train.py': [Errno 2] No such file or directory"
NOT_STARTED = (
    "(?:.*/)?(python[^/ ]*: (?:can't open file|can't find '__main__'|No module named|"
    "Error while finding module specification) .*)"
)
# Python's reports on a program that is not on its host.
NO_SCRIPT = (
    "python[^/ ]*: (can't open file .* No such file|can't find '__main__'|"
    "No module named )"
)


def render(
    verdict: Verdict,
    memory: MemoryCounters,
    *,
    is_in_sight: bool = False,
) -> list[str]:
    """Return the sentences to print, the cause last.

    Args:
        memory: How many processes the kernel has killed during the attempt on the host
            of the instance that failed first, and the limit.
        is_in_sight: Whether the terminal shows the end of its stderr already.
    """
    sentences = []
    if verdict.quote_mpirun and verdict.mpirun_text.strip():
        text = _indented(verdict.mpirun_text.splitlines())
        sentences.append(f"mpirun printed:\n{text}")
    failed = ", ".join(
        f"instance {i.rank} ({i.program_name and printable(i.program_name) + ' '}"
        f"{i.failure})"
        for i in verdict.also
    )
    first = verdict.first
    if first is None:
        sentences += [f"Also failed: {failed}."] if failed else []
        return sentences + ([verdict.sentence] if verdict.sentence else [])
    lines = stderr_lines(first.stderr)
    cause = verdict.sentence or _cause(first, lines, memory)
    if any(line not in cause for line in lines) and not is_in_sight:
        sentences.append(
            f"the last lines of instance {first.rank}'s stderr:\n"
            + _indented(last_lines(lines))
        )
    if failed:
        sentences.append(f"also failed: {failed}.")
    return [*sentences, cause]


def _cause(first: InstanceEnd, lines: Sequence[str], memory: MemoryCounters) -> str:
    who = f"Instance {first.title} on {first.host} {first.failure}"
    if memory.kills > 0:
        limit = f"the limit is {size(memory.limit)}, " if memory.limit else ""
        used = size((first.peak_kib or 0) * 1024)
        return f"{who}: out of memory ({limit}it had used {used})."
    # Other signals have nothing to do with the program's last output.
    says_why = first.killed_by in (None, signal.SIGABRT)
    exception = exception_line(lines)
    if not says_why and (first.killed_by, exception) != INTERRUPTED:
        exception = ""
    fault = "" if first.killed_by in FROM_OUTSIDE else _fault(lines)
    last_line = _last_line(lines) if says_why and not fault else ""
    is_followed = bool(exception) and not fault and _is_followed(lines, exception)
    text = last_line if is_followed else fault or exception or last_line
    hint = hint_for_words(text, first.stdin_advice, first.rank)
    if not first.is_own_host and re.match(NO_SCRIPT, text):
        hint = (
            f"It must also be on {first.host}: put it in a directory that the hosts "
            "share, or let --sync DIR copy its folder."
        )
    if first.at_cpu_limit:
        hint = CPU_LIMIT
    elif not hint and first.killed_by is not None:
        hint = hint_for_signal(first, lines, memory.host_kills, has_fault=bool(fault))
    cause = f"{who}."
    if fault or (exception and not is_followed):
        is_sentence = not hint or text.endswith(".")
        cause = f"{who}: {text}{'' if is_sentence else '.'}"
    elif exception:
        # The program may have handled it, and ended because of something else.
        cause = (
            f'{who}; its last traceback ends with "{exception}", and its stderr with '
            f'"{last_line}".'
        )
    elif last_line:
        cause = f'{who}; its stderr ends with "{last_line}".'
    return f"{cause} {hint}" if hint else cause


def _last_line(lines: Sequence[str]) -> str:
    """Return the last visible line, without control sequences."""
    visible = (re.sub(CONTROLS, "", line).strip() for line in reversed(lines))
    return next(filter(None, visible), "")


def _fault(lines: Sequence[str]) -> str:
    """Return faulthandler's title of the last fault and its place, or ""."""
    at = _fault_at(lines)
    if at is None:
        return ""
    # The report may be cut off.
    frame = re.search(FRAME, "\n".join(lines[at:]), re.MULTILINE)
    where = f" in {frame[3]} (line {frame[2]} of {frame[1]})" if frame else ""
    return lines[at] + where


def _fault_at(lines: Sequence[str]) -> int | None:
    """Return the index of the last line "Fatal Python error: ...", or None.

    Nothing runs after a fault: one before a traceback is another process's.
    """
    at = [i for i, x in enumerate(lines) if x.startswith(FATAL_ERROR) or TRACEBACK in x]
    return at[-1] if at and lines[at[-1]].startswith(FATAL_ERROR) else None


def last_lines(lines: Sequence[str]) -> Sequence[str]:
    """Return the last 20 lines, or the first 20 lines of a fault's report."""
    at = _fault_at(lines)
    return lines[-LINES:] if at is None else lines[at : at + LINES]


def exception_line(lines: Sequence[str]) -> str:
    """Return Python's line with the error, or "".

    Each line of a traceback may have the same text before it, as torch's "[rank1]: ".
    If Python cannot find or compile its program, it ends with that line and without a
    traceback.
    """
    last_line = lines[-1] if lines else ""
    has_file = any(re.match(SYNTAX_FILE, line) for line in lines[-5:])
    if has_file and re.match(SYNTAX_ERROR, last_line):
        return last_line
    if not_started := re.match(NOT_STARTED, last_line):
        return not_started[1]
    titles = [i for i, line in enumerate(lines) if TRACEBACK in line]
    if not titles:
        return ""
    title, *after = lines[titles[-1] :]
    prefix = title.partition(TRACEBACK)[0]
    # The title may have a word more, as torch's "[rank1]: Original Traceback".
    if after and (frame := re.match('(.*?)  File "', after[0])):
        prefix = frame[1]
    after = [line.removeprefix(prefix) for line in after]
    return next((line for line in after if line[:1].strip()), "")


def _is_followed(lines: Sequence[str], exception: str) -> bool:
    """Return whether text that is not indented follows an exception's line."""
    at = max(i for i, line in enumerate(lines) if line.endswith(exception))
    prefix = lines[at].removesuffix(exception)
    visible = (re.sub(CONTROLS, "", line) for line in lines[at + 1 :])
    return any(line.removeprefix(prefix)[:1].strip() for line in visible)


def traceback_text(lines: Sequence[str]) -> str:
    """Return the last traceback or fault of Python, and what follows it; "" for none.

    The text includes chained exceptions and exception groups.
    """
    if (fault_at := _fault_at(lines)) is not None:
        return "\n".join(lines[fault_at:])
    starts = [i for i, line in enumerate(lines) if TRACEBACK in line]
    if not starts:
        syntax = [i for i, line in enumerate(lines) if re.match(SYNTAX_FILE, line)]
        is_syntax = bool(syntax) and bool(re.match(SYNTAX_ERROR, lines[-1]))
        return "\n".join(lines[syntax[-1] :]) if is_syntax else ""
    start = starts.pop()
    while starts and _continues(lines, start):
        start = starts.pop()
    return "\n".join(lines[start:])


def _continues(lines: Sequence[str], start: int) -> bool:
    """Return whether a traceback belongs to the one before: a cause, or of a group."""
    is_in_group = lines[start].partition(TRACEBACK)[0].strip() == "|"
    return is_in_group or lines[max(start - 2, 0)].endswith(CHAINED)


def stderr_lines(stderr: bytes) -> list[str]:
    """Return the lines of a stderr as a terminal shows them, without colours."""
    text = re.sub(COLOURS, "", stderr.decode(errors="backslashreplace")).rstrip()
    if not text:
        return []
    # A progress bar has been written over: only its last state is on the terminal.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [line[:WIDEST] for line in lines]


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}".rstrip() for line in lines)

"""Write docs/options.md and docs/poprun.1 from the table of options.

python scripts/document_options.py
"""

import re
from pathlib import Path

from poprun.options.table import GROUPS
from poprun.options.types import Option, variable

DOCS = Path(__file__).parent.parent / "docs"

INTRODUCTION = """\
# Options

<!-- Made from poprun/options/table.py by scripts/document_options.py. -->

    poprun [OPTIONS] PROGRAM [ARGUMENTS]...

An option is given on the command line, in a variable (the second column), or by its
long name in the YAML file of `--import-config`. The command line overrides variables,
and variables override the file; `poprun --show-config` shows each value and its origin.
Names may be shortened to unique prefixes. A TIME is a number of seconds or has units,
as in `250ms`, `90s`, `5m`, `1h30m` or `2d`.
"""


def page() -> str:
    """Return the whole document."""
    parts = [INTRODUCTION]
    for title, options in GROUPS.items():
        parts.append(f"\n## {title}\n")
        parts.append("| option | variable | default | meaning |")
        parts.append("| --- | --- | --- | --- |")
        parts += [row(option) for option in options]
    return "\n".join(parts) + "\n"


def row(option: Option) -> str:
    environment = f"`{variable(option.name)}`" if option.in_environment else "-"
    cells = [f"`{option.spelling}`", environment, option.default_text, option.help]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# What stands before and after the options in the manual page.
MANUAL_BEGIN = r"""
.TH POPRUN 1 "" "poprun" "User Commands"
.SH NAME
poprun \- launch data-parallel programs over mpirun
.SH SYNOPSIS
.B poprun
.RI [ OPTIONS ]
.I PROGRAM
.RI [ ARGUMENTS ]...
.SH DESCRIPTION
Start instances of
.I PROGRAM
through mpirun and assign each of them its share of the job's replicas.
Options come first; everything after
.I PROGRAM
is passed to it.
Several programs are separated by
.BR : ,
as in
.BR "poprun \-n 1 A : \-n 3 B" ;
.B \-\-
before a program makes
.B :
an argument.
Names of options may be shortened to unique prefixes.
.PP
Every option may also be set by the variable that is named with it, or by its long
name in the YAML file of
.BR \-\-import\-config .
The command line overrides variables, and variables override the file.
YES|NO may also be written as on|off, true|false or 1|0.
A TIME is a number of seconds or has units, as in 250ms, 90s, 5m, 1h30m or 2d.
"""
MANUAL_END = r"""
.SH EXIT STATUS
0 if every instance exited with 0, else the exit code of the first instance that
failed, or 128 + N if signal N killed it.
.TP
.B 2
The options make no sense; nothing was started.
.TP
.B 74
The job succeeded, but its output could not be written.
.TP
.B 124
.B \-\-timeout
or
.B \-\-start\-timeout
has passed.
.TP
.B 125
mpirun, one of its daemons or poprun itself failed, or the job lost its IPUs.
.TP
.B 126, 127
The program cannot be run, or is not there.
.TP
.B 128 + N
poprun got signal N.
.SH EXAMPLES
.EX
poprun \-\-num\-instances 4 \-\-num\-replicas 8 python3 train.py
poprun \-\-host node[0\-3] \-n 8 python3 train.py
poprun \-\-num\-instances 2 \-\-dry\-run python3 train.py
.EE
.SH SEE ALSO
.BR mpirun (1)
.PP
.B poprun help
says where the pages of documentation are,
.B popctl \-\-help
how to show, stop and debug jobs.
"""


def manual() -> str:
    """Return the manual page."""
    parts = [MANUAL_BEGIN.lstrip()]
    for title, options in GROUPS.items():
        parts.append(f".SH {title.upper()} OPTIONS\n")
        parts += [manual_entry(option) for option in options]
    return "".join(parts) + MANUAL_END.lstrip()


def manual_entry(option: Option) -> str:
    default = f"Default: {option.default_text}."
    lines = [".TP", rf"\fB{roff(option.spelling)}\fR", roff(option.help)]
    if option.name not in ("help", "version"):
        lines.append(roff(default))
    if option.in_environment:
        lines.append(f"Variable: {roff(variable(option.name))}.")
    return "".join(f"{line}\n" for line in lines)


def roff(text: str) -> str:
    """Escape what troff would take for a request or change: dashes, quotes, dots."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    # One sentence a line, each protected from being a request.
    return re.sub(r"(?m)^\.", r"\\&.", re.sub(r"(?<=[a-z]\.) (?=[A-Z])", "\n", text))


# What each file is made by.
FILES = {"options.md": page, "poprun.1": manual}

if __name__ == "__main__":
    for name, text in FILES.items():
        (DOCS / name).write_text(text())

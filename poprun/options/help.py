"""The usage of a bare poprun and the full help.

The texts are plain ASCII, so that no locale can spoil them.
"""

import re
from textwrap import wrap

from poprun.color import BOLD, CYAN, paint
from poprun.options.table import GROUPS
from poprun.options.types import Option

_USAGE = "Usage: poprun [OPTIONS] PROGRAM [ARGUMENTS]..."

SHORT_PAGE = f"""\
poprun starts instances of a program through mpirun and
assigns each of them its share of the job's replicas.

{_USAGE}

Start two instances:

  poprun -n 2 echo "Hello world!"

Train a model with eight replicas on four instances:

  poprun --num-instances 4 --num-replicas 8 python3 train.py

Often used:

  --num-instances N    how many processes to start
  --num-replicas R     how many copies of the model
  -n N                 the same number of both
  --host a,b           on which hosts
  --dry-run            show what would be started, and stop
  -v, -vv              log what poprun does

poprun --help shows all options, poprun help all pages.
"""

_INTRODUCTION = (
    "Start instances of PROGRAM through mpirun and assign each of them its share of "
    "the job's replicas. Options come first; everything after PROGRAM is passed to "
    "the program. Several programs are separated by ':', as in poprun -n 1 A : -n 3 B. "
    "Option names can be shortened to unique prefixes."
)

_CLOSING = (
    "YES|NO can also be written as on|off, true|false or 1|0. A TIME is a number of "
    "seconds, or has units, as in 250ms, 90s, 5m, 1h30m or 2d. Every option can also "
    "be set by a variable, such as POPRUN_NUM_REPLICAS=8, or in the file of "
    "--import-config, except those that only show text, such as --help. 'poprun help' "
    "shows where to read more."
)

_COLUMN = 30


def full_page(width: int) -> str:
    """Return the help: every option, by task, with what it means and its default."""
    lines = [_USAGE, "", *_wrapped(_INTRODUCTION, width)]
    for title, options in GROUPS.items():
        lines += ["", f"{title}:"]
        for option in options:
            lines += _entry(option, width)
    lines += ["", *_wrapped(_CLOSING, width)]
    return "".join(f"{line}\n" for line in lines)


def painted(page: str) -> str:
    """Return a page of help with colours for its titles, options and commands."""
    title = r"^(?:[A-Z].*:$|Usage:)"
    page = re.sub(title, lambda m: paint(m[0], BOLD), page, flags=re.MULTILINE)
    # Two spaces end a command or an option.
    typed = r"^(  )(-.*?|(?:poprun|popctl|vipu|man) .*?)(?=  |$)"
    return re.sub(typed, lambda m: m[1] + paint(m[2], CYAN), page, flags=re.MULTILINE)


def _entry(option: Option, width: int) -> list[str]:
    head = f"  {option.spelling}"
    margin = " " * _COLUMN
    lines = [margin + line for line in _wrapped(_description(option), width - _COLUMN)]
    if len(head) + 2 > _COLUMN:
        return [head, *lines]
    return [head + lines[0][len(head) :], *lines[1:]]


def _wrapped(text: str, width: int) -> list[str]:
    # An option that is cut at one of its hyphens could not be found or copied.
    return wrap(text, width, break_on_hyphens=False, break_long_words=False)


def _description(option: Option) -> str:
    default = option.default_text
    # Users expect that a flag is off, and an optional value missing, by default.
    if default == "none" or (not option.takes_value and default in ("no", "0")):
        return option.help
    return f"{option.help} [default: {default}]"

"""The grammar of the command line: argv -> options with their texts, and programs.

It assigns the words to options, and finds where each program begins; the table of
options says what the text of an option means. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from poprun.errors import OptionError
from poprun.options import types
from poprun.options.other_launchers import ADVICE, explain
from poprun.options.table import ADDED, BY_NAME, BY_SHORT, OF_ONE_PROGRAM
from poprun.options.types import Option
from poprun.words import alternatives, quoted

# Typesetters and mail programs make these out of hyphens.
_OTHER_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"

# Stands between the programs of a job, as in mpirun's command line.
SEPARATOR = ":"
COLON_AS_ARGUMENT = (
    "To pass ':' to a program as an argument, write -- before the program."
)

# No value of these begins with a hyphen.
_PLAIN_VALUES = (
    types.read_whole,
    types.read_seconds,
    types.read_whole_seconds,
    types.read_boolean,
    types.read_choice,
    types.read_subnet,
)

# An option with its text.
Given = tuple[Option, str]


def join_programs(programs: Iterable[Sequence[str]]) -> list[str]:
    """Return the words of all programs, with mpirun's separator between them."""
    return [word for argv in programs for word in (SEPARATOR, *argv)][1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The options and the programs of a command line, or of its beginning.

    Where several programs are separated by `:`, `options` and `program` are those
    before the first one.
    """

    options: tuple[Given, ...] = ()
    program: tuple[str, ...] = ()
    # Whether the options have ended, and what follows belongs to the program.
    in_program: bool = False
    # The option at the end, if the command line ends before its value.
    pending: Option | None = None
    # Each has the options and the program that follow a `:`.
    others: "tuple[CommandLine, ...]" = ()

    @property
    def last(self) -> "CommandLine":
        """The part at the end."""
        return self.others[-1] if self.others else self

    @property
    def words(self) -> list[str]:
        """The words of all programs."""
        return join_programs(part.program for part in (self, *self.others))

    @property
    def asks_for_help(self) -> bool:
        texts = [text for option, text in self.options if option.name == "help"]
        # An empty text is a yes.
        return bool(texts and types.item(BY_NAME["help"], texts[-1], "--help"))


def parse(argv: Sequence[str], options: list[Given] | None = None) -> CommandLine:
    """Take a command line apart.

    Args:
        options: Gets the options before the first program, even if an error follows.

    Raises:
        OptionError: A word is no option of poprun, or an option lacks its value.
    """
    line = parse_beginning(argv, options)
    if pending := line.last.pending:
        raise _missing_value(pending, "")
    for part in (line, *line.others) if line.others else ():
        if not part.program:
            raise OptionError(
                f"The program {'before' if part is line else 'after'} ':' is missing.",
                "Several programs are written as: poprun -n 1 a.py : -n 3 b.py. "
                f"{COLON_AS_ARGUMENT}",
            )
    return line


def parse_beginning(
    argv: Sequence[str], options: list[Given] | None = None
) -> CommandLine:
    """Take the beginning of a command line apart, as `parse` does."""
    line, rest = _parse_part(list(argv), [] if options is None else options)
    others: list[CommandLine] = []
    while rest is not None:
        other, rest = _parse_part(rest, [])
        for option in (*(option for option, _ in other.options), other.pending):
            if option is not None and option.name not in OF_ONE_PROGRAM:
                raise OptionError(
                    f"{option.flag} comes after ':', but it applies to the whole job.",
                    "Write it before the first program. Only -n, --num-instances, "
                    "--env and --cwd can follow ':'.",
                )
        others.append(other)
    return replace(line, others=tuple(others))


def _parse_part(
    words: list[str], options: list[Given]
) -> tuple[CommandLine, list[str] | None]:
    """Return the options before a program with it, and the words after its `:`.

    Behind `--`, `:` is an argument of the program.
    """
    while words:
        word = words[0]
        if word in ("-", "--") or not word.startswith("-"):
            program, rest = _split_programs(words)
            line = CommandLine(options=tuple(options), program=program, in_program=True)
            return line, rest
        del words[0]
        for option, text in _read_word(word, words):
            if text is None and not words:
                return CommandLine(options=tuple(options), pending=option), None
            if text is None:
                text = _check_value(option, words.pop(0))
            options.append((option, text))
    return CommandLine(options=tuple(options)), None


def _split_programs(words: list[str]) -> tuple[tuple[str, ...], list[str] | None]:
    """Return the words of the first program, and the words after its `:`."""
    if words[0] == "--":
        return tuple(words[1:]), None
    _refuse_other_dashes(words[0])
    if SEPARATOR not in words:
        return tuple(words), None
    end = words.index(SEPARATOR)
    return tuple(words[:end]), words[end + 1 :]


def find_option(name: str, following: Sequence[str] = ()) -> Option:
    """Find the option with this long name, or the only one with this prefix.

    Args:
        following: The words after it, for the error.

    Raises:
        OptionError: There is none, or more than one.
    """
    if option := BY_NAME.get(name):
        return option
    matches = {o.name: o for n, o in BY_NAME.items() if name and n.startswith(name)}
    candidates = list(matches.values())
    candidates = [o for o in candidates if o.name not in ADDED] or candidates
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        flags = [option.flag for option in candidates]
        raise OptionError(
            f"--{name} is ambiguous: it can be {alternatives(flags)}.",
            f"Did you mean -{name}?" if name in BY_SHORT else "",
        )
    raise _unknown(f"--{name}", following)


def _read_word(
    word: str, following: Sequence[str]
) -> Iterator[tuple[Option, str | None]]:
    """Yield the options in a word with their texts; None: the next word is the value.

    It takes `--name`, `--name=text`, `-vv`, `-v`, `-H` and `-Hx` apart.
    """
    flag, equals, text = word.partition("=")
    # mpirun's spelling, and not -n with the value p.
    if word.startswith("--") or flag == "-np":
        name, after = flag.lstrip("-"), [text] if equals else following
        option = replace(find_option(name, after), flag=flag)
        yield option, text if equals else _implied(option)
        return
    for position, letter in enumerate(word[1:], start=1):
        known = BY_SHORT.get(letter)
        if known is None:
            raise _unknown(word, following)
        option = replace(known, flag=f"-{letter}")
        value = word[position + 1 :]
        if option.takes_value and value:
            _refuse_long_with_one_hyphen(word, following)
            yield option, value.removeprefix("=")
            return
        yield option, _implied(option)


def _refuse_long_with_one_hyphen(word: str, following: Sequence[str]) -> None:
    """Refuse -npernode 2: it is another launcher's, and not -n with a value."""
    name = word[1:].partition("=")[0]
    if word[2:3].isalpha() and (name in BY_NAME or explain(word, following)):
        raise _unknown(word, following)


def text_given(name: str, options: Iterable[Given], environ: Mapping[str, str]) -> str:
    """Return the text of an option that is read alone; "" without one."""
    texts = [text for option, text in options if option.name == name]
    return [environ.get(types.variable(name), ""), *texts][-1]


def with_typed_names(text: str, options: Iterable[Given]) -> str:
    """Return a message with the names of options as the user wrote them."""
    flags = {option.name: option.flag for option, _ in options}
    if "num-processes" in flags:
        # It is the number of instances, too, and errors know it as that.
        flags.setdefault("num-instances", flags["num-processes"])
    for name, flag in flags.items():
        text = re.sub(rf"--{name}(?![\w-])", flag, text)
    return text


def _implied(option: Option) -> str | None:
    """Return the text of an option that is given without one; None if it needs one."""
    if option.takes_value:
        return None
    return "1" if option.read is types.read_count else "yes"


def _check_value(option: Option, word: str) -> str:
    """Accept any word as a value that is not itself one of our options."""
    is_long = word.startswith("--") and word[2:].partition("=")[0] in BY_NAME
    is_short = len(word) > 1 and word[0] == "-" and all(c in BY_SHORT for c in word[1:])
    if word == "--" or is_long or is_short:
        raise _missing_value(option, word)
    return word


def _missing_value(option: Option, following: str) -> OptionError:
    where = f"before {following}" if following else "at the end of the line"
    example = "yes" if option.read is types.read_boolean else option.metavar
    if option.choices:
        example = option.choices[0]
    # A short option and its value are two words.
    flag = f"{option.flag}=" if option.flag.startswith("--") else f"{option.flag} "
    hint = f"Write {flag}{example}."
    if following not in ("", "--") and option.read not in _PLAIN_VALUES:
        hint += f" If {following} is the value, write --{option.name}={following}."
    return OptionError(f"The value of {option.flag} is missing {where}.", hint)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a question with the name nearest to a mistyped one, or nothing."""
    tidy = word.lower().replace("_", "-")
    nearest = get_close_matches(tidy, list(names), n=1, cutoff=0.7)
    return f"Did you mean {nearest[0]}?" if nearest else ""


def _unknown(word: str, following: Sequence[str] = ()) -> OptionError:
    flags = [f"--{name}" for name in BY_NAME]
    own = f"-{word.partition('=')[0]}"
    is_plain = word.isascii() and word.isprintable()
    return OptionError(
        f"poprun has no option {word if is_plain else quoted(word)}.",
        (f"Did you mean {own}?" if own in flags and own[1:] not in ADVICE else "")
        or explain(word, following)
        or did_you_mean(word, flags)
        or "'poprun --help' lists all options.",
    )


def _refuse_other_dashes(word: str) -> None:
    if word.startswith(tuple(_OTHER_DASHES)):
        name = word.lstrip(_OTHER_DASHES + "-").partition("=")[0]
        hint = f"Did you mean --{name}?" if name in BY_NAME else ""
        raise OptionError(
            f"{quoted(word)} begins with a dash that is not a hyphen, as in "
            "text copied from a document.",
            hint or "Type the hyphens, or put -- before a program of this name.",
        )

from math import inf

from hypothesis import given
from hypothesis import strategies as st
from named_console import NamedConsole

from poprun.output.lines.console import MAX_LINE_BYTES, MAX_WAITING_BYTES
from poprun.output.lines.pending_stream import PendingStream
from poprun.output.lines.screen import Screen as Cursor
from poprun.output.lines.tags import Prefix


class Screen:
    """A console with streams, named by letters, and what has come out of it."""

    def __init__(self, *names: str, tags: bool = False) -> None:
        self.console = NamedConsole()
        for name in names:
            tag = f"[{name}]".encode()
            self.console.add(name, PendingStream(Prefix(tag) if tags else None))

    def says(self, name: str, data: bytes, now: float = 0.0) -> bytes:
        self.console.bring(name, data, now)
        return self.shown()

    def ends(self, name: str, now: float = 0.0) -> bytes:
        self.console.end(name, now)
        return self.shown()

    def at(self, now: float) -> bytes:
        self.console.tick(now)
        return self.shown()

    def shown(self) -> bytes:
        return self.console.take()


def test_a_whole_line_goes_out_at_once() -> None:
    screen = Screen("a")

    assert screen.says("a", b"one\ntwo\n") == b"one\ntwo\n"
    assert screen.console.deadline() == inf


def test_the_tag_stands_before_each_line_and_nowhere_else() -> None:
    screen = Screen("a", tags=True)

    assert screen.says("a", b"one\n\ntwo\n") == b"[a]one\n[a]\n[a]two\n"


def test_bytes_that_are_no_text_are_left_alone() -> None:
    screen = Screen("a")

    assert screen.says("a", b"\0\r\x1b[2J\xff\xc3\n") == b"\0\r\x1b[2J\xff\xc3\n"


def test_a_line_in_two_parts_is_shown_as_one() -> None:
    screen = Screen("a", tags=True)

    assert screen.says("a", b"hel") == b""
    assert screen.says("a", b"lo\n", 0.04) == b"[a]hello\n"


def test_a_partial_line_is_shown_when_it_stays_one_for_50_ms() -> None:
    screen = Screen("a", tags=True)

    assert screen.says("a", b"Name? ") == b""
    assert screen.console.deadline() == 0.05
    assert screen.at(0.049) == b""
    assert screen.at(0.05) == b"[a]Name? "
    assert screen.console.deadline() == inf


def test_the_rest_of_a_line_that_a_block_has_cut_is_waited_for() -> None:
    screen = Screen("a", "b", tags=True)
    block = b"line\n" * 819 + b"l"

    assert screen.says("a", block) == b"[a]line\n" * 819
    assert screen.at(4.9) == b""
    assert screen.says("b", b"one\n", 4.9) == b"[b]one\n"
    assert screen.says("a", b"ine\nNa", 4.9) == b"[a]line\n"
    assert screen.at(4.95) == b"[a]Na"


def test_what_follows_a_partial_line_has_no_tag_of_its_own() -> None:
    screen = Screen("a", tags=True)
    screen.says("a", b"10%")
    screen.at(0.05)

    assert screen.says("a", b"\r20%", 0.1) == b""
    assert screen.at(0.16) == b"\r20%"
    assert screen.says("a", b" done\nnext\n", 0.2) == b" done\n[a]next\n"


def test_a_partial_line_after_a_whole_one_is_as_old_as_its_own_bytes() -> None:
    screen = Screen("a")
    screen.says("a", b"hel", 0.0)

    assert screen.says("a", b"lo\nyou", 0.04) == b"hello\n"
    assert screen.at(0.08) == b""
    assert screen.at(0.09) == b"you"


def test_lines_wait_for_anothers_partial_line_to_end() -> None:
    screen = Screen("a", "b")
    screen.says("a", b"Name? ")
    screen.at(0.05)

    assert screen.says("b", b"one\n", 0.1) == b""
    assert screen.says("a", b"Ann\n", 0.2) == b"Ann\none\n"


def test_lines_wait_for_anothers_partial_line_200_ms_at_most() -> None:
    screen = Screen("a", "b", tags=True)
    screen.says("a", b"Name? ")
    screen.at(0.05)
    screen.says("b", b"one\nand", 1.0)

    assert screen.console.deadline() == 1.2
    assert screen.at(1.19) == b""
    assert screen.at(1.2) == b"\n[b]one\n"
    assert screen.at(1.2) == b"[b]and"
    assert screen.says("b", b" so on\n", 1.3) == b" so on\n"
    assert screen.says("a", b"Ann\n", 1.4) == b"[a]Ann\n"


def test_a_partial_line_waits_for_anothers_however_long_that_takes() -> None:
    screen = Screen("a", "b")
    screen.says("a", b"10%")
    screen.at(0.05)
    screen.says("b", b"Name? ", 0.1)

    assert screen.console.deadline() == inf
    assert screen.at(100.0) == b""
    assert screen.says("a", b"\n", 100.0) == b"\n"
    assert screen.at(100.0) == b"Name? "


def test_streams_that_waited_longest_come_first() -> None:
    screen = Screen("a", "b", "c")
    screen.says("a", b"10%")
    screen.at(0.05)
    screen.says("c", b"first\n", 0.1)
    screen.says("b", b"second\n", 0.11)

    assert screen.says("a", b"\n", 0.12) == b"\nfirst\nsecond\n"


def test_a_line_that_is_very_long_is_not_waited_for() -> None:
    screen = Screen("a")

    assert screen.says("a", b"x" * MAX_LINE_BYTES) == b""
    assert screen.says("a", b"x") == b"x" * (MAX_LINE_BYTES + 1)


def test_who_has_very_much_to_say_does_not_wait_for_anothers_line() -> None:
    screen = Screen("a", "b")
    screen.says("a", b"10%")
    screen.at(0.05)
    lines = b"0123456\n" * 8192

    assert screen.says("b", lines, 0.1) == b""
    assert screen.says("b", b"more\nrest", 0.1) == lines + b"more\n"


def test_last_words_need_no_end_of_line() -> None:
    screen = Screen("a", tags=True)
    screen.says("a", b"half \xc3")

    assert screen.ends("a") == b"[a]half \xc3"


def test_a_stream_that_ends_leaves_the_line_to_others() -> None:
    screen = Screen("a", "b", tags=True)
    screen.says("a", b"10%")
    screen.at(0.05)
    screen.says("b", b"one\n", 0.06)

    assert screen.ends("a") == b"\n[b]one\n"


def test_the_last_words_of_one_wait_for_the_line_of_another() -> None:
    screen = Screen("a", "b")
    screen.says("a", b"Name? ")
    screen.at(0.05)
    screen.says("b", b"one\nbye", 0.1)

    assert screen.ends("b") == b""
    assert screen.says("a", b"Ann\n", 0.2) == b"Ann\none\nbye"
    assert screen.says("a", b"next\n", 0.2) == b"next\n"


def test_the_last_words_of_one_wait_200_ms_at_most() -> None:
    screen = Screen("a", "b")
    screen.says("a", b"Name? ")
    screen.at(0.05)
    screen.says("b", b"bye", 0.1)
    screen.ends("b")

    assert screen.console.deadline() == 0.1 + 0.2
    assert screen.at(0.31) == b"bye"


def test_nothing_is_kept_back_when_all_have_ended() -> None:
    screen = Screen("a", "b", "c")
    screen.says("a", b"10%")
    screen.at(0.05)
    screen.says("b", b"bee", 0.06)
    screen.says("c", b"see\n", 0.07)

    assert screen.ends("c") == b""
    assert screen.ends("b") == b""
    assert screen.ends("a") == b"beesee\n"


def test_other_words_begin_on_a_line_of_their_own() -> None:
    screen = Screen("a", tags=True)

    screen.console.say(b"one\n")
    assert screen.shown() == b"one\n"
    screen.says("a", b"10%")
    screen.at(0.05)
    screen.console.say(b"two\n")
    screen.console.say(b"three\n")
    assert screen.shown() == b"\ntwo\nthree\n"
    assert screen.says("a", b"20%\n", 0.1) == b"[a]20%\n"


def test_a_line_that_was_ended_for_other_words_does_not_end_twice() -> None:
    screen = Screen("a", tags=True)
    screen.says("a", b"10%")
    screen.at(0.05)
    screen.console.say(b"two\n")
    screen.shown()

    assert screen.says("a", b"\nnext\n", 0.1) == b"[a]next\n"
    assert screen.says("a", b"\n", 0.1) == b"[a]\n"


names = st.sampled_from("abc")
pieces = st.lists(st.sampled_from([b"x", b"yy", b"\n", b"\r", b"\xff"]), max_size=6)
speeches = st.lists(
    st.tuples(names, st.builds(b"".join, pieces), st.sampled_from([0.0, 0.06, 0.3])),
    max_size=30,
)


@given(speeches)
def test_each_stream_comes_out_as_it_went_in(
    speeches: list[tuple[str, bytes, float]],
) -> None:
    screen = Screen("a", "b", "c")
    now, said = 0.0, dict.fromkeys("abc", b"")
    for name, data, pause in speeches:
        now += pause
        screen.console.tick(now)
        screen.console.bring(name, data, now)
        said[name] += data
    for name in "bca":
        screen.console.end(name)

    came = dict.fromkeys("abc", b"")
    for name, data in screen.console.written:
        came[name] += data
    assert came == said


@given(st.lists(st.tuples(names, st.integers(0, 20)), max_size=40))
def test_lines_that_keep_coming_never_mix(cuts: list[tuple[str, int]]) -> None:
    """Whatever the pieces, as long as none stays partial for 50 ms."""
    screen = Screen("a", "b", "c")
    text = {name: (name.encode() * 7 + b"\n") * 100 for name in "abc"}
    at = dict.fromkeys("abc", 0)
    for name, size in cuts:
        screen.console.bring(name, text[name][at[name] : at[name] + size], 0.0)
        screen.console.tick(0.04)
        at[name] += size

    lines = screen.shown().splitlines()
    assert all(line in (b"a" * 7, b"b" * 7, b"c" * 7) for line in lines)
    assert len(lines) == sum(position // 8 for position in at.values())


TRACEBACK = b"Traceback (most recent call last):\n", b"  File\n", b"Error: no\n"


class Errors(Screen):
    """A console of stderr, whose streams have names."""

    def __init__(
        self, *names: str, joins_same: bool = True, names_instances: bool = True
    ) -> None:
        self.console = NamedConsole(
            joins_same=joins_same, names_instances=names_instances
        )
        for name in names:
            self.console.add(name, PendingStream(instance=int(name), is_stderr=True))


def traceback(error: bytes) -> bytes:
    return b"".join(TRACEBACK).replace(b"no", error)


def test_tracebacks_that_come_line_by_line_do_not_mix() -> None:
    screen = Errors("1", "2")
    shown = b""
    for one, other in zip(
        traceback(b"a").splitlines(True), traceback(b"b").splitlines(True), strict=True
    ):
        shown += screen.says("1", one) + screen.says("2", other)

    assert shown == b""
    assert screen.console.deadline() == 0.3
    assert screen.at(0.3) == (
        traceback(b"a")
        + b"poprun: The traceback before this one is instance 1's, and this one is "
        b"instance 2's:\n" + traceback(b"b")
    )


def test_the_end_of_the_last_stream_ends_its_traceback() -> None:
    screen = Errors("1")
    screen.says("1", b"loading\n" + TRACEBACK[0])

    assert screen.says("1", TRACEBACK[2]) == b""
    assert screen.ends("1") == b"loading\n" + TRACEBACK[0] + TRACEBACK[2]


def test_only_a_traceback_of_another_is_named() -> None:
    screen = Errors("1", "2")
    first = screen.says("1", traceback(b"a")) + screen.at(0.5)
    again = screen.says("1", traceback(b"a"), 1.0) + screen.at(1.5)
    other = screen.says("2", b"loading\n" + traceback(b"b"), 2.0) + screen.at(2.5)
    back = screen.says("1", traceback(b"a"), 3.0) + screen.at(3.5)

    assert (first, again) == (traceback(b"a"), traceback(b"a"))
    assert other == (
        b"loading\npoprun: The traceback before this one is instance 1's, and this one "
        b"is instance 2's:\n" + traceback(b"b")
    )
    assert back == b"poprun: This traceback is instance 1's:\n" + traceback(b"a")


def test_the_same_traceback_of_several_goes_out_once() -> None:
    screen = Errors("0", "1", "2", "3")
    own = (
        b"[rank%d]: Traceback (most recent call last):\n"
        b"[rank%d]: Error: <A object at 0x7f%d>\n"
    )
    for number in range(4):
        lines = own % (number, number, number)
        assert screen.says(str(number), b"loading %d\n" % number + lines) == b""

    assert screen.at(0.3) == (
        b"loading 0\nloading 1\nloading 2\nloading 3\n"
        b"poprun: This traceback is that of instances 0 to 3:\n" + own % (0, 0, 0)
    )


def test_tracebacks_with_other_hexadecimal_numbers_differ() -> None:
    screen = Errors("0", "1")
    own = b"Traceback (most recent call last):\nError: the checksum is 0x7f%d\n"
    for number in range(2):
        screen.says(str(number), own % number)

    assert screen.at(0.3) == (
        own % 0 + b"poprun: The traceback before this one is instance 0's, and this "
        b"one is instance 1's:\n" + own % 1
    )


def test_streams_that_end_show_the_same_traceback_once() -> None:
    screen = Errors("0", "1", "2")
    for name in "012":
        screen.says(name, traceback(b"a"))

    assert screen.ends("0") + screen.ends("2") == b""
    assert screen.ends("1") == (
        b"poprun: This traceback is that of instances 0 to 2:\n" + traceback(b"a")
    )


def test_the_same_traceback_that_comes_later_is_a_line_below_it() -> None:
    screen = Errors("0", "1", "2")
    shown = screen.says("0", traceback(b"a")) + screen.at(0.3)
    shown += screen.says("2", traceback(b"a"), 5.0) + screen.at(5.3)
    shown += screen.says("1", traceback(b"a"), 6.0) + screen.at(6.3)

    assert shown == (
        traceback(b"a") + b"poprun: Instances 0 and 2 have this traceback.\n"
        b"poprun: Instances 0 to 2 have this traceback.\n"
    )


def test_it_comes_again_when_something_stands_below_it() -> None:
    screen = Errors("0", "1")
    screen.says("0", traceback(b"a"))
    screen.at(0.3)
    screen.says("0", b"step 2\n", 1.0)
    shown = screen.says("1", traceback(b"a"), 5.0) + screen.at(5.3)

    assert shown == (
        b"poprun: The traceback before this one is instance 0's, and this one is "
        b"instance 1's:\n" + traceback(b"a")
    )


def test_an_instance_that_has_it_twice_shows_it_twice() -> None:
    screen = Errors("0", "1")
    shown = b""
    for second in (0.0, 1.0):
        for name in "01":
            screen.says(name, traceback(b"a"), second)
        shown += screen.at(second + 0.3)

    assert shown == (
        b"poprun: This traceback is that of instances 0 and 1:\n"
        + traceback(b"a")
        + traceback(b"a")
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from("012"),
            st.sampled_from(["line", "a", "b", "cut", "end", "wait"]),
        ),
        max_size=40,
    )
)
def test_no_line_is_lost_among_tracebacks(steps: list[tuple[str, str]]) -> None:
    screen = Errors(*"012")
    ended: set[str] = set()
    lines: dict[str, list[bytes]] = {name: [] for name in "012"}
    shown, tracebacks, now = b"", set[bytes](), 0.0
    for name, step in [*steps, *((name, "end") for name in "012")]:
        now += 0.4 if step == "wait" else 0.01
        shown += screen.at(now)
        if name in ended or step == "wait":
            continue
        if step == "end":
            ended.add(name)
            shown += screen.ends(name, now)
        else:
            lines[name].append(b"%s.%d" % (name.encode(), len(lines[name])))
            text = TRACEBACK[0] if step == "cut" else traceback(step.encode())
            text = b"" if step == "line" else text
            tracebacks.add(text)
            shown += screen.says(name, lines[name][-1] + b"\n" + text, now)

    for name, own in lines.items():
        prefix = name.encode() + b"."
        assert [x for x in shown.splitlines() if x.startswith(prefix)] == own
    assert all(text in shown for text in tracebacks)


def test_a_traceback_that_was_cut_off_by_the_end_is_no_other_one() -> None:
    screen = Errors("0", "1", "2", "3")
    screen.says("0", TRACEBACK[0])
    screen.says("1", traceback(b"a"))
    screen.says("2", b"loading\n" + TRACEBACK[0] + b"  Fi")
    shown = screen.ends("0") + screen.ends("2") + screen.at(2.0)

    assert shown == traceback(b"a") + b"loading\n"


def test_a_traceback_that_begins_as_a_longer_one_is_not_dropped() -> None:
    screen = Errors("0", "1")
    screen.says("0", traceback(b"a"))
    screen.says("1", traceback(b"a") + b"cleaned up\n")
    shown = screen.ends("0") + screen.at(1.0)

    assert shown == (
        traceback(b"a")
        + b"poprun: The traceback before this one is instance 0's, and this one is "
        b"instance 1's:\n" + traceback(b"a") + b"cleaned up\n"
    )


def test_where_lines_have_tags_no_words_say_whose_a_traceback_is() -> None:
    screen = Errors("0", "1", joins_same=False, names_instances=False)
    screen.says("0", traceback(b"a"))
    screen.says("1", traceback(b"a"))

    assert screen.at(0.05) == traceback(b"a") * 2
    assert screen.console.lines_since_traceback(0) == 3
    assert screen.console.lines_since_traceback(1) == 0


def test_what_an_instance_prints_comes_after_its_traceback() -> None:
    screen = Errors("0", "1")
    screen.console.add("out", PendingStream(instance=0))
    screen.says("0", traceback(b"a"))

    assert screen.says("out", b"retry\n") == traceback(b"a") + b"retry\n"


def test_lines_of_others_do_not_wait_for_a_traceback() -> None:
    screen = Errors("1", "2")
    screen.says("1", TRACEBACK[0])

    assert screen.says("2", b"step 1\n") == b"step 1\n"


def test_long_lines_of_several_stay_whole() -> None:
    screen = Screen("a", "b")
    shown = b""
    for _ in range(100):
        shown += screen.says("a", b"a" * 100_000, 0.0)
        shown += screen.says("b", b"b" * 100_000, 0.0)
        shown += screen.at(0.2)
    shown += screen.says("b", b"\n") + screen.says("a", b"\n")

    assert shown == b"b" * 10_000_000 + b"\n" + b"a" * 10_000_000 + b"\n"


def test_all_that_waits_is_bounded() -> None:
    names = [str(number) for number in range(20)]
    screen = Screen(*names)
    waiting = 0
    for _ in range(16):
        for name in names:
            waiting += 1_000_000 - len(screen.says(name, b"x" * 1_000_000))
            assert waiting <= MAX_WAITING_BYTES


def test_time_in_which_nothing_could_be_written_does_not_count() -> None:
    screen = Screen("a")
    screen.says("a", b"hel", 0.0)
    screen.console.pause(10.0)

    assert screen.at(10.0) == b""
    assert screen.at(10.05) == b"hel"


class OnTerminal(Screen):
    def __init__(self, *names: str) -> None:
        super().__init__()
        self.console = NamedConsole(Cursor(columns=40))
        for name in names:
            self.console.add(name, PendingStream())


def test_lines_appear_above_the_bar_of_another_at_once() -> None:
    screen = OnTerminal("a", "b")
    screen.says("a", b"\r10%")
    assert screen.at(0.05) == b"\r10%"

    assert screen.says("b", b"one\n", 0.06) == b"\r\x1b[Kone\n10%"
    screen.says("a", b"\r20%", 0.1)
    assert screen.at(0.2) == b"\r20%"
    assert screen.says("a", b" done\n", 0.2) == b" done\n"


def test_of_two_bars_one_is_drawn_and_of_the_other_the_end_is_shown() -> None:
    screen = OnTerminal("a", "b")
    screen.says("a", b"\r10%")
    screen.at(0.05)
    for percent in (b"10", b"20", b"30"):
        assert screen.says("b", b"\rB " + percent + b"%", 1.0) == b""
        assert screen.at(100.0) == b""

    assert screen.says("b", b"\n", 100.0) == b"\r\x1b[K\rB 30%\n10%"
    assert screen.says("a", b"\n", 100.0) == b"\n"


def test_a_coloured_bar_may_become_a_very_long_line_in_many_pieces() -> None:
    # Copied for each piece, 9 MB would be 700 GB to copy.
    screen, state = OnTerminal("a", "b"), b"\x1b[32m####################\x1b[0m\r" * 2
    screen.says("a", b"Name? ")
    screen.at(0.05)
    for _ in range(150_000):
        screen.says("b", state, 1.0)

    assert screen.says("b", b"\n", 1.0) == b"\n" + state * 150_000 + b"\n"


def test_a_bar_that_waits_is_shown_when_the_line_is_free() -> None:
    screen = OnTerminal("a", "b")
    screen.says("a", b"\r10%")
    screen.at(0.05)
    screen.says("b", b"\rB 10%\rB 20%", 1.0)

    assert screen.says("a", b"\r    \r", 2.0) == b""
    assert screen.at(2.05) == b"\r    \r\rB 20%"


def test_on_a_terminal_poprun_s_own_words_appear_above_a_bar() -> None:
    screen = OnTerminal("a")
    screen.says("a", b"\r10%")
    screen.at(0.05)
    screen.console.say(b"stopping\n")

    assert screen.shown() == b"\r\x1b[Kstopping\n10%"


def test_on_a_terminal_no_line_begins_behind_a_prompt() -> None:
    screen = OnTerminal("a", "b")
    screen.says("a", b"Name? ")
    screen.at(0.05)
    screen.says("b", b"one\n", 0.1)

    assert screen.at(0.31) == b"\none\n"


def test_no_line_is_ended_for_the_instance_whose_prompt_was_answered() -> None:
    screen = OnTerminal("b")
    for name in ("stdout", "stderr"):
        screen.console.add(name, PendingStream(reads_terminal=True))
    screen.says("stderr", b"Name? ")
    screen.at(0.05)

    assert screen.says("stdout", b"hello Ann\n", 1.0) == b"hello Ann\n"
    assert screen.says("b", b"one\n", 1.0) == b"one\n"


def test_a_bar_of_the_instance_that_reads_is_drawn_below_its_lines() -> None:
    screen = OnTerminal()
    for name in ("stdout", "stderr"):
        screen.console.add(name, PendingStream(reads_terminal=True))
    screen.says("stderr", b"\r10%")
    screen.at(0.05)

    assert screen.says("stdout", b"one\n", 1.0) == b"\r\x1b[Kone\n10%"


# --- A debugger's prompt.


def prompting(*, on_terminal: bool) -> Screen:
    """Return a screen on which instance 0 shows a prompt, and 1 writes, too."""
    screen = Screen()
    screen.console = NamedConsole(Cursor() if on_terminal else None)
    for instance, name in enumerate("ab"):
        mark = Prefix(f"[{name}]".encode(), on_terminal=on_terminal)
        screen.console.add(name, PendingStream(mark, instance))
    screen.console.show_prompt_of(0, 1.0)
    return screen


def test_others_wait_while_a_debugger_shows_a_prompt() -> None:
    screen = prompting(on_terminal=True)

    assert screen.says("a", b"(Pdb) ", 1.0) == b""
    # Its echo does not wait, and has no tag.
    assert screen.at(1.0) == b"(Pdb) "
    assert screen.says("b", b"line\n", 2.0) + screen.says("b", b"more", 3.0) == b""
    assert screen.console.deadline() == inf
    assert screen.at(100.0) == b""
    assert screen.says("a", b"p", 101.0) + screen.at(101.0) == b"p"
    assert screen.says("a", b"\n1\n", 102.0) == b"\n1\n"
    screen.console.show_prompt_of(None, 103.0)
    assert screen.shown() + screen.at(104.0) == b"[b]line\n[b]more"


def test_in_a_pipe_the_lines_of_a_debugger_keep_their_tags() -> None:
    screen = prompting(on_terminal=False)

    assert screen.says("a", b"> x.py(1)\n(Pdb) ", 1.0) == b"[a]> x.py(1)\n"
    assert screen.at(1.0) == b"[a](Pdb) "


def test_a_prompt_begins_on_a_line_of_its_own() -> None:
    screen = prompting(on_terminal=True)
    screen.console.show_prompt_of(None, 1.0)
    screen.says("b", b"50 %", 1.0)
    assert screen.at(2.0) == b"[b]50 %"
    screen.console.show_prompt_of(0, 3.0)

    assert screen.says("a", b"(Pdb) ", 3.0) + screen.at(3.0) == b"\n(Pdb) "


def test_who_has_too_much_to_say_does_not_wait_for_a_debugger() -> None:
    screen = prompting(on_terminal=True)
    lines = (b"x" * 1023 + b"\n") * 1024
    shown = b"".join(
        screen.says("b", lines, 2.0) for _ in range(MAX_WAITING_BYTES // len(lines) + 1)
    )

    assert len(shown) > MAX_WAITING_BYTES

import signal

import pytest

from poprun.job.wait_status import exit_code, signal_name


@pytest.mark.parametrize(
    ("status", "code"),
    [
        pytest.param(0, 0, id="success"),
        pytest.param(7 << 8, 7, id="exit-7"),
        pytest.param(255 << 8, 255, id="exit-255"),
        pytest.param(signal.SIGKILL, 137, id="killed"),
        pytest.param(signal.SIGSEGV, 139, id="crashed"),
        pytest.param(signal.SIGSEGV | 0x80, 139, id="crashed-with-a-core-dump"),
        pytest.param(64, 192, id="last-real-time-signal"),
    ],
)
def test_the_exit_code_is_what_a_shell_would_say(status: int, code: int) -> None:
    assert exit_code(status) == code


@pytest.mark.parametrize(
    ("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (40, "signal 40")]
)
def test_signals_have_their_names_if_they_have_one(number: int, name: str) -> None:
    assert signal_name(number) == name

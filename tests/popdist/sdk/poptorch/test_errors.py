from collections import UserList

import pytest

import poptorch
from poptorch.poptorch_core import TestErrorType, _throwTestError


@pytest.mark.parametrize("kind", list(TestErrorType))
def test_programs_tell_errors_apart_as_the_guide_does(kind: TestErrorType) -> None:
    with pytest.raises(poptorch.Error, match=kind.name) as error:
        _throwTestError(kind)

    recoverable = isinstance(error.value, poptorch.RecoverableError)
    assert recoverable == (kind == TestErrorType.PoplarRecoverableFullReset)
    assert isinstance(error.value, poptorch.UnrecoverableError) == (
        kind == TestErrorType.PoplarUnrecoverable
    )
    if recoverable:
        assert error.value.recovery_action == "FULL_RESET"
    assert error.value.message == str(error.value)
    assert isinstance(error.value.type, str)
    assert isinstance(error.value.location, str)


def test_a_channel_returns_what_it_instruments() -> None:
    channel = poptorch.profiling.Channel("training")
    words = UserList(["a"])

    assert channel.instrument(words, "append", "pop") is words
    with pytest.raises(AttributeError, match="push"):
        channel.instrument(words, "push")
    with channel.tracepoint("step"):
        words.append("b")
    assert words == ["a", "b"]


def test_log_levels_have_names_and_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    poptorch.setLogLevel("INFO")
    poptorch.logger.info("one %d", 1)
    poptorch.setLogLevel(3)
    poptorch.logger.info("two")
    poptorch.logger.warning("three")

    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("[poptorch:python] [info] one 1")
    assert second.endswith("[poptorch:python] [warning] three")
    for wrong in ("LOUD", 6, -1):
        with pytest.raises(ValueError, match="is not a log level"):
            poptorch.setLogLevel(wrong)

import re
from pathlib import Path

import pytest

import popdist.engine
from popdist.engine import _core
from popdist.engine.spec.operations import CHOICES
from popdist.errors import SettingError
from popdist.settings import Settings


def test_settings_that_are_not_given_are_as_documented() -> None:
    assert Settings.decode({}) == Settings(
        timeout=1800, stall=60, algorithm="auto", simd=None, log_level="warn"
    )


def test_settings_are_read_from_the_environment() -> None:
    environ = {
        "POPDIST_TIMEOUT": "12.5",
        "POPDIST_STALL_TIMEOUT": "3",
        "POPDIST_ALGORITHM": "ring",
        "POPDIST_SIMD": "avx2",
        "POPDIST_LOG_LEVEL": "DEBUG",
    }

    assert Settings.decode(environ) == Settings(
        timeout=12.5, stall=3, algorithm="ring", simd="avx2", log_level="debug"
    )


def test_an_empty_variable_counts_as_not_set() -> None:
    names = ("TIMEOUT", "STALL_TIMEOUT", "ALGORITHM", "SIMD", "LOG_LEVEL")

    assert Settings.decode({f"POPDIST_{name}": "" for name in names}) == Settings()


A_DURATION = "a number of seconds more than 0, or a duration such as 90s, 5m or 1h30m"


def test_a_timeout_may_have_units() -> None:
    environ = {"POPDIST_TIMEOUT": "1h30m", "POPDIST_STALL_TIMEOUT": "250ms"}

    settings = Settings.decode(environ)

    assert (settings.timeout, settings.stall) == (5400.0, 0.25)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("POPDIST_TIMEOUT", "soon", A_DURATION),
        ("POPDIST_TIMEOUT", "0", A_DURATION),
        ("POPDIST_TIMEOUT", "inf", A_DURATION),
        ("POPDIST_STALL_TIMEOUT", "nan", A_DURATION),
        ("POPDIST_STALL_TIMEOUT", "-1", A_DURATION),
        ("POPDIST_ALGORITHM", "fast", "one of auto, oneshot, direct, ring"),
        ("POPDIST_SIMD", "sse", "one of baseline, avx2, avx512, neon"),
        ("POPDIST_LOG_LEVEL", "7", "one of off, err, warn, info, debug, trace"),
    ],
)
def test_impossible_settings_are_refused(name: str, value: str, rule: str) -> None:
    with pytest.raises(SettingError) as refusal:
        Settings.decode({name: value})

    assert str(refusal.value) == (
        f"{name} is '{value}', but must be {rule}. Correct it, or unset it."
    )


def test_the_algorithms_are_those_that_the_engine_takes() -> None:
    for name in CHOICES:
        assert Settings.decode({"POPDIST_ALGORITHM": name}).algorithm == name
    with pytest.raises(SettingError, match=f"one of {', '.join(CHOICES)}"):
        Settings.decode({"POPDIST_ALGORITHM": "?"})


def test_the_levels_are_those_that_the_core_has_kernels_for() -> None:
    sources = Path(popdist.engine.__path__[0]).glob("core/kernels/*.c")
    found = [re.findall(r'LEVEL_NAME "(\w+)"', file.read_text()) for file in sources]
    levels = {level for names in found for level in names}

    with pytest.raises(SettingError) as refusal:
        Settings.decode({"POPDIST_SIMD": "?"})

    [said] = re.findall("one of (.*)\\. Correct", str(refusal.value))
    assert set(said.split(", ")) == levels
    assert set(_core.simd_levels()) <= levels


@pytest.mark.parametrize(
    ("level", "tells"),
    [("warn", False), ("info", False), ("debug", True), ("Trace", True)],
)
def test_the_algorithms_that_ran_are_reported_from_debug_on(
    level: str, tells: bool
) -> None:
    assert Settings.decode({"POPDIST_LOG_LEVEL": level}).reports_runs == tells


def test_a_simd_level_that_this_processor_lacks_is_told_with_those_it_has() -> None:
    settings = Settings.decode({"POPDIST_SIMD": "neon"})

    settings.check_level(["baseline", "neon"])
    with pytest.raises(SettingError) as refusal:
        settings.check_level(["baseline", "avx2"])
    assert "POPDIST_SIMD is 'neon'" in str(refusal.value)
    assert "one of baseline, avx2, as this processor has no other" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "tcp"),
    [
        ("", None),
        ("tcp://10.0.0.1:29600/0123456789", ("10.0.0.1", 29600, b"0123456789")),
        ("tcp://[fd00::1]:29600/a/b c d e f", ("fd00::1", 29600, b"a/b c d e f")),
    ],
)
def test_links_have_an_address_and_a_secret(
    text: str, tcp: tuple[str, int, bytes] | None
) -> None:
    assert Settings.decode({"POPDIST_LINKS": text}).tcp == tcp


@pytest.mark.parametrize(
    "text", ["10.0.0.1:1/5ecret78", "tcp://10.0.0.1/5ecret78", "tcp://host:1/5ecret"]
)
def test_the_secret_of_invalid_links_is_not_shown(text: str) -> None:
    with pytest.raises(SettingError) as refusal:
        Settings.decode({"POPDIST_LINKS": text})

    assert "but must be tcp://HOST:PORT/SECRET" in str(refusal.value)
    assert "5ecret" not in str(refusal.value)

import pytest

from popdist.errors import SettingError
from popdist.settings import Settings


def test_what_the_user_does_not_set_is_as_documented() -> None:
    assert Settings.decode({}) == Settings(
        timeout=1800, stall=60, algorithm="auto", simd=None
    )


def test_what_the_user_sets_is_read() -> None:
    environ = {
        "POPDIST_TIMEOUT": "12.5",
        "POPDIST_STALL_TIMEOUT": "3",
        "POPDIST_ALGORITHM": "ring",
        "POPDIST_SIMD": "avx2",
    }

    assert Settings.decode(environ) == Settings(
        timeout=12.5, stall=3, algorithm="ring", simd="avx2"
    )


def test_an_empty_variable_counts_as_not_set() -> None:
    names = ("TIMEOUT", "STALL_TIMEOUT", "ALGORITHM", "SIMD")

    assert Settings.decode({f"POPDIST_{name}": "" for name in names}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("POPDIST_TIMEOUT", "soon", "a number of seconds more than 0"),
        ("POPDIST_TIMEOUT", "0", "a number of seconds more than 0"),
        ("POPDIST_TIMEOUT", "inf", "a number of seconds more than 0"),
        ("POPDIST_STALL_TIMEOUT", "nan", "a number of seconds more than 0"),
        ("POPDIST_STALL_TIMEOUT", "-1", "a number of seconds more than 0"),
        ("POPDIST_ALGORITHM", "fast", "one of auto, oneshot, direct, ring"),
        ("POPDIST_SIMD", "sse", "one of baseline, avx2, avx512, neon"),
    ],
)
def test_what_cannot_be_is_refused(name: str, value: str, rule: str) -> None:
    with pytest.raises(SettingError) as refusal:
        Settings.decode({name: value})

    assert str(refusal.value) == (
        f"{name} is '{value}', but must be {rule}. Set it so, or unset it."
    )

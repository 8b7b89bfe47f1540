import pytest

from poprun.mpirun.questions import find_question


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("--version", ["--version"]),
        ("--tag-output -V", ["-V"]),
        ("--help bind-to", ["--help", "bind-to"]),
        ("-x version --mca help a", []),
    ],
)
def test_a_question_for_mpirun_is_found(text: str, question: list[str]) -> None:
    assert find_question(text) == question

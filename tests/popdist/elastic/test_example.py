"""The program of docs/elastic.md: examples/elastic.py."""

import re
from pathlib import Path

from tests.elastic_jobs import Coordinator, wait_until
from tests.jobs import ROOT

# The members wait in the middle of it until one of them is lost, and until another one
# joins them.
HELD = """
        while (
            state.step == STEPS // 2
            and elastic.generation() < 2
            and not elastic.members_changed()
        ):
            __import__("time").sleep(0.01)
        if state.step % 10 == 0:"""


def test_the_example_finds_the_weights_whoever_is_killed(tmp_path: Path) -> None:
    program = (ROOT / "examples" / "elastic.py").read_text()
    program = program.replace("\n        if state.step % 10 == 0:", HELD)

    with Coordinator(tmp_path, [3], program) as job:
        wait_until(lambda: "begins with step 0" in job.output(1))
        job.kill(1)
        wait_until(lambda: job.generation == 1)
        job.add(1)
        ended = job.finish()

    assert [one.code for one in ended] == [0, -9, 0, 0], ended
    for one in (ended[0], ended[2], ended[3]):
        assert one.out.endswith("after step 200 the largest error is 0.000000\n"), ended
    assert re.search(r"generation 2: instance 1 of 3 begins", ended[3].out), ended


def test_the_page_shows_the_example() -> None:
    page = (ROOT / "docs" / "elastic.md").read_text()
    program = (ROOT / "examples" / "elastic.py").read_text()
    shown = page.partition("```python\n")[2].partition("```")[0]

    for line in filter(None, (line.strip() for line in shown.splitlines())):
        if not line.startswith("def "):
            assert line in program

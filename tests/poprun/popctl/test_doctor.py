"""What popctl doctor makes of the lines that the hosts have printed."""

import json

from poprun.popctl.doctor import read_reports
from poprun.popctl.machine_checks import FAIL, PASS, WARN, Check

CHECK = {"name": "CPUs", "status": "PASS", "text": "2", "mend": ""}


def report(host: str, **others: str) -> str:
    return json.dumps({"host": host, "checks": [{**CHECK, **others}]})


def test_each_host_has_its_checks() -> None:
    out = f"{report('a')}\n{report('b')}\n"

    assert [*read_reports("a,b", out)] == [
        ("a", Check(name="CPUs", status=PASS, text="2")),
        ("b", Check(name="CPUs", status=PASS, text="2")),
    ]


def test_other_lines_are_shown_and_hosts_without_checks_are_a_failure() -> None:
    out = f"Welcome!\n{report('a')}\n[1]\n{report('b', newer='x')}\n"

    checks = [check for _, check in read_reports("a,b", out)]

    assert [check.status for check in checks] == [WARN, PASS, WARN, WARN, FAIL]
    assert (
        checks[0].text
        == "a host printed a line that is not a result of a check: 'Welcome!'"
    )
    assert checks[-1].text == "1 of 2 hosts reported their checks"

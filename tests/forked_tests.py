"""Runs a test in a fork of the process of the tests."""

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.runner import CallInfo, runtestprotocol


def run_in_fork(item: pytest.Item, following: pytest.Item | None) -> None:
    """Run a test in a fork, and report what it reports."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(reader)
            with open(writer, "w", encoding="utf-8") as file:
                json.dump(_reports(item), file)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        _report_end(item, status)
    else:
        from_serializable = item.config.hook.pytest_report_from_serializable
        for data in json.loads(text):
            report = from_serializable(config=item.config, data=data)
            item.ihook.pytest_runtest_logreport(report=report)
    # What earlier tests have set up, and the next one does not need.
    item.session._setupstate.teardown_exact(following)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _reports(item: pytest.Item) -> list[Any]:
    """Run the test, and return its reports as what JSON can express."""
    # What other tests use too is left to the process of the tests.
    parent = SimpleNamespace(listchain=item.listchain()[:-1].copy)
    to_serializable = item.config.hook.pytest_report_to_serializable
    return [
        to_serializable(config=item.config, report=report)
        for report in runtestprotocol(item, log=False, nextitem=parent)
    ]


def _report_end(item: pytest.Item, status: int) -> None:
    def fail() -> None:
        pytest.fail(f"The process of the test ended with status {status}.")

    call = CallInfo.from_call(fail, when="call")
    report = item.ihook.pytest_runtest_makereport(item=item, call=call)
    item.ihook.pytest_runtest_logreport(report=report)

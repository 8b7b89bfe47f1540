"""Requests made from the server's own schema: each reply is one that it describes."""

import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.generation import GenerationMode
from vipu_servers import Server, serving

from poprun.vipu.inventory.interface import OPERATIONS
from poprun.vipu.server.schema import document

DOCUMENT = json.loads(json.dumps(document(OPERATIONS.values(), secure=False)))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("vipu") / "server.db") as started:
        yield started
        assert "Traceback" not in started.log.read_text()
        assert started.stop() == 0


def test_the_server_shows_this_schema(server: Server) -> None:
    reply = server.exchange(b"GET /openapi.json HTTP/1.0\r\nHost: localhost\r\n\r\n")

    assert json.loads(reply.partition(b"\r\n\r\n")[2]) == DOCUMENT


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_every_operation_keeps_to_its_schema(
    server: Server, path: str, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    operation = schema[path]["POST"]

    @settings(
        max_examples=10,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def ask(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        case.call_and_validate(
            base_url=f"http://127.0.0.1:{server.port}", checks=CHECKS
        )

    ask()

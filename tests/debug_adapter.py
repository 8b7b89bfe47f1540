"""A small client of the Debug Adapter Protocol, as an editor is one."""

import itertools
import json
import socket
import time
from typing import Any

from tests.host_jobs import free_port


def free_ports(count: int) -> int:
    """Return the first of several ports in a row that nothing uses."""
    while True:
        first = free_port()
        try:
            for port in range(first + 1, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first


class DebugAdapter:
    """Attaches to a debugpy that listens."""

    def __init__(self, port: int) -> None:
        self._socket = self._connect(port)
        self._stream = self._socket.makefile("rb")
        self._numbers = itertools.count(1)
        self._thread = 0

    @staticmethod
    def _connect(port: int) -> socket.socket:
        """Connect as soon as it listens: the test's own timeout ends the wait."""
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), 200)
            except ConnectionRefusedError:
                time.sleep(0.1)

    def __enter__(self) -> "DebugAdapter":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def attach(self, path: str, line: int) -> None:
        """Attach, and run to a line."""
        self._request("initialize", adapterID="debugpy", pathFormat="path")
        self._send("attach", justMyCode=True)
        self._until(event="initialized")
        self._break_at(path, line)
        self._send("configurationDone")
        self._thread = self._until(event="stopped")["body"]["threadId"]

    def evaluate(self, expression: str) -> str:
        stack = self._request("stackTrace", threadId=self._thread)["stackFrames"]
        frame = stack[0]["id"]
        answer = self._request("evaluate", expression=expression, frameId=frame)
        return str(answer["result"])

    def go_on(self) -> None:
        """Run to the end of the program."""
        self._request("continue", threadId=self._thread)
        self._until(event="terminated")

    def _break_at(self, path: str, line: int) -> None:
        source, points = {"path": path}, [{"line": line}]
        self._request("setBreakpoints", source=source, breakpoints=points)

    def _send(self, command: str, **arguments: object) -> int:
        number = next(self._numbers)
        message = {
            "seq": number,
            "type": "request",
            "command": command,
            "arguments": arguments,
        }
        body = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        return number

    def _request(self, command: str, **arguments: object) -> Any:
        number = self._send(command, **arguments)
        answer = self._until(type="response", request_seq=number)
        assert answer["success"], answer
        return answer.get("body")

    def _until(self, **wanted: object) -> Any:
        """Return the next message that has these values, and drop those before it."""
        while True:
            message = self._read()
            if all(message.get(key) == value for key, value in wanted.items()):
                return message

    def _read(self) -> Any:
        length = 0
        while line := self._stream.readline().strip():
            name, value = line.split(b":")
            if name == b"Content-Length":
                length = int(value)
        assert length, "debugpy has closed the connection"
        return json.loads(self._stream.read(length))

"""Connections to a server: one request, one reply, within one deadline.

http.client parses the replies. Connecting and waiting are done here, because it knows
no deadline for a whole reply, and none for looking up a name.
"""

import errno
import io
import select
import socket
import time
from _queue import Empty, SimpleQueue  # queue and threading take 2 ms to import
from _thread import start_new_thread
from base64 import b64encode
from contextlib import suppress
from typing import Any, NamedTuple

from poprun.vipu import errors
from poprun.vipu.client.server_address import USER_FILES, ServerAddress, is_loopback

MOST_BYTES = 64 << 20
# What OpenSSL calls X509_V_ERR_CERT_HAS_EXPIRED.
CERTIFICATE_EXPIRED = 10
# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
WRONG_NAMES = (62, 64)


class Reply(NamedTuple):
    """What a server replied."""

    status: int
    body: bytes


class Connections:
    """Open connections to one server, one for each thread that is asking."""

    def __init__(self, address: ServerAddress, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._idle: list[socket.socket] = []
        self._context: Any = None
        self._headers = _headers(address)

    def ask(self, path: str, body: bytes = b"", method: str = "POST") -> Reply:
        """Send a request, and return the reply.

        Raises:
            ServerError: There is none, or it is no HTTP.
        """
        deadline = time.monotonic() + self._timeout_s
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}"
        request = f"{head}\r\n\r\n".encode() + body
        try:
            connection = self._take_idle() or self._connect(deadline)
            try:
                connection.settimeout(_seconds_left(deadline))
                connection.sendall(request)
                reply, reusable = self._read(connection, method, deadline)
            except BaseException:
                connection.close()
                raise
        except TimeoutError as error:
            url = f"http{'s' if self._address.tls else ''}://{self._address}"
            raise self._timed_out(
                f"The V-IPU server {self._address} did not answer",
                f"see whether it works: {url}/health",
            ) from error
        except OSError as error:
            raise self._translate(error) from error
        if reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> socket.socket | None:
        """Return an idle connection that the server has not closed."""
        while self._idle:
            connection = self._idle.pop()
            # Nothing comes before a request but the end of the connection.
            ready = select.poll()  # select knows no descriptor above 1023
            ready.register(connection, select.POLLIN)
            if not ready.poll(0):
                return connection
            connection.close()
        return None

    def _connect(self, deadline: float) -> socket.socket:
        failure = OSError(errno.EHOSTUNREACH, "it has no address")
        addresses = _look_up(self._address.host, self._address.port, deadline)
        if addresses is None:
            raise self._timed_out(
                f"The name of the V-IPU server {self._address} could not be looked up",
                f"name its address with {self._address.option_prefix}-host",
            )
        for family, kind, protocol, _, place in addresses:
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(_seconds_left(deadline))
                connection.connect(place)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return self._encrypted(connection, deadline)
            except BaseException as error:
                connection.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
        raise failure

    def _encrypted(self, connection: socket.socket, deadline: float) -> socket.socket:
        if not self._address.tls:
            return connection
        if self._context is None:
            self._context = _tls_context(self._address)
        connection.settimeout(_seconds_left(deadline))
        encrypted: socket.socket = self._context.wrap_socket(
            connection, server_hostname=self._address.host
        )
        return encrypted

    def _read(
        self, connection: socket.socket, method: str, deadline: float
    ) -> tuple[Reply, bool]:
        """Return a reply, and whether another request may follow on the connection."""
        import http.client

        stream: Any = _Stream(connection, deadline)
        response = http.client.HTTPResponse(stream, method=method)
        body, problem = b"", ""
        try:
            response.begin()
            body = response.read(MOST_BYTES + 1)
        except http.client.RemoteDisconnected:
            problem = "it closed the connection without a reply"
        except (http.client.HTTPException, ValueError):
            problem = "its reply is not HTTP"
        else:
            if response.status == http.client.SWITCHING_PROTOCOLS:
                problem = "it requires a protocol other than HTTP"
            elif len(body) > MOST_BYTES:
                problem = f"its reply is longer than {MOST_BYTES >> 20} MiB"
            elif response.length:
                problem = "it closed the connection in the middle of its reply"
        finally:
            # Else Python 3.13 reports that it is finalised after its stream.
            response.close()
        if problem:
            raise reply_error(self._address, problem)
        return Reply(response.status, body), not response.will_close

    def _timed_out(self, problem: str, advice: str) -> errors.ServerTimeoutError:
        return errors.ServerTimeoutError(
            f"{problem} within {self._timeout_s:g} s. Wait longer with "
            f"{self._address.option_prefix}-timeout, or {advice}."
        )

    def _translate(self, error: OSError) -> errors.ServerError:
        why = error.strerror or str(error)
        if type(error).__module__ == "ssl":
            why = (getattr(error, "verify_message", "") or why).removesuffix(".")
            return errors.ServerReplyError(
                f"No encrypted connection to the V-IPU server {self._address} can be "
                f"made: {why}. {_tls_advice(error, self._address)}"
            )
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return reply_error(self._address, "it closed the connection")
        origin = self._address.origin
        return errors.ServerUnreachableError(
            f"No V-IPU server answers at {self._address}, which comes from "
            f"{'an option' if origin == 'option' else origin}: {why}. "
            f"{_advice(self._address)}"
        )


def _tls_context(address: ServerAddress) -> Any:
    import ssl

    try:
        return ssl.create_default_context(cafile=address.ca_cert or None)
    except OSError as error:
        why = error.strerror or "there is no certificate in it"
        raise errors.ServerUnreachableError(
            f"The file {address.ca_cert} with the certificate of the V-IPU server "
            f"{address} cannot be read: {why}. {_certificate_line(address)}"
        ) from error


def _tls_advice(error: OSError, address: ServerAddress) -> str:
    code = getattr(error, "verify_code", 0)
    if code == CERTIFICATE_EXPIRED:
        return "Ask the server's administrator for a new certificate."
    if code in WRONG_NAMES:
        return (
            "Name the server as its certificate does, or ask its administrator for a "
            f"certificate of {address.host}."
        )
    if code:
        return _certificate_line(address)
    file = _config_file(address)
    return f'If the server has no TLS, add to {file} the line: api-tls = "no"'


def _certificate_line(address: ServerAddress) -> str:
    """Say how to trust the certificate of a server."""
    return (
        "Copy the server's certificate, or its authority's, to this machine, and add "
        f"to {_config_file(address)} a line with its path: api-ca-cert = "
        '"/path/of/cert.pem"'
    )


def _config_file(address: ServerAddress) -> str:
    # What names the server, if it is a file and not a variable or an option.
    return address.origin if "/" in address.origin else f"~/{USER_FILES[0]}"


class _Stream(io.RawIOBase):
    """What comes on a connection, up to a deadline; http.client opens it as a file."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_seconds_left(self._deadline))
        return self._connection.recv_into(buffer)


def reply_error(address: ServerAddress, problem: str) -> errors.ServerReplyError:
    """Return the error of a reply that no V-IPU server gives."""
    hint = "" if address.tls else ', or set api-tls = "yes" if it has TLS'
    return errors.ServerReplyError(
        f"The server at {address} is not a V-IPU server of poprun, or it fails: "
        f"{problem}. Name the right one with {address.option_prefix}-host and "
        f"{address.option_prefix}-port{hint}."
    )


def _look_up(host: str, port: int, deadline: float) -> list[Any] | None:
    """Return the addresses of a host; None if they are not known by a deadline."""
    with suppress(socket.gaierror):
        return _addresses(host, port, socket.AI_NUMERICHOST)
    results: SimpleQueue[list[Any] | Exception] = SimpleQueue()

    def look_up() -> None:
        try:
            results.put(_addresses(host, port))
        except Exception as error:  # raised again where it can be handled
            results.put(error)

    # The resolver takes no deadline. The thread ends when it gives up.
    start_new_thread(look_up, ())
    try:
        result = results.get(timeout=_seconds_left(deadline))
    except Empty:
        return None
    if isinstance(result, Exception):
        raise result
    return result


def _addresses(host: str, port: int, flags: int = 0) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)


def _headers(address: ServerAddress) -> str:
    lines = f"Host: {address}\r\nContent-Type: application/json\r\n"
    if address.access_key:
        pair = b64encode(f"{address.user}:{address.access_key}".encode()).decode()
        lines += f"Authorization: Basic {pair}\r\n"
    return lines


def _seconds_left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _advice(address: ServerAddress) -> str:
    without = f"unset {address.origin}"
    if address.origin == "option":
        without = f"leave {address.option_prefix}-host out"
    elif "." in address.origin:  # a file, not a variable
        without = f"remove api-host from {address.origin}"
    start = "Start one there (vipu-server --help), correct the address"
    if is_loopback(address.host):
        start = f"Start one with: vipu-server --port {address.port}"
    return f"{start}, or {without} to use emulated IPUs of this machine."

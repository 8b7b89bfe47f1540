"""Connections to a server, by http.client: one request, one reply, one deadline."""

import select
import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection, RemoteDisconnected
from threading import Thread
from typing import Any, NamedTuple

from poprun.vipu import errors
from poprun.vipu.client.server_address import USER_FILES, ServerAddress, is_loopback

MOST_BYTES = 64 << 20
# OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED.
CERTIFICATE_EXPIRED = 10
# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
WRONG_NAMES = (62, 64)


class Reply(NamedTuple):
    """The reply of a server: HTTP status and body."""

    status: int
    body: bytes


class Connections:
    """Connections to one server, one for each thread that is asking."""

    def __init__(self, address: ServerAddress, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._idle: list[HTTPConnection] = []
        self._context: ssl.SSLContext | None = None
        self._headers = {"Content-Type": "application/json"}
        if address.access_key:
            pair = f"{address.user}:{address.access_key}".encode()
            self._headers["Authorization"] = f"Basic {b64encode(pair).decode()}"

    def ask(self, path: str, body: bytes | None = None, method: str = "POST") -> Reply:
        """Send a request, and return the reply.

        Raises:
            ServerError: There is none, or it is no HTTP.
        """
        connection = self._idle.pop() if self._idle else self._new_connection()
        if connection.sock is not None and _is_readable(connection.sock):
            # Nothing comes before a request but the end of the connection. http.client
            # makes another.
            connection.close()
        exchange = _Exchange(connection, method, path, body, self._headers)
        try:
            exchange.attempt(self._timeout_s)
        except BaseException:
            exchange.give_up()
            raise
        result = exchange.result
        if isinstance(result, Reply):
            self._idle.append(connection)
            return result
        exchange.give_up()
        if isinstance(result, TimeoutError):
            raise self._timed_out(exchange.is_looking_up) from result
        raise self._error_of(result) from result

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _new_connection(self) -> HTTPConnection:
        place = self._address.host, self._address.port
        if not self._address.tls:
            return HTTPConnection(*place, timeout=self._timeout_s)
        if self._context is None:
            self._context = _tls_context(self._address)
        return HTTPSConnection(*place, timeout=self._timeout_s, context=self._context)

    def reply_error(self, problem: str) -> errors.ServerReplyError:
        """Return the error of a reply that no V-IPU server gives."""
        option = self._address.option_prefix
        hint = "" if self._address.tls else ', or set api-tls = "yes" if it has TLS'
        return errors.ServerReplyError(
            f"The server at {self._address} is not a V-IPU server of poprun, or it "
            f"fails: {problem}. Name the right one with {option}-host and "
            f"{option}-port{hint}."
        )

    def _timed_out(self, is_looking_up: bool) -> errors.ServerTimeoutError:
        option, url = self._address.option_prefix, f"{self._address}/health"
        problem = f"The V-IPU server {self._address} did not answer"
        advice = f"see whether it works: http{'s' * self._address.tls}://{url}"
        if is_looking_up:
            name = f"The name of the V-IPU server {self._address}"
            problem = f"{name} could not be looked up"
            advice = f"name its address with {option}-host"
        return errors.ServerTimeoutError(
            f"{problem} within {self._timeout_s:g} s. Wait longer with "
            f"{option}-timeout, or {advice}."
        )

    def _error_of(self, error: Exception) -> errors.ServerError:
        """Return the error to raise for one of http.client, ssl or a socket."""
        if isinstance(error, _ReplyError):
            return self.reply_error(str(error))
        if isinstance(error, RemoteDisconnected):
            return self.reply_error("it closed the connection without a reply")
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return self.reply_error("it closed the connection")
        if not isinstance(error, OSError):  # HTTPException or ValueError
            return self.reply_error("its reply is not HTTP")
        why = error.strerror or str(error)
        if isinstance(error, ssl.SSLError):
            why = (getattr(error, "verify_message", "") or why).removesuffix(".")
            return errors.ServerReplyError(
                f"No encrypted connection to the V-IPU server {self._address} can be "
                f"made: {why}. {_tls_advice(error, self._address)}"
            )
        origin = self._address.origin
        return errors.ServerUnreachableError(
            f"No V-IPU server answers at {self._address}, which comes from "
            f"{'an option' if origin == 'option' else origin}: {why}. "
            f"{_advice(self._address)}"
        )


class _ReplyError(ValueError):
    """A reply in HTTP that no V-IPU server gives."""


class _Exchange(Thread):
    """One request and its reply, in a separate thread.

    The resolver has no timeout, and http.client one for each piece of a reply only.
    """

    def __init__(self, connection: HTTPConnection, *request: Any) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._request = request
        # The reply, or why there is none so far.
        self.result: Reply | Exception = TimeoutError()
        self.is_looking_up = False
        self._is_given_up = False

    def attempt(self, timeout_s: float) -> None:
        """Start, and wait for the result."""
        try:
            self.start()
        except RuntimeError:  # there are no more threads
            self.run()
        else:
            self.join(timeout_s)

    def run(self) -> None:
        try:
            self.result = self._exchange()
        except Exception as error:  # raised where the reply is waited for
            self.result = error

    def give_up(self) -> None:
        """Close the connection, and let the thread send nothing any more."""
        self._is_given_up = True
        if self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exchange(self) -> Reply:
        connection = self._connection
        if connection.sock is None:
            self.is_looking_up = True
            socket.getaddrinfo(connection.host, connection.port)
            self.is_looking_up = False
            connection.connect()
        if self._is_given_up:
            connection.close()
            raise TimeoutError
        connection.auto_open = 0  # a closed connection stays closed
        connection.request(*self._request)
        with connection.getresponse() as response:
            body = response.read(MOST_BYTES + 1)
            if response.status == HTTPStatus.SWITCHING_PROTOCOLS:
                raise _ReplyError("it requires a protocol other than HTTP")
            if len(body) > MOST_BYTES:
                raise _ReplyError(f"its reply is longer than {MOST_BYTES >> 20} MiB")
            if response.length:
                raise _ReplyError("it closed the connection in the middle of its reply")
            return Reply(response.status, body)


def _is_readable(connection: socket.socket) -> bool:
    poll = select.poll()  # select knows no descriptor above 1023
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _tls_context(address: ServerAddress) -> ssl.SSLContext:
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
    # The origin may also be a variable or an option.
    return address.origin if "/" in address.origin else f"~/{USER_FILES[0]}"


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

"""What a server answers: a path for each operation, the schema, metrics and health."""

import asyncio
import binascii
import json
import logging
import re
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from poprun.vipu.client.server_address import is_loopback
from poprun.vipu.errors import (
    AccessError,
    InventoryBusyError,
    UnknownNameError,
    VipuError,
    VipuRuleError,
)
from poprun.vipu.inventory.interface import (
    OF_ADMINS,
    OF_HOLDERS,
    WITHOUT_ACCESS_KEY,
    Inventory,
    operation,
    operation_names,
)
from poprun.vipu.model import User
from poprun.vipu.operations import Operation
from poprun.vipu.server import access, openapi
from poprun.vipu.server.metrics import CONTENT_TYPE, Metrics
from poprun.vipu.server.worker import Worker
from poprun.vipu.wire import from_json, to_json

# How often the leases of holders that have ended are looked for.
SWEEP_S = 1.0
JSON = "application/json"
NO_PATH = "There is no such path. The paths are in /openapi.json."
WRONG_METHOD = "Use POST for operations, and GET for everything else."
# The codes of refusals that no operation makes, by HTTP status.
_CODES = {401: AccessError.code, 403: AccessError.code, 404: UnknownNameError.code}
_log = logging.getLogger("vipu-server")


@dataclass(slots=True)
class HttpRequest:
    """A request; what follows its headers is known when it has come as a whole."""

    url: bytes = b""
    # By their names in small letters.
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    method: str = ""
    path: str = ""
    version: str = ""
    # Whether the connection ends after it, and why it is refused.
    is_last: bool = False
    error: "RequestError | None" = None

    def __str__(self) -> str:
        return f"{self.method} {self.url.decode('latin-1')} HTTP/{self.version}"


class HttpResponse(NamedTuple):
    """What is sent to a client."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = {}
    content_type: str = JSON


class RequestError(VipuError):
    """A request that is refused for its HTTP, or for having no valid access key."""

    def __init__(
        self, status: int, sentence: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = _CODES.get(status, VipuRuleError.code)
        self.headers = headers or {}


class Service:
    """An inventory, served.

    Args:
        inventory: What is served.
        secure: Whether users have to show their access keys.
        local: Whether only this machine can connect: then browsers that a foreign
            page directs here are refused by the name that they ask for.
        count_connections: Returns how many connections are open.
    """

    def __init__(
        self,
        inventory: Inventory,
        *,
        secure: bool,
        local: bool,
        count_connections: Callable[[], int],
    ) -> None:
        self._inventory = inventory
        self._secure = secure
        self._local = local
        self._count_connections = count_connections
        self._operations = {name: operation(name) for name in operation_names()}
        self._worker = Worker()
        self._metrics = Metrics()
        self._schema = openapi.document(self._operations.values(), secure=secure)
        self._pages = {
            "/openapi.json": self._show_schema,
            "/metrics": self._show_metrics,
            "/health": self._show_health,
        }

    async def sweep(self) -> None:
        """End leases whose holders are gone, again and again."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                ended = await self._worker.run(self._inventory.end_dead_leases)
            except VipuError as error:
                _log.warning("Leases could not be ended: %s", error)
            except Exception:  # it is logged, and the next look may succeed
                _log.exception("Leases could not be ended.")
            else:
                self._metrics.count_ended(len(ended))

    def stop(self) -> None:
        """Refuse what waits for the inventory, and work on it no more."""
        self._worker.stop()

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """Return the response to a request."""
        if request.error is not None:
            return _refusal(request.error)
        path = request.path
        area, _, name = path.removeprefix("/").partition("/")
        operation = self._operations.get(name) if area in ("user", "admin") else None
        if operation is None and path not in self._pages:
            return _refusal(RequestError(404, NO_PATH))
        methods = ("GET", "HEAD") if operation is None else ("POST",)
        if request.method not in methods:
            allow = {"allow": ", ".join(methods)}
            return _refusal(RequestError(405, WRONG_METHOD, allow))
        if operation is None:
            result, response = await self._try(self._pages[path](), f"page {path}")
            return response
        began = time.perf_counter()
        answer = self._answer(request, operation, area == "admin")
        result, response = await self._try(answer, f"operation {name}")
        self._metrics.count(name, result, time.perf_counter() - began)
        return response

    async def _try(
        self, answer: Awaitable[HttpResponse], what: str
    ) -> tuple[str, HttpResponse]:
        """Return an answer with "ok", or a refusal with the code of the error."""
        try:
            return "ok", await answer
        except VipuError as error:
            return error.code, _refusal(error)
        except Exception as error:
            _log.exception("The %s failed.", what)
            failure = VipuError(
                f"The V-IPU server failed with {type(error).__name__}. Its log says "
                "where."
            )
            return failure.code, _refusal(failure)

    async def _answer(
        self, request: HttpRequest, operation: Operation, admin: bool
    ) -> HttpResponse:
        _check_type(request.headers)
        self._check_origin(request.headers)
        name, access_key = _credentials(request.headers.get("authorization", ""))
        arguments = _read(operation, bytes(request.body))
        admin = admin or operation.name in OF_ADMINS
        value = await self._worker.run(
            lambda: self._call(operation, arguments, admin, name, access_key),
            is_of_holder=operation.name in OF_HOLDERS,
        )
        return _json(to_json(value))

    def _call(
        self,
        operation: Operation,
        arguments: dict[str, Any],
        admin: bool,
        name: str,
        key: str,
    ) -> Any:
        user = None
        if self._secure and operation.name not in WITHOUT_ACCESS_KEY:
            user = self._authenticate(name, key, admin)
            if not admin:
                arguments = access.limited(arguments, user)
                if user.is_limited and arguments.get("cluster"):
                    cluster = self._inventory.get_cluster(arguments["cluster"])
                    access.visible(cluster, user, self._inventory)
        result = getattr(self._inventory, operation.name)(**arguments)
        if user is not None and admin:
            return result
        if user is not None:
            result = access.visible(result, user, self._inventory)
        return access.without_leases(result, arguments.get("lease"))

    def _authenticate(self, name: str, key: str, admin: bool) -> User:
        if not key:
            raise RequestError(
                401,
                "The V-IPU server requires a user and an access key. Copy the file "
                "NAME.vipu-cli.hcl that 'vipu-admin create user NAME' has written to "
                "~/.vipu/vipu-cli.hcl, or set api-user-id and api-access-key.",
            )
        try:
            user = self._inventory.check_access(name, key)
        except AccessError as error:
            raise RequestError(401, str(error)) from error
        if admin and not user.is_admin:
            raise AccessError(
                f"User {user.name} is not an administrator. Ask an administrator to do "
                "this, or use an administrator's access key."
            )
        return user

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse what a web page makes a browser send."""
        name = re.sub(r":\d+$", "", headers.get("host", ""))
        if "origin" in headers or (self._local and not is_loopback(name)):
            raise RequestError(
                403,
                "The V-IPU server does not answer web pages: use its own address, and "
                "no Origin header.",
            )

    async def _show_schema(self) -> HttpResponse:
        return _json(self._schema)

    async def _show_metrics(self) -> HttpResponse:
        inventory = self._inventory
        contents = await self._worker.run(
            lambda: (
                inventory.list_clusters(),
                inventory.list_partitions(),
                inventory.list_leases(),
            )
        )
        self._metrics.set_gauges(
            *contents,
            num_connections=self._count_connections(),
            num_waiting=self._worker.waiting,
        )
        return HttpResponse(self._metrics.page(), content_type=CONTENT_TYPE)

    async def _show_health(self) -> HttpResponse:
        """Say whether the inventory can be read."""
        try:
            await asyncio.wait_for(
                self._worker.run(self._inventory.list_allocations), timeout=5
            )
        except TimeoutError:
            raise InventoryBusyError("The inventory does not answer.") from None
        return _json({"status": "ok"})


def _check_type(headers: Mapping[str, str]) -> None:
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON:
        raise RequestError(415, f"The type of a request's content must be {JSON}.")


def _read(operation: Operation, body: bytes) -> dict[str, Any]:
    """Return the arguments of a request.

    Raises:
        VipuRuleError: They are not valid.
    """
    try:
        # json itself would take UTF-16 as well.
        value = json.loads(body.decode())
        arguments = from_json(operation.arguments, value, of_request=True)
    except (ValueError, RecursionError) as error:
        raise VipuRuleError(
            f"The request for {operation.name} is not valid: {error}."
        ) from error
    return vars(arguments)


def _credentials(authorization: str) -> tuple[str, str]:
    """Return the user and the access key of a request, empty if it has none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, key = b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return name, key


def _refusal(error: VipuError) -> HttpResponse:
    """Return the response that tells a client of an error."""
    status, headers = openapi.STATUS.get(error.code, 500), {}
    if isinstance(error, RequestError):
        status, headers = error.status, dict(error.headers)
    if status == 401:
        headers["www-authenticate"] = 'Basic realm="V-IPU", charset="UTF-8"'
    value = {"code": error.code, "message": str(error)}
    return _json(value)._replace(status=status, headers=headers)


def _json(value: Any) -> HttpResponse:
    return HttpResponse(json.dumps(value, separators=(",", ":")).encode())

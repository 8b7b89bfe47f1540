"""The ASGI application: a path for each operation, schema, metrics and health."""

import asyncio
import binascii
import itertools
import logging
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from poprun.vipu import errors
from poprun.vipu.client.server_address import is_loopback
from poprun.vipu.inventory import interface
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.inventory.interface import Operation
from poprun.vipu.model import User
from poprun.vipu.server import access, metrics, schema
from poprun.vipu.server.schema import read_arguments
from poprun.vipu.server.worker import Worker

MOST_BODY_BYTES = 4 << 20
# How often the leases of holders that have ended are looked for.
SWEEP_S = 1.0
JSON = "application/json"
# The sentences of refusals by starlette, by HTTP status.
_SENTENCES = {
    404: "There is no such path. The paths are in /openapi.json.",
    405: "Use POST for operations, and GET for everything else.",
}
_log = logging.getLogger("vipu-server")


class RequestError(errors.VipuError):
    """A request that is refused for its HTTP, or for having no valid access key."""

    def __init__(
        self, status: int, sentence: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = schema.CODES.get(status, schema.CODES[400])[0]
        self.headers = headers


class Service:
    """An inventory, served.

    Args:
        inventory: The inventory to serve.
        secure: Whether users have to show their access keys.
        local: Whether only this machine can connect. Then a request for another
            machine's name is refused: a foreign web page made a browser send it.
    """

    def __init__(
        self, inventory: EmbeddedInventory, *, secure: bool, local: bool
    ) -> None:
        self._inventory = inventory
        self._secure = secure
        self._local = local
        self._worker = Worker(inventory.together)
        metrics.WAITING.set_function(lambda: self._worker.waiting)

    def application(self) -> Starlette:
        """Return the ASGI application."""
        # starlette tries one route after another. The last operations, about devices,
        # are used most.
        operations = [*reversed(interface.OPERATIONS.values())]
        routes = []
        for area, each in itertools.product(("user", "admin"), operations):
            admin = area == "admin" or each.is_for_admins
            endpoint = partial(self._perform, each, admin)
            routes.append(Route(f"/{area}/{each.name}", endpoint, methods=["POST"]))
        described = _json(schema.document(operations, secure=self._secure))
        application = Starlette(
            routes=[
                *routes,
                Route("/openapi.json", described, methods=["GET"]),
                Route("/metrics", self._show_metrics),
                Route("/health", self._show_health),
            ],
            exception_handlers=_HANDLERS,
            lifespan=self._work,
        )
        application.router.redirect_slashes = False
        return application

    @asynccontextmanager
    async def _work(self, _: Starlette) -> AsyncIterator[None]:
        """Work from the start of the server to its end."""
        sweep = asyncio.create_task(self._sweep())
        yield
        sweep.cancel()
        self._worker.stop()

    async def _sweep(self) -> None:
        """End the leases of dead holders, again and again."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                ended = await self._worker.run(self._inventory.end_dead_leases)
            except errors.VipuError as error:
                _log.warning("Leases could not be ended: %s", error)
            except Exception:  # it is logged, and the next look may succeed
                _log.exception("Leases could not be ended.")
            else:
                metrics.LEASES_ENDED.inc(len(ended))

    async def _perform(
        self, operation: Operation[..., Any], admin: bool, request: Request
    ) -> Response:
        """Perform an operation, and count it."""
        result = errors.VipuError.code
        try:
            with metrics.SECONDS.labels(operation.name).time():
                self._check_headers(request.headers)
                user, key = _credentials(request.headers.get("authorization", ""))
                arguments = read_arguments(operation, await _body(request))
                call = partial(self._call, operation, arguments, admin, user, key)
                is_of_holder = not operation.needs_key
                value = await self._worker.run(call, is_of_holder=is_of_holder)
                response = _json(value)
            result = "ok"
        except errors.VipuError as error:
            result = error.code
            raise
        finally:
            metrics.REQUESTS.labels(operation.name, result).inc()
        return response

    def _call(
        self,
        operation: Operation[..., Any],
        arguments: dict[str, Any],
        admin: bool,
        name: str,
        key: str,
    ) -> Any:
        user = None
        if self._secure and operation.needs_key:
            user = self._authenticate(name, key, admin)
            if not admin:
                arguments = access.limited(arguments, user)
                if user.is_limited and arguments.get("cluster"):
                    cluster = self._inventory.get_cluster(arguments["cluster"])
                    access.visible(cluster, user, self._inventory)
        result = getattr(self._inventory, operation.name)(**arguments)
        if user is not None:
            if admin:
                return result
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
        except errors.AccessError as error:
            raise RequestError(401, str(error)) from error
        if admin and not user.is_admin:
            raise errors.AccessError(
                f"User {user.name} is not an administrator. Ask an administrator to do "
                "this, or use an administrator's access key."
            )
        return user

    def _check_headers(self, headers: Mapping[str, str]) -> None:
        """Refuse requests that web pages make, and requests that are not JSON."""
        name = re.sub(r":\d+$", "", headers.get("host", ""))
        if "origin" in headers or (self._local and not is_loopback(name)):
            raise RequestError(
                403,
                "The V-IPU server does not answer web pages: use its own address, and "
                "no Origin header.",
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            raise RequestError(415, f"The type of a request's content must be {JSON}.")

    async def _show_metrics(self, _: Request) -> Response:
        page = await self._worker.run(partial(metrics.page, self._inventory))
        return Response(page, media_type=metrics.CONTENT_TYPE)

    async def _show_health(self, _: Request) -> Response:
        """Say whether the inventory can be read."""
        try:
            await asyncio.wait_for(
                self._worker.run(self._inventory.list_allocations), timeout=5
            )
        except TimeoutError:
            raise errors.InventoryBusyError("The inventory does not answer.") from None
        return _json({"status": "ok"})


async def _refuse_path(request: Request, error: Any) -> Response:
    status = error.status_code
    refusal = RequestError(status, _SENTENCES[status], error.headers)
    return await _refuse(request, refusal)


async def _ignore(_: Request, __: ClientDisconnect) -> Response:
    return Response()  # no client is left to read it


async def _report(request: Request, error: Exception) -> Response:
    name = request.url.path.rpartition("/")[2]
    _log.error("The operation %s failed.", name, exc_info=error)
    sentence = f"The V-IPU server failed with {type(error).__name__}."
    return await _refuse(request, errors.VipuError(f"{sentence} Its log says where."))


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY_BYTES:
            sentence = f"A request has at most {MOST_BODY_BYTES >> 20} MiB."
            raise RequestError(413, sentence, {"connection": "close"})
    return bytes(body)


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


async def _refuse(_: Request, error: Any) -> Response:
    """Return the response that tells a client of an error."""
    response = _json({"code": error.code, "message": str(error)})
    response.status_code = schema.STATUS.get(error.code, 500)
    if isinstance(error, RequestError):
        response.status_code = error.status
        response.headers.update(error.headers or {})
    if response.status_code == 401:
        response.headers["www-authenticate"] = 'Basic realm="V-IPU", charset="UTF-8"'
    return response


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)


_HANDLERS: dict[Any, Any] = {
    errors.VipuError: _refuse,
    HTTPException: _refuse_path,
    ClientDisconnect: _ignore,
    Exception: _report,
}

"""Every way in which V-IPU refuses or fails, each with its exit code."""

from poprun.errors import PoprunError


class VipuError(PoprunError):
    """The base of all errors of V-IPU; `code` names the kind across a network."""

    code = "internal"
    exit_code = 125


class VipuRuleError(VipuError):
    """A request breaks a rule that no inventory could grant."""

    code = "invalid"
    exit_code = 2


class UnknownNameError(VipuError):
    """There is no cluster, partition or the like with this name."""

    code = "not_found"


class NameTakenError(VipuError):
    """There is a cluster, partition or the like with this name already."""

    code = "exists"


class NoSpaceError(VipuError):
    """The IPUs that are free are too few, or not next to each other."""

    code = "no_space"


class InUseError(VipuError):
    """Another job or process uses the requested thing."""

    code = "in_use"


class NotActiveError(VipuError):
    """A partition did not become ACTIVE."""

    code = "not_active"


class MismatchError(VipuError):
    """An existing partition is not what the job asks for."""

    code = "mismatch"


class DeviceError(VipuError):
    """A device does not exist, or this process may not attach to it."""

    code = "no_device"


class LeaseEndedError(VipuError):
    """The job's lease has run out or was closed; its IPUs may be another's."""

    code = "lease_ended"


class AccessError(VipuError):
    """The user or the access key is not accepted."""

    code = "denied"


class InventoryError(VipuError):
    """The inventory itself cannot be read or written."""

    code = "unavailable"


class InventoryUnavailableError(InventoryError):
    """There is no place to keep an inventory: no home, or no right to write there.

    A job that asked for no partition runs in offline mode then.
    """


class InventoryCorruptError(InventoryError):
    """The file is no inventory, or is damaged."""


class InventoryFullError(InventoryError):
    """The disk has no room left."""


class InventoryVersionError(InventoryError):
    """A poprun with other tables made the inventory."""


class InventoryBusyError(InventoryError):
    """Other processes kept the inventory locked for too long."""

    code = "timeout"


class ServerError(VipuError):
    """A named server cannot be used. No job goes on without it."""

    code = "server"


class ServerUnreachableError(ServerError):
    """No server runs there, or none that this machine reaches."""


class ServerTimeoutError(ServerError):
    """The server did not reply in time."""


class ServerReplyError(ServerError):
    """The reply is not from a V-IPU server, or the server does not work."""


# By the code that goes over the network: errors of the inventory, none of the client.
_BASES: tuple[type[VipuError], ...] = (VipuError, InventoryError)
BY_CODE = {
    kind.code: kind
    for base in _BASES
    for kind in (base, *base.__subclasses__())
    if "code" in vars(kind) and kind is not ServerError
}

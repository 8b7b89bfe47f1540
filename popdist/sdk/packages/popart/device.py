"""Devices. No hardware is needed: they say how many IPUs a session would have.

Any: options are numbers, strings and booleans.
"""

from collections.abc import Mapping
from typing import Any, Self

from popdist.popdist_core import getNumIpusPerReplica, getNumLocalReplicas

from .enums import (
    DeviceConnectionType,
    DeviceSelectionCriterion,
    DeviceType,
    SyncPattern,
)
from .errors import popart_exception

# The numbers are a Mk2 IPU's.
_TILES, _WORKERS = 1472, 6
_CLOCK_HZ = 1.33e9
_VERSION = "ipu2"


class DeviceInfo:
    """The device of a session; it computes on the CPU instead."""

    def __init__(
        self,
        type: DeviceType,
        numIpus: int = 1,
        tilesPerIpu: int = 0,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        *,
        id: int = 0,
        version: str = _VERSION,
    ) -> None:
        if numIpus < 1:
            raise popart_exception(f"A device has 1 or more IPUs, not {numIpus}.")
        self.type = type
        self.numIpus = numIpus
        self.id = id
        self.tilesPerIPU = self.tilesPerIpu = tilesPerIpu or _TILES
        self.connectionType = connectionType
        self.isAttached = connectionType == DeviceConnectionType.Always
        self.version = version
        self.numWorkerContexts = _WORKERS
        # The clock rate, in Hz, for getCycleCount() of a session.
        self.tileClockFrequency = _CLOCK_HZ
        self.driverIds = list(range(id, id + numIpus))

    def attach(self) -> bool:
        """Attach to the device, which always succeeds."""
        self.isAttached = self.connectionType != DeviceConnectionType.Never
        return self.isAttached

    tryAttachUntilTimeout = attach

    def detach(self) -> None:
        """Detach from the device."""
        self.isAttached = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"DeviceInfo({self.type.name}, id={self.id}, numIpus={self.numIpus})"


class DeviceManager:
    """Gives out devices, as many as asked for."""

    def acquireAvailableDevice(
        self,
        numIpus: int = 1,
        tilesPerIpu: int = 0,
        pattern: SyncPattern = SyncPattern.Full,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        selectionCriterion: DeviceSelectionCriterion = DeviceSelectionCriterion.First,
    ) -> DeviceInfo:
        """Return a device of that many IPUs."""
        return DeviceInfo(DeviceType.Ipu, numIpus, tilesPerIpu, connectionType)

    tryAcquireAvailableDevice = acquireAvailableDevice

    def acquireDeviceById(
        self,
        id: int,
        pattern: SyncPattern = SyncPattern.Full,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
    ) -> DeviceInfo:
        """Return the device of that number, with the IPUs of this instance's replicas.

        Args:
            id: Its number, such as popdist.getDeviceId() returns.
            pattern: Without effect.
            connectionType: When it is attached.
        """
        ipus = getNumLocalReplicas() * getNumIpusPerReplica()
        return DeviceInfo(DeviceType.Ipu, ipus, id=id, connectionType=connectionType)

    tryAcquireDeviceById = acquireDeviceById

    def createCpuDevice(self) -> DeviceInfo:
        """Return a CPU."""
        return DeviceInfo(DeviceType.Cpu)

    def createIpuModelDevice(self, options: Mapping[str, Any]) -> DeviceInfo:
        """Return an emulated device.

        Args:
            options: `numIPUs`, `tilesPerIPU` and `ipuVersion`; others have no effect.
        """
        return _from_options(DeviceType.IpuModel, options)

    def createSimDevice(self, options: Mapping[str, Any]) -> DeviceInfo:
        """Return a simulated device, with options as for an emulated one."""
        return _from_options(DeviceType.Sim, options)

    def createOfflineIPUDevice(self, opts: Mapping[str, Any]) -> DeviceInfo:
        """Return a device to compile for, which no session can run on."""
        return _from_options(DeviceType.OfflineIpu, opts, DeviceConnectionType.Never)

    createOfflineIpuDevice = createOfflineIPUDevice

    def enumerateDevices(
        self,
        pattern: SyncPattern = SyncPattern.Full,
        numIpus: int = 1,
        deviceType: DeviceType = DeviceType.Ipu,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        tilesPerIPU: int = 0,
    ) -> list[DeviceInfo]:
        """Return the one device of that kind."""
        return [DeviceInfo(deviceType, numIpus, tilesPerIPU, connectionType)]

    def setOnDemandAttachTimeout(self, attachTimeout: int) -> None:
        """Do nothing: attaching takes no time here."""


def _from_options(
    type: DeviceType,
    options: Mapping[str, Any],
    connectionType: DeviceConnectionType = DeviceConnectionType.Always,
) -> DeviceInfo:
    ipus, tiles = int(options.get("numIPUs", 1)), int(options.get("tilesPerIPU", 0))
    version = str(options.get("ipuVersion", _VERSION))
    return DeviceInfo(type, ipus, tiles, connectionType, version=version)

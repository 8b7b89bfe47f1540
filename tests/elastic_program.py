"""An instance of an elastic job that speaks the messages itself, without popdist.

    elastic_program.py FOLDER

It makes steps until there is a file "stop" in the folder. One that is started again
joins once the others have gone on without it. In a step each member makes a file with
the numbers of the generation, the step and its rank, and waits for those of all others,
or until one of them has ended. The number of steps is kept in the folder.
"""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

ELASTIC, REFORM = 46, 47
STEP_S = 0.02
# The number of steps of a job that is done.
DONE = 1 << 30
KNOWN, CHANGE, REFORMED, REFUSED, LEFT = 63, 64, 65, 66, 67


def pack(kind: int, *fields: bytes) -> bytes:
    body = bytes([kind]) + b"".join(len(f).to_bytes(4, "big") + f for f in fields)
    return len(body).to_bytes(4, "big") + body


class Poprun:
    """The connection to poprun."""

    def __init__(self, index: int) -> None:
        name, _, key = os.environ["POPDIST_CONTROL"].partition("/")
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(f"\0{name[1:]}")
        self.buffer = b""
        self.sock.sendall(pack(ELASTIC, b"1", key.encode(), b"%d" % index))
        self.changes: list[str] = []
        kind, field = self.receive()
        assert kind == KNOWN, kind
        self.known = json.loads(field)

    def receive(self) -> tuple[int, bytes]:
        """Return the next message that is no change of the members."""
        while True:
            while (message := self.take()) is None:
                data = self.sock.recv(65536)
                if not data:
                    sys.exit("poprun has closed the connection")
                self.buffer += data
            if message[0] != CHANGE:
                return message
            self.changes.append(json.loads(message[1])["kind"])

    def take(self) -> tuple[int, bytes] | None:
        length = int.from_bytes(self.buffer[:4], "big")
        if len(self.buffer) < 4 or len(self.buffer) < 4 + length:
            return None
        body, self.buffer = self.buffer[4 : 4 + length], self.buffer[4 + length :]
        return body[0], body[5:]

    def look(self) -> list[str]:
        """Return the changes that have come, without waiting."""
        self.sock.setblocking(False)
        with suppress(BlockingIOError):
            self.buffer += self.sock.recv(65536)
        self.sock.setblocking(True)
        while message := self.take():
            assert message[0] == CHANGE, message
            self.changes.append(json.loads(message[1])["kind"])
        return self.changes

    def reform(self, generation: int) -> int:
        """Wait for the next generation, and return its number."""
        ports = (b"%d" % free_port() for _ in range(2))
        self.sock.sendall(pack(REFORM, b"%d" % generation, *ports, b""))
        kind, field = self.receive()
        # What came before the answer is no change of the new generation.
        self.changes.clear()
        if kind == REFUSED:
            sys.exit(f"refused: {field.decode()}")
        if kind == LEFT:
            sys.exit(f"left: {field.decode()}")
        assert kind == REFORMED, kind
        value = json.loads(field)
        for name, text in value["environ"].items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text
        number: int = value["generation"]
        return number


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def read(counter: Path) -> int:
    """Return the number of steps of the job."""
    return int(counter.read_text()) if counter.exists() else 0


def ended() -> set[int]:
    """Return the ranks of this generation that have ended."""
    path = Path(os.environ["POPDIST_ENDED_INSTANCES"])
    return set(map(int, path.read_text().split())) if path.exists() else set()


def name_of(generation: int) -> str:
    return f"{os.environ['POPDIST_RESTART_COUNT']}-{generation}"


def is_over(folder: Path, generation: int) -> bool:
    """Return whether a member of this generation has ended, or has left it."""
    return bool(ended()) or (folder / f"left-{name_of(generation)}").exists()


def has_gone_on(folder: Path, generation: int) -> bool:
    """Return whether the members have left a generation in which one has ended."""
    # The variable names the file of generation 0.
    name = os.environ["POPDIST_ENDED_INSTANCES"] + (f"-{generation}" * (generation > 0))
    begun = folder.glob(f"begun-{os.environ['POPDIST_RESTART_COUNT']}-*")
    numbers = (int(path.name.rpartition("-")[2]) for path in begun)
    return not Path(name).exists() or any(number > generation for number in numbers)


def step(folder: Path, generation: int, number: int) -> bool:
    """Make a step, and return whether all members were there."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mark = f"{name_of(generation)}-{number}"
    (folder / f"{mark}-{rank}").touch()
    while True:
        if all((folder / f"{mark}-{r}").exists() for r in range(size)):
            return True
        if is_over(folder, generation):
            return False
        time.sleep(0.005)


def main() -> None:
    folder = Path(sys.argv[1])
    joins = os.environ.get("POPDIST_ELASTIC_JOINS") == "1"
    index = int(os.environ["RANK"])
    poprun = Poprun(index)
    if poprun.known["refusal"]:
        sys.exit(poprun.known["refusal"])
    generation: int = poprun.known["generation"]
    if joins:
        while not has_gone_on(folder, generation):
            time.sleep(0.01)
        generation = poprun.reform(generation)
    pid = folder / f"pid-{index}.new"
    pid.write_text(str(os.getpid()))
    pid.rename(folder / f"pid-{index}")
    counter = folder / "steps"
    while True:
        (folder / f"begun-{name_of(generation)}").touch()
        # The state of the job: what all have reached.
        number = read(counter)
        if number >= DONE:
            break
        time.sleep(STEP_S)
        if {"added", "leaves"} & {*poprun.look()} or not step(
            folder, generation, number
        ):
            (folder / f"left-{name_of(generation)}").touch()
            generation = poprun.reform(generation)
            continue
        if os.environ["RANK"] == "0":
            draft = folder / f"draft-{index}"
            is_last = (folder / "stop").exists()
            draft.write_text(str(DONE if is_last else number + 1))
            draft.rename(counter)
        while read(counter) <= number and not is_over(folder, generation):
            time.sleep(0.005)
        if read(counter) <= number:
            generation = poprun.reform(generation)
    names = "RANK", "WORLD_SIZE", "POPDIST_NUM_TOTAL_REPLICAS", "LOCAL_WORLD_SIZE"
    words = " ".join(os.environ[name] for name in names)
    print(f"index {index} generation {generation}: {words}", flush=True)


if __name__ == "__main__":
    main()

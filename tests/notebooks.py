"""A kernel of Jupyter's, as notebooks have it, for tests that run cells."""

from conftest import Poprun


class Notebook:
    """A kernel of Jupyter's, and what its cells print."""

    def __init__(self, poprun: Poprun) -> None:
        from jupyter_client.manager import KernelManager

        # No TCP ports: others could use them before the kernel does.
        sockets = str(poprun.directory / "kernel")
        self._manager = KernelManager(
            kernel_name="python3", transport="ipc", ip=sockets
        )
        self._manager.start_kernel(env=poprun.environ, cwd=str(poprun.directory))
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=200)

    def run(self, text: str) -> str:
        """Start a cell, and return its identity."""
        return str(self._client.execute(text))

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def output(self, cell: str) -> str:
        """Return what a cell printed, its value and its error, when it is done."""
        printed = ""
        while True:
            message = self._client.get_iopub_msg(timeout=200)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "execute_result":
                printed += content["data"]["text/plain"] + "\n"
            elif message["msg_type"] == "error":
                printed += content["ename"]
            elif content.get("execution_state") == "idle":
                return printed

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

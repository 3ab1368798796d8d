"""Messages between the ranks of one `torchrun`, through the store that its agent runs for them.

No collectives: a failed rank does not take part, and the others would wait for it forever. A rank that waits here
checks regularly whether the message can still come.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from proftrack.errors import CaptureError
from proftrack.experiment.workload import first_line

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_CONNECT_S = 60
_POLL_S = 0.0002
_SLOW_POLL_S = 0.05
_SLOW_FROM_S = 0.5
_LOOK_S = 0.5


class Exchange:
    """Texts under keys, shared by all ranks of one launch. Each instance has its own connection and key prefix.

    Methods raise CaptureError if the store does not answer.
    """

    def __init__(self, prefix: str) -> None:
        """Connect. Raises CaptureError if this process was not started by torchrun."""
        if os.environ.get(AGENT_STORE) != "True":
            raise CaptureError(
                f"WORLD_SIZE is {os.environ.get('WORLD_SIZE')}, but this process was not started by torchrun, "
                "which runs the store that ranks communicate through",
                "use `torchrun -m proftrack run ...`, or unset WORLD_SIZE",
            )
        import torch.distributed as dist

        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # After torchrun restarts a launch, the ranks must not read messages of the previous one.
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = _answer(
            lambda: dist.PrefixStore(
                f"proftrack/{restart}/{prefix}",
                dist.TCPStore(host, port, None, False, timeout=timedelta(seconds=_CONNECT_S)),
            )
        )

    def put(self, key: str, text: str) -> None:
        """Share a text with the other ranks."""
        _answer(lambda: self._store.set(key, text))

    def has(self, key: str) -> bool:
        """Whether a rank has put a text under this key."""
        return bool(_answer(lambda: self._store.check([key])))

    def count(self, key: str) -> int:
        """Increment a counter that starts at 0 and return its new value."""
        return int(_answer(lambda: self._store.add(key, 1)))

    def get(self, key: str, look: Callable[[], None], timeout_s: float) -> str:
        """Wait for the text under a key. `look` is called twice a second and raises if the text can no longer come.

        Raises CaptureError after `timeout_s`.
        """
        if not self.wait(key, look, timeout_s):
            raise CaptureError(f"another rank did not reach this point within {timeout_s:.0f} s (waiting for {key})")
        return bytes(_answer(lambda: self._store.get(key))).decode()

    def wait(self, key: str, look: Callable[[], None], timeout_s: float) -> bool:
        """Wait until the key has a text; False if it has none after `timeout_s`. `look` as in `get`."""
        begin = looked = time.monotonic()
        while not self.has(key):
            now = time.monotonic()
            if now - looked > _LOOK_S:
                look()
                looked = now
            if now - begin > timeout_s:
                return False
            time.sleep(_POLL_S if now - begin < _SLOW_FROM_S else _SLOW_POLL_S)
        return True


def use_local_gpu(local_rank: int) -> None:
    """Give each rank of this machine its own GPU, if there are any: workloads get the current one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())


def _answer(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # torch raises RuntimeError, DistStoreError, DistNetworkError: the agent has ended
        problem = f"the store of torchrun does not answer ({first_line(error)})"
        raise CaptureError(problem, "check whether torchrun is still running") from error

"""What the ranks of one `torchrun` tell each other, through the store that its agent keeps for them.

No collectives: a rank that has failed takes part in none, and the others would wait for it for ever. Here nobody waits
without looking, every so often, whether what it waits for can come at all.
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
    """Texts under keys, which all ranks of one launch see. Each use has a connection, and a prefix, of its own.

    Methods raise CaptureError where the store is gone.
    """

    def __init__(self, prefix: str) -> None:
        """Connect. Raises CaptureError where this process was not started by torchrun."""
        if os.environ.get(AGENT_STORE) != "True":
            raise CaptureError(
                f"WORLD_SIZE is {os.environ.get('WORLD_SIZE')}, but this process was not started by torchrun, by whose "
                "store ranks find each other",
                "use `torchrun -m proftrack run ...`, or unset WORLD_SIZE",
            )
        import torch.distributed as dist

        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # A launch that torchrun restarts must not read what the one before has left.
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = _asked(
            lambda: dist.PrefixStore(
                f"proftrack/{restart}/{prefix}",
                dist.TCPStore(host, port, None, False, timeout=timedelta(seconds=_CONNECT_S)),
            )
        )

    def put(self, key: str, text: str) -> None:
        """Let the others see a text."""
        _asked(lambda: self._store.set(key, text))

    def has(self, key: str) -> bool:
        """Whether somebody has put something there."""
        return bool(_asked(lambda: self._store.check([key])))

    def count(self, key: str) -> int:
        """Add one to a counter that starts at 0; its new value."""
        return int(_asked(lambda: self._store.add(key, 1)))

    def get(self, key: str, look: Callable[[], None], timeout_s: float) -> str:
        """The text under a key, once it is there. `look` is called twice a second, and raises where it never will be.

        Raises CaptureError after `timeout_s`.
        """
        if not self.wait(key, look, timeout_s):
            raise CaptureError(f"another rank did not get as far within {timeout_s:.0f} s (waiting for {key})")
        return bytes(_asked(lambda: self._store.get(key))).decode()

    def wait(self, key: str, look: Callable[[], None], timeout_s: float) -> bool:
        """Wait until a text is there; False where it is not after `timeout_s`. `look` as for `get`."""
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
    """Give each rank of this machine a GPU of its own, where there are any: workloads get the current one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())


def _asked(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # torch raises RuntimeError, DistStoreError, DistNetworkError: the agent has ended
        raise CaptureError(f"the store of torchrun does not answer ({first_line(error)}): has it ended?") from error

"""What torch.compile did to a step, and whether two ways of running a step give the same results."""

from __future__ import annotations

from msgspec import Struct


class Compilation(Struct, frozen=True, kw_only=True):
    """What torch.compile did for one variant. All zero if it compiled nothing."""

    graphs: int = 0
    graph_breaks: int = 0
    break_reasons: list[str] = []
    """The first lines of torch's reasons, the most frequent first."""
    recompiles: int = 0
    """Frames compiled after the first step."""
    cudagraph_skips: int = 0
    """Graphs that a mode with CUDA graphs compiled without one."""
    cache_hits: int = 0
    """Graphs loaded from the cache on disk: compiling them for the first time takes longer."""

    @property
    def compiled(self) -> bool:
        """Whether anything was compiled."""
        return self.graphs > 0


class OutputCheck(Struct, frozen=True, kw_only=True):
    """The results of two steps compared."""

    equal: bool | None
    """None if there is nothing to compare."""
    error: float | None = None
    """Largest relative error of a tensor: the L2 norm of the difference over that of the first tensor; for integers,
    the share of elements that differ. Infinite if only one is finite; JSON has null for that."""
    tolerance: float | None = None
    text: str = ""

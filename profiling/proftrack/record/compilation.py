"""What torch.compile did to a step, and whether two ways to run a step give the same."""

from __future__ import annotations

from msgspec import Struct


class Compilation(Struct, frozen=True, kw_only=True):
    """Of one variant. All zero where it compiled nothing."""

    graphs: int = 0
    graph_breaks: int = 0
    break_reasons: list[str] = []
    """The first lines of torch's reasons, the most frequent first."""
    recompiles: int = 0
    """Frames that were compiled after the first step."""
    cudagraph_skips: int = 0
    """Graphs that a mode with CUDA graphs compiled without one."""
    cache_hits: int = 0
    """Graphs that came from the cache on disk: compiling them for the first time takes longer."""

    @property
    def compiled(self) -> bool:
        """Whether anything was compiled."""
        return self.graphs > 0


class OutputCheck(Struct, frozen=True, kw_only=True):
    """Two steps' results against each other."""

    equal: bool | None
    """None: there is nothing to compare."""
    error: float | None = None
    """Largest relative error of a tensor: L2 norm of the difference over that of the first. For whole numbers the share
    of those that differ. Infinite where only one is finite; JSON has null for that."""
    tolerance: float | None = None
    text: str = ""

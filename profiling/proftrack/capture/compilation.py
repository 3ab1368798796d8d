"""What torch.compile did, as differences of its counters so that each variant has its own; and graph captures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from msgspec import Struct

from proftrack.capture import compat
from proftrack.record.compilation import Compilation

_MOST_REASONS = 5


class Counters(Struct, frozen=True):
    """One reading of torch's counters."""

    values: dict[str, dict[str, int]]

    def since(self, before: Counters) -> Counters:
        """The increase since `before`."""
        added: dict[str, dict[str, int]] = {}
        for group, counts in self.values.items():
            earlier = before.values.get(group, {})
            added[group] = {name: count - earlier.get(name, 0) for name, count in counts.items()}
        return Counters(added)

    def of(self, group: str, name: str) -> int:
        """One counter; 0 if there is none of that name."""
        return self.values.get(group, {}).get(name, 0)


def read() -> Counters:
    """The counters now; empty if nothing was compiled in this process."""
    return Counters(compat.compile_counters())


def summed(first: Counters, later: Counters) -> Compilation:
    """The first step's counters and those of later steps, in one Compilation."""
    breaks: dict[str, int] = {}
    for part in (first, later):
        for reason, count in part.values.get("graph_break", {}).items():
            if count > 0:
                line = reason.strip().splitlines()[0] if reason.strip() else "unknown"
                breaks[line] = breaks.get(line, 0) + count
    return Compilation(
        graphs=first.of("stats", "unique_graphs") + later.of("stats", "unique_graphs"),
        graph_breaks=sum(breaks.values()),
        break_reasons=sorted(breaks, key=lambda reason: -breaks[reason])[:_MOST_REASONS],
        recompiles=later.of("frames", "total"),
        cudagraph_skips=first.of("inductor", "cudagraph_skips") + later.of("inductor", "cudagraph_skips"),
        cache_hits=first.of("inductor", "fxgraph_cache_hit") + later.of("inductor", "fxgraph_cache_hit"),
    )


@contextlib.contextmanager
def watched() -> Iterator[Callable[[], str]]:
    """Yields a function that says in a few words whether steps were compiled or captured since; "" if not.

    What one workload compiles or captures stays in the process and affects the next one.
    """
    before, captures = read(), list[bool]()

    def seen() -> str:
        if read().since(before).of("stats", "unique_graphs") > 0:
            return "its steps are compiled"
        return "its steps capture a CUDA graph" if captures else ""

    with compat.before_each_graph_capture(lambda: captures.append(True)):
        yield seen

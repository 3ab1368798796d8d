"""Several ranks, and the way to a kernel, in the terminal."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console
from rich.text import Text

from proftrack.record.figures import Kernel
from proftrack.record.ranks import Joint
from proftrack.report.chains import LARGE, Chain
from proftrack.report.terminal import console
from proftrack.text import counted, duration, percent, plain

_CELL = 9


def print_joint(joint: Joint) -> None:
    """What the ranks say together, then a line a rank, then why some are inconclusive."""
    out = console()
    out.print()
    for finding in joint.findings:
        out.print(Text(finding))
    out.print()
    width = max(4, *(len(str(rank.rank)) for rank in joint.ranks))
    heads = "  ".join(f"{head:>{_CELL}}" for head in ("step time", "GPU busy", "in coll.", "exposed", "waiting"))
    out.print(Text(f"{'rank':>{width}}  {heads}  regime"))
    for rank in joint.ranks:
        times = (
            rank.step_time_us,
            rank.gpu_busy_us,
            rank.communication_us,
            rank.exposed_communication_us,
            rank.waiting_us,
        )
        cells = "  ".join(f"{duration(us):>{_CELL}}" for us in times)
        slowest = "  (slowest)" if rank.rank == joint.slowest_rank and len(joint.ranks) > 1 else ""
        out.print(Text(f"{rank.rank:>{width}}  {cells}  {rank.regime}{slowest}"))
    _print_reasons(out, joint)


def _print_reasons(out: Console, joint: Joint) -> None:
    """Why verdicts are inconclusive; ranks with the same reasons share a paragraph."""
    alike: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank in joint.ranks:
        if rank.reasons:
            alike[tuple(rank.reasons)].append(rank.rank)
    for reasons, ranks in alike.items():
        whose = f"Rank {ranks[0]} is" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))} are"
        out.print()
        out.print(Text(f"{whose} inconclusive because:"))
        for reason in reasons:
            for i, line in enumerate(Text(f"? {plain(reason, 600)}").wrap(out, max(out.width - 4, 20))):
                line.rstrip()
                out.print(Text(" " * (2 if i == 0 else 4)) + line)


def print_chains(chains: list[Chain], kernels: list[Kernel], rank: int | None = None) -> None:
    """For each kernel how it came to be launched: region, operators, the runtime call. `rank` is that of several."""
    out = console()
    whose = "" if rank is None else f"rank {rank}: "
    figures = {kernel.name: kernel for kernel in kernels}
    for chain in chains:
        kernel = figures[chain.kernel]
        out.print()
        out.print(Text(plain(kernel.name), style="bold"))
        out.print(
            Text(
                f"  {whose}{duration(kernel.total_us)} in {counted(kernel.calls, 'call')}, {percent(kernel.share)}, "
                f"{kernel.limit}"
            )
        )
        if not chain.links:
            out.print(Text("  no launch of it was recorded"))
            continue
        for depth, link in enumerate(chain.links):
            out.print(Text(f"  {'  ' * depth}{'└ ' if depth else ''}{plain(link, 70)}"))
        if chain.ways > 1:
            out.print(Text(f"  so launched for {percent(chain.share)} of its time; {chain.ways} ways in all"))
    if len(kernels) > LARGE:
        out.print()
        out.print(Text(f"{whose}and {counted(len(kernels) - LARGE, 'more kernel')} of that name"))

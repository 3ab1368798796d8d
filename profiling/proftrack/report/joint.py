"""Several ranks, and the way to a kernel, in the terminal."""

from __future__ import annotations

from rich.text import Text

from proftrack.joint import Joint
from proftrack.measures.results import Kernel
from proftrack.report.chains import Chain
from proftrack.report.terminal import console
from proftrack.report.units import duration, percent, plain


def print_joint(joint: Joint) -> None:
    """What the ranks say together, then a line a rank."""
    out = console()
    out.print()
    for finding in joint.findings:
        out.print(Text(finding))
    out.print()
    header = (
        f"{'rank':>4}  {'step time':>10}  {'GPU busy':>10}  {'in coll.':>10}  {'exposed':>10}  {'waiting':>10}  regime"
    )
    out.print(Text(header))
    for rank in joint.ranks:
        times = (
            rank.step_time_us,
            rank.gpu_busy_us,
            rank.communication_us,
            rank.exposed_communication_us,
            rank.waiting_us,
        )
        cells = "  ".join(f"{duration(us):>10}" for us in times)
        slowest = "  (slowest)" if rank.rank == joint.slowest_rank and len(joint.ranks) > 1 else ""
        out.print(Text(f"{rank.rank:>4}  {cells}  {rank.regime}{slowest}"))


def print_chains(chains: list[Chain], kernels: list[Kernel]) -> None:
    """For each kernel how it came to be launched: region, operators, the runtime call."""
    out = console()
    figures = {kernel.name: kernel for kernel in kernels}
    for chain in chains:
        kernel = figures[chain.kernel]
        out.print()
        out.print(Text(plain(kernel.name), style="bold"))
        out.print(
            Text(f"  {duration(kernel.total_us)} in {kernel.calls} calls, {percent(kernel.share)}, {kernel.limit}")
        )
        if not chain.links:
            out.print(Text("  no launch of it was recorded"))
            continue
        for depth, link in enumerate(chain.links):
            out.print(Text(f"  {'  ' * depth}{'└ ' if depth else ''}{plain(link, 70)}"))
        if chain.ways > 1:
            out.print(Text(f"  so launched for {percent(chain.share)} of its time; {chain.ways} ways in all"))

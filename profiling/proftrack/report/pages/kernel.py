"""How kernels came to be launched: region, operators, the runtime call."""

from __future__ import annotations

from proftrack.record.figures import Kernel
from proftrack.report.chains import LARGE, Chain
from proftrack.report.document import Block, Document, Lead, Paragraph, Way, Ways
from proftrack.text import counted, duration, percent, plain


def page(chains: list[Chain], kernels: list[Kernel], rank: int | None = None) -> Document:
    """A kernel after the other; `rank` is that of several."""
    whose = "" if rank is None else f"rank {rank}: "
    by_name = {kernel.name: kernel for kernel in kernels}
    blocks: list[Block] = []
    for chain in chains:
        kernel = by_name[chain.kernel]
        figures = f"{duration(kernel.total_us)} in {counted(kernel.calls, 'call')}, {percent(kernel.share)}"
        blocks += [Lead(plain(kernel.name)), Paragraph(f"  {whose}{figures}, {kernel.limit}"), Ways([_way(chain)])]
    if len(kernels) > LARGE:
        blocks.append(Lead(f"{whose}and {counted(len(kernels) - LARGE, 'more kernel')} of that name"))
    return Document("How kernels are launched", blocks)


def _way(chain: Chain) -> Way:
    if not chain.links:
        return Way(links=[], end="", text="no launch of it was recorded")
    more = f"so launched for {percent(chain.share)} of its time; {chain.ways} ways in all" if chain.ways > 1 else ""
    return Way(links=chain.links, end="", text=more)

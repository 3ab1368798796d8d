"""How kernels are launched: region, operators, runtime call."""

from __future__ import annotations

from proftrack.record.figures import Kernel
from proftrack.report.chains import LARGE, Chain
from proftrack.report.document import Block, Document, Lead, Paragraph, Way, Ways
from proftrack.text import counted, duration, percent, plain


def page(chains: list[Chain], kernels: list[Kernel], rank: int | None = None) -> Document:
    """One kernel after the other; `rank` names the rank if there are several."""
    prefix = "" if rank is None else f"rank {rank}: "
    by_name = {kernel.name: kernel for kernel in kernels}
    blocks: list[Block] = []
    for chain in chains:
        kernel = by_name[chain.kernel]
        figures = f"{duration(kernel.total_us)} in {counted(kernel.calls, 'call')}, {percent(kernel.share)}"
        blocks += [Lead(plain(kernel.name)), Paragraph(f"  {prefix}{figures}, {kernel.limit}"), Ways([_way(chain)])]
    if len(kernels) > LARGE:
        blocks.append(Lead(f"{prefix}and {counted(len(kernels) - LARGE, 'more kernel')} with that name"))
    return Document("How kernels are launched", blocks)


def _way(chain: Chain) -> Way:
    if not chain.links:
        return Way(links=[], end="", text="its launch was not recorded")
    more = f"launched like this for {percent(chain.share)} of its time; {chain.ways} ways in total"
    more = more if chain.ways > 1 else ""
    return Way(links=chain.links, end="", text=more)

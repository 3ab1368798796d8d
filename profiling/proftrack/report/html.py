"""report.html: one file that explains a run to somebody who did not make it.

Nothing in it is fetched: style, script and data are inside. All text of a trace is untrusted. It is escaped by the
template engine in text and attributes, and embedded as JSON in which no `<` is left; and should markup get through all
the same, the page's policy allows no script but the one whose hash it names, and no request at all.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec

from proftrack import __version__
from proftrack.record import Record
from proftrack.report import facts, figures, sections, tables
from proftrack.report.assets import asset, policy
from proftrack.report.chains import Chain, Wait
from proftrack.report.embedded import lanes_data
from proftrack.report.lanes import Lanes
from proftrack.report.scene import Scene
from proftrack.text import counted, duration, factor, percent, plain

if TYPE_CHECKING:
    from jinja2 import Environment

LARGEST_BYTES = 1_000_000
"""What a report may weigh at most, whatever the trace."""


def render(record: Record, scene: Scene | None) -> str:
    """The page. Without a scene (no events at hand) it says so in place of what needs them."""
    style, script = asset("report.css"), asset("lanes.js") + asset("tables.js")
    context = _context(record, scene)
    page: str = (
        _engine()
        .get_template("report.html.jinja")
        .render(style=style, script=script, policy=policy(style, script), **context)
    )
    return page


@functools.cache
def _engine() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    engine = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    engine.filters.update(duration=duration, percent=percent, factor=factor, plain=plain, counted=counted)
    return engine


def _context(record: Record, scene: Scene | None) -> dict[str, Any]:
    from markupsafe import Markup

    lanes, queue = (scene.lanes, scene.queue) if scene else (None, None)
    data = lanes_data(lanes) if lanes else None
    return {
        "version": __version__,
        "record": record,
        "verdict": record.verdict,
        "title": sections.title(record),
        "origin": sections.origin(record),
        "has_gpu": record.totals.self_cuda_time_total_us is not None,
        "flags": record.quality,
        "doubts": [reason for reason in record.verdict.reasons if reason not in {f.message for f in record.quality}],
        "bars": sections.time_bars(record),
        "remarks": sections.times_remarks(record),
        "schedule": sections.schedule(record),
        "lanes": lanes,
        "lanes_data": Markup(_inert(msgspec.json.encode(data))) if data else None,
        "lanes_title": _lanes_title(lanes, scene),
        "waits": [(wait, _wait_text(wait)) for wait in scene.waits[: sections.ROWS]] if scene else [],
        "split": sections.split_parts(record),
        "idle": sections.idle_parts(record),
        "kernels": tables.kernels(record) if record.kernels else None,
        "ops": tables.operators(record) if record.ops else None,
        "launch": record.launch,
        "delay_chart": figures.delay_chart(queue) if queue else None,
        "depth_chart": figures.depth_chart(queue) if queue else None,
        "roofline": figures.roofline_chart(record),
        "roofline_missing": _roofline_missing(record),
        "steps_chart": figures.steps_chart(record),
        "steps": tables.steps(record) if record.per_step else None,
        "regions": tables.regions(record.regions, "region") if record.regions else None,
        "modules": tables.regions(record.modules, "module") if record.modules else None,
        "chains": [_chain(chain) for chain in scene.chains] if scene else [],
        "environment": facts.environment(record),
    }


def _inert(data: bytes) -> str:
    """JSON that no HTML parser can take for markup, and no JavaScript engine for a line's end."""
    text = data.decode("utf-8")
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _lanes_title(lanes: Lanes | None, scene: Scene | None) -> str:
    if lanes is None or scene is None:
        return ""
    what = f"the busiest step, {lanes.step}" if lanes.step else "the whole recording: it has no steps"
    return f"{what}{f', in cycle {scene.cycle + 1} of {scene.cycles}' if scene.cycles > 1 else ''}"


def _wait_text(wait: Wait) -> str:
    share = wait.busy_us / wait.total_us if wait.total_us else 0.0
    if share >= 0.5:
        return (
            f"the GPU worked during {percent(share)} of it: the host waits for work that has to be done, and removing "
            "the call would win next to nothing"
        )
    if share >= 0.05:
        return f"the GPU worked during {percent(share)} of it; the rest is the price of the call and of what it delays"
    return f"the GPU worked during {percent(share)} of it: there was nothing to wait for, that is what the call costs"


def _chain(chain: Chain) -> dict[str, Any]:
    said = []
    if not chain.links:
        said.append("its launch was not recorded")
    elif chain.ways > 1:
        said.append(f"{percent(chain.share)} of its time; {counted(chain.ways - 1, 'other way', 'other ways')}")
    return {
        "links": [plain(link, sections.NAME) for link in chain.links],
        "kernel": plain(chain.kernel, sections.NAME),
        "text": "; ".join(said),
    }


def _roofline_missing(record: Record) -> str:
    if record.ceilings is None:
        return "No roofline: the device's attainable rates were not measured with this trace (`proftrack run` does)."
    return "No roofline: no kernel has known FLOPs and bytes (its operators' shapes were not recorded or not known)."

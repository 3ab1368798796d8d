"""The timeline as data for report.html's script: columns of whole nanoseconds from the picture's start."""

from __future__ import annotations

from typing import Any

import numpy as np

from proftrack.measures.idle import CAUSES
from proftrack.report.timeline.lanes import STYLES, Lanes
from proftrack.text import plain
from proftrack.trace.table import NONE
from proftrack.verdict.evidence import CAUSE_TEXT

_NAME_BYTES = 200_000
"""Limit for all names together: a trace with long names must not make a large file."""
_SHORTEST, _LONGEST = 40, 300


def lanes_data(lanes: Lanes) -> dict[str, Any]:
    """The input of `lanes.js`. Names are cut and control characters escaped; they are still untrusted."""
    marks = lanes.marks
    used, name = np.unique(marks.name, return_inverse=True)
    named = [code for code in used.tolist() if code != NONE]
    limit = min(max(_NAME_BYTES // max(len(named), 1), _SHORTEST), _LONGEST)
    waits = np.flatnonzero(marks.busy_permille != NONE)
    return {
        "span": lanes.high - lanes.low,
        "focus": [lanes.focus[0] - lanes.low, lanes.focus[1] - lanes.low],
        "close": [lanes.close_up[0] - lanes.low, lanes.close_up[1] - lanes.low] if lanes.close_up else None,
        "step": lanes.step,
        "steps": [[plain(n, 60), start - lanes.low, end - lanes.low] for n, start, end in lanes.steps],
        "groups": [[plain(group.label, 80), group.kind, group.first, group.rows] for group in lanes.groups],
        "styles": list(STYLES),
        "causes": {f"idle-{cause}": CAUSE_TEXT[cause] for cause in CAUSES},
        "names": [plain(lanes.names[code], limit) for code in named],
        "row": marks.row.tolist(),
        "start": (marks.start - lanes.low).tolist(),
        "dur": marks.dur.tolist(),
        "style": marks.style.tolist(),
        "name": np.where(marks.name == NONE, NONE, name.reshape(-1) - (len(used) - len(named))).tolist(),
        "self": marks.self_ns.tolist(),
        "other": np.flatnonzero(~marks.own).tolist(),
        "several": [[int(i), int(marks.events[i])] for i in np.flatnonzero(marks.events > 1)],
        "busy": [[int(i), int(marks.busy_permille[i])] for i in waits],
        "links": np.stack([lanes.links.call, lanes.links.work, lanes.links.called - lanes.low], axis=1).tolist(),
    }

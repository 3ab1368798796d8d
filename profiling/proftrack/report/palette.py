"""The colours of all charts: the colour of each style of mark, in HTML and in PNG alike.

They are those of Okabe and Ito, which colour-blind people can tell apart, plus a few similar ones.
"""

from __future__ import annotations

from msgspec import Struct

COLORS = {
    "blue": "#0072b2",
    "sky": "#56b4e9",
    "green": "#009e73",
    "yellow": "#f0e442",
    "orange": "#e69f00",
    "red": "#d55e00",
    "purple": "#cc79a7",
    "violet": "#7b62b8",
    "grey": "#a3a9b3",
    "brown": "#a6761d",
    "teal": "#66c2a5",
    "pale": "#f7d794",
}
TEXT, SOFT, GRID = "#16191d", "#535b66", "#e3e6ea"
"""On the white background of a PNG; HTML has its own for light and dark."""

CURVES = ("blue", "red", "green", "purple", "orange", "sky")
"""For several curves in one chart."""

FILLS = {
    # the timeline
    "region": "grey",
    "operator": "sky",
    "call": "pale",
    "launch": "orange",
    "wait": "purple",
    # what limits a kernel, and parts of the window
    "arithmetic": "blue",
    "compute": "blue",
    "bandwidth": "green",
    "latency": "yellow",
    "transfer": "red",
    "communication": "violet",
    "unknown": "grey",
    # idle time by cause
    "idle": "grey",
    "idle-dispatch": "orange",
    "idle-host": "brown",
    "idle-input": "red",
    "idle-synchronization": "purple",
    "idle-allocator": "teal",
    "idle-profiler": "grey",
    "idle-startup": "grey",
    "idle-queued": "grey",
    "idle-unknown": "grey",
    # whose time it is, by pass
    "pass-all": "grey",
    "pass-forward": "sky",
    "pass-backward": "orange",
    "pass-recompute": "yellow",
    "pass-optimizer": "teal",
    "pass-other": "purple",
    # the times of a step, and how much of them could be saved
    "solid-T": "blue",
    "solid-B": "blue",
    "solid-W": "blue",
    "solid-R": "green",
    "rest": "orange",
    # charts
    "host": "sky",
    "gpu": "blue",
    "typical": "blue",
    "largest": "sky",
    "one-run": "blue",
    "counted": "blue",
    "while-busy": "sky",
    "crossing": "orange",
    **{f"point-{i}": color for i, color in enumerate(CURVES)},
}
"""Style of a filled mark -> its colour."""


class Stroke(Struct, frozen=True):
    """How a line is drawn."""

    color: str
    """A name in COLORS; `text`: the colour of the surrounding text."""
    width: float = 1.5
    dash: tuple[float, ...] = ()


STROKES = {
    "roof": Stroke("text"),
    "step-time": Stroke("text", 1, (6, 4)),
    "gpu-busy": Stroke("text", 1, (2, 3)),
    "host-line": Stroke("sky"),
    "gpu-line": Stroke("blue"),
    "level": Stroke("green", 2),
    "reachable": Stroke("text", 2.5),
    "change": Stroke("red", 2, (4, 3)),
    "threshold": Stroke("grey", 1, (1, 2)),
    **{f"curve-{i}": Stroke(color) for i, color in enumerate(CURVES)},
    **{f"curve-{i}-busy": Stroke(color, dash=(5, 3)) for i, color in enumerate(CURVES)},
}
"""Style of a line -> how it is drawn."""
SHEER = {"largest": 0.6, "crossing": 0.25}
"""Opacity of translucent styles."""
ON_DARK = ("arithmetic", "compute", "communication")
"""Fills with white text on them."""


def color(style: str) -> str:
    """The colour of a fill or a line, as #rrggbb."""
    name = FILLS[style] if style in FILLS else STROKES[style].color
    return TEXT if name == "text" else COLORS[name]


def css() -> str:
    """The palette as CSS: a variable for each colour, a class for each style."""
    root = " ".join(f"--{name}: {value};" for name, value in COLORS.items())
    fills = [
        f".{style} {{ fill: var(--{name});{f' opacity: {SHEER[style]};' if style in SHEER else ''} }}"
        for style, name in FILLS.items()
    ]
    lines = [
        f".{style} {{ fill: none; stroke: var(--{line.color}); stroke-width: {line.width:g};"
        + (f" stroke-dasharray: {' '.join(f'{part:g}' for part in line.dash)};" if line.dash else "")
        + " }"
        for style, line in STROKES.items()
    ]
    return "\n".join([f":root {{ {root} }}", *fills, *lines]) + "\n"

"""A document as one self-contained HTML page: style, script and data are inside, nothing is fetched.

All text is untrusted. The template engine escapes it in text and attributes, and the embedded JSON contains no `<`.
Should markup get through anyway, the page's policy allows only the script with the given hash, and no requests at all.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from proftrack import __version__
from proftrack.report import palette, svg
from proftrack.report.document import SUB, Beside, Block, Document, Icicle, Section, Table, Timeline, is_empty
from proftrack.text import percent, plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from proftrack.report.tiles import Tiles
    from proftrack.report.timeline.lanes import Lanes

LARGEST_BYTES = 1_000_000
"""Maximum size of a report, for any trace."""
_SENTENCE = 1500
_CODE = re.compile(r"`([^`]+)`")


def render(document: Document) -> str:
    """The page; it has a script only if a block needs one."""
    style = palette.css() + _asset("report.css")
    script = "".join(_asset(name) for name in _scripts(document))
    template = _engine().get_template("page.html.jinja")
    return template.render(
        document=document, style=style, script=script, policy=_policy(style, script), version=__version__
    )


def _scripts(document: Document) -> list[str]:
    blocks = list(_all(document.blocks))
    timeline = any(isinstance(block, Timeline) for block in blocks)
    icicle = any(isinstance(block, Icicle) for block in blocks)
    sorted_ = any(isinstance(block, Table) and block.sortable for block in blocks)
    drawn = ["drawing.js"] * (timeline or icicle) + ["lanes.js"] * timeline + ["icicle.js"] * icicle
    return drawn + ["tables.js"] * sorted_


def _all(blocks: Sequence[Block]) -> Iterator[Block]:
    """The blocks, and those in them."""
    for block in blocks:
        yield block
        if isinstance(block, Section | Beside):
            yield from _all(block.blocks)


@functools.cache
def _asset(name: str) -> str:
    """A file of templates/, as text."""
    return resources.files("proftrack.report").joinpath("templates").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Content security policy: only this style and this script, and nothing from anywhere else."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    allowed = f"script-src {digest(script)}; style-src {digest(style)}"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


@functools.cache
def _engine() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    engine = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_without_controls,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters.update(
        kind=lambda block: type(block).__name__,
        empty=is_empty,
        plain=plain,
        code=_with_code,
        percent=percent,
        drawing=svg.Drawing,
        lanes_data=_lanes_data,
        tiles_data=_tiles_data,
    )
    engine.globals.update(SUB=SUB, STROKES=palette.STROKES)
    return engine


def _without_controls(value: Any) -> Any:
    """Also escape control characters in every text that the template writes, except for our own markup."""
    return plain(value, sys.maxsize) if type(value) is str else value


def _with_code(text: str) -> Markup:
    """A sentence on one line, with text between backticks as code; all of it escaped."""
    from markupsafe import Markup, escape

    parts = _CODE.split(plain(text, _SENTENCE))
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(parts))


def _lanes_data(lanes: Lanes) -> Markup:
    from proftrack.report.timeline.data import lanes_data

    return _inert(lanes_data(lanes))


def _tiles_data(icicle: Tiles) -> Markup:
    from proftrack.report.tiles import data

    return _inert(data(icicle))


def _inert(data: Any) -> Markup:
    """JSON without characters that an HTML parser could take for markup or JavaScript for the end of a line."""
    from markupsafe import Markup

    text = msgspec.json.encode(data).decode("utf-8")
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)

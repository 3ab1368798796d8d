"""Names are untrusted text: they print harmlessly, and the record stays JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from calls import show
from traces import TraceBuilder, clean

NAMES = [
    "<script>alert(1)</script>",
    "=cmd()",
    "../../x",
    "x" * 3000,
    "new\nline\r\nand\ttab",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07",
    "\x9b31m eight-bit",
    "bell\x07 null\x00 delete\x7f",
    "[bold red]markup[/bold red] [/] [link=http://x]",
    "\u202egnp.exe\u202c",
    "\u200b\ufeff zero width",
    "\ud83d\ude00 half \ud800",
    "%s %(x)d {} {0.__class__}",
    "",
    " ",
]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def untrusted() -> TraceBuilder:
    """Every name as an operator, a region, a kernel, a call, a category, a thread and a stream."""
    trace = clean()
    for i, name in enumerate(NAMES):
        at = 12 + 5 * i
        trace.op(name, at=at, dur=4).region(name, at=at, dur=4).python(name, at=at, dur=4)
        trace.call(name, at=at + 1, dur=1, correlation=100 + i).kernel(name, at=300 + at, dur=4, correlation=100 + i)
        trace.row(name, name, at, 1, thread=name, pid=name).gpu("kernel", name, 500 + at, 1, stream=name, device=name)
    trace.op("aten::long", at=200, dur=1).step(4, at=200, dur=20_000)
    for i, name in enumerate(NAMES):
        trace.work(200 + i, launch=300 + 1200 * i, at=1400 + 1200 * i, dur=3, name=name)
        trace.python(name, at=300 + 1200 * i, dur=1100)
    return trace.member(deviceProperties=[{"id": 0, "name": NAMES[5], "numSms": 10}], traceName=NAMES[5])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrusted().write(tmp_path_factory.mktemp("untrusted") / "t.json")


def test_the_report_holds_no_control_characters_and_no_markup(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, error = show(capsys, "analyze", path)
    assert (code, error) == (0, "")
    assert CONTROL.findall(text) == []
    assert "x" * 500 not in text
    assert max(map(len, text.splitlines())) < 1000


def test_the_record_is_json_and_keeps_the_names(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, error = show(capsys, "analyze", path, "--json", "-")
    assert (code, error) == (0, "")
    record = json.loads(text, parse_constant=pytest.fail)
    names = {kernel["name"] for kernel in record["kernels"]}
    assert {n for n in NAMES if "\ud800" not in n} <= names


@pytest.mark.parametrize("name", NAMES[5:8])
@pytest.mark.parametrize("text", ["{}", '{{"traceEvents": "{}"}}', '{{"traceEvents": [{{"ph": "X", "name": {}'])
def test_errors_print_harmlessly_too(name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text.format(name), encoding="utf-8", errors="replace")
    code, shown, error = show(capsys, "analyze", path)
    assert (code, shown, error.count("\n")) == (1, "", 1)
    assert CONTROL.findall(error) == []


def test_a_file_name_with_escapes_prints_harmlessly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = clean().write(tmp_path / "a\x1b[31mb\n.json")
    code, shown, _ = show(capsys, "analyze", path)
    assert (code, CONTROL.findall(shown)) == (0, [])
    path.write_bytes(b"no json")
    code, _, error = show(capsys, "analyze", path)
    assert (code, error.count("\n")) == (1, 1)
    assert CONTROL.findall(error) == []

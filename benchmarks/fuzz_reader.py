"""Mutates traces and reads them. Checks: no error except TraceError, no hang, no NaN in the record, correct sums.

    python benchmarks/fuzz_reader.py [--seconds 300] [--seed 0] [--keep FOLDER] [TRACE ...]

Without TRACE the small traces in tests/data are mutated. Prints a summary and each failure with the seed that
reproduces it; exits 1 if there was one. Not collected by pytest."""

from __future__ import annotations

import argparse
import collections
import contextlib
import gzip
import json
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "profiling"))

from proftrack.analysis.pipeline import analyze_trace  # noqa: E402
from proftrack.errors import TraceError  # noqa: E402
from proftrack.record import dump  # noqa: E402
from proftrack.trace import reader  # noqa: E402

SECONDS_A_CASE = 20
LARGEST = 300_000
"""Bytes of JSON: larger seeds are cut down to some of their events."""

TOKENS = [
    *(
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\n",
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
        b"\x1b[31m",
        b" " * 300,
    ),
    *(
        b"nan",
        b"Infinity",
        b"-inf",
        b"N/A",
        b"null",
        b"true",
        b"1e400",
        b"1e-400",
        b"-0",
        b"9" * 400,
        b"-9223372036854775808",
    ),
    *(b"18446744073709551616", b'"5"', b'""', b"{}", b"[]", b"},{", b"}]", b'"}', b'","', b'\\"', b"\\u", b"\\ud800"),
    *(b'"ph": "X",', b'"traceEvents": [', b'"ts": -1,', b'"dur": -5,', b'"dur": 1e15,', b'"args": [],', b'"name": 5,'),
    *(b"ProfilerStep#3", b"cudaGraphLaunch", b'{"ph":"X","ts":1,"dur":2,"name":"x","cat":"kernel"}', b"[" * 2000),
]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The bytes with some changes of one kind or several."""
    for _ in range(rng.choice([1, 1, 1, 2, 5, 30])):
        data = rng.choice(CHANGES)(data, rng)
    return data


def _at(data: bytes, rng: random.Random) -> int:
    """A place: anywhere, or next to a quote, comma or bracket, where changes hurt most."""
    place = rng.randrange(len(data) + 1)
    if rng.random() < 0.5:
        for token in rng.sample([b'"', b",", b"{", b"}", b"]", b":"], 2):
            found = data.find(token, place, place + 200)
            if found >= 0:
                return found + rng.randrange(2)
    return place


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    place = min(_at(data, rng), len(data) - 1)
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    place = _at(data, rng)
    return data[:place] + rng.choice(TOKENS) + data[place:]


def _replace(data: bytes, rng: random.Random) -> bytes:
    place = _at(data, rng)
    return data[:place] + rng.choice(TOKENS) + data[place + rng.choice([1, 1, 3, 10, 60]) :]


def _delete(data: bytes, rng: random.Random) -> bytes:
    place = _at(data, rng)
    return data[:place] + data[place + rng.choice([1, 1, 2, 20, 400, 5000]) :]


def _duplicate(data: bytes, rng: random.Random) -> bytes:
    start = _at(data, rng)
    piece = data[start : start + rng.choice([1, 10, 300, 3000])]
    place = _at(data, rng) if rng.random() < 0.5 else start
    return data[:place] + piece * rng.choice([1, 1, 2, 10]) + data[place:]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: _at(data, rng)]


def _value(data: bytes, rng: random.Random) -> bytes:
    """Another value for a key, valid JSON or nearly."""
    key = rng.choice(
        [b'"ts":', b'"dur":', b'"name":', b'"correlation":', b'"stream":', b'"cat":', b'"tid":', b'"grid":']
    )
    place = data.find(key, rng.randrange(len(data) + 1))
    if place < 0:
        return data
    place += len(key)
    end = min((e for e in (data.find(b",", place), data.find(b"\n", place)) if e >= 0), default=len(data))
    return data[:place] + b" " + rng.choice(TOKENS) + data[end:]


def _swap(data: bytes, rng: random.Random) -> bytes:
    """Another spelling of something all over the file."""
    old, new = rng.choice(
        [
            (b'"X"', b'"B"'),
            (b'"ts": ', b'"ts": 17'),
            (b'"dur": ', b'"dur": -'),
            (b'"kernel"', b'"cpu_op"'),
            (b'"correlation": ', b'"correlation": 0'),
            (b"aten::", b'at"en::'),
            (b"\n", b""),
            (b", ", b" ,\n"),
            (b'"External id"', b'"Ev Idx"'),
            (b'"cuda_runtime"', b'"user_annotation"'),
            (b"cudaLaunchKernel", b"cudaGraphLaunch"),
            (b'"ProfilerStep#', b'"'),
        ]
    )
    return data.replace(old, new)


CHANGES: list[Callable[[bytes, random.Random], bytes]] = [
    *(
        _flip,
        _flip,
        _insert,
        _insert,
        _replace,
        _replace,
        _delete,
        _delete,
        _duplicate,
        _truncate,
        _value,
        _value,
        _swap,
    ),
]


def seeds(paths: list[Path]) -> dict[str, bytes]:
    """JSON of each seed; of a large one its header and its first events, in a file that is whole."""
    out = {}
    for path in paths:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        if len(text) > LARGEST:
            document = json.loads(text)
            events = document["traceEvents"]
            document["traceEvents"] = events[:: max(1, len(text) // LARGEST)]
            text = json.dumps(document, indent=1).encode()
        out[path.name] = text
    return out


@contextlib.contextmanager
def alarm(seconds: int) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise TimeoutError(f"still not done after {seconds} s")

    previous = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def check(path: Path, salvage: bool, step_time_us: float | None) -> str:
    """Read, measure, judge and write; what became of it. Raises what must not be raised."""
    try:
        record = analyze_trace(path, salvage=salvage, step_time_us=step_time_us).record
    except TraceError as error:
        text = str(error)
        assert path.name in text, f"no file name in {text!r}"
        assert "\n" not in text, f"more than a line: {text!r}"
        return "refused"
    document = json.loads(dump(record), parse_constant=_no_constant)
    check_sums(document)
    codes = {flag["code"] for flag in document["quality"]}
    if "partial_file" in codes:
        return "partial"
    check_nothing_lost(path, record.source.files[0].events, "repaired_json" in codes)
    return "repaired" if "repaired_json" in codes else "read"


def check_nothing_lost(path: Path, events: int, repaired: bool) -> None:
    """What is read without a flag is JSON, to Python's own reader too; and of JSON every event is read."""
    data = path.read_bytes()
    try:
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        document = json.loads(text.decode("utf-8-sig", "replace"))
    except (ValueError, OSError, EOFError) as error:
        assert repaired, f"read without a flag, but not JSON: {error}"
        return
    given = document["traceEvents"] if isinstance(document, dict) else document
    assert events == len(given), f"{events} of {len(given)} events"


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} in the JSON")


def check_sums(record: dict[str, Any]) -> None:
    totals, window = record["totals"], record["window"]
    host = totals["self_cpu_time_total_us"]  # None if no row is known to be the host's
    assert (host is None) <= (not record["ops"]), "self times without a total"
    _equal("ops", sum(op["self_cpu_time_us"] for op in record["ops"]), host or 0.0)
    if totals["gpu_events"]:
        _equal("kernels", sum(k["total_us"] for k in record["kernels"]), totals["self_cuda_time_total_us"])
        _equal("calls", sum(k["calls"] for k in record["kernels"]), totals["gpu_events"])
    if totals["gpu_busy_us"] is not None:
        _equal("busy + idle", totals["gpu_busy_us"] + totals["gpu_idle_us"], window["duration_us"])
        assert totals["gpu_idle_us"] >= 0, "negative idle time"
        split = record["split"]
        _equal("split", sum(split.values()), window["duration_us"])
        assert min(split.values()) >= -1e-6, f"negative part of {split}"
    assert all(op["self_cpu_time_us"] >= 0 for op in record["ops"]), "negative self time"
    u = record["verdict"]["gpu_busy_fraction"]
    assert u is None or u >= 0, f"u = {u}"


def _equal(what: str, a: float, b: float) -> None:
    assert abs(a - b) <= 0.01 + 1e-6 * abs(b), f"{what} do not add up: {a} against {b}"


def case(number: int, texts: dict[str, bytes], folder: Path) -> tuple[Path, str, random.Random]:
    """The file of a case, and the name of the trace it was made of."""
    rng = random.Random(number)
    name = rng.choice(sorted(texts))
    data = texts[name]
    packing = rng.choice(["plain", "plain", "gzip", "gzip broken"])
    if packing != "gzip broken":
        data = mutated(data, rng)
    if packing != "plain":
        data = gzip.compress(data, 1)
    if packing == "gzip broken":
        data = mutated(data, rng)
    path = folder / rng.choice(["t.json", "t.json.gz"])
    path.write_bytes(data)
    return path, name, rng


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--keep", type=Path, help="keep files that fail in this folder")
    parser.add_argument("traces", nargs="*", type=Path)
    options = parser.parse_args()
    data = ROOT / "tests" / "data"
    texts = seeds(options.traces or sorted([*data.glob("*.json.gz"), *data.glob("cases/*.json")]))
    outcomes: collections.Counter[str] = collections.Counter()
    slowest, failures, number = (0.0, 0), 0, options.seed
    until = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until:
            path, name, rng = case(number, texts, Path(folder))
            reader.BATCH_BYTES = rng.choice([200, 5000, 1 << 20, 1 << 20])
            begin = time.monotonic()
            try:
                with alarm(SECONDS_A_CASE):
                    outcomes[check(path, rng.random() < 0.5, rng.choice([None, 100.0, 5000.0]))] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    break
                failures += 1
                print(f"case {number} ({name}): {type(error).__name__}: {error}")
                print("".join(traceback.format_tb(error.__traceback__)[-3:]), flush=True)
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{number}{path.suffix}").write_bytes(path.read_bytes())
            slowest = max(slowest, (time.monotonic() - begin, number))
            number += 1
    print(f"{number - options.seed} cases: {dict(outcomes)}, {failures} failures")
    print(f"slowest: case {slowest[1]}, {slowest[0]:.1f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

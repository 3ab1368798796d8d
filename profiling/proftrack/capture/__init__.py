"""Capture: run a workload, time it, profile it. The only stage that runs the user's code.

    device     what is asked of the device that steps run on
    timing     warm-up, and steps timed without a profiler
    profiling  the scheduled profiler, one trace a cycle
    trace      a cycle's trace: counted, compressed, named
    dtype      what a workload computes in, and what this device only emulates
    budget     how long all of it may take, and what fits
    subject    a workload under measurement, stage by stage
    session    the order of these, and what is left behind: result.Capture
    loop       the same for a loop that the user runs

`proftrack.record` needs the result alone, so torch and the rest are imported when `capture` is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proftrack.capture.run import capture

__all__ = ["capture"]


def __getattr__(name: str) -> Any:
    if name == "capture":
        from proftrack.capture.run import capture

        return capture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

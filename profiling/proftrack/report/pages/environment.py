"""What was profiled, and with what: title, machine, software, code, settings. Values are cut but still untrusted."""

from __future__ import annotations

from typing import Any

from proftrack.record import Record
from proftrack.text import counted, moment, plain, scaled

_NAME = 160


def title(record: Record) -> str:
    """The experiment with its parameters, or the trace's file name."""
    if record.run is not None:
        return plain(record.run.display_name or record.run.experiment, _NAME)
    return plain(record.source.files[0].name if record.source.files else "trace", _NAME)


def origin(record: Record) -> str:
    """Where and when it was profiled, on one line."""
    environment, run = record.environment, record.run
    parts = [
        environment.device.name if environment.device else None,
        f"torch {environment.torch}" if environment.torch else None,
        moment(run.started_ns) if run else None,
        f"commit {environment.git.commit[:10]}{' (dirty)' if environment.git.dirty else ''}"
        if environment.git and environment.git.commit
        else None,
    ]
    return " · ".join(plain(part, _NAME) for part in parts if part)


def environment(record: Record) -> list[tuple[str, str]]:
    """The environment of the run, as names and values."""
    facts, device, git = record.environment, record.environment.device, record.environment.git
    rows: list[tuple[str, Any]] = []
    if device is not None:
        more = [
            counted(device.count, "device") if device.count > 1 else None,
            counted(device.sm_count, "multiprocessor") if device.sm_count else None,
            scaled(device.memory_bytes, "B") if device.memory_bytes else None,
            f"compute capability {device.compute_capability}" if device.compute_capability else None,
        ]
        rows.append(("device", ", ".join([device.name, *filter(None, more)])))
    cpus = f", {counted(facts.cpu_count, 'CPU')}" if facts.cpu_count else ""
    cpus += f", {counted(facts.threads, 'torch thread')}" if facts.threads else ""
    rows += [
        ("driver", facts.driver),
        ("CUDA", facts.cuda),
        ("torch", facts.torch),
        ("Python", facts.python),
        ("CPU", f"{facts.cpu}{cpus}" if facts.cpu else None),
        ("platform", facts.platform),
        ("host", facts.hostname),
    ]
    if git is not None:
        rows.append(("commit", f"{git.commit or 'none'}{', with uncommitted changes (git.diff)' if git.dirty else ''}"))
        rows += [("branch", git.branch), ("remote", git.remote)]
    rows += _run_rows(record) + _hardware_rows(record)
    rows.append(("packages", ", ".join(f"{name} {version}" for name, version in facts.packages.items())))
    rows.append(("variables", ", ".join(f"{name}={value}" for name, value in facts.variables.items())))
    rows.append(("proftrack", record.source.proftrack_version))
    rows += [("trace", f"{f.name}: {f.bytes:,} bytes, {f.events:,} events") for f in record.source.files[:20]]
    rows += [("graphs captured in", name) for name in dict.fromkeys(graph.capture for graph in record.graphs)]
    return [(name, plain(str(value), 1500)) for name, value in rows if value]


def _run_rows(record: Record) -> list[tuple[str, Any]]:
    run = record.run
    if run is None:
        return []
    return [
        ("parameters", ", ".join(f"{name}={value}" for name, value in run.params.items())),
        ("schedule", ", ".join(f"{name} {value}" for name, value in run.schedule.items())),
        ("profiler", ", ".join(name for name, on in run.profiler.items() if on)),
        ("peak memory", scaled(run.peak_memory_bytes, "B") if run.peak_memory_bytes else None),
        ("fingerprint", run.fingerprint),
        *(("note", note) for note in run.notes),
    ]


def _hardware_rows(record: Record) -> list[tuple[str, Any]]:
    ceilings, work, gpu = record.ceilings, record.work, record.gpu_state
    rows: list[tuple[str, Any]] = []
    if ceilings is not None:
        rates = [f"{dtype} {scaled(rate, 'FLOP/s')}" for dtype, rate in ceilings.flops_per_s.items()]
        rows.append(("attainable", ", ".join([*rates, f"memory {scaled(ceilings.bytes_per_s, 'B/s')}"])))
    if work is not None:
        least = f", at least {scaled(work.bytes, 'B')}" if work.bytes else ""
        rows.append(("work per step", f"{scaled(work.flops, 'FLOP')}{least} ({work.source})"))
    if gpu is not None:
        state = [
            f"SM clock {gpu.sm_clock_mhz} of {gpu.sm_clock_max_mhz} MHz" if gpu.sm_clock_mhz else None,
            f"{gpu.power_watts:.0f} W" if gpu.power_watts else None,
            f"{gpu.temperature_c} °C" if gpu.temperature_c else None,
            f"throttled by {', '.join(gpu.throttled_by)}" if gpu.throttled_by else None,
            counted(gpu.other_processes, "other process", "other processes") if gpu.other_processes else None,
        ]
        rows.append(("GPU while timed", ", ".join(filter(None, state))))
    return rows

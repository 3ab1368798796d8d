"""The keys that must be equal for two results to be compared, and the error that names those that are not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from proftrack.compare.results import Different
from proftrack.errors import IncomparableError, UsageError
from proftrack.record import Record
from proftrack.text import meant, show

THREADS = "threads"
_MAY_BE_UNKNOWN = (THREADS,)
"""Keys that older records do not have: if one side lacks them they are unknown, not different."""


def keys_of(record: Record) -> dict[str, Any]:
    """The keys that must be equal, with their values: a run's fingerprint keys; a bare trace's device and profiler
    options.

    On a CPU they include torch's thread count; older records have it from $OMP_NUM_THREADS, or not at all. Commit,
    software versions, machine and the experiment's variant parameters are not among them: they may differ, and are
    reported.
    """
    device = record.environment.device
    if record.run is not None:
        keys = dict(record.run.fingerprint_keys)
        threads = threads_of(record)
        if device is not None and device.type == "cpu" and threads is not None:
            keys.setdefault(THREADS, threads)
        return keys
    keys = {f"profiler.{name}": on for name, on in record.source.profiler.items()}
    return {**keys, "device": device.name} if device is not None else keys


def threads_of(record: Record) -> int | None:
    """torch's threads within an operator; None if the record does not say."""
    if record.environment.threads is not None:
        return record.environment.threads
    value = record.environment.variables.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(value) if value.isascii() and value.isdigit() and int(value) > 0 else None


def differing(before: Record, after: Record) -> list[Different]:
    """The keys that should be equal but are not; of a bare trace only the keys that it has are compared."""
    found = unequal(before, after)
    return [key for key in found if key.name not in _MAY_BE_UNKNOWN or None not in (key.before, key.after)]


def unequal(before: Record, after: Record) -> list[Different]:
    """`differing`, plus keys that only one of two runs has: these make their fingerprints differ, too."""
    a, b = keys_of(before), keys_of(after)
    both_runs = before.run is not None and after.run is not None
    names = sorted(a.keys() | b.keys()) if both_runs else sorted(a.keys() & b.keys())
    return [
        Different(name=name, before=_text(a, name), after=_text(b, name))
        for name in names
        if name not in a or name not in b or a[name] != b[name]
    ]


def check(before: Record, after: Record, across: Collection[str] = ()) -> list[Different]:
    """The differing keys that `across` allows; `params.n` may be named `n`.

    Raises IncomparableError that names those that it does not allow, UsageError for a key that neither result has.
    """
    known = keys_of(before).keys() | keys_of(after).keys()
    allowed = {_full_name(key, known) for key in across}
    found = differing(before, after)
    refused = [key for key in found if key.name not in allowed]
    if refused:
        listed = "; ".join(f"{key.name}: {_shown(key.before)} and {_shown(key.after)}" for key in refused)
        options = " ".join(f"--across {key.name}" for key in refused)
        raise IncomparableError(f"not comparable, {listed}", f"to compare anyway, pass {options}")
    return found


def _full_name(key: str, known: Collection[str]) -> str:
    matching = sorted(name for name in known if key in (name, name.partition(".")[2]))
    if matching:
        return key if key in matching else matching[0]
    hint = meant(key, [name.removeprefix("params.") for name in known])
    raise UsageError(f"--across {show(key)}: not a key of these results", f"keys: {', '.join(sorted(known))}{hint}")


def _text(keys: dict[str, Any], name: str) -> str | None:
    return str(keys[name]) if name in keys else None


def _shown(value: str | None) -> str:
    return "absent" if value is None else show(value)

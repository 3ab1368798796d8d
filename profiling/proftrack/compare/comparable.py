"""What must be equal for two results to be compared, and the refusal that names what is not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from proftrack.compare.results import Different
from proftrack.errors import IncomparableError, UsageError
from proftrack.record import Record
from proftrack.text import meant, show

THREADS = "threads"
_MAY_BE_UNKNOWN = (THREADS,)
"""Keys that older records do not hold: where one side lacks them they are unknown, not different."""


def keys_of(record: Record) -> dict[str, Any]:
    """What must be equal, with its value: the run's fingerprint keys; of a bare trace device and profiler options.

    On a CPU torch's thread count is one of them; older records have it from $OMP_NUM_THREADS, or not at all. Not among
    them: commit, software versions, machine, and the parameters that the experiment calls variants. Those
    may differ, and are reported.
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
    """torch's threads within an operator; None where the record does not say."""
    if record.environment.threads is not None:
        return record.environment.threads
    asked = record.environment.variables.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(asked) if asked.isascii() and asked.isdigit() and int(asked) > 0 else None


def differing(before: Record, after: Record) -> list[Different]:
    """The keys that should be equal and are not; for a bare trace only those that it has are looked at."""
    found = unequal(before, after)
    return [each for each in found if each.name not in _MAY_BE_UNKNOWN or None not in (each.before, each.after)]


def unequal(before: Record, after: Record) -> list[Different]:
    """The same, with keys that one of two runs does not know: their fingerprints differ for those, too."""
    a, b = keys_of(before), keys_of(after)
    whole = before.run is not None and after.run is not None
    names = sorted(a.keys() | b.keys()) if whole else sorted(a.keys() & b.keys())
    return [
        Different(name=name, before=_text(a, name), after=_text(b, name))
        for name in names
        if name not in a or name not in b or a[name] != b[name]
    ]


def check(before: Record, after: Record, across: Collection[str] = ()) -> list[Different]:
    """The differing keys that `across` allows; `params.n` may be named `n`.

    Raises IncomparableError naming those that it does not allow, UsageError for a key that neither result has.
    """
    known = keys_of(before).keys() | keys_of(after).keys()
    allowed = {_full_name(key, known) for key in across}
    found = differing(before, after)
    refused = [each for each in found if each.name not in allowed]
    if refused:
        listed = "; ".join(f"{each.name}: {_shown(each.before)} and {_shown(each.after)}" for each in refused)
        options = " ".join(f"--across {each.name}" for each in refused)
        raise IncomparableError(f"not comparable, {listed} (compare them all the same with {options})")
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

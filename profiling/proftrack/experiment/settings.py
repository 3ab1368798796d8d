"""The settings that every experiment has: schedule, profiler, timing, device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from proftrack.experiment.model import ProfilerOptions, Schedule, TimingOptions
from proftrack.experiment.sentences import Refusal
from proftrack.text import show

_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Rule(Struct, frozen=True):
    """What one setting may be."""

    kind: type
    least: float | None = None
    choices: tuple[str, ...] = ()
    why: str = ""

    @property
    def allowed(self) -> str:
        """As words: `a whole number, 1 or more`."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = {int: "a whole number", float: "a number", bool: "true or false"}[self.kind]
        return noun + (f", {self.least:g} or more" if self.least is not None else "") + self.why

    def fits(self, value: Any) -> bool:
        """Whether a value of a YAML file may stand."""
        if not isinstance(value, self.kind) or (isinstance(value, bool) and self.kind is not bool):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if self.choices:
            return value in self.choices
        return self.least is None or (isinstance(value, (int, float)) and value >= self.least)


SECTIONS: dict[str, type[Struct]] = {"schedule": Schedule, "profiler": ProfilerOptions, "timing": TimingOptions}
RULES: dict[str, Rule] = {
    "schedule.skip_first": Rule(int, 0),
    "schedule.wait": Rule(int, 0),
    "schedule.warmup": Rule(int, 0),
    "schedule.active": Rule(int, 1),
    "schedule.repeat": Rule(int, 1, why=" (0 would never end)"),
    "profiler.record_shapes": Rule(bool),
    "profiler.with_stack": Rule(bool),
    "profiler.profile_memory": Rule(bool),
    "timing.mode": Rule(str, choices=("throughput", "latency")),
    "timing.min_steps": Rule(int, 3),
    "timing.min_seconds": Rule(float, 0),
    "timing.max_seconds": Rule(float, 0.001),
    "timing.budget_seconds": Rule(float, 1),
    "device": Rule(str, choices=("auto", "cuda", "cpu")),
}
BARE = {setting.rpartition(".")[2]: setting for setting in RULES}
"""The settings by their last word, which no two of them share."""


def full_name(name: str) -> str | None:
    """`schedule.active` for `active` or `schedule.active`; None where there is no such setting."""
    return name if name in RULES else BARE.get(name)


def read(document: Mapping[Any, Any], refuse: Refusal) -> dict[str, Any]:
    """The settings under their full names, defaults where the file says nothing; values are not checked yet."""
    values = {setting: _default(setting) for setting in RULES}
    for section in SECTIONS:
        given = document.get(section)
        if given is not None and not isinstance(given, dict):
            refuse(f"{section}={show(given)} is not allowed; it must be keys with values")
        known = [setting.partition(".")[2] for setting in RULES if setting.startswith(f"{section}.")]
        refuse.unknown_keys(given or {}, known, f"{section} key")
        values.update({f"{section}.{key}": value for key, value in (given or {}).items()})
    values["device"] = document.get("device", values["device"])
    return values


def convert(setting: str, text: str, refuse: Refusal) -> Any:
    """The value of a setting from the text of the command line."""
    try:
        return parse(text.strip(), RULES[setting].kind)
    except ValueError:
        _refuse_value(setting, text, refuse)


def resolve(values: Mapping[str, Any], refuse: Refusal) -> dict[str, Any]:
    """The checked settings as Experiment's fields: schedule, profiler, timing, device."""
    checked = {setting: _checked(setting, value, refuse) for setting, value in values.items()}
    least, most = checked["timing.min_seconds"], checked["timing.max_seconds"]
    if most < least:
        refuse(f"timing.max_seconds={most:g} is below timing.min_seconds={least:g}; raise the one or lower the other")
    fields: dict[str, Any] = {"device": checked.pop("device")}
    for section, kind in SECTIONS.items():
        own = {key.partition(".")[2]: value for key, value in checked.items() if key.startswith(f"{section}.")}
        fields[section] = kind(**own)
    return fields


def parse(text: str, kind: type) -> Any:
    """`text` as bool, int, float or str. Raises ValueError."""
    if kind is bool:
        if text.lower() not in _BOOLS:
            raise ValueError(text)
        return _BOOLS[text.lower()]
    if kind in (int, float) and not text.isascii():
        raise ValueError(text)
    return kind(text)


def _default(setting: str) -> Any:
    section, _, key = setting.rpartition(".")
    return getattr(SECTIONS[section](), key) if section else "auto"


def _checked(setting: str, value: Any, refuse: Refusal) -> Any:
    rule = RULES[setting]
    if rule.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not rule.fits(value):
        _refuse_value(setting, value, refuse)
    return value


def _refuse_value(setting: str, value: Any, refuse: Refusal) -> Any:
    rule = RULES[setting]
    refuse(f"{setting}={show(value)} is not allowed; it must be {rule.allowed}", str(value), rule.choices)

"""The regimes and the rules that tell them apart. Pure arithmetic: microseconds per step in, a regime out."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, structs

from proftrack.record.counters import Counters
from proftrack.record.figures import IdleCause, Limit
from proftrack.record.verdict import GpuRegime, HostRegime, Regime
from proftrack.verdict.thresholds import Thresholds
from proftrack.verdict.units import Use, use_of

_LATE: tuple[IdleCause, ...] = ("dispatch", "host", "input", "synchronization", "allocator")
"""The host launched late; the other causes are the device's, or unknown."""


class StepFacts(Struct, frozen=True, kw_only=True):
    """The figures that the rules use. Microseconds per step."""

    step_time_us: float
    """T."""
    gpu_busy_us: float
    """B."""
    idle_by_cause_us: dict[IdleCause, float]
    busy_by_limit_us: dict[Limit, float]
    """Parts of B."""
    waits_over_gpu_us: float
    """Host waits that overlap GPU work; H is T minus these."""
    waits_for_workers: bool = False
    """The time idle for data was measured, and other processes make the data: it comes no earlier for a host that asks
    earlier."""
    counters: Counters | None = None
    """What the hardware counted while steps ran back to back."""
    counted_step_us: float | None = None
    """The time of those steps; None if it is T."""

    @property
    def use(self) -> Use | None:
        """The use of the GPU's units while it is busy; None if they were not counted."""
        return use_of(self.counters, self.counted_busy_fraction) if self.counters is not None else None

    @property
    def counted_busy_fraction(self) -> float:
        """u of the steps that were counted."""
        return self.gpu_busy_us / (self.counted_step_us or self.step_time_us)

    @property
    def moving_us(self) -> float:
        """Copies and collectives that no kernel hides."""
        return self.busy_by_limit_us.get("communication", 0.0) + self.busy_by_limit_us.get("transfer", 0.0)

    @property
    def busy_fraction(self) -> float:
        """u = B / T."""
        return self.gpu_busy_us / self.step_time_us

    @property
    def gap_us(self) -> float:
        """T - B: the most that removing overhead can save."""
        return max(self.step_time_us - self.gpu_busy_us, 0.0)

    @property
    def sync_us(self) -> float:
        """T - max(H, B): what removing the host's waits would save.

        Launching earlier does not shorten what the device takes on its own, nor surely what is of unknown cause, nor
        the time in which worker processes make the data.
        """
        causes: tuple[IdleCause, ...] = ("queued", "unknown", *(("input",) if self.waits_for_workers else ()))
        others = sum(self.idle_by_cause_us.get(cause, 0.0) for cause in causes)
        return min(self.waits_over_gpu_us, max(self.gap_us - others, 0.0))

    @property
    def late_us(self) -> float:
        """Idle time that ended with a launch that came late."""
        return sum(self.idle_by_cause_us.get(cause, 0.0) for cause in _LATE)

    @property
    def host_cause(self) -> IdleCause:
        """The larger cause that makes a step host-bound."""
        host, allocator = (self.idle_by_cause_us.get(cause, 0.0) for cause in ("host", "allocator"))
        return "allocator" if allocator > host else "host"

    def share_of(self, cause: IdleCause) -> float:
        """The cause's share of T - B; if the trace shows more idle time than that, its share of what is shown."""
        idle = max(sum(self.idle_by_cause_us.values()), self.gap_us)
        return self.idle_by_cause_us.get(cause, 0.0) / idle if idle else 0.0

    def mostly(self, limits: Thresholds) -> IdleCause | None:
        """The cause of most idle time that is not the host's, if there is one: it rules out the host's regimes."""
        causes: tuple[IdleCause, ...] = ("queued", "unknown")
        return next((cause for cause in causes if self.share_of(cause) > limits.cause_share), None)

    def kernel_headroom(self, roofline_us: float) -> float:
        """The most that better kernels can gain: B / R if B has nothing but kernels.

        Exposed copies and collectives stay as they are, so B is at least R plus these.
        """
        return self.gpu_busy_us / (roofline_us + self.moving_us)

    def explained_us(self) -> dict[HostRegime, float]:
        """Causes of T - B that have a regime of their own; of several that explain enough, the largest gives it."""
        return {
            "input-bound": self.idle_by_cause_us.get("input", 0.0),
            "sync-bound": self.sync_us,
            "host-bound": self.idle_by_cause_us.get(self.host_cause, 0.0),
        }

    def with_explained(self, name: HostRegime | None, explained_us: float) -> StepFacts:
        """The same step if the cause of this regime (one of `explained_us`) explained this much; None: `late_us`."""
        if name == "sync-bound":
            return structs.replace(self, waits_over_gpu_us=explained_us)
        cause: IdleCause = "dispatch" if name is None else "input" if name == "input-bound" else self.host_cause
        before = self.late_us if name is None else self.explained_us()[name]
        changed = max(self.idle_by_cause_us.get(cause, 0.0) + explained_us - before, 0.0)
        return structs.replace(self, idle_by_cause_us={**self.idle_by_cause_us, cause: changed})

    def with_input(self, wait_us: float) -> StepFacts:
        """The same step, in which the GPU idles this long for data, at most T - B; no other cause explains more than
        the rest of that.
        """
        wait_us = min(max(wait_us, 0.0), self.gap_us)
        causes = {cause: min(us, self.gap_us - wait_us) for cause, us in self.idle_by_cause_us.items()}
        causes.pop("input", None)
        return structs.replace(self, idle_by_cause_us={**causes, "input": wait_us} if wait_us else causes)

    def with_busy_fraction(self, u: float) -> StepFacts:
        """The same step with another T, whose idle time has the same causes."""
        scaled = self.scaled(step_time_us=self.gpu_busy_us / u, gpu_busy_us=self.gpu_busy_us)
        factor = scaled.gap_us / self.gap_us if self.gap_us else 1.0
        causes = {cause: us * factor for cause, us in self.idle_by_cause_us.items()}
        return structs.replace(scaled, idle_by_cause_us=causes, waits_over_gpu_us=self.waits_over_gpu_us * factor)

    def without(
        self, steps: int, time_us: float, busy_us: float, idle_us: dict[IdleCause, float], *, left: int
    ) -> StepFacts:
        """The mean of what is `left` of this many steps without a part of their time."""
        causes = {cause: us * steps - idle_us.get(cause, 0.0) for cause, us in self.idle_by_cause_us.items()}
        rest = self.scaled(
            step_time_us=(self.step_time_us * steps - time_us) / left,
            gpu_busy_us=(self.gpu_busy_us * steps - busy_us) / left,
        )
        return structs.replace(rest, idle_by_cause_us={cause: max(us, 0.0) / left for cause, us in causes.items()})

    def scaled(self, *, step_time_us: float, gpu_busy_us: float) -> StepFacts:
        """The same step with a different T and B; the parts of B keep their shares."""
        factor = gpu_busy_us / self.gpu_busy_us if self.gpu_busy_us else 1.0
        return structs.replace(
            self,
            step_time_us=step_time_us,
            gpu_busy_us=gpu_busy_us,
            busy_by_limit_us={k: v * factor for k, v in self.busy_by_limit_us.items()},
        )


def regime(facts: StepFacts, limits: Thresholds) -> Regime:
    """The regime by the rules in docs/verdict.md, regardless of data quality."""
    if facts.busy_fraction >= limits.gpu_bound_from:
        return ruling(facts, limits).regime
    if facts.mostly(limits) is not None:
        return "inconclusive"
    name, explained = max(facts.explained_us().items(), key=lambda each: each[1])  # of equals the first
    if explained >= limits.cause_share * facts.gap_us:
        return name
    if facts.late_us < limits.cause_share * facts.gap_us:
        return "inconclusive"
    return "overhead-bound" if facts.busy_fraction <= limits.overhead_bound_to else "mixed"


class Ruling(NamedTuple):
    """What limits a busy GPU, and what says so."""

    regime: Regime
    by_kernels: Regime
    """The limit by the kernels' shapes and names."""
    use: Use | None = None
    """None if counters do not judge."""
    at_limit: bool = False
    """Whether a unit is near its limit: then counters alone decide. If not, they only rule limits out."""

    @property
    def overruled(self) -> bool:
        """Whether counters contradict the kernels' shapes and names."""
        return self.regime != self.by_kernels != "inconclusive"


def ruling(facts: StepFacts, limits: Thresholds) -> Ruling:
    """What limits a step whose GPU is busy: by counters if there are any and kernels take nearly all of B."""
    by_kernels = gpu_regime(facts.busy_by_limit_us, limits)
    use = facts.use if facts.moving_us < limits.counters_moving * facts.gpu_busy_us else None
    if use is None:
        return Ruling(by_kernels, by_kernels)
    if use.largest >= limits.unit_limits:
        return Ruling(use.regime, by_kernels, use, at_limit=True)
    return Ruling(_borne_out(by_kernels, use, limits), by_kernels, use)


def _borne_out(by_kernels: Regime, use: Use, limits: Thresholds) -> Regime:
    """The limit by the kernels if counters bear it out, else the one that they do; latency if that is none."""
    shares: dict[Regime, float] = {"compute-bound": use.pipe_share, "memory-bound": use.memory}
    borne = {name: share for name, share in shares.items() if share >= limits.unit_bears}
    if by_kernels in borne or by_kernels == "latency-bound":
        return by_kernels
    return max(borne, key=lambda name: borne[name], default="latency-bound")


_NAMED_FOR: tuple[tuple[Limit, GpuRegime], ...] = (
    ("transfer", "transfer-bound"),
    ("communication", "communication-bound"),
    ("latency", "latency-bound"),
)


def gpu_regime(busy_by_limit_us: dict[Limit, float], limits: Thresholds) -> Regime:
    """The limit that takes most of the busy time; inconclusive if that is kernels of unknown kind."""
    total = sum(busy_by_limit_us.values())
    share = {k: v / total for k, v in busy_by_limit_us.items()} if total else {}
    for limit, name in _NAMED_FOR:
        if share.get(limit, 0.0) > limits.kernel_share:
            return name
    arithmetic, bandwidth = share.get("arithmetic", 0.0), share.get("bandwidth", 0.0)
    if share.get("unknown", 0.0) > limits.kernel_share or not arithmetic + bandwidth:
        return "inconclusive"
    return "compute-bound" if arithmetic >= bandwidth else "memory-bound"


def close_calls(busy_by_limit_us: dict[Limit, float], limits: Thresholds) -> list[tuple[Limit, float, Regime]]:
    """The kinds of GPU work with a share close to a limit that decides: (kind, share, regime on the other side).

    Arithmetic and bandwidth decide against each other, the other kinds by being more than `kernel_share` of the whole.
    """
    total = sum(busy_by_limit_us.values())
    if not total:
        return []
    here = gpu_regime(busy_by_limit_us, limits)
    share = {k: v / total for k, v in busy_by_limit_us.items()}
    found: list[tuple[Limit, float, Regime]] = []
    for limit, part in share.items():
        if limit in ("arithmetic", "bandwidth") or abs(part - limits.kernel_share) >= limits.near:
            continue
        moved = limits.kernel_share + (limits.near if part <= limits.kernel_share else -limits.near)
        others = {k: v * (1 - moved) / (1 - part) for k, v in share.items() if k != limit}
        other = gpu_regime({**others, limit: moved}, limits)
        if other != here:
            found.append((limit, part, other))
    pair = share.get("arithmetic", 0.0) + share.get("bandwidth", 0.0)
    if here in ("compute-bound", "memory-bound"):
        winner: Limit = "arithmetic" if here == "compute-bound" else "bandwidth"
        if share[winner] / pair - 0.5 < limits.near:
            found.append((winner, share[winner], "memory-bound" if here == "compute-bound" else "compute-bound"))
    return found


def without_inflation(facts: StepFacts, limits: Thresholds) -> StepFacts:
    """The second reading of a bare trace, with dispatch as short as it may be without the profiler."""
    short = facts.step_time_us < limits.short_step_us
    factor = limits.inflation_short if short else limits.inflation_long
    dispatch = facts.idle_by_cause_us.get("dispatch", 0.0)
    saved = dispatch * (1 - 1 / factor)
    return structs.replace(
        facts,
        step_time_us=max(facts.step_time_us - saved, facts.gpu_busy_us),
        idle_by_cause_us={**facts.idle_by_cause_us, "dispatch": dispatch - saved},
    )

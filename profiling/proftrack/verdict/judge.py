"""Weighs the figures of a trace: regime, cause, confidence, evidence, advice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proftrack.capture.result import Timing
from proftrack.measures import Measures
from proftrack.measures.quality import flag
from proftrack.measures.results import Flag
from proftrack.verdict.advice import advice_for
from proftrack.verdict.result import Evidence, Verdict
from proftrack.verdict.rules import GPU_SIDE, HOST_SIDE, StepFacts, regime, without_inflation
from proftrack.verdict.thresholds import THRESHOLDS, Thresholds

_RESAMPLES = 400


class Judgement(NamedTuple):
    """A verdict, the step time it rests on, and the flags that only judging can raise."""

    verdict: Verdict
    step_time_us: float | None
    flags: list[Flag]


def judge(
    measures: Measures,
    *,
    timing: Timing | None = None,
    step_time_us: float | None = None,
    limits: Thresholds = THRESHOLDS,
) -> Judgement:
    """The verdict of a trace.

    T is the timing's (by its mode), else `step_time_us`; both unprofiled. Without either it is the trace's own, judged
    twice: as it is, and with dispatch as short as it may be without the profiler.
    """
    given = timing.verdict_step_time_us if timing is not None else step_time_us
    basis = "profiled" if given is None else "unprofiled"
    time = measures.step_time_profiled_us if given is None else given
    if measures.gpu_busy_per_step_us is None or not time or not measures.gpu_busy_per_step_us:
        return Judgement(_without_gpu(measures, basis, limits), time, [])
    facts = _facts(measures, time)
    flags = _own_flags(facts, basis, limits)
    outcome = _Outcome(measures, facts, basis=basis, timing=timing, flags=[*measures.flags, *flags], limits=limits)
    return Judgement(outcome.verdict(), time, flags)


def _facts(measures: Measures, step_time_us: float) -> StepFacts:
    steps = max(measures.steps, 1)
    return StepFacts(
        step_time_us=step_time_us,
        gpu_busy_us=measures.gpu_busy_per_step_us or 0.0,
        idle_by_cause_us=measures.idle.by_cause_us_per_step,
        busy_by_limit_us={k: v / steps for k, v in measures.busy_by_limit_us.items()},
        waits_over_gpu_us=measures.waits_over_gpu_us / steps,
    )


def _own_flags(facts: StepFacts, basis: str, limits: Thresholds) -> list[Flag]:
    if basis == "unprofiled" and facts.busy_fraction > limits.slow_under_profiler:
        return [flag("slow_under_profiler", 1, f"B / T = {facts.busy_fraction:.2f}.")]
    return []


class _Outcome:
    """One judgement in the making."""

    def __init__(
        self,
        measures: Measures,
        facts: StepFacts,
        *,
        basis: str,
        timing: Timing | None,
        flags: list[Flag],
        limits: Thresholds,
    ) -> None:
        self.measures = measures
        self.facts = facts
        self.basis = basis
        self.timing = timing
        self.flags = {f.code: f for f in flags}
        self.limits = limits
        self.regime = regime(facts, limits)

    def verdict(self) -> Verdict:
        undermined = self._undermined()
        reasons, doubts = undermined, self._doubts()
        name = "inconclusive" if undermined else self.regime
        if name == "inconclusive" and not undermined:
            reasons = ["Most GPU time is in kernels whose kind is not known by their names."]
        confidence = "low" if name == "inconclusive" else self._confidence(doubts)
        return Verdict(
            regime=name,
            cause=self._cause(),
            confidence=confidence,
            basis=self.basis,
            gpu_busy_fraction=self.facts.busy_fraction,
            summary=self._summary(name),
            evidence=self._evidence(),
            advice=advice_for(name),
            reasons=[*reasons, *(text for _, text in doubts)],
            thresholds=self.limits.as_dict(),
        )

    # -- what makes it inconclusive, and what lowers confidence

    def _undermined(self) -> list[str]:
        """Reasons why these data carry no verdict."""
        limits, u = self.limits, self.facts.busy_fraction
        reasons = []
        for code in ("gpu_not_measured", "partial_file"):
            if code in self.flags:
                reasons.append(self.flags[code].message)
        if u > limits.not_the_same_work and self.basis == "unprofiled":
            reasons.append(
                f"GPU busy time is {u:.2f} of the step time given: trace and timing are not of the same work."
            )
        if u < limits.gpu_bound_from:
            reasons += self._gpu_partly_measured()
        if self._share_of("invalid_timestamps", self.measures.totals.gpu_events) > limits.invalid_share:
            reasons.append(self.flags["invalid_timestamps"].message)
        if self.basis == "profiled":
            other = regime(without_inflation(self.facts, limits), limits)
            if other != self.regime:
                reasons.append(
                    f"Profiling inflates the host's side: read as it is the trace is {self.regime}, without the "
                    f"inflation it may be {other}; give the unprofiled step time (--step-time-us)."
                )
            if "recompiled_in_window" in self.flags:
                reasons.append(self.flags["recompiled_in_window"].message)
        return reasons

    def _gpu_partly_measured(self) -> list[str]:
        """The GPU may have done more than was recorded: no verdict that rests on its being idle."""
        if "under_recorded_graphs" in self.flags:
            return [self.flags["under_recorded_graphs"].message]
        launches = self.measures.totals.launches
        if self._share_of("launches_without_gpu_work", launches) > self.limits.silent_launches:
            return [self.flags["launches_without_gpu_work"].message]
        return []

    def _share_of(self, code: str, whole: int) -> float:
        raised = self.flags.get(code)
        return raised.count / whole if raised and whole else 0.0

    def _doubts(self) -> list[tuple[str, str]]:
        """(confidence that is left, why)."""
        doubts = []
        if self.basis == "profiled":
            doubts.append(("medium", "The step time comes from the profiled trace itself."))
        others = self._regimes_within_spread()
        if others:
            doubts.append(("low", f"Within the spread of the measurements it could also be {' or '.join(others)}."))
        u, limits = self.facts.busy_fraction, self.limits
        for limit in (limits.overhead_bound_to, limits.gpu_bound_from):
            if abs(u - limit) < limits.near:
                doubts.append(("medium", f"u = {u:.2f} is close to the limit {limit}."))
        for code in ("no_steps", "uneven_steps", "slow_under_profiler", "recompiled_in_window", "partial_window"):
            if code in self.flags:
                doubts.append(("low" if code == "no_steps" else "medium", self.flags[code].message))
        if self.regime in ("compute-bound", "memory-bound"):
            doubts += self._kind_doubts()
        return doubts

    def _kind_doubts(self) -> list[tuple[str, str]]:
        busy = self.facts.busy_by_limit_us
        total = sum(busy.values())
        a, b = busy.get("arithmetic", 0.0), busy.get("bandwidth", 0.0)
        if abs(a - b) <= busy.get("unknown", 0.0) + busy.get("latency", 0.0):
            return [("low", "Kernels of unknown kind take enough time to turn compute- into memory-bound.")]
        if max(a, b) < self.limits.kernel_share * total:
            return [("medium", "No single limit takes most of the busy time.")]
        return []

    def _regimes_within_spread(self) -> list[str]:
        """Other regimes that a resample of the timing blocks and of the steps' GPU times gives."""
        found = set()
        for time in self._spread_of_time():
            for busy in self._spread_of_busy():
                scale = busy / self.facts.gpu_busy_us
                facts = StepFacts(
                    step_time_us=time,
                    gpu_busy_us=busy,
                    idle_by_cause_us=self.facts.idle_by_cause_us,
                    busy_by_limit_us={k: v * scale for k, v in self.facts.busy_by_limit_us.items()},
                    waits_over_gpu_us=self.facts.waits_over_gpu_us,
                )
                found.add(regime(facts, self.limits))
        return sorted(found - {self.regime})

    def _spread_of_time(self) -> list[float]:
        """T and the ends of its 95 % interval (bootstrap of the median over the blocks)."""
        time = self.facts.step_time_us
        if self.timing is None:
            return [time]
        latency = self.timing.mode == "latency"
        samples = np.array(self.timing.step_latencies_us if latency else self.timing.block_step_times_us)
        if len(samples) < 3:
            return [time]
        draws = np.random.default_rng(0).choice(samples, size=(_RESAMPLES, len(samples)))
        low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
        return [time, float(low), float(high)]

    def _spread_of_busy(self) -> list[float]:
        """B and B less and plus two standard errors of the steps' own GPU time."""
        busy = self.facts.gpu_busy_us
        own = np.array([s.self_cuda_time_us for s in self.measures.per_step if s.self_cuda_time_us])
        if len(own) < 2:
            return [busy]
        error = 2 * float(own.std(ddof=1)) / float(np.sqrt(len(own))) / float(own.mean())
        return [busy, busy * max(1 - error, 0.0), busy * (1 + error)]

    @staticmethod
    def _confidence(doubts: list[tuple[str, str]]) -> str:
        levels = [level for level, _ in doubts]
        return "low" if "low" in levels else "medium" if levels else "high"

    # -- what it says

    def _cause(self) -> str | None:
        """The largest cause of T - B on the host's side, the kind of GPU work with most time on the GPU's."""
        if self.facts.busy_fraction < self.limits.gpu_bound_from:
            causes = {**self.facts.idle_by_cause_us}
            if self.regime == "sync-bound":
                return "synchronization"
            return max(causes, key=lambda c: causes[c]) if causes else None
        kinds: dict[str, float] = {}
        for kernel in self.measures.kernels:
            kinds[kernel.kind] = kinds.get(kernel.kind, 0.0) + kernel.total_us
        return max(kinds, key=lambda k: kinds[k]) if kinds else None

    def _summary(self, name: str) -> str:
        facts = self.facts
        time, busy, u = facts.step_time_us, facts.gpu_busy_us, facts.busy_fraction
        share = f"the GPU works {_us(busy)} of a {_us(time)} step ({u:.0%})"
        if name == "inconclusive":
            return f"Inconclusive: {share}, but the data do not carry a verdict."
        what = {
            "overhead-bound": "the host cannot launch fast enough",
            "mixed": "host and GPU both hold it back",
            "input-bound": "it waits for the data loader",
            "sync-bound": "the host's waits for the GPU keep it from launching ahead",
            "host-bound": "the host does work that launches nothing",
            "compute-bound": "most of it in kernels that are limited by arithmetic",
            "memory-bound": "most of it in kernels that are limited by memory bandwidth",
            "latency-bound": "most of it in kernels too small to fill the GPU",
            "transfer-bound": "most of it in copies between host and device",
            "communication-bound": "most of it in collectives",
        }[name]
        return f"{name.capitalize()}: {share}; {what}."

    def _evidence(self) -> list[Evidence]:
        facts = self.facts
        kind = "unprofiled" if self.basis == "unprofiled" else "from the trace"
        evidence = [
            _item("step_time_us", facts.step_time_us, "us", f"A step takes {_us(facts.step_time_us)} ({kind})."),
            _item("gpu_busy_per_step_us", facts.gpu_busy_us, "us", f"The GPU is busy {_us(facts.gpu_busy_us)} of it."),
            _item(
                "overhead_headroom",
                facts.step_time_us / facts.gpu_busy_us,
                "x",
                f"If all launch overhead vanished: at most {facts.step_time_us / facts.gpu_busy_us:.2g}x faster.",
            ),
        ]
        evidence += self._idle_evidence() + self._busy_evidence()
        if self.basis == "profiled":
            other = without_inflation(facts, self.limits)
            evidence.append(
                _item(
                    "gpu_busy_fraction_without_inflation",
                    other.busy_fraction,
                    "",
                    f"u = {facts.busy_fraction:.2f} as traced, up to {other.busy_fraction:.2f} without the profiler.",
                )
            )
        return evidence + self._other_mode()

    def _idle_evidence(self) -> list[Evidence]:
        facts = self.facts
        if facts.busy_fraction >= self.limits.gpu_bound_from:
            return []
        causes = sorted(facts.idle_by_cause_us.items(), key=lambda kv: -kv[1])
        out = [
            _item(f"idle_{cause}_us", us, "us", f"The GPU idles {_us(us)} a step in the trace: {_CAUSE_TEXT[cause]}.")
            for cause, us in causes[:3]
        ]
        if facts.sync_us:
            text = f"The host waits {_us(facts.waits_over_gpu_us)} a step while the GPU works."
            out.append(_item("waits_over_gpu_us", facts.waits_over_gpu_us, "us", text))
        return out

    def _busy_evidence(self) -> list[Evidence]:
        busy = sorted(self.facts.busy_by_limit_us.items(), key=lambda kv: -kv[1])
        total = sum(us for _, us in busy)
        return [
            _item(f"busy_{limit}_us", us, "us", f"{us / total:.0%} of the busy time: {_LIMIT_TEXT[limit]}.")
            for limit, us in busy[:3]
        ]

    def _other_mode(self) -> list[Evidence]:
        """What the other step time would say, where that differs."""
        timing = self.timing
        if timing is None:
            return []
        other = timing.step_time_us if timing.mode == "latency" else timing.step_latency_us
        facts = _facts(self.measures, other)
        said = regime(facts, self.limits)
        if said == self.regime:
            return []
        name = "back to back" if timing.mode == "latency" else "synchronised after each step"
        text = f"Timed {name}, a step takes {_us(other)} (u = {facts.busy_fraction:.2f}) and would be {said}."
        return [_item("other_step_time_us", other, "us", text)]


_CAUSE_TEXT = {
    "dispatch": "the host was launching (operators, runtime calls, the Python between them)",
    "host": "the host did work that launches nothing",
    "input": "the host waited for the data loader",
    "synchronization": "the host had waited for the GPU, which drained its queue",
    "allocator": "the host allocated or freed device memory",
    "queued": "the work was launched in time, the device started it late",
    "unknown": "no launch was recorded for the work that followed",
}
_LIMIT_TEXT = {
    "arithmetic": "kernels limited by arithmetic (matmul, convolution, attention)",
    "bandwidth": "kernels limited by memory bandwidth (elementwise, reduction, normalisation, copies)",
    "latency": "kernels whose grid fills under half of the GPU",
    "transfer": "copies between host and device that no kernel hides",
    "communication": "collectives that no kernel hides",
    "unknown": "kernels of unknown kind",
}


def _item(name: str, value: float | None, unit: str, text: str) -> Evidence:
    return Evidence(name=name, value=value, unit=unit, text=text)


def _us(value: float) -> str:
    """A time for a sentence: 3 us, 51 us, 1.2 ms."""
    if value < 1000:
        return f"{value:.3g} us"
    return f"{value / 1000:.3g} ms" if value < 1_000_000 else f"{value / 1_000_000:.3g} s"


def _without_gpu(measures: Measures, basis: str, limits: Thresholds) -> Verdict:
    """No GPU work in the trace: not measured, or none was asked for."""
    flags = {f.code: f for f in measures.flags}
    if "gpu_not_measured" in flags:
        reasons = [flags["gpu_not_measured"].message]
        summary = "Inconclusive: the host launched GPU work, but none was recorded."
    elif not measures.ops:
        reasons = ["The trace holds neither operators nor GPU work."]
        summary = "Inconclusive: the trace holds nothing to judge."
    else:
        reasons = ["The trace holds no GPU work, and the regime of a CPU is not judged yet."]
        summary = "Inconclusive: a CPU run; the operators with most self time are listed."
    top = sorted(measures.ops, key=lambda o: -o.self_cpu_time_us)[:5]
    total = measures.totals.self_cpu_time_total_us
    evidence = [
        _item(
            "self_cpu_time_us",
            op.self_cpu_time_us,
            "us",
            f"{op.name}: {_us(op.self_cpu_time_us)} self CPU in {op.calls} calls ({op.self_cpu_time_us / total:.0%}).",
        )
        for op in top
        if total
    ]
    return Verdict(
        regime="inconclusive",
        cause=None,
        confidence="low",
        basis=basis,
        gpu_busy_fraction=None,
        summary=summary,
        evidence=evidence,
        advice=advice_for("inconclusive"),
        reasons=reasons,
        thresholds=limits.as_dict(),
    )


__all__ = ["GPU_SIDE", "HOST_SIDE", "Judgement", "judge"]

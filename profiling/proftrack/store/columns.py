"""The default page of an experiment in MLflow: columns that tell runs apart, and how to read them.

MLflow keeps shared views as experiment tags (`mlflow.sharedViewState.KEY`, opened by ?viewStateShareKey=KEY; seen in
3.17, the format is undocumented). A version without shared views ignores the tag: nothing breaks, and the columns can
still be chosen by hand. A failure here never fails a run.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import msgspec

from proftrack import untrusted
from proftrack.errors import StoreError
from proftrack.record import Record
from proftrack.store import fields, keys
from proftrack.store.address import Store
from proftrack.store.errors import explained
from proftrack.store.quiet import quiet
from proftrack.store.retry import quick_retries

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

_KIND = "custom_model_development"
"""Without it MLflow 3 may treat the experiment as one of prompts and traces, and not show its runs at first."""
_UNDECIDED = ("", "no_inferred_type")
_FIRST = (f"tags.{keys.REGIME_TAG}", f"tags.{keys.CONFIDENCE_TAG}", f"metrics.{keys.STEP_TIME_US}")
_ON_GPU = (f"metrics.{keys.GPU_BUSY_PER_STEP_US}", f"metrics.{keys.GPU_BUSY_FRACTION}")
_ON_CPU = (f"metrics.{keys.CPU_WORK_PER_STEP_US}", f"metrics.{keys.CPU_WORK_FRACTION}")
_THEN = (f"tags.{keys.CAUSE_TAG}", f"tags.{keys.CONCLUSION_TAG}")
_LAST = f"tags.{keys.COMMIT_TAG}"
_MOST_COLUMNS = 40
_FIXED = ("attributes.`Run Name`", "runDateAndNestInfo")
"""Columns that always come first."""
_WIDTHS = {
    "attributes.`Run Name`": 270,
    f"tags.`{keys.REGIME_TAG}`": 130,
    f"tags.`{keys.CONFIDENCE_TAG}`": 90,
    f"metrics.`{keys.STEP_TIME_US}`": 100,
    f"metrics.`{keys.GPU_BUSY_PER_STEP_US}`": 100,
    f"metrics.`{keys.GPU_BUSY_FRACTION}`": 100,
    f"metrics.`{keys.CPU_WORK_PER_STEP_US}`": 100,
    f"metrics.`{keys.CPU_WORK_FRACTION}`": 100,
    f"tags.`{keys.CAUSE_TAG}`": 120,
    f"tags.`{keys.CONCLUSION_TAG}`": 400,
}
NOTE = """One run is one profiled workload.

- **regime**: what limits its steps; **regime.cause**: the largest part of that; **regime.confidence**: how certain
- **step_time_us** (T): the time of a step without the profiler; **gpu_busy_per_step_us** (B): how long the GPU is busy
  in it; **gpu_busy_fraction**: B / T. On the CPU: **cpu_work_per_step_us** (W), the operators' work, and W / T
- **conclusion**: the result of a sweep or of variants, on their parent run
- Each run's description shows the verdict. Its artifact `report.html` has the timeline and all tables; `trace/` opens
  in Perfetto (`proftrack open RUN`).
- Runs with the same `proftrack.fingerprint` tag can be compared: `proftrack compare A B`.

To see the columns that tell runs apart, add `?viewStateShareKey=proftrack` to the address of this experiment's runs.
"""


def columns(record: Record) -> list[str]:
    """The columns of a run, in order: regime, confidence, times, cause, conclusion, the workload's own params, commit.

    Sweeps and variants have a conclusion; MLflow leaves out a column that no run has.
    """
    names = [name for name in fields.params(record) if not name.startswith(keys.SCHEDULE_PARAMS)]
    params = [f"params.{name}" for name in names if name not in (keys.EXPERIMENT_PARAM, keys.TIMING_MODE_PARAM)]
    times = _ON_GPU if record.cpu is None else _ON_CPU
    return [_key(name) for name in (*_FIRST, *times, *_THEN, *params, _LAST)]


def view_state(wanted: list[str], current: str | None = None) -> str:
    """The tag's value: MLflow's view state with these columns, plus those of the current value."""
    others = [key for key in _columns_of(current) if key not in wanted]
    # Params of other workloads go next to those of this one, before the commit.
    keys = [*wanted[:-1], *others, wanted[-1]][:_MOST_COLUMNS]
    state = {
        "selectedColumns": keys,
        "columnOrder": [*_FIXED, *keys],
        "columnWidths": _WIDTHS,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
    }
    return json.dumps(state)


def prepare(store: Store, client: MlflowClient, experiment_id: str, record: Record) -> None:
    """Give the run's experiment the view and, if proftrack created it, a description and a kind."""
    with contextlib.suppress(StoreError), explained(store, "given a view"), quiet(), quick_retries():
        experiment = client.get_experiment(experiment_id)
        for name, value in _tags(experiment, record).items():
            if experiment.tags.get(name) != value:
                client.set_experiment_tag(experiment_id, name, value)


def address(store: Store, experiment_id: str, base: str = "http://127.0.0.1:5000") -> str:
    """The address of the experiment's runs in the UI, with that view."""
    return f"{store.run_url(experiment_id, '', base)}&viewStateShareKey={keys.VIEW}"


def _tags(experiment: Experiment, record: Record) -> dict[str, str]:
    tags = {keys.VIEW_TAG: view_state(columns(record), experiment.tags.get(keys.VIEW_TAG))}
    if record.run is None or experiment.name != record.run.experiment:
        return tags  # someone else's experiment: leave its description and kind alone
    if experiment.tags.get(keys.EXPERIMENT_KIND_TAG, "") in _UNDECIDED:
        tags[keys.EXPERIMENT_KIND_TAG] = _KIND
    if not experiment.tags.get(keys.NOTE_TAG):
        tags[keys.NOTE_TAG] = NOTE
    return tags


def _columns_of(value: str | None) -> list[str]:
    try:
        state = untrusted.decode((value or "{}").encode())
        return [key for key in state.get("selectedColumns") or [] if isinstance(key, str)]
    except (msgspec.MsgspecError, ValueError, AttributeError, TypeError):
        return []  # written by another version or by hand: ours replaces it


def _key(name: str) -> str:
    """`tags.regime.cause` as MLflow's tables write it: tags.`regime.cause`."""
    kind, _, rest = name.partition(".")
    return f"{kind}.`{rest}`"

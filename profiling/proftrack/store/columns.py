"""What an experiment's page shows before anybody has set it up: columns that tell runs apart, and how to read them.

MLflow keeps views that are shared as experiment tags (`mlflow.sharedViewState.KEY`, opened by ?viewStateShareKey=KEY;
seen in 3.17, the tag's form is no documented interface). A version that knows none ignores the tag: nothing breaks, and
the columns can still be chosen by hand. No failure here ends a run.
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
"""Else MLflow 3 may take an experiment for one of prompts and their traces, and shows no runs at first."""
_UNDECIDED = ("", "no_inferred_type")
_FIRST = (f"tags.{keys.REGIME_TAG}", f"tags.{keys.CONFIDENCE_TAG}", f"metrics.{keys.STEP_TIME_US}")
_ON_GPU = (f"metrics.{keys.GPU_BUSY_PER_STEP_US}", f"metrics.{keys.GPU_BUSY_FRACTION}")
_ON_CPU = (f"metrics.{keys.CPU_WORK_PER_STEP_US}", f"metrics.{keys.CPU_WORK_FRACTION}")
_THEN = (f"tags.{keys.CAUSE_TAG}", f"tags.{keys.CONCLUSION_TAG}")
_LAST = f"tags.{keys.COMMIT_TAG}"
_MOST_COLUMNS = 40
_FIXED = ("attributes.`Run Name`", "runDateAndNestInfo")
"""Columns that stand before all others whatever is chosen."""
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

- **regime**: what holds its steps back; **regime.cause**: the largest part of it; **regime.confidence**: how sure
- **step_time_us** (T): a step without the profiler; **gpu_busy_per_step_us** (B): the GPU's part of it;
  **gpu_busy_fraction**: B / T; on the CPU **cpu_work_per_step_us** (W), the operators' work, and W / T
- **conclusion**: of a sweep, or of variants, on the run that holds theirs
- Each run's description has the verdict, its artifact `report.html` the timeline and all tables, `trace/` what Perfetto
  opens (`proftrack open RUN`).
- Runs with the same tag `proftrack.fingerprint` may be compared: `proftrack compare A B`.

The columns that tell runs apart: `?viewStateShareKey=proftrack` behind the address of this experiment's runs.
"""


def columns(record: Record) -> list[str]:
    """The columns of a run, in order: regime, confidence, times, cause, the workload's own params, commit.

    The conclusion is that of a sweep or of variants; MLflow leaves out a column that no run has.
    """
    own = [name for name in fields.params(record) if not name.startswith(keys.SCHEDULE_PARAMS)]
    params = [f"params.{name}" for name in own if name not in (keys.EXPERIMENT_PARAM, keys.TIMING_MODE_PARAM)]
    times = _ON_GPU if record.cpu is None else _ON_CPU
    return [_key(name) for name in (*_FIRST, *times, *_THEN, *params, _LAST)]


def view_state(wanted: list[str], known: str | None = None) -> str:
    """The tag's value: MLflow's view state with these columns, and those that the known value has beside them."""
    others = [key for key in _columns_of(known) if key not in wanted]
    # Params of other workloads stand where those of this one do.
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
    """Give the run's experiment the view; and a description and its kind, where it is one that we made."""
    with contextlib.suppress(StoreError), explained(store, "given a view"), quiet(), quick_retries():
        experiment = client.get_experiment(experiment_id)
        for name, value in _tags(experiment, record).items():
            if experiment.tags.get(name) != value:
                client.set_experiment_tag(experiment_id, name, value)


def address(store: Store, experiment_id: str, base: str = "http://127.0.0.1:5000") -> str:
    """The experiment's runs in the UI, with that view."""
    return f"{store.run_url(experiment_id, '', base)}&viewStateShareKey={keys.VIEW}"


def _tags(experiment: Experiment, record: Record) -> dict[str, str]:
    tags = {keys.VIEW_TAG: view_state(columns(record), experiment.tags.get(keys.VIEW_TAG))}
    if record.run is None or experiment.name != record.run.experiment:
        return tags  # somebody else's: its description and kind are theirs
    if experiment.tags.get(keys.EXPERIMENT_KIND_TAG, "") in _UNDECIDED:
        tags[keys.EXPERIMENT_KIND_TAG] = _KIND
    if not experiment.tags.get(keys.NOTE_TAG):
        tags[keys.NOTE_TAG] = NOTE
    return tags


def _columns_of(value: str | None) -> list[str]:
    try:
        state = untrusted.decode((value or "{}").encode())
        found = state.get("selectedColumns") or []
        return [key for key in found if isinstance(key, str)]
    except (msgspec.MsgspecError, ValueError, AttributeError, TypeError):
        return []  # another version's form, or a person's: ours takes its place


def _key(name: str) -> str:
    """`tags.regime.cause` as MLflow's tables know it: tags.`regime.cause`."""
    kind, _, rest = name.partition(".")
    return f"{kind}.`{rest}`"

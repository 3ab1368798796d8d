"""Every name that proftrack uses in MLflow: tags, metrics, params and artifacts, each defined only here.

They are a contract: people, dashboards and older runs rely on them. docs/mlflow.md lists them; a test compares the two.
"""

from __future__ import annotations

from proftrack.record.timing import metric_of
from proftrack.rundir import layout

# ---- tags of a run: its result --------------------------------------------------------------------------------------

REGIME_TAG = "regime"
CAUSE_TAG = "regime.cause"
CONFIDENCE_TAG = "regime.confidence"
BASIS_TAG = "regime.basis"
DEVICE_TAG = "device.name"
COMMIT_TAG = "git.commit"
BRANCH_TAG = "git.branch"
DIRTY_TAG = "git.dirty"
UNTRACKED_TAG = "git.untracked_only"
"""Whether a dirty tree is dirty only because of untracked files."""
EXPERIMENT_TAG = "proftrack.experiment"
VERSION_TAG = "proftrack.version"
FINGERPRINT_TAG = "proftrack.fingerprint"
"""Two runs with the same fingerprint may be compared."""

# ---- tags of a run: its life ----------------------------------------------------------------------------------------

RECORD_TAG = "proftrack.record"
"""Identity of the record that a run holds, so that a folder is logged once, wherever it was copied."""
CHANGED_TAG = "proftrack.changed"
"""When proftrack last wrote to a run, UTC: `2026-11-29T20:05:06Z`. store/cache searches new runs by it."""
LEFT_OUT_TAG = "proftrack.left_out"
"""Files that the run lacks because there was no space for them."""
REQUEST_TAG = "proftrack.request"
"""Id of the request that created the run: a request repeated because its answer was lost creates a second run."""
DUPLICATE_TAG = "proftrack.duplicate_of"
ENDED_BY_TAG = "proftrack.ended_by"
ERROR_TAG = "proftrack.error"
HOST_TAG, PID_TAG, PROCESS_TAG = "proftrack.host", "proftrack.pid", "proftrack.process"
"""The process that owns the run, see store/lifecycle."""
BASELINE_TAG = "proftrack.baseline"
TRACE_REPAIRED_TAG = "proftrack.trace_repaired"
"""On a run with a trace that is not valid JSON: the flags that say so. The file is kept as it was written; `proftrack
open` mends it."""
TRACES_DROPPED_TAG = "proftrack.traces_dropped"

# ---- tags that the last gate leaves on its candidate ----------------------------------------------------------------

GATE_OUTCOME_TAG = "gate.outcome"
GATE_BASELINE_TAG = "gate.baseline"
GATE_POLICY_TAG = "gate.policy"
GATE_FAILED_TAG = "gate.failed"
GATE_REASON_TAG = "gate.reason"
GATE_ACROSS_TAG = "gate.across"
GATE_TIME_TAG = "gate.time"

# ---- tags of a sweep or of variants: the parent run and its parts ---------------------------------------------------

KIND_TAG = "proftrack.kind"
"""On the parent run: sweep or variants."""
GROUP_TAG = "proftrack.group"
"""On the parent run: the id of its group, the same as in its folder."""
GROUP_KEY_TAG = "proftrack.group_key"
"""On parent and children: the key of the conditions they were measured under."""
GROUP_POINTS_TAG = "proftrack.group_points"
GROUP_LOGGED_TAG = "proftrack.group_logged"
"""On a parent run that `sync` completed: the hash of the group.json it was made from."""
PART_TAG = "proftrack.part"
"""On a child: which part of its group it is."""
WINNER_TAG = "proftrack.winner"
CONCLUSION_TAG = "conclusion"

# ---- MLflow's own tags ----------------------------------------------------------------------------------------------

USER_TAG = "mlflow.user"
NOTE_TAG = "mlflow.note.content"
"""The description, of a run and of an experiment."""
PARENT_TAG = "mlflow.parentRunId"
SOURCE_NAME_TAG, SOURCE_TYPE_TAG = "mlflow.source.name", "mlflow.source.type"
SOURCE_COMMIT_TAG, SOURCE_BRANCH_TAG = "mlflow.source.git.commit", "mlflow.source.git.branch"
SOURCE_REMOTE_TAG, SOURCE_DIRTY_TAG = "mlflow.source.git.repoURL", "mlflow.source.git.dirty"
TABLES_TAG = "mlflow.loggedArtifacts"
"""Lists which artifacts are tables, for the UI's comparison of tables."""
MLFLOW_URL_TAGS = ("mlflow.source.", "mlflow.project.", "mlflow.git")
"""Prefixes of the tags in which `mlflow run` records URLs."""

# ---- tags of an MLflow experiment -----------------------------------------------------------------------------------

PROBE_TAG = "proftrack.doctor"
"""Written and removed again by `proftrack doctor`."""
EXPERIMENT_KIND_TAG = "mlflow.experimentKind"
VIEW = "proftrack"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"

# ---- params ---------------------------------------------------------------------------------------------------------

EXPERIMENT_PARAM = "experiment"
TIMING_MODE_PARAM = "timing.mode"
SCHEDULE_PARAMS, TIMING_PARAMS = "schedule.", "timing."
"""Prefixes of the params that are not the workload's own."""

# ---- metrics --------------------------------------------------------------------------------------------------------

SELF_CPU_TIME_TOTAL_US = "self_cpu_time_total_us"
SELF_CUDA_TIME_TOTAL_US = "self_cuda_time_total_us"
SELF_CPU_TIME_PER_STEP_US = "self_cpu_time_per_step_us"
SELF_CUDA_TIME_PER_STEP_US = "self_cuda_time_per_step_us"
STEP_TIME_US = "step_time_us"
STEP_LATENCY_US = "step_latency_us"
STEP_TIME_P95_US = "step_time_p95_us"
STEP_TIME_PROFILED_US = "step_time_profiled_us"
FIRST_STEP_TIME_US = "first_step_time_us"
PROFILER_OVERHEAD_RATIO = "profiler_overhead_ratio"
GPU_BUSY_FRACTION = "gpu_busy_fraction"
GPU_BUSY_FRACTION_PROFILED = "gpu_busy_fraction_profiled"
GPU_BUSY_PER_STEP_US = "gpu_busy_per_step_us"
GPU_IDLE_PER_STEP_US = "gpu_idle_per_step_us"
CPU_WORK_PER_STEP_US = "cpu_work_per_step_us"
CPU_WORK_FRACTION = "cpu_work_fraction"
KERNELS_PER_STEP = "kernels_per_step"
LAUNCHES_PER_STEP = "launches_per_step"
ROOFLINE_TIME_US = "roofline_time_us"
TFLOPS = "tflops"
GBYTES_PER_S = "gbytes_per_s"
MFU = "mfu"
MBU = "mbu"
SM_ACTIVE = "sm_active"
OCCUPANCY = "occupancy"
DRAM_UTILIZATION = "dram_utilization"
TENSOR_UTILIZATION = "tensor_utilization"
PIPE_UTILIZATION = "pipe_utilization"
ENERGY_PER_STEP_JOULES = "energy_per_step_joules"
POWER_WATTS = "power_watts"
TOKENS_PER_S = "tokens_per_s"
JOULES_PER_TOKEN = "joules_per_token"
INPUT_WAIT_US = "input_wait_us"
PEAK_MEMORY_BYTES = "peak_memory_bytes"
RECORDED_STEPS = "recorded_steps"

METRICS = (
    SELF_CPU_TIME_TOTAL_US,
    SELF_CUDA_TIME_TOTAL_US,
    SELF_CPU_TIME_PER_STEP_US,
    SELF_CUDA_TIME_PER_STEP_US,
    STEP_TIME_US,
    STEP_LATENCY_US,
    STEP_TIME_P95_US,
    STEP_TIME_PROFILED_US,
    FIRST_STEP_TIME_US,
    PROFILER_OVERHEAD_RATIO,
    GPU_BUSY_FRACTION,
    GPU_BUSY_FRACTION_PROFILED,
    GPU_BUSY_PER_STEP_US,
    GPU_IDLE_PER_STEP_US,
    CPU_WORK_PER_STEP_US,
    CPU_WORK_FRACTION,
    KERNELS_PER_STEP,
    LAUNCHES_PER_STEP,
    ROOFLINE_TIME_US,
    TFLOPS,
    GBYTES_PER_S,
    MFU,
    MBU,
    SM_ACTIVE,
    OCCUPANCY,
    DRAM_UTILIZATION,
    TENSOR_UTILIZATION,
    PIPE_UTILIZATION,
    ENERGY_PER_STEP_JOULES,
    POWER_WATTS,
    TOKENS_PER_S,
    JOULES_PER_TOKEN,
    INPUT_WAIT_US,
    PEAK_MEMORY_BYTES,
    RECORDED_STEPS,
)
"""In the order of logging and display."""


def compared_metrics(mode: str | None) -> dict[str, str]:
    """A comparison's names of T and B -> the metric that holds each in a run of this timing.mode."""
    return {STEP_TIME_US: metric_of(mode), GPU_BUSY_PER_STEP_US: GPU_BUSY_PER_STEP_US}


# ---- artifacts ------------------------------------------------------------------------------------------------------

RECORD, EVENTS, REPORT, TRACES = layout.RECORD, layout.EVENTS, layout.REPORT, layout.TRACES
COMPARISONS = "compare"
"""The folder with the pages of `proftrack compare`."""

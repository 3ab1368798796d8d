"""A history of ten thousand runs on PostgreSQL behind MLflow's server: first query, later queries, bytes per run.

    python benchmarks/history_scale.py [--runs 10000] [--points 40] [--folder RUN_FOLDER]

POINTS: number of values of the parameter n among the runs, and therefore of series; 40 resembles the history of a
sweep.

Needs PostgreSQL (scripts/install-test-tools.sh), psycopg and mlflow[auth]. The scripts in deploy/ start everything on
loopback in a temporary folder and stop it again. One real run (RUN_FOLDER, or else `proftrack run` on the CPU) is
logged; its rows are then copied in SQL with other ids, times and values, since logging ten thousand runs would take
too long. Prints JSON; exits 1 if the first query takes over 90 s, or proftrack.history() over 2 s afterwards. The
command takes longer: it starts Python and imports MLflow."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "profiling"), str(ROOT / "tests")]

from team import ADMIN, Postgres, Server, open_folder  # noqa: E402

EXPERIMENT = "matmul_add"
DAYS = 365
COUNTS = "('kernels_per_step', 'launches_per_step', 'recorded_steps')"
# Tags that differ from run to run.
TAGS = {
    "proftrack.record": "md5('record' || g)",
    "proftrack.request": "md5('request' || g)",
    "proftrack.changed": (
        "to_char(to_timestamp({began} + {step} * g) at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
    ),
    "git.commit": "md5('commit' || g / 4) || '00000000'",
    "proftrack.fingerprint": "left(md5('point' || g % {points}), 12)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=40)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation has its bytecode
    with open_folder() as folder:
        postgres = Postgres(folder / "db")
        server = Server(postgres.url, folder / "server")
        try:
            server.start().wait()
            result = measure(options.runs, options.points, options.folder, folder, postgres, server)
        finally:
            server.end()
            postgres.stop()
    print(json.dumps(result, indent=1))
    sys.exit(result["first_look_s"] > 90 or result["history_warm_s"] > 2)


def measure(
    count: int, points: int, given: Path | None, folder: Path, postgres: Postgres, server: Server
) -> dict[str, Any]:
    os.environ |= {
        "MLFLOW_TRACKING_URI": server.url,
        "MLFLOW_TRACKING_USERNAME": ADMIN[0],
        "MLFLOW_TRACKING_PASSWORD": ADMIN[1],
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": str(ROOT / "profiling"),
    }
    run_folder = given or real_run(folder / "run")
    import proftrack
    from proftrack.store import cache, connect, sync
    from proftrack.store.runs import Runs

    found = connect.resolve()
    template = sync.sync_folder(found, connect.connect(found), run_folder).run_id
    before = sizes(postgres)
    multiply(postgres, template, count - 1, points)
    after = sizes(postgres)

    looks = []
    for _ in range(4):
        begin = time.monotonic()
        assert len(cache.runs_of(Runs.connect(), EXPERIMENT)) == count
        looks.append(time.monotonic() - begin)
    later = sorted(looks[1:])[1]
    begin = time.monotonic()
    assert len(proftrack.history(EXPERIMENT, dirty=True)) == count
    called = time.monotonic() - begin
    whole = [timed_history(folder) for _ in range(3)]
    artifacts = [path for path in (server.folder / "artifacts").rglob("*") if path.is_file()]
    return {
        "runs": count,
        "series": points,
        "first_look_s": round(looks[0], 1),
        "later_look_s": round(later, 2),
        "history_warm_s": round(called, 2),
        "history_command_warm_s": round(sorted(whole)[1], 2),
        "cache_bytes": sum(path.stat().st_size for path in (folder / "cache").rglob("*.msgpack")),
        "rows_a_run": {name: round((after[name][0] - before[name][0]) / (count - 1)) for name in after},
        "database_bytes_a_run": round(sum(after[name][1] - before[name][1] for name in after) / (count - 1)),
        "artifact_bytes_of_the_run": sum(path.stat().st_size for path in artifacts),
        "of_them_traces": sum(path.stat().st_size for path in artifacts if path.parent.name == "trace"),
    }


def real_run(output: Path) -> Path:
    command = [sys.executable, str(ROOT / "profiling"), "run", str(ROOT / "experiments" / "matmul_add.yaml")]
    options = ["--n", "64", "--device", "cpu", "--no-mlflow", "--no-diff", "--output", str(output)]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return output


def timed_history(folder: Path) -> float:
    """`proftrack history` as a user calls it: Python's start and all imports included."""
    begin = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "proftrack",
        "history",
        EXPERIMENT,
        "--format",
        "csv",
        "-o",
        str(folder / "h.csv"),
        "--dirty",
    ]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def sizes(postgres: Postgres) -> dict[str, tuple[int, int]]:
    """Rows, and bytes with indexes, of the tables that hold runs."""
    postgres.execute("vacuum analyze")
    return {
        name: (
            postgres.execute(f"select count(*) from {name}")[0][0],
            postgres.execute(f"select pg_total_relation_size('{name}')")[0][0],
        )
        for name in ("runs", "metrics", "latest_metrics", "params", "tags")
    }


def multiply(postgres: Postgres, template: str, copies: int, points: int) -> None:
    began, step = int(time.time()) - DAYS * 86400, DAYS * 86400 // (copies + 1)
    for table in ("runs", "metrics", "latest_metrics", "params", "tags"):
        columns = [
            row[0]
            for row in postgres.execute(
                "select column_name from information_schema.columns "
                f"where table_name = '{table}' and is_generated = 'NEVER'"
            )
        ]
        values = [f'"{column}"' for column in columns]
        for number, column in enumerate(columns):
            if column == "run_uuid":
                values[number] = "md5('run' || g)"
            elif table == "runs" and column in ("start_time", "end_time"):
                values[number] = f"({began} + {step} * g)::bigint * 1000"
            elif table in ("metrics", "latest_metrics") and column == "value":
                # Box and Muller's normal noise of one per cent; counts do not vary.
                noise = "0.01 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())"
                values[number] = f"case when key in {COUNTS} then value else value * (1 + {noise}) end"
            elif table == "params" and column == "value":
                values[number] = f"case key when 'n' then (64 * (1 + g % {points}))::text else value end"
            elif table == "tags" and column == "value":
                cases = [
                    f"when '{key}' then {text.format(began=began, step=step, points=points)}"
                    for key, text in TAGS.items()
                ]
                values[number] = f"case key {' '.join(cases)} else value end"
        names = ", ".join(f'"{column}"' for column in columns)
        postgres.execute(
            f"insert into {table} ({names}) select {', '.join(values)} from {table}, generate_series(1, {copies}) g "
            f"where run_uuid = '{template}'"
        )


if __name__ == "__main__":
    main()

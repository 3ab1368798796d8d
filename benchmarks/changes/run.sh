#!/usr/bin/env bash
# Runs `changed` on this machine into FOLDER, each run in a fresh process: three unchanged runs, then one per change.
#   benchmarks/changes/run.sh FOLDER        then: proftrack compare FOLDER/a FOLDER/item   and so on
set -eu
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
run() { python3 "$here/../../profiling" run "$here/changed.yaml" --no-mlflow --output "$folder/$1" "${@:2}" >/dev/null; }
run a; run b; run c
run larger --n 4224
run launches --change launches
run item --change item
run compiled --change compiled

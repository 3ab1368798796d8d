#!/usr/bin/env bash
# Tests proftrack on Pythons other than that of .venv: every pin must exist for them, and the parts behind `proftrack
# analyze` (reader, measures, verdict, report as text, comparison) must pass their tests. That needs neither torch nor
# MLflow, so an environment takes only a minute; for all tests run `make test PYTHON=python3.13` in a separate clone.
# A Python that is not installed is skipped with a message.
#
#   PYTHONS   default "3.10 3.13": the oldest supported version, and one with a much different interpreter
#   PINS      the pins of conda.yaml, one per line; `make` writes them
set -euo pipefail
shopt -s extglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."
pins=${PINS:-.venv/pins.txt}
own=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# Started, not only looked up: pyenv puts shims on the PATH even for Pythons that are not selected.
find_python() {
  local each
  for each in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
    if "$each" -c 'import ensurepip, venv' 2>/dev/null; then
      echo "$each"
      return
    fi
  done
  return 1
}

for version in ${PYTHONS:-3.10 3.13}; do
  if [ "$version" = "$own" ]; then
    echo "Python $version: that of .venv, make test has run on it"
    continue
  fi
  if ! python=$(find_python "$version"); then
    echo "Python $version: skipped, this machine has none with venv (neither as python$version nor in pyenv)"
    continue
  fi
  venv=.venv/others/$version
  if [ ! -e "$venv/.done" ] || [ "$pins" -nt "$venv/.done" ] || [ requirements-dev.txt -nt "$venv/.done" ]; then
    echo "Python $version: looking for every pin, installing what needs no torch and no MLflow ..."
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --dry-run --requirement "$pins" --requirement requirements-dev.txt
    { grep -Ev '^(mlflow|nvidia-ml-py|torch|transformers)=' "$pins"
      grep -E '^(hypothesis|pytest)' requirements-dev.txt; } > "$venv/lean.txt"
    "$venv/bin/python" -m pip install --quiet --requirement "$venv/lean.txt"
    touch "$venv/.done"
  fi
  echo "Python $version:"
  PYTHONPATH=profiling "$venv/bin/python" -m pytest -q -p no:cacheprovider \
    --numprocesses auto --dist loadfile --no-loadscope-reorder \
    tests/test_{depth,experiment,analyze_cli,analysis_ranks,verdict_judge,verdict_rules}.py tests/test_trace_*.py \
    tests/test_measures_!(costs).py tests/test_compare_{changepoints,real,timing,why}.py tests/test_report_{lanes,text}.py
done

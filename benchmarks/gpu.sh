#!/usr/bin/env bash
# Everything that one card has to show: tests/gpu, then every cell of benchmarks/gpu.py, then a table.
#
#   bash benchmarks/gpu.sh [--device cuda|cpu] [--tiny] [--out DIR] [--minutes N]
#
# It installs nothing: it takes $PYTHON, benchmarks/.venv (sh benchmarks/setup_peers.sh), .venv or python3, whichever is
# there first, and cells of a peer that is not installed say so. What is done in DIR is not done again, so that the same
# command goes on after a limit of time. `--device cpu --tiny` runs every line on a machine without a card.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
device=cuda out=runs/gpu minutes=40 tiny=()
while [ $# -gt 0 ]; do
  case $1 in
    --tiny) tiny=(--tiny); shift ;;
    --device | --out | --minutes) declare "${1#--}=${2:?$1 needs a value}"; shift 2 ;;
    *) sed -n '2,4p' "$0" >&2; exit 2 ;;
  esac
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"

python=${PYTHON:-python3}
for found in benchmarks/.venv/bin/python .venv/bin/python; do
  if [ -z "${PYTHON:-}" ] && [ -x "$found" ]; then python=$root/$found; break; fi
done
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"

if ! "$python" -c "import pytest, hypothesis" 2>/dev/null; then
  echo "tests/gpu cannot run: $python lacks pytest or hypothesis; the cells follow" >&2
  echo 1 >"$out/tests.status"
elif [ ! -e "$out/tests.txt" ]; then
  # warnings are no failures here: one run on a card is to tell everything
  failed=0
  timeout $((60 * minutes < 540 ? 60 * minutes : 540)) \
    "$python" -m pytest tests/gpu --device "$device" -W default -rfEs --durations 5 >"$out/tests.tmp" 2>&1 || failed=$?
  if [ $failed = 124 ]; then echo "ended after its time limit" >>"$out/tests.tmp"; fi
  echo $failed >"$out/tests.status"
  mv "$out/tests.tmp" "$out/tests.txt"
  tail -n 1 "$out/tests.txt"
fi
"$python" benchmarks/gpu.py --device "$device" ${tiny[@]+"${tiny[@]}"} --out "$out" \
  --minutes "$((minutes - SECONDS / 60))"
exit "$(cat "$out/tests.status")"

#!/usr/bin/env bash
# Everything we want to know of a GPU, within 25 minutes. Writes into the folder given; needs no download.
#
#     benchmarks/run_gpu.sh RESULTS [PYTHON [STEP...]]
#
# Each step has its own limit and is interrupted, not killed, when that is reached: what it measured until then is
# printed and kept. PYTHON (default python3) needs this project's `standalone` extra and a CUDA build of torch.
# STEP: only these, of plan, tiny, routes, others, long, fp8; the longest takes nine and a half minutes.
set -uo pipefail
if [ $# -lt 1 ]; then
    echo "usage: benchmarks/run_gpu.sh RESULTS [PYTHON [STEP...]]" >&2
    exit 2
fi
mkdir -p "$1"
results=$(cd "$1" && pwd)
python=${2:-python3}
wanted=" ${*:3} "
cd "$(dirname "$0")/.."

step() {
    # step NAME SECONDS COMMAND...: the JSON line of the command to NAME.json, its progress to NAME.log
    local name=$1 seconds=$2
    shift 2
    if [[ $wanted != "  " && $wanted != *" $name "* ]]; then return; fi
    echo "$name (at most $seconds s): $*"
    timeout --signal=INT --kill-after=30 "$seconds" "$@" > "$results/$name.json" 2> "$results/$name.log"
    local code=$?
    echo "  exit code $code"
    tail -n 1 "$results/$name.log"
}

git rev-parse HEAD > "$results/commit.txt" 2> /dev/null
nvidia-smi > "$results/nvidia-smi.txt" 2>&1
bench=("$python" -m sdvg_core bench --json)

step plan 60 "$python" -m sdvg_core plan --json
# The check that the command works at all, before minutes are spent on it.
step tiny 90 "${bench[@]}" --scale tiny --device cuda --blocks 4 --repeats 1
# The four targets, and ours against the authors' order of work.
step routes 540 "${bench[@]}" --routes target-only anchor-only r=1 r=2 bail-out --repeats 3
step others 300 "${bench[@]}" --routes target-only draft-only r=4 r=8 --executions ours --repeats 2
# Cost per block of a long video: from block 3 on it should be flat.
step long 240 "${bench[@]}" --routes target-only r=1 --blocks 64 --executions ours --repeats 1
# Half the target's weights: what casting them up costs, and whether the memory is as planned.
step fp8 180 "${bench[@]}" --routes target-only r=1 --executions ours --repeats 2 --fp8
echo "results are in $results"

#!/usr/bin/env bash
# Everything we want to know of a GPU, what matters most first. Writes into the folder given; needs no download.
#
#     benchmarks/run_gpu.sh RESULTS [PYTHON [STEP...]]
#
# Each step has its own limit and is interrupted, not killed, when that is reached: what it measured until then is
# printed and kept. PYTHON (default python3) needs a CUDA build of torch, and this project's `standalone` extra: of it a
# stock PyTorch image with transformers, einops and safetensors lacks diffusers and, for the step `same`, ftfy and av.
# Where no package can be downloaded, carry those along as wheels (pip install --no-index --no-deps WHEEL...).
# STEP: only these, in the order below. At most they take, in seconds: plan 60, tiny 90, same 270, check 300,
# routes 540, decode 360, fast 540, decoders 360, check-full 540, others 300, attention 300, long 300,
# fp8 180, kv 240, two 360 (where there are two GPUs); together 79 minutes.
# Compiling takes minutes the first time; later steps find it in torch's own cache on disk.
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

commit=$(git rev-parse HEAD 2> /dev/null)
if [ -n "$commit" ]; then
    # Steps repeated from another commit must not pass for this one's.
    grep -qxF "$commit" "$results/commit.txt" 2> /dev/null || echo "$commit" >> "$results/commit.txt"
fi
nvidia-smi > "$results/nvidia-smi.txt" 2>&1
bench=("$python" -m benchmarks --json)

step plan 60 "$python" -m sdvg_core plan --json
# The check that the command works at all, before minutes are spent on it.
step tiny 90 "${bench[@]}" --scale tiny --device cuda --blocks 4 --repeats 1
# Whether this GPU makes the video that a CPU makes, in every way there is, with trained models and real decisions.
step same 270 "$python" -m benchmarks.same_on_gpu cuda --json
# Whether the fast executions make the same video as the plain one, and the greatest differences; first with models
# so small that compiling is most of the time, then (check-full) with the real ones. One kind of VAE layers, for its
# decoder compiles longest; a size that gives attention more than a few tokens.
step check 300 "${bench[@]}" --check --scale tiny --device cuda --blocks 4 --size 128x128 --dtype bfloat16 \
    --vae-dtype float16 --executions compiled+planes
# The four targets, and ours against the authors' order of work.
step routes 540 "${bench[@]}" --routes target-only anchor-only first=2+2 r=1 r=2 bail-out --repeats 3
# The VAE's layers, as they are and compiled: look at the seconds of decoding.
step decode 360 "${bench[@]}" --routes draft-only --blocks 4 --repeats 3 --executions ours diffusers compiled
# What compiling and the better layers bring, baseline included.
step fast 540 "${bench[@]}" --routes target-only anchor-only r=1 r=2 --executions ours diffusers compiled \
    --repeats 2
# A fast decoder: what is left of the time if decoding costs next to nothing.
step decoders 360 "${bench[@]}" --routes target-only anchor-only r=1 r=2 --executions ours tae lightvae \
    --repeats 2
step check-full 540 "${bench[@]}" --check --blocks 4 --executions compiled+planes
step others 300 "${bench[@]}" --routes target-only draft-only r=4 r=8 --executions ours --repeats 2
# torch's own choice of kernel; the other steps take cuDNN's on Hopper.
step attention 300 "${bench[@]}" --routes target-only r=1 --executions ours --repeats 2 --attention sdpa
# Cost per block of a long video: from block 3 on it should be flat.
step long 300 "${bench[@]}" --routes target-only r=1 --blocks 64 --executions ours --repeats 1
# Half the target's weights: what casting them up costs, and whether the memory is as planned.
step fp8 180 "${bench[@]}" --routes target-only r=1 --executions ours --repeats 2 --fp8
# Half the keys' and values' bytes: what rounding and reading them back costs.
step kv 240 "${bench[@]}" --routes target-only r=1 --executions ours --repeats 2 --kv-dtype float8_e4m3fn
# VAE and scorer on a device of their own: what copying between the two costs, and the memory of each.
if [ "$("$python" -c 'import torch; print(torch.cuda.device_count())')" -gt 1 ]; then
    step two 360 "${bench[@]}" --side-device cuda:1 --routes target-only anchor-only r=1 --repeats 2 \
        --executions ours compiled+planes
fi
echo "results are in $results"
"$python" -m benchmarks.results "$results"

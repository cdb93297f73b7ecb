#!/usr/bin/env bash
# run.sh RESULTS [MODEL.gguf]: everything that the CUDA backend is to show on a card, in under 8 minutes. MODEL is
# SmolLM2-135M-Instruct.Q4_1.gguf, which the folder has no room for. Each part writes its output into RESULTS;
# summary.json gathers them and is written anew after each. A part that fails does not stop the others; those for which
# no time is left ($QUIRE_CHECK_SECONDS, 470) are skipped by name. Ends with 1 when one failed or was skipped.
#
# QUIRE_CHECK_TRY=SHAPE: the same command lines on the CPU, with that one shape and a sixteenth of the batches and
# prompts, so that they are tried where there is no card.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$(mkdir -p "${1:?a folder for the results}" && cd "$1" && pwd)
model=$(realpath -m "${2:-/nonexistent}")
try=${QUIRE_CHECK_TRY:+$(realpath -m "$QUIRE_CHECK_TRY")}
device=${try:+cpu}
device=${device:-cuda}
seconds=${QUIRE_CHECK_SECONDS:-470}
cd "$here" || exit 1
if [[ ! -d bin ]]; then tar -xzf programs.tar.gz || exit 1; fi
# Beside the system's own: only what it lacks.
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:$here/lib"
export PYTHONDONTWRITEBYTECODE=1
rm -f "$results"/*.json "$results"/*.txt

summarise() { python3 summary.py "$results" >"$results/summary.tmp" && mv "$results/summary.tmp" "$results/summary.json"; }

# skip NAME REASON
skip() {
  echo "$1 skipped 0 $2" >>"$results/parts.txt"
  echo "$1: SKIPPED: $2"
}

# part NAME SECONDS COMMAND...
part() {
  local name=$1 limit=$2 started=$SECONDS code=0
  shift 2
  if ((limit > seconds - SECONDS)); then limit=$((seconds - SECONDS)); fi
  if ((limit < 5)); then
    skip "$name" "no time left of $seconds s"
    return
  fi
  timeout -k 5 "$limit" "$@" >"$results/$name.txt" 2>&1 || code=$?
  local reason=""
  if ((code == 124 || code == 137)); then
    reason="longer than $limit s"
  elif ((code != 0)); then
    reason=$(grep -v '^ *$' "$results/$name.txt" | tail -n 1 | cut -c1-300)
  fi
  echo "$name $code $((SECONDS - started)) $reason" >>"$results/parts.txt"
  if ((code == 0)); then
    echo "$name: passed, $((SECONDS - started)) s"
  else
    echo "$name: FAILED, exit code $code, $((SECONDS - started)) s${reason:+: $reason}"
    tail -n 12 "$results/$name.txt"
  fi
  summarise
}

# tests NAME SECONDS FILTER COMMAND...: of a test program those that the filter selects; that none ran is a failure.
tests() {
  local name=$1 limit=$2 filter=$3
  shift 3
  part "$name" "$limit" python3 tests.py "$results/$name.json" "$@" "--gtest_filter=$filter"
}

# oracle NAME FLAG...: the model beside the record of it.
oracle() {
  local name=$1
  shift
  if [[ ! -e $model ]]; then
    skip "$name" "no model was given (SmolLM2-135M-Instruct.Q4_1.gguf as the second argument)"
    return
  fi
  part "$name" 60 python3 oracle.py --quire bin/quire --data data --model "$model" --output "$results/$name.json" "$@" \
    -- --device "$device"
}

# shape NAME; size NUMBER
divisor=${try:+16}
divisor=${divisor:-1}
shape() { echo "${try:-shapes/$1}"; }
size() { echo $((divisor > 1 && $1 > divisor ? $1 / divisor : $1)); }
# latency NAME SHAPE SECONDS BATCH IN OUT ITERATIONS [FLAG...]
latency() {
  local name=$1 limit=$3 batch=$4 in=$5 out=$6 iterations=$7 of
  of=$(shape "$2")
  shift 7
  part "$name" "$limit" bin/quire bench latency "$of" --load-format dummy --skip-tokenizer-init --device "$device" \
    --max-model-len 16384 --batch-size "$(size "$batch")" --input-len "$(size "$in")" --output-len "$out" \
    --max-num-seqs 256 --num-iters-warmup 1 --num-iters "$iterations" --output-json "$results/$name.json" "$@"
}

# throughput NAME SHAPE SECONDS REQUESTS IN OUT RANGE [FLAG...]
throughput() {
  local name=$1 limit=$3 requests=$4 in=$5 out=$6 range=$7 of
  of=$(shape "$2")
  shift 7
  part "$name" "$limit" bin/quire bench throughput "$of" --load-format dummy --skip-tokenizer-init \
    --disable-detokenize --device "$device" --max-model-len 4096 --num-prompts "$(size "$requests")" \
    --input-len "$(size "$in")" --output-len "$(size "$out")" --random-range-ratio "$range" --max-num-seqs 256 \
    --max-num-batched-tokens 16384 --async-scheduling --output-json "$results/$name.json" "$@"
}

part card 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader
part limits 60 bin/quire bench kernels --device "$device" --limits-only --output-json "$results/limits.json"

# What is computed.
tests ops 150 '*cuda*' bin/test_ops
tests tiny_models_float32 60 '*TinyModels.*_cuda' bin/test_runner
tests tiny_models_bfloat16 60 '*RoundedModels.*_cuda' bin/test_runner
tests recorded_steps 60 '*RecordedSteps.*_cuda' bin/test_runner
tests runner 60 '*cuda*-*TinyModels.*:*RoundedModels.*:*RecordedSteps.*' bin/test_runner
tests engine 90 '*' bin/test_engine_cuda
oracle smollm2_float32
oracle smollm2 --as-it-comes

# How fast.
latency llama_8b_1 llama-3.1-8b 60 1 1024 64 3
latency llama_8b_1_eager llama-3.1-8b 60 1 1024 64 1 --enforce-eager
latency llama_8b_32 llama-3.1-8b 60 32 1024 64 2 --max-num-batched-tokens 8192
latency llama_8b_32_overlap llama-3.1-8b 60 32 1024 64 2 --max-num-batched-tokens 8192 --async-scheduling
latency llama_8b_128 llama-3.1-8b 60 128 1024 64 1 --max-num-batched-tokens 8192 --async-scheduling
latency llama_8b_256 llama-3.1-8b 60 256 1024 64 1 --max-num-batched-tokens 8192 --async-scheduling
latency llama_8b_prefill_2k llama-3.1-8b 60 1 2048 1 5 --max-num-batched-tokens 2048
latency llama_8b_prefill_8k llama-3.1-8b 60 1 8192 1 3 --max-num-batched-tokens 8192
if [[ $device == cuda ]]; then
  for backend in flashinfer fa3; do
    latency "llama_8b_prefill_8k_$backend" llama-3.1-8b 60 1 8192 1 3 --max-num-batched-tokens 8192 --attention-backend "$backend"
  done
  latency llama_8b_32_flashinfer llama-3.1-8b 60 32 1024 64 1 --max-num-batched-tokens 8192 --attention-backend flashinfer
  # Queries of latent attention, rounded, have room in the scratch up to some 7,500 tokens.
  latency deepseek_v2_lite_64_flashinfer deepseek-v2-lite 60 64 512 32 1 --max-num-batched-tokens 4096 --async-scheduling \
    --attention-backend flashinfer
fi
throughput llama_8b_fp8 llama-3.1-8b 90 512 1000 1000 0 --quantization fp8 --kv-cache-dtype fp8
# nano-vllm's benchmark: 256 requests, 100 to 1,024 tokens in and out.
throughput qwen3_06b_nano qwen3-0.6b 60 256 562 562 0.82
# The host's time between two steps: the smaller the model, the more it counts.
latency qwen3_06b_256 qwen3-0.6b 60 256 512 256 1 --max-num-batched-tokens 8192
latency qwen3_06b_256_overlap qwen3-0.6b 60 256 512 256 1 --max-num-batched-tokens 8192 --async-scheduling
latency qwen3_30b_a3b_64 qwen3-30b-a3b 90 64 512 32 1 --max-num-batched-tokens 8192 --async-scheduling
latency deepseek_v2_lite_64 deepseek-v2-lite 60 64 512 32 1 --max-num-batched-tokens 8192 --async-scheduling

# What a test does not see: accesses outside of what was allocated.
if command -v compute-sanitizer >/dev/null; then
  tests sanitizer_model 90 '*TinyModels.LogitsAndPromptLogprobs*/llama_cuda' compute-sanitizer --error-exitcode 9 bin/test_runner
  tests sanitizer_attention 60 '*TensorCores*cuda_*_F16' compute-sanitizer --error-exitcode 9 bin/test_ops
else
  skip sanitizer_model "this machine has no compute-sanitizer"
  skip sanitizer_attention "this machine has no compute-sanitizer"
fi

summarise
! grep -qv '^[^ ]* 0 ' "$results/parts.txt"

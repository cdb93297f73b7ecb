#!/usr/bin/env bash
# run.sh RESULTS [MODEL.gguf]: everything that the CUDA backend is to show on a card, in under 8 minutes. Each part writes
# its output into RESULTS; summary.json gathers them. A part that fails does not stop the others. Ends with 1 when one did.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$(mkdir -p "${1:?a folder for the results}" && cd "$1" && pwd)
model=$(realpath -m "${2:-/nonexistent}")
cd "$here"
if [[ ! -d bin ]]; then tar -xzf programs.tar.gz || exit 1; fi
# Beside the system's own: only what it lacks.
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:$here/lib"
: >"$results/parts.txt"

# part NAME SECONDS COMMAND...
part() {
  local name=$1 limit=$2 started=$SECONDS code=0
  shift 2
  timeout "$limit" "$@" >"$results/$name.txt" 2>&1 || code=$?
  echo "$name $code $((SECONDS - started))" >>"$results/parts.txt"
  echo "$name: exit code $code, $((SECONDS - started)) s"
  if ((code != 0)); then tail -n 12 "$results/$name.txt"; fi
}

part card 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader

part ops 150 bin/test_ops --gtest_filter='*cuda*' "--gtest_output=json:$results/ops.json"
part tiny_models 60 bin/test_runner --gtest_filter='*cuda*' "--gtest_output=json:$results/tiny_models.json"
if command -v compute-sanitizer >/dev/null; then
  part sanitizer_attention 60 compute-sanitizer --error-exitcode 9 bin/test_ops --gtest_filter='*TensorCores*cuda_f*_F16'
  part sanitizer 90 compute-sanitizer --error-exitcode 9 bin/test_runner --gtest_filter='*/llama_cuda'
fi
if [[ -e $model ]]; then
  part model 60 bin/quire complete "$model" --device cuda --temperature 0 --max-tokens 32 "The capital of France is"
  part model_latency 60 bin/quire bench latency "$model" --device cuda --batch-size 1 --input-len 512 --output-len 128 \
    --num-iters-warmup 1 --num-iters 3 --output-json "$results/model_1.json"
fi

# latency NAME SHAPE SECONDS BATCH IN OUT [FLAG...]
latency() {
  local name=$1 shape=$2 limit=$3 batch=$4 in=$5 out=$6
  shift 6
  part "$name" "$limit" bin/quire bench latency "shapes/$shape" --load-format dummy --skip-tokenizer-init --device cuda \
    --max-model-len 16384 --batch-size "$batch" --input-len "$in" --output-len "$out" --max-num-seqs 256 \
    --num-iters-warmup 1 --num-iters 3 --output-json "$results/$name.json" "$@"
}
latency llama_8b_1 llama-3.1-8b 60 1 1024 64
latency llama_8b_1_eager llama-3.1-8b 60 1 1024 64 --enforce-eager
latency llama_8b_32 llama-3.1-8b 60 32 1024 64 --max-num-batched-tokens 8192
latency llama_8b_128 llama-3.1-8b 60 128 1024 32 --max-num-batched-tokens 8192
latency llama_8b_256 llama-3.1-8b 60 256 1024 32 --max-num-batched-tokens 8192 --async-scheduling
latency llama_8b_prefill_2k llama-3.1-8b 60 1 2048 1 --max-num-batched-tokens 2048
latency llama_8b_prefill_8k llama-3.1-8b 60 1 8192 1 --max-num-batched-tokens 8192
for backend in flashinfer fa3; do
  latency "llama_8b_prefill_8k_$backend" llama-3.1-8b 60 1 8192 1 --max-num-batched-tokens 8192 --attention-backend "$backend"
done
latency llama_8b_32_flashinfer llama-3.1-8b 60 32 1024 64 --max-num-batched-tokens 8192 --attention-backend flashinfer
latency llama_8b_32_overlap llama-3.1-8b 60 32 1024 64 --max-num-batched-tokens 8192 --async-scheduling
# throughput NAME SHAPE SECONDS REQUESTS IN OUT RANGE [FLAG...]
throughput() {
  local name=$1 shape=$2 limit=$3 requests=$4 in=$5 out=$6 range=$7
  shift 7
  part "$name" "$limit" bin/quire bench throughput "shapes/$shape" --load-format dummy --skip-tokenizer-init \
    --disable-detokenize --device cuda --max-model-len 4096 --num-prompts "$requests" --input-len "$in" --output-len "$out" \
    --random-range-ratio "$range" --max-num-seqs 256 --max-num-batched-tokens 16384 --async-scheduling \
    --output-json "$results/$name.json" "$@"
}
# nano-vllm's benchmark: 256 requests, 100 to 1,024 tokens in and out.
throughput qwen3_06b_nano qwen3-0.6b 60 256 562 562 0.82
throughput llama_8b_fp8 llama-3.1-8b 90 512 1000 1000 0 --quantization fp8 --kv-cache-dtype fp8
latency qwen3_30b_a3b_64 qwen3-30b-a3b 90 64 512 32 --max-num-batched-tokens 8192 --async-scheduling
for backend in native flashinfer; do
  latency "deepseek_v2_lite_64_$backend" deepseek-v2-lite 60 64 512 32 --max-num-batched-tokens 4096 --async-scheduling \
    --attention-backend "$backend"
done

python3 "$here/summary.py" "$results" >"$results/summary.json" 2>"$results/summary_errors.txt" || true
! awk '$2 != 0' "$results/parts.txt" | grep -q .

#!/usr/bin/env bash
# cuda_check.sh [FOLDER, build/cuda-check]: makes a folder that checks and measures the CUDA backend on a machine that has
# a card, NVIDIA's driver and CUDA 13's libraries and nothing else of ours:
#
#     FOLDER/run.sh RESULTS [MODEL.gguf]
#
# MODEL is the default one, SmolLM2-135M-Instruct.Q4_1.gguf, for which the folder has no room: without it the parts that
# want it are skipped by name. The folder holds the programs (built for $QUIRE_CUDA_ARCHITECTURES, 90a-real), their
# libraries that such a machine may lack, the tiny checkpoints, the record of the model's answers and the shapes of
# bench/shapes. Made without a card. run.sh writes RESULTS/summary.json.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"

folder=$(realpath -m "${1:-build/cuda-check}")
build=build/cuda-check-build
open_log cuda_check.log
step "configuring" cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_CUDA=ON -DQUIRE_BUILD_EXAMPLES=OFF \
  -DQUIRE_BUILD_BENCHMARKS=OFF -DQUIRE_FLASHINFER=ON "-DQUIRE_CUDA_ARCHITECTURES=${QUIRE_CUDA_ARCHITECTURES:-90a-real}" -DQUIRE_TEST_DATA=data
step "building" cmake --build "$build" --target quire test_ops test_runner test_engine_cuda

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib" "$folder/data/e2e" "$folder/data/tokenizers" "$folder/shapes"
for program in "$build/src/cli/quire" "$build"/tests/test_{ops,runner} "$build/tests/cuda_on_host/test_engine_cuda"; do
  strip -o "$folder/bin/$(basename "$program")" "$program"
  # What is no part of every Linux with a C++ compiler goes along.
  ldd "$program" | awk '$3 ~ /^\// && $3 !~ /\/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|resolv)\.so/ {print $3}' |
    xargs -r cp -Lt "$folder/lib"
done
# Programs shrink to a third.
tar -C "$folder" --remove-files -czf "$folder/programs.tar.gz" bin lib
cp -r tests/data/e2e/tiny tests/data/e2e/smollm2.json "$folder/data/e2e/"
cp tests/data/tokenizers/small_bpe.json "$folder/data/tokenizers/"
cp -r bench/shapes/*/ "$folder/shapes/"
cp scripts/cuda_check/run.sh scripts/cuda_check/*.py tests/e2e/harness.py tests/e2e/recorded_answers.py "$folder/"
git log -1 --format=%H >"$folder/commit" 2>/dev/null || true
size=$(du -sm "$folder" | cut -f1)
say "$folder: $size MiB"
((size < 60)) || die "the folder is to be under 60 MiB"

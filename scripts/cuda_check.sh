#!/usr/bin/env bash
# cuda_check.sh [FOLDER, build/cuda-check]: makes a folder with which a copy of this tree checks and measures the CUDA
# backend on a machine that has a card, NVIDIA's driver, CUDA 13's cuBLASLt (pip's will do) and Python:
#
#     scripts/cuda_check/run.sh --correct RESULTS [MODEL PIECE...]
#     scripts/cuda_check/run.sh --fast RESULTS
#
# each in under 9 minutes; scripts/cuda_check/check.py says what comes of them. Folder and tree together, but for what the
# check does not read, are to be under 60 MiB: programs (built for $QUIRE_CUDA_ARCHITECTURES, 90a-real) with the kernels in
# one library for all of them; data, shapes and scripts are the tree's. Made without a card.
#
# cuda_check.sh --model MEBIBYTES FOLDER: the default model in pieces of so many, to be taken there one after the other.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"

if [[ ${1-} == --model ]]; then
  mkdir -p "${3:?a folder for the pieces}"
  split -b "${2:?mebibytes}M" -d "$(scripts/fetch_model.sh)" "$3/model."
  say "$(find "$3" -name 'model.*' | sort | tr '\n' ' ')"
  exit 0
fi

folder=$(realpath -m "${1:-build/cuda-check}")
build=build/cuda-check-build
open_log cuda_check.log
step "configuring" cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_CUDA=ON -DQUIRE_CUDA_SHARED=ON \
  -DQUIRE_BUILD_EXAMPLES=OFF -DQUIRE_BUILD_BENCHMARKS=OFF -DQUIRE_UNITY=ON -DQUIRE_ISAS=runnable -DQUIRE_WERROR=ON \
  "-DQUIRE_FLASHINFER=${QUIRE_FLASHINFER:-ON}" \
  "-DQUIRE_CUDA_ARCHITECTURES=${QUIRE_CUDA_ARCHITECTURES:-90a-real}" -DQUIRE_TEST_DATA=data
step "building" cmake --build "$build" --target quire test_ops test_runner test_engine_cuda

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib"
strip -o "$folder/lib/libquire_ops_cuda.so" "$build/src/libquire_ops_cuda.so"
for program in "$build/src/cli/quire" "$build"/tests/test_{ops,runner} "$build/tests/cuda_on_host/test_engine_cuda"; do
  strip -o "$folder/bin/$(basename "$program")" "$program"
  # What is no part of every Linux with a C++ compiler goes along.
  ldd "$program" | awk '$3 ~ /^\// && $3 !~ /\/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|resolv|quire_ops_cuda)\.so/ {print $3}' |
    xargs -r cp -Lt "$folder/lib"
done
step "packing" tar -C "$folder" --remove-files -I 'xz -9e -T2' -cf "$folder/programs.tar.xz" bin lib
git log -1 --format=%H >"$folder/commit" 2>/dev/null || true
ours=$(du -sb "$folder" | cut -f1)
# What no part of the check reads may stay behind.
unread=(docs src web python examples deploy bench/results tests/fuzz 'tests/*.cpp'
  tests/data/{embeddings,templates,tokenizers} tests/data/e2e/{tiny_gguf,tokenizers})
git ls-files -- tests bench/shapes scripts "${unread[@]/#/:!}" >"$folder/read"
git ls-files -- tests/data/tokenizers/small_bpe.json >>"$folder/read"
tree=$({
  git ls-files -z -co --exclude-standard -- . "${unread[@]/#/:!}"
  git ls-files -z -- tests/data/tokenizers/small_bpe.json
} | du -cb --files0-from=- | tail -n 1 | cut -f1)
mebibytes() { printf '%d.%d' $(($1 >> 20)) $((($1 & 1048575) * 10 >> 20)); }
say "$folder: $(mebibytes "$ours") MiB, $(find "$folder" -type f | wc -l) files; the tree: $(mebibytes "$tree") MiB, without ${unread[*]} (but small_bpe.json)"
((ours + tree < 60 << 20)) || die "folder and tree are to be under 60 MiB"

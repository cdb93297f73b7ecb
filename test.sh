#!/usr/bin/env bash
# Sets everything up, builds everything and runs every test: ./test.sh [arguments of ctest, for example -R kv -L e2e]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
cd "$quire_root"

preset=release
if [[ ${CI-} == true ]]; then preset=ci; fi  # where warnings are errors

open_log test.log
scripts/setup.sh
step "fetching the default model" scripts/fetch_model.sh
step "preparing the end-to-end tests' Python" scripts/python_env.sh
# For one kind of card, the one that is here, else Hopper's, whose kernels are most, and as PTX for others; the sources are also
# compiled for the emulated device. No test runs a micro-benchmark.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d . || true)
if [[ ! $capability =~ ^[0-9]+$ ]]; then capability=90; fi
step "configuring ($preset)" cmake --preset "$preset" -DQUIRE_UNITY=ON -DQUIRE_ISAS=runnable -DQUIRE_CUDA=AUTO \
  "-DQUIRE_CUDA_ARCHITECTURES=${capability/#90/90a}-real;80-virtual" -DQUIRE_BUILD_BENCHMARKS=OFF
step "building" cmake --build --preset "$preset"

# Cases that skipped themselves stand before ctest's summary, by suite and reason; of a suite that ran, ctest says nothing.
rm -f build/release/skipped/*
with_skipped_cases() {
  awk -v folder=build/release/skipped '
    /^[0-9]+% tests passed/ {
      count = "cat " folder "/* 2>/dev/null | sed -E \"s/^([^.]*)\\\\.[^:]*: (.*)$/\\\\1: \\\\2/\" | sort | uniq -c"
      while ((count | getline line) > 0) {
        if (!any++) print "\nSkipped cases, by suite (names: " folder "):"
        print line
      }
      if (any) print ""
    }
    { print; fflush() }'
}
ctest --test-dir build/release --output-on-failure -j2 "$@" | with_skipped_cases

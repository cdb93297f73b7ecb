#!/usr/bin/env bash
# Random operations on the scheduler, the cache and a paged memory, 10^8 if not said, in worlds of rising seeds; stops at
# the first violation: scripts/soak_scheduler.sh [OPERATIONS [SEED]]. Report: build/soak_scheduler.txt
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

open_log soak_scheduler.log
"$quire_root/scripts/setup.sh"
step "building" bash -c "cd '$quire_root' && cmake --preset release -DQUIRE_BUILD_BENCHMARKS=ON && cmake --build --preset release --target quire_soak_scheduler"
"$quire_root/build/release/bench/quire_soak_scheduler" "${1:-100000000}" "${2:-1000000}" |
  tee "$quire_root/build/soak_scheduler.txt"

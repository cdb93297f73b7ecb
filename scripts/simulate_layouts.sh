#!/usr/bin/env bash
# Llama 3.1 70B in bfloat16 on eight cards of 80 GB, in several layouts, by the scheduler and a cost model in virtual time: the
# plot and the table of docs/distributed.md. Nothing is measured here; what the numbers stand for is said there.
#
#   scripts/simulate_layouts.sh [FOLDER]      (build/layouts)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"
folder=${1:-build/layouts}
mkdir -p "$folder"
simulate=build/release/bench/quire_simulate
[[ -x $simulate ]] || die "no $simulate; build the target quire_simulate"

# layout NAME STAGES RANKS SUM SUM_TOKEN HOP HOP_TOKEN: seconds.
layout() {
  "$simulate" --name "$1" --stages "$2" --ranks "$3" --sums 161 --seconds-per-sum "$4" --seconds-per-sum-token "$5" \
    --seconds-per-hop "$6" --seconds-per-hop-token "$7" --seconds-per-step 42.1e-3 --seconds-per-token 285e-6 \
    --seconds-per-pair 98e-9 --blocks 80000 --max-num-seqs 1024 --max-num-batched-tokens 2048 --max-model-len 8192 \
    --least-stage-tokens 256 --requests 20000 --rates 5,10,20,30,40,50,60,80 --csv "$folder/${1// /_}.csv"
}
layout "8 ranks by NVLink" 1 8 8e-6 0.14e-6 0 0
layout "8 ranks on two nodes" 1 8 20e-6 1.15e-6 0 0
layout "2 stages of 4 on two nodes" 2 4 6e-6 0.12e-6 10e-6 1.3e-6
layout "4 stages of 2 on two nodes" 4 2 4e-6 0.08e-6 10e-6 1.3e-6
layout "8 stages on two nodes" 8 1 0 0 10e-6 1.3e-6

#!/usr/bin/env bash
# From a fresh Debian 12 to a streamed answer: ./quickstart.sh ["your prompt"]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
cd "$quire_root"

case ${1-} in
  -h | --help)
    say 'usage: ./quickstart.sh ["your prompt"]'
    say 'Installs the packages, builds quire, fetches the default model (93 MB) and streams an answer.'
    exit 0
    ;;
esac
prompt=${1:-"What is the capital of France, and what is it known for?"}

open_log quickstart.log
scripts/setup.sh
# The model comes while the build keeps the processor busy.
scripts/fetch_model.sh >build/model.log 2>&1 &
fetching=$!
trap 'kill "$fetching" 2>/dev/null || true' EXIT
wait_for_model() {
  wait "$fetching" || {
    cat build/model.log
    return 1
  }
}
# For this machine alone, and the program alone: kernels of cards take longer to compile than all the rest.
cuda=(-DQUIRE_CUDA=OFF)
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d . || true)
if [[ $capability =~ ^[0-9]+$ ]]; then
  cuda=(-DQUIRE_CUDA=AUTO "-DQUIRE_CUDA_ARCHITECTURES=${capability/#90/90a}-real")
fi
step "configuring" cmake --preset release -DQUIRE_ISAS=native -DQUIRE_UNITY=ON -DQUIRE_BUILD_TESTS=OFF \
  -DQUIRE_BUILD_BENCHMARKS=OFF -DQUIRE_BUILD_EXAMPLES=OFF -DQUIRE_BUILD_LIBRARY=OFF -DQUIRE_PYTHON=OFF "${cuda[@]}"
step "building quire (a few minutes the first time)" cmake --build --preset release --target quire
step "fetching the default model" wait_for_model
quire=$quire_root/build/release/src/cli/quire

say "the answer to: $prompt"
say ""
"$quire" complete --chat --prompt "$prompt" --max-tokens 256 --temperature 0
say ""
say "next: $quire chat     or     $quire serve"

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
# One kind of card, and what others translate: more would show no more here.
step "configuring ($preset)" cmake --preset "$preset" -DQUIRE_CUDA=AUTO "-DQUIRE_CUDA_ARCHITECTURES=90a-real;80-virtual"
step "building" cmake --build --preset "$preset"
exec ctest --test-dir build/release --output-on-failure -j2 "$@"

#!/usr/bin/env bash
# Tests a model over the nodes of a Ray cluster: scripts/ray_test.sh [arguments of unittest, for example -k Ranks]
# Sets up Ray (85 MB, pinned, in a Python environment of its own) and the library that speaks to it. Afterwards
# ctest -R e2e.ray runs the same. The cluster is two nodes on this host, started by the test and ended with it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"

[[ -f build/release/CMakeCache.txt ]] || die "nothing is configured: cmake --preset release"
open_log ray_test.log
step "preparing the end-to-end tests' Python" scripts/python_env.sh
step "preparing Ray" scripts/python_env.sh build/ray-venv tests/e2e/ray_requirements.txt
step "configuring" cmake build/release -DQUIRE_RAY=ON
step "building" cmake --build build/release --target quire quire_ray ray_ranks
PYTHONDONTWRITEBYTECODE=1 exec build/ray-venv/bin/python tests/e2e/test_ray.py --quire build/release/src/cli/quire \
  --data tests/data "$@"

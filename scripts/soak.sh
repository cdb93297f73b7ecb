#!/usr/bin/env bash
# Mixed load with cancels on a server of the release build, on loopback, for some minutes (10 if not said), then checks
# that nothing was left over: scripts/soak.sh [MINUTES [CLIENTS [SEED]]]. Report: build/soak.txt
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

open_log soak.log
"$quire_root/scripts/setup.sh"
step "fetching the default model" "$quire_root/scripts/fetch_model.sh"
step "preparing Python" "$quire_root/scripts/python_env.sh"
step "building" bash -c "cd '$quire_root' && cmake --preset release && cmake --build --preset release --target quire"
exec "$quire_root/build/venv/bin/python" "$quire_root/tests/e2e/soak.py" --quire "$quire_root/build/release/src/cli/quire" \
  --minutes "${1:-10}" --clients "${2:-16}" --seed "${3:-1}" --report "$quire_root/build/soak.txt"

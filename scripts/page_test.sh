#!/usr/bin/env bash
# Tests the page in a real browser: scripts/page_test.sh [arguments of unittest, for example -k dashboard]
# Sets up Debian's chromium and playwright's driver (its Python package alone, pinned; no browser of its own). Afterwards
# ctest -R e2e.page runs the same. With --screenshots FOLDER it takes the pictures of docs/page instead.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"

quire=build/release/src/cli/quire
[[ -x $quire ]] || die "no $quire: cmake --preset release && cmake --build --preset release --target quire"
open_log page_test.log
read -r browser _ < <(columns browser)
if ! command -v "$browser" >/dev/null; then
  step "installing $browser" as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
    install --no-install-recommends "$browser"
fi
step "preparing playwright" scripts/python_env.sh build/page-venv tests/e2e/page_requirements.txt
step "fetching the default model" scripts/fetch_model.sh
PYTHONDONTWRITEBYTECODE=1 exec build/page-venv/bin/python tests/e2e/test_page.py --quire "$quire" --data tests/data "$@"

#!/usr/bin/env bash
# python_env.sh [FOLDER REQUIREMENTS [PYTHON]]: makes build/venv, the Python environment of the end-to-end tests, from
# tests/e2e/requirements.txt (every package pinned by hash), or another one, of Debian's Python or another. A second run
# compares a stamp only.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

venv=$quire_root/${1:-build/venv}
requirements=$quire_root/${2:-tests/e2e/requirements.txt}
stamp=$venv/.requirements

if cmp -s "$requirements" "$stamp" && "$venv/bin/python" -c '' 2>/dev/null; then exit 0; fi

python=${3:-$(debian_python)} || die "no python3; run scripts/setup.sh first"
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --require-hashes --requirement "$requirements"
"$venv/bin/python" -m pip check
cp "$requirements" "$stamp"

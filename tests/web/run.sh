#!/usr/bin/env bash
# run.sh FILE: a test in Node.js (Debian's nodejs, 18 or later); 77 (skipped) where there is none.
node=$(command -v nodejs || command -v node)
version=$("${node:-false}" --version 2>/dev/null | sed 's/^v\([0-9]*\).*/\1/')
if [[ ${version:-0} -lt 18 ]]; then
  echo "SKIPPED: no nodejs of version 18 or later (apt-get install nodejs)"
  exit 77
fi
exec "$node" --test "$1"

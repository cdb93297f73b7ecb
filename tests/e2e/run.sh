#!/usr/bin/env bash
# run.sh PYTHON SCRIPT ARGUMENTS...: a test in the end-to-end tests' Python; 77 (skipped) where that is not set up.
if [[ ! -x $1 ]]; then
  echo "SKIPPED: no $1 (scripts/python_env.sh makes it; scripts/page_test.sh for the page, scripts/ray_test.sh for Ray, scripts/schemathesis.sh for itself)"
  exit 77
fi
exec "$@"

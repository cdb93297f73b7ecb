#!/usr/bin/env bash
# Which lines do the tests reach? scripts/coverage.sh [arguments of ctest]. Prints a table by folder; needs gcov, which
# comes with g++. All tests by default; -LE e2e leaves the slow ones out.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"

open_log coverage.log
scripts/setup.sh
step "building with coverage" bash -c 'cmake --preset coverage && cmake --build --preset coverage'
find build/coverage -name '*.gcda' -delete
ctest --preset coverage -j2 "$@" >>"$quire_log" 2>&1 || say "warning: some tests failed; see $quire_log"

# gcov writes one JSON file an object file; a line counts as reached when any of them has run it.
exec "$(debian_python)" - "$quire_root" <<'PYTHON'
import collections, json, os, subprocess, sys

root = sys.argv[1]
lines = collections.defaultdict(dict)  # file -> line -> was it reached
for folder, _, names in os.walk(os.path.join(root, "build/coverage")):
    for name in (n for n in names if n.endswith(".gcda")):
        shown = subprocess.run(["gcov", "--json-format", "--stdout", name], cwd=folder, capture_output=True, text=True)
        for text in shown.stdout.splitlines():
            for file in json.loads(text)["files"]:
                path = os.path.relpath(os.path.join(root, file["file"]), root)
                if path.startswith("src/"):
                    for line in file["lines"]:
                        number = line["line_number"]
                        lines[path][number] = lines[path].get(number, False) or line["count"] > 0

folders = collections.defaultdict(lambda: [0, 0])
for path, seen in lines.items():
    for key in (os.path.dirname(path), "all"):
        folders[key][0] += sum(seen.values())
        folders[key][1] += len(seen)
if not folders:
    sys.exit("no test ran: nothing to report")
for key in sorted(folders, key=lambda k: (k == "all", k)):
    reached, total = folders[key]
    print(f"{key:24} {reached:6} of {total:6} lines  {100 * reached / total:5.1f} %")
PYTHON

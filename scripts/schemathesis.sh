#!/usr/bin/env bash
# schemathesis.sh QUIRE MODEL [CASES]: requests that schemathesis makes of /openapi.json, CASES (10,000) an endpoint, against
# a server of the given model, which should be a small one. Every answer must have a status, a content type and a body as
# the document says, and none may be a fault of the server's. MODEL is a .gguf file or a directory; the report goes to
# build/schemathesis. Of more than 100 cases each path has a run of its own and a line in build/schemathesis/table.txt as it
# ends: seconds, cases made, cases that hold, path.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

quire=${1:?the quire binary?}
model=${2:?a model?}
cases=${3:-10000}
out=$quire_root/build/schemathesis
venv=$out/venv
port=${PORT:-18765}
mkdir -p "$out"
quire=$(realpath "$quire")
model=$(realpath "$model")
cd "$out"  # schemathesis leaves a folder of its own where it runs
if [[ ! -x $venv/bin/schemathesis ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check schemathesis==4.32.5
fi

"$quire" serve "$model" --host 127.0.0.1 --port "$port" --enable-admin-endpoints --enable-tokenizer-info-endpoint --enable-lora --batch-folder "$out/batches" \
  --max-model-len 64 --enable-log-requests >"$out/server.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
until curl --silent --fail "http://127.0.0.1:$port/health" >/dev/null; do
  kill -0 $server || die "the server did not start; see $out/server.log"
  sleep 0.1
done

# What no model here can do is 501 by contract, which the second check would take for a fault.
checks=status_code_conformance,content_type_conformance,response_schema_conformance
missing='/(v1/embeddings|pooling|classify|v1/score|score|v1/rerank|v2/rerank|rerank|v1/embed|v2/embed)$'
examine() {  # CHECKS FILTER...
  local checks=$1
  shift
  "$venv/bin/schemathesis" run "http://127.0.0.1:$port/openapi.json" --checks "$checks" "$@" --phases fuzzing \
    --max-examples "$cases" --workers 2 --request-timeout 60 --generation-deterministic --continue-on-failure 2>&1
}

: >report.txt
: >table.txt
failed=0
if ((cases <= 100)); then
  examine "$checks,not_a_server_error" --exclude-path-regex "$missing" | tee -a report.txt || failed=1
  examine "$checks" --include-path-regex "$missing" | tee -a report.txt || failed=1
else
  for path in $(curl --silent "http://127.0.0.1:$port/openapi.json" |
    "$(debian_python)" -c 'import json, sys; print(*json.load(sys.stdin)["paths"])'); do
    all=$checks,not_a_server_error start=$SECONDS
    if [[ $path =~ $missing ]]; then all=$checks; fi
    examine "$all" --include-path "$path" >path.txt || failed=1
    cat path.txt >>report.txt
    made=$(sed -nE 's/.*\b([0-9]+) generated.*/\1/p' path.txt)
    hold=$(sed -nE 's/.*generated, ([0-9]+) passed.*/\1/p' path.txt)
    printf '%6d s %8s %8s  %s\n' $((SECONDS - start)) "${made:-?}" "${hold:-fewer}" "$path" | tee -a table.txt
  done
fi
kill -0 $server || die "the server died; see $out/server.log"
((failed == 0)) || die "answers that the document does not say; see $out/report.txt"

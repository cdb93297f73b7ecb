#!/usr/bin/env bash
# schemathesis.sh QUIRE MODEL [CASES]: requests that schemathesis makes of /openapi.json, CASES (10,000) an endpoint, against
# a server of the given model, which should be a small one. Every answer must have a status, a content type and a body as
# the document says, and none may be a fault of the server's. MODEL is a .gguf file or a directory; the report goes to
# build/schemathesis.
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

"$quire" serve "$model" --host 127.0.0.1 --port "$port" --enable-admin-endpoints --batch-folder "$out/batches" \
  --max-model-len 64 --enable-log-requests >"$out/server.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
until curl --silent --fail "http://127.0.0.1:$port/health" >/dev/null; do
  kill -0 $server || die "the server did not start; see $out/server.log"
  sleep 0.1
done

# What no model here can do is 501 by contract, which the second check would take for a fault.
checks=status_code_conformance,content_type_conformance,response_schema_conformance
missing='/(v1/embeddings|pooling|classify|v1/score|score|v1/rerank|v2/rerank|rerank)$'
"$venv/bin/schemathesis" run "http://127.0.0.1:$port/openapi.json" --checks "$checks,not_a_server_error" \
  --exclude-path-regex "$missing" --phases fuzzing --max-examples "$cases" --workers 2 --request-timeout 60 \
  --generation-deterministic --continue-on-failure 2>&1 | tee "$out/report.txt"
"$venv/bin/schemathesis" run "http://127.0.0.1:$port/openapi.json" --checks "$checks" --include-path-regex "$missing" \
  --phases fuzzing --max-examples "$cases" --workers 2 --generation-deterministic 2>&1 | tee "$out/report_missing.txt"
kill -0 $server || die "the server died; see $out/server.log"

#!/usr/bin/env bash
# From a fresh Debian 12 to a streamed answer: ./quickstart.sh ["your prompt"]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"
cd "$quire_root"

case ${1-} in
  -h | --help)
    say 'usage: ./quickstart.sh ["your prompt"]'
    say 'Installs the packages, builds quire, fetches the default model (93 MB) and streams an answer.'
    exit 0
    ;;
esac
prompt=${1:-"What is the capital of France, and what is it known for?"}

open_log quickstart.log
scripts/setup.sh
step "building quire (a few minutes the first time)" \
  bash -c 'cmake --preset release && cmake --build --preset release --target quire'
step "fetching the default model" scripts/fetch_model.sh
quire=$quire_root/build/release/src/cli/quire

say "the answer to: $prompt"
say ""
"$quire" complete --chat --prompt "$prompt" --max-tokens 256 --temperature 0
say ""
say "next: $quire chat     or     $quire serve"

#!/usr/bin/env bash
# clients.sh QUIRE [NAME...]: other people's clients, unchanged, each in a Python environment of its own (build/clients/NAME)
# against a server of the default model: langchain, llama_index, lm_eval, guidellm; against servers of models that embed
# and rank: embeddings (the clients of openai and cohere, LangChain's and LlamaIndex's classes), mteb (all, if none is
# named). By hand, not in CI: they are installed from PyPI, guidellm and mteb with PyTorch (some GiB). What they say goes to
# build/clients/NAME.txt. EMBEDDER is a folder with a sentence-transformers model for mteb; without it a tiny random one.
# TOKENIZER is a folder that transformers can read (tokenizer.json, tokenizer_config.json) of the default model's tokenizer,
# which lm_eval and guidellm count tokens with.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

quire=$(realpath "${1:?the quire binary?}")
shift
names=("$@")
if [[ ${#names[@]} == 0 ]]; then names=(langchain llama_index lm_eval guidellm embeddings mteb); fi
out=$quire_root/build/clients
port=${PORT:-18766}
base=http://127.0.0.1:$port
mkdir -p "$out"

declare -A packages=(
  [langchain]="langchain-openai==1.7.3"
  [llama_index]="llama-index-llms-openai-like==0.8.1"
  [lm_eval]="lm_eval[api]==0.4.13 transformers==5.23.0"
  [guidellm]="guidellm==0.8.1"
  [embeddings]="openai==3.57.0 cohere==5.21.1 langchain-openai==1.7.4 langchain-cohere==0.6.0
    llama-index-embeddings-openai-like==0.4.0 llama-index-embeddings-cohere==0.9.0 llama-index-postprocessor-cohere-rerank==0.10.0"
  [mteb]="mteb==2.26.24 sentence-transformers==6.2.0"
)
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$out/huggingface TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=1

data=$quire_root/tests/data/embeddings
embedder=${EMBEDDER:-$data/bert_mean}

# The server that a client is tried against. As for the end-to-end tests: the small model knows its capitals in 32 bits.
server=
serve() {
  local flags=(--activation-dtype float32 --enable-tokenizer-info-endpoint)
  if [[ $1 == embeddings ]]; then flags=(--dtype float32 --model "embed-english-v3.0=$data/bert_mean" --model "reranker=$data/bert_reranker"); fi
  if [[ $1 == mteb ]]; then flags=("$embedder" --served-model-name embedder); fi
  "$quire" serve --host 127.0.0.1 --port "$port" "${flags[@]}" >"$out/server.log" 2>&1 &
  server=$!
  until curl --silent --fail "$base/health" >/dev/null; do
    kill -0 $server || die "the server did not start; see $out/server.log"
    sleep 0.1
  done
  model=$("$(debian_python)" -c "import json, urllib.request as r
print(json.load(r.urlopen('$base/v1/models'))['data'][0]['id'])")
}
end_server() {
  if [[ -z $server ]]; then return; fi
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  server=
}
trap end_server EXIT

try_langchain() { "$1/python" "$quire_root/scripts/clients/try_langchain.py" "$base/v1" "$model"; }
try_llama_index() { "$1/python" "$quire_root/scripts/clients/try_llama_index.py" "$base/v1" "$model"; }

try_embeddings() { "$1/python" "$quire_root/scripts/clients/try_embeddings.py" "$base/v1" "$data"; }
try_mteb() { "$1/python" "$quire_root/scripts/clients/try_mteb.py" "$base/v1" "$embedder"; }

try_lm_eval() {
  local tasks=$out/lm_eval_tasks shared="model=$model,num_concurrent=4,max_retries=1"
  mkdir -p "$tasks"
  cp "$quire_root"/scripts/clients/lm_eval_tasks/* "$tasks"
  sed -i "s|DATA/|$tasks/|" "$tasks"/*.yaml
  "$1/lm_eval" run --model local-completions --include_path "$tasks" --tasks quire_capitals,quire_last_words,quire_rolling,quire_completed \
    --model_args "$shared,base_url=$base/v1/completions,tokenizer_backend=huggingface,tokenizer=${TOKENIZER:?a folder?}"
  "$1/lm_eval" run --model local-completions --include_path "$tasks" --tasks quire_completed \
    --model_args "$shared,base_url=$base/v1/completions,tokenizer_backend=None,tokenized_requests=False"
  # The server's own tokenizer, by /tokenizer_info, /tokenize and /detokenize.
  "$1/lm_eval" run --model local-completions --include_path "$tasks" --tasks quire_capitals,quire_completed \
    --model_args "$shared,base_url=$base/v1/completions,tokenizer_backend=remote"
  "$1/lm_eval" run --model local-chat-completions --include_path "$tasks" --tasks quire_completed --apply_chat_template \
    --model_args "$shared,base_url=$base/v1/chat/completions"
}

try_guidellm() {
  local format
  for format in /v1/chat/completions /v1/completions; do
    "$1/guidellm" run --backend "kind=openai_http,target=$base,request_format=$format" --profile kind=concurrent,streams=2 \
      --constraint kind=max_requests,count=6 --tokenizer "kind=huggingface_auto,model=${TOKENIZER:?a folder?}" \
      --data kind=synthetic_text,prompt_tokens=64,output_tokens=16 --output kind=console --disable-progress
  done
}

failed=()
for name in "${names[@]}"; do
  venv=$out/$name
  if [[ ! -e $venv/.done ]]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    # shellcheck disable=SC2086  # a list
    "$venv/bin/pip" install --quiet --disable-pip-version-check ${packages[$name]:?no such client}
    touch "$venv/.done"
  fi
  say "== $name"
  serve "$name"
  "try_$name" "$venv/bin" 2>&1 | tee "$out/$name.txt" || failed+=("$name")
  end_server
done
if [[ ${#failed[@]} != 0 ]]; then die "failed: ${failed[*]}"; fi

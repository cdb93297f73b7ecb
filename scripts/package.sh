#!/usr/bin/env bash
# Makes what package managers take, into build/packages:
#   scripts/package.sh [wheel|deb|tarball|container]... [-- CMAKE ARGUMENTS]
# Without a name: wheel, deb and tarball. All come from one build, build/package: kernels for every instruction set, no
# CUDA unless the arguments say otherwise. The container is built where docker (or podman, as DOCKER=podman) is here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"

wanted=()
while (($# > 0)) && [[ $1 != -- ]]; do
  case $1 in
    wheel | deb | tarball | container) wanted+=("$1") ;;
    *) die "there is no package \"$1\": expected wheel, deb, tarball or container" ;;
  esac
  shift
done
(($# == 0)) || shift
((${#wanted[@]} > 0)) || wanted=(wheel deb tarball)
build=build/package
out=$quire_root/build/packages
options=(-DQUIRE_ISAS=all -DQUIRE_UNITY=ON -DQUIRE_BUILD_TESTS=OFF -DQUIRE_BUILD_BENCHMARKS=OFF -DQUIRE_BUILD_EXAMPLES=OFF
  -DQUIRE_CUDA=OFF -DCMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON "$@")
wants() { [[ " ${wanted[*]} " == *" $1 "* ]]; }

open_log package.log
mkdir -p "$out"
step "preparing the packagers' Python" scripts/python_env.sh build/package-venv scripts/package_requirements.txt
venv=$quire_root/build/package-venv
step "configuring" cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr \
  "-DPython_EXECUTABLE=$venv/bin/python" -DQUIRE_PYTHON=ON "${options[@]}"
step "building" cmake --build "$build" --target quire quire_shared quire_python quire_python_stub
step "manual pages and completions" "$venv/bin/python" scripts/make_manuals.py "$build/src/cli/quire" "$build/manuals"

make_wheel() {
  local -a defines=()
  local option
  for option in "${options[@]}" -DQUIRE_PYTHON=ON; do defines+=("--config-settings=cmake.define.${option#-D}"); done
  rm -f "$out"/*.whl "$build"/wheel/*.whl
  "$venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --config-settings="build-dir=$quire_root/$build" "${defines[@]}" --wheel-dir "$build/wheel" ./python
  # Bundles what Debian has as shared libraries only, and names the oldest glibc that it runs on.
  PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair --strip --plat auto --wheel-dir "$out" "$build"/wheel/*.whl
  "$venv/bin/auditwheel" show "$out"/*.whl
  local bytes
  bytes=$(stat -c %s "$out"/*.whl)
  ((bytes < 40000000)) || die "the wheel has $bytes bytes; at most 40,000,000 are wanted"
}

# As somebody new would: a fresh environment, pip, three lines.
try_wheel() {
  local fresh=$quire_root/$build/fresh
  rm -rf "$fresh"
  "$(debian_python)" -m venv "$fresh"
  "$fresh/bin/pip" install --quiet --disable-pip-version-check "$out"/*.whl
  "$fresh/bin/quire" --version
  (cd / && "$fresh/bin/python" -c 'from quire import LLM, SamplingParams
llm = LLM()
print(llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text)')
}

make_tarball() { (cd "$build" && cpack -G TGZ -B "$out"); }

make_deb() {
  (cd "$build" && cpack -G DEB -B "$out")
  if command -v lintian >/dev/null; then lintian --fail-on error "$out"/*.deb; fi
}

if wants wheel; then
  step "wheel" make_wheel
  step "the wheel in a fresh environment" try_wheel
fi
if wants tarball; then step "tarball" make_tarball; fi
if wants deb || wants container; then step "Debian package" make_deb; fi
if wants container; then
  docker=${DOCKER:-docker}
  command -v "$docker" >/dev/null || die "no $docker here, which would build the container (DOCKER=podman: another)"
  cp "$out"/quire_*.deb "$build/quire.deb"
  step "container" "$docker" build --file packaging/Containerfile --tag quire "$build"
fi
(cd "$out" && ls -l)

#!/usr/bin/env bash
# Makes what package managers take, into build/packages:
#   scripts/package.sh [wheel|deb|tarball|container]... [--python PYTHON]... [-- CMAKE ARGUMENTS]
# Without a name: wheel, deb and tarball. All come from one build, build/package: kernels for every instruction set, no
# CUDA unless the arguments say otherwise. A wheel is of one version of Python: Debian's, or those of the interpreters named.
# The container is built where docker (or podman, as DOCKER=podman) is here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$quire_root"

wanted=()
pythons=()
while (($# > 0)) && [[ $1 != -- ]]; do
  case $1 in
    wheel | deb | tarball | container) wanted+=("$1") ;;
    --python)
      pythons+=("$(command -v "${2:?--python: which?}")") || die "--python $2: there is no such program"
      shift
      ;;
    *) die "there is no package \"$1\": expected wheel, deb, tarball or container" ;;
  esac
  shift
done
(($# == 0)) || shift
((${#wanted[@]} > 0)) || wanted=(wheel deb tarball)
((${#pythons[@]} > 0)) || pythons=("$(debian_python)")
build=build/package
out=$quire_root/build/packages
options=(-DQUIRE_ISAS=all -DQUIRE_UNITY=ON -DQUIRE_BUILD_TESTS=OFF -DQUIRE_BUILD_BENCHMARKS=OFF -DQUIRE_BUILD_EXAMPLES=OFF
  -DQUIRE_CUDA=OFF -DCMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON "$@")
wants() { [[ " ${wanted[*]} " == *" $1 "* ]]; }

open_log package.log
mkdir -p "$out"
# Where the packagers' tools are for that interpreter.
environment_of() { "$1" -c 'import sys; print("build/package-venv-%d.%d" % sys.version_info[:2])'; }
venv=$quire_root/$(environment_of "$(debian_python)")
step "preparing the packagers' Python" scripts/python_env.sh "${venv#"$quire_root/"}" scripts/package_requirements.txt
step "configuring" cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr \
  "-DPython_EXECUTABLE=$venv/bin/python" -DQUIRE_PYTHON=ON "${options[@]}"
step "building" cmake --build "$build" --target quire quire_shared quire_python quire_python_stub

# As Debian wants them: packed, without a time.
make_manuals() {
  rm -rf "$build/manuals"
  "$venv/bin/python" scripts/make_manuals.py "$build/src/cli/quire" "$build/manuals" || return
  gzip -9n "$build"/manuals/man1/* && gzip -9nc packaging/debian/changelog >"$build/manuals/changelog.gz"
}
step "manual pages and completions" make_manuals

# make_wheel PYTHON: by the packagers' environment of that interpreter, into build/package/wheel. Another one than Debian's has a
# build folder of its own, for the tools empty one that they meet with another interpreter; what was compiled is in ccache.
# (step asks what a function returns, and so takes `set -e` from it.)
make_wheel() {
  local -a defines=()
  local venv folder option bytes
  venv=$(environment_of "$1") && scripts/python_env.sh "$venv" scripts/package_requirements.txt "$1" || return
  folder=$build
  [[ $1 == "$(debian_python)" ]] || folder=${venv/-venv-/-}
  for option in "${options[@]}" -DQUIRE_PYTHON=ON; do defines+=("--config-settings=cmake.define.${option#-D}"); done
  rm -rf "$build/wheel"
  # The compiler of the build, not the one that the interpreter was compiled with.
  CC=${CC:-cc} CXX=${CXX:-c++} "$venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --config-settings="build-dir=$quire_root/$folder" "${defines[@]}" --wheel-dir "$build/wheel/built" ./python || return
  # Bundles what Debian has as shared libraries only, and names the oldest glibc that it runs on.
  PATH=$quire_root/$venv/bin:$PATH "$venv/bin/auditwheel" repair --strip --plat auto --wheel-dir "$build/wheel" \
    "$build"/wheel/built/*.whl || return
  "$venv/bin/auditwheel" show "$build"/wheel/*.whl || return
  bytes=$(stat -c %s "$build"/wheel/*.whl)
  ((bytes < 40000000)) || die "the wheel has $bytes bytes; at most 40,000,000 are wanted"
  # What is in the package's folder, and the licence.
  "$venv/bin/python" - "$build"/wheel/*.whl <<'PYTHON'
import pathlib, sys, zipfile
names = zipfile.ZipFile(sys.argv[1]).namelist()
wanted = {str(path.relative_to("python")) for path in pathlib.Path("python/quire").rglob("*") if path.suffix in (".py", ".typed")}
missing = sorted(wanted - set(names)) + [one for one in ("LICENSE", "NOTICE") if not any(n.endswith(f".dist-info/licenses/{one}") for n in names)]
sys.exit(f"the wheel lacks {missing}" if missing else 0)
PYTHON
}

# try_wheel PYTHON: as somebody new would, in a fresh environment: pip, three lines. What has answered is kept.
try_wheel() {
  local fresh=$quire_root/$build/fresh
  rm -rf "$fresh"
  "$1" -m venv "$fresh" || return
  "$fresh/bin/pip" install --quiet --disable-pip-version-check "$build"/wheel/*.whl || return
  "$fresh/bin/quire" --version || return
  (cd / && "$fresh/bin/python" -c 'from quire import LLM, SamplingParams
llm = LLM()
print(llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text)') || return
  mv "$build"/wheel/*.whl "$out"
}

make_tarball() { (cd "$build" && cpack -G TGZ -B "$out"); }

make_deb() {
  (cd "$build" && cpack -G DEB -B "$out") || return
  # Its maintainer has no mailbox.
  if command -v lintian >/dev/null; then
    lintian --fail-on error --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog "$out"/*.deb
  fi
}

# Wheels last: their tools configure the build folder for a place of their own.
if wants tarball; then step "tarball" make_tarball; fi
if wants deb || wants container; then step "Debian package" make_deb; fi
if wants wheel; then
  rm -f "$out"/*.whl
  for python in "${pythons[@]}"; do
    step "wheel of $("$python" --version)" make_wheel "$python"
    step "the wheel in a fresh environment" try_wheel "$python"
  done
fi
if wants container; then
  docker=${DOCKER:-docker}
  command -v "$docker" >/dev/null || die "no $docker here, which would build the container (DOCKER=podman: another)"
  cp "$out"/quire_*.deb "$build/quire.deb"
  step "container" "$docker" build --file packaging/Containerfile --tag quire "$build"
fi
(cd "$out" && ls -l)

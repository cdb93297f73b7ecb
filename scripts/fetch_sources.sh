#!/usr/bin/env bash
# Puts the packages that the build compiles into the user's cache folder and prints the folder of the one asked for:
# scripts/fetch_sources.sh NAME [--if-there]. In dependencies.txt they are for "source", a source package, or "headers",
# of a wheel what the list below names. Pinned by hash; a second run looks at the folder only. Called by CMake, so that
# configuring is all a build needs. --if-there: fetches nothing and prints nothing where it would have to.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Of wheels, what is kept.
headers=(flashinfer/data/include/ flashinfer/data/cutlass/include/ flashinfer/data/cutlass/tools/util/include/
  nanobind/ ray/cpp/include/)

name=${1:?which package? see dependencies.txt}
read -r requirement package_hash use < <(columns pypi | grep -E "^$name==[^ ]+ .* (source|headers)$") ||
  die "dependencies.txt has no source package $name"

cache=${XDG_CACHE_HOME:-${HOME:?neither XDG_CACHE_HOME nor HOME says where the cache folder is}/.cache}
folder=$cache/quire/sources/${requirement/==/-}-${package_hash:0:12}

if [[ ! -d $folder && ${2-} == --if-there ]]; then exit 0; fi
if [[ ! -d $folder ]]; then
  mkdir -p "${folder%/*}" || die "cannot make ${folder%/*}"
  # Two set-ups at once: one fetches, the other waits and finds it done. The lock goes with the process.
  exec 9>"${folder%/*}/.lock"
  flock 9
fi
if [[ ! -d $folder ]]; then
  partial=$folder.partial
  rm -rf "$partial"  # of a run that was interrupted
  mkdir "$partial"
  trap 'rm -rf "$partial"' EXIT
  python=$(debian_python) || die "no python3; run scripts/setup.sh first"
  printf '%s --hash=sha256:%s\n' "$requirement" "$package_hash" >"$partial/requirements.txt"
  # pip prepares a source package's metadata with its own build tools, which may come as wheels.
  form=(--no-binary "$name")
  if [[ $use == headers ]]; then form=(--only-binary :all:); fi
  "$python" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps "${form[@]}" \
    --require-hashes --dest "$partial" --requirement "$partial/requirements.txt" >&2 9>&- ||
    die "could not fetch $requirement: is a package index reachable (pip's own configuration is used)?"
  mkdir "$partial/source"
  if [[ $use == headers ]]; then
    "$python" - "$partial" "${headers[@]}" <<'PYTHON'
import glob, os, sys, zipfile
folder, *headers = sys.argv[1:]
(package,) = glob.glob(os.path.join(folder, "*.whl"))
with zipfile.ZipFile(package) as archive:
    wanted = [name for name in archive.namelist() if name.startswith(tuple(headers)) or "/licenses/" in name]
    archive.extractall(os.path.join(folder, "source"), wanted)
PYTHON
  else
    tar -xzf "$partial"/*.tar.gz -C "$partial/source" --strip-components=1
  fi
  mv "$partial/source" "$folder"
fi
printf '%s\n' "$folder"

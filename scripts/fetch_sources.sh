#!/usr/bin/env bash
# Puts the source packages that the build compiles (dependencies.txt, "for" is source) into the user's cache folder and
# prints the folder of the one asked for: scripts/fetch_sources.sh NAME. Pinned by hash; a second run looks at the folder
# only. Called by CMake, so that configuring is all a build needs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

name=${1:?which package? see dependencies.txt}
read -r requirement package_hash _ < <(columns pypi | grep -E "^$name==[^ ]+ .* source$") ||
  die "dependencies.txt has no source package $name"

cache=${XDG_CACHE_HOME:-${HOME:?neither XDG_CACHE_HOME nor HOME says where the cache folder is}/.cache}
folder=$cache/quire/sources/${requirement/==/-}-${package_hash:0:12}

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
  # pip prepares the package's metadata with its own build tools, which may come as wheels.
  "$python" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-binary "$name" \
    --require-hashes --dest "$partial" --requirement "$partial/requirements.txt" >&2 9>&- ||
    die "could not fetch $requirement: is a package index reachable (pip's own configuration is used)?"
  mkdir "$partial/source"
  tar -xzf "$partial"/*.tar.gz -C "$partial/source" --strip-components=1
  mv "$partial/source" "$folder"
fi
printf '%s\n' "$folder"

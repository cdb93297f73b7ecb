#!/usr/bin/env bash
# Installs the Debian packages of dependencies.txt that are missing, with one call of apt-get. Costs nothing when all
# are there. Run as root or by a user with sudo.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# "package version" of each given package that is installed.
installed_versions() {
  dpkg-query -W -f='${db:Status-Status} ${Package} ${Version}\n' "$@" 2>/dev/null |
    while read -r status package version; do
      if [[ $status == installed ]]; then printf '%s %s\n' "$package" "$version"; fi
    done
}

missing_packages() {
  local -A have=()
  local package version
  while read -r package version; do have[$package]=$version; done < <(installed_versions "${packages[@]}" || true)
  for package in "${packages[@]}"; do
    if [[ -z ${have[$package]-} ]]; then printf '%s\n' "$package"; fi
  done
}

packages=()
declare -A expected=()
while read -r package version _; do
  packages+=("$package")
  expected[$package]=$version
done < <(columns apt)

command -v dpkg-query >/dev/null ||
  die "this is no Debian system (no dpkg-query). Install what dependencies.txt lists by hand, then: cmake --preset release && cmake --build --preset release"

distribution=unknown
if [[ -r /etc/os-release ]]; then
  distribution=$(. /etc/os-release && printf '%s %s' "${ID:-unknown}" "${VERSION_ID:-}")
fi
if [[ $distribution != "debian 12" ]]; then
  say "warning: made for Debian 12, found $distribution: packages may be missing or of other versions"
fi

mapfile -t missing < <(missing_packages)
if ((${#missing[@]} > 0)); then
  if [[ $(id -u) != 0 ]] && ! command -v sudo >/dev/null; then
    die "these packages are missing and neither root nor sudo is here to install them. As root: apt-get install ${missing[*]}"
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  # What an interrupted installation left half done would stop apt-get.
  as_root dpkg --configure -a || die "dpkg --configure -a failed"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 update ||
    die "apt-get update failed: is a Debian mirror reachable, and may this user run sudo?"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
    install --no-install-recommends "${missing[@]}" ||
    die "apt-get could not install: ${missing[*]}"
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]} > 0)); then die "still missing after apt-get install: ${missing[*]}"; fi
fi

while read -r package version; do
  if [[ $version != "${expected[$package]}"* ]]; then
    say "warning: $package is version $version; dependencies.txt expects ${expected[$package]}*: the build may differ or fail"
  fi
done < <(installed_versions "${packages[@]}")

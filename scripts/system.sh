#!/bin/bash
# Installs the system packages that the lab and the tests need, on Debian; does nothing where all are there.
set -eu

declare -A packages=(
  [debootstrap]=debootstrap
  [systemd-nspawn]=systemd-container
  [ip]=iproute2
  [ssh]=openssh-client
  [curl]=curl
)
missing=()
for program in "${!packages[@]}"; do
  command -v "$program" >/dev/null || missing+=("${packages[$program]}")
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" != 0 ]; then
  echo "error: missing packages: ${missing[*]}; run as root: apt-get install ${missing[*]}" >&2
  exit 2
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null

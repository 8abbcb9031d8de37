#!/usr/bin/env bash
# Installs what a build of Tilewright needs (Debian 12 packages), where something is missing. CUDA is not among it: the
# CUDA libraries are loaded at run time, where there are any.
set -euo pipefail

missing=()
need_program() { command -v "$1" > /dev/null || missing+=("$2"); }
need_header() { [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ] || missing+=("$2"); }

need_program g++ build-essential
need_program cmake cmake
need_program ninja ninja-build
need_header fmt/core.h libfmt-dev
need_header CLI/CLI.hpp libcli11-dev
need_header gtest/gtest.h libgtest-dev
need_header gmock/gmock.h libgmock-dev
need_header nlohmann/json.hpp nlohmann-json3-dev
need_header xxhash.h libxxhash-dev
need_header boost/context/fiber.hpp libboost-context-dev
[ ${#missing[@]} -eq 0 ] && exit 0

explain() {
    echo "setup: $1. Tilewright needs these packages; please run, as root:" >&2
    echo "    apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
}

command -v apt-get > /dev/null || explain "no apt-get here"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || explain "not root, and no sudo here"
    as_root=(sudo)
    [ -t 0 ] || as_root=(sudo -n)  # nobody is there to type a password
fi

echo "setup: installing ${missing[*]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"; }
apt update || explain "apt-get update failed"
apt install -y --no-install-recommends "${missing[@]}" || explain "apt-get install failed"

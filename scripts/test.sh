#!/usr/bin/env bash
# Builds the release preset and runs all tests; the last lines are ctest's summary.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release -DTILEWRIGHT_WERROR=ON
cmake --build --preset release -j "$(nproc)"
ctest --preset release -j "$(nproc)"

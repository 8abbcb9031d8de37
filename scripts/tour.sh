#!/usr/bin/env bash
# From a fresh clone to the GEMM tour: one product, from the plain loop nest to the tuned kernel, step by step.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release
cmake --build --preset release -j "$(nproc)" --target gemm_tour
exec build/release/tutorials/gemm_tour "$@"

// Which products `tw tune` is asked for.
#pragma once
#include <string>
#include <vector>

namespace tw {

/// The kernels of a file of JSON lines: {"kernel": "gemm_bf16_512x512x512_tb"}, or m, n and k with type, transpose_a,
/// transpose_b, batch and epilogue as in bench/cases/gemm.jsonl. Throws Error naming the file and line that is neither.
std::vector<std::string> kernels_of_cases(const std::string& path);

}  // namespace tw

// Which kernels `tw tune` is asked for.
#pragma once
#include <string>
#include <vector>

namespace tw {

/// The kernels of a file of JSON lines: {"kernel": "gemm_bf16_512x512x512_tb"}; m, n and k with type, transpose_a,
/// transpose_b, batch and epilogue as in bench/cases/gemm.jsonl; or images and what else bench/cases/conv.jsonl has,
/// all three passes where none is told by "pass". Throws Error naming the file and line that is none of these.
std::vector<std::string> kernels_of_cases(const std::string& path);

}  // namespace tw

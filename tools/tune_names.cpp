#include "tools/tune_names.h"

#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "support/error.h"

namespace tw {
namespace {

std::string kernel_of(const nlohmann::json& json) {
    if (json.contains("kernel")) return json.at("kernel");
    int64_t m = json.at("m"), n = json.at("n"), k = json.at("k"), batch = json.value("batch", int64_t{0});
    std::string epilogue = json.value("epilogue", std::string("none"));
    int64_t experts = json.value("experts", int64_t{0});
    bool block_scales = json.value("block_scales", false);
    std::string result = json.value("result", std::string());
    return fmt::format("gemm_{}_{}{}x{}x{}{}{}{}{}{}{}", json.value("type", std::string("bf16")),
                       batch ? fmt::format("{}x", batch) : "", m, n, k, json.value("transpose_a", false) ? "_ta" : "",
                       json.value("transpose_b", false) ? "_tb" : "", epilogue == "none" ? "" : "_" + epilogue,
                       experts ? fmt::format("_experts{}", experts) : "", block_scales ? "_scaled" : "",
                       result.empty() ? "" : "_" + result);
}

}  // namespace

std::vector<std::string> kernels_of_cases(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw_error(Error, "tune: cannot read the cases in {}", path);
    std::vector<std::string> kernels;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        try {
            kernels.push_back(kernel_of(nlohmann::json::parse(line)));
        } catch (const nlohmann::json::exception& problem) {
            throw_error(Error,
                        "{}:{}: no case of a product ({}); write {{\"kernel\": NAME}}, or m, n and k as in "
                        "bench/cases/gemm.jsonl",
                        path, number, problem.what());
        }
    }
    return kernels;
}

}  // namespace tw

#include "tools/tune_names.h"

#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "support/error.h"

namespace tw {
namespace {

std::string product_of(const nlohmann::json& json) {
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

/// "pass" is forward, data or weight.
std::string convolution_of(const nlohmann::json& json, const std::string& pass) {
    std::string optional;
    for (const char* key : {"stride", "pad", "dilation", "groups"})
        if (json.contains(key)) optional += fmt::format("_{}{}", key, json.at(key).get<int64_t>());
    if (json.value("layout", std::string("nhwc")) == "nchw") optional += "_nchw";
    auto number = [&](const char* key) { return json.at(key).get<int64_t>(); };
    return fmt::format("convolution{}_{}_{}x{}x{}x{}_{}_{}x{}{}", pass == "forward" ? "" : "_" + pass + "_gradient",
                       json.value("type", std::string("bf16")), number("images"), number("height"), number("width"),
                       number("channels"), number("filters"), number("kernel_h"), number("kernel_w"), optional);
}

std::vector<std::string> kernels_of(const nlohmann::json& json) {
    if (json.contains("kernel")) return {json.at("kernel")};
    if (!json.contains("images")) return {product_of(json)};
    if (json.contains("pass")) return {convolution_of(json, json.at("pass"))};
    return {convolution_of(json, "forward"), convolution_of(json, "data"), convolution_of(json, "weight")};
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
            for (const std::string& kernel : kernels_of(nlohmann::json::parse(line))) kernels.push_back(kernel);
        } catch (const nlohmann::json::exception& problem) {
            throw_error(Error,
                        "{}:{}: no case of a product or a convolution ({}); write {{\"kernel\": NAME}}, or m, n and k "
                        "as in bench/cases/gemm.jsonl, or what conv.jsonl has",
                        path, number, problem.what());
        }
    }
    return kernels;
}

}  // namespace tw

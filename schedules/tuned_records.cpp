#include "schedules/tuned_records.h"

#include <algorithm>
#include <sstream>

#include <nlohmann/json.hpp>

#include "schedules/tensor_product_names.h"
#include "support/error.h"

namespace tw::schedules {

extern const char* const kTunedRecords;  // written by embed_records.cmake

namespace {

/// The product of a name without tiles; nothing if it is no such name.
std::optional<TensorProductShape> product_of(const std::string& kernel) {
    auto named = parse_tensor_product(kernel);
    if (!named || named->tiling) return {};
    return named->shape;
}

TunedRecord record_in(const std::string& line, const std::string& where) try {
    nlohmann::json json = nlohmann::json::parse(line);
    TunedRecord record{.kernel = json.at("kernel"),
                       .tiling = json.at("tiling"),
                       .schedule = json.at("schedule"),
                       .device = json.at("device"),
                       .arch = json.at("arch"),
                       .version = json.at("version"),
                       .milliseconds = json.at("milliseconds"),
                       .spread = json.at("spread")};
    if (!product_of(record.kernel))
        throw_error(Error, "{}: '{}' names no product without tiles, as gemm_bf16_512x512x512_tb does; remove the line",
                    where, record.kernel);
    if (!parse_tiling(record.tiling))
        throw_error(Error, "{}: '{}' is no tiling, as 128x192x64g2s4r is; remove the line and tune {} again", where,
                    record.tiling, record.kernel);
    return record;
} catch (const nlohmann::json::exception& problem) {
    throw_error(Error, "{}: no record of the tuner ({}); remove the line and tune that kernel again", where,
                problem.what());
}

struct Tuned {
    std::string arch;
    TensorProductShape shape;
    ProductTiling tiling;
};

std::vector<Tuned> tuned_products() {
    std::vector<Tuned> products;
    for (const TunedRecord& record : parse_records(embedded_records(), "schedules/tuned/h200.jsonl"))
        products.push_back({record.arch, *product_of(record.kernel), *parse_tiling(record.tiling)});
    return products;
}

}  // namespace

std::vector<TunedRecord> parse_records(std::string_view text, const std::string& source) {
    std::vector<TunedRecord> records;
    std::istringstream lines{std::string(text)};
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number)
        if (line.find_first_not_of(" \t\r") != std::string::npos)
            records.push_back(record_in(line, fmt::format("{}:{}", source, number)));
    return records;
}

std::string records_text(std::vector<TunedRecord> records) {
    auto by_name = [](const TunedRecord& x, const TunedRecord& y) { return x.kernel < y.kernel; };
    std::stable_sort(records.begin(), records.end(), by_name);
    std::string text;
    for (const TunedRecord& r : records)
        text +=
            nlohmann::ordered_json{{"kernel", r.kernel},   {"tiling", r.tiling},    {"milliseconds", r.milliseconds},
                                   {"spread", r.spread},   {"device", r.device},    {"arch", r.arch},
                                   {"version", r.version}, {"schedule", r.schedule}}
                .dump() +
            "\n";
    return text;
}

void put_record(std::vector<TunedRecord>& records, const TunedRecord& record) {
    for (TunedRecord& old : records)
        if (old.device == record.device && product_of(old.kernel) == product_of(record.kernel)) {
            old = record;
            return;
        }
    records.push_back(record);
}

std::string_view embedded_records() { return kTunedRecords; }

std::optional<ProductTiling> tuned_tiling(const TensorProductShape& shape, const Target& target) {
    static const std::vector<Tuned> products = tuned_products();
    for (const Tuned& tuned : products)
        if (tuned.arch == target.arch && tuned.shape == shape) return tuned.tiling;
    return {};
}

}  // namespace tw::schedules

#include "schedules/tuned_records.h"

#include <algorithm>
#include <sstream>
#include <variant>

#include <nlohmann/json.hpp>

#include "schedules/declared_as.h"
#include "schedules/tensor_product_names.h"
#include "schedules/unit_product.h"
#include "support/error.h"

namespace tw::schedules {

extern const char* const kTunedRecords;  // written by embed_records.cmake

namespace {

struct ConvolutionLayer {
    ConvolutionShape shape;
    ConvolutionPass pass;
    bool operator==(const ConvolutionLayer&) const = default;
};
/// What is computed, whatever name it has: of a product, of a pass of a convolution, or else the name.
using Computation = std::variant<TensorProductShape, ConvolutionLayer, std::string>;

struct NamedComputation {
    Computation computation;
    bool has_tiling = false;  ///< in its name
};
NamedComputation computation_of(const std::string& kernel) {
    if (const auto named = parse_tensor_product(kernel)) return {named->shape, named->tiling.has_value()};
    if (const auto named = parse_convolution(kernel))
        return {ConvolutionLayer{named->shape, named->pass}, named->tiles || named->halo};
    return {kernel};
}

bool may_have(const Computation& computation, const std::string& tiling) {
    if (std::holds_alternative<TensorProductShape>(computation)) return parse_tiling(tiling).has_value();
    if (!std::holds_alternative<ConvolutionLayer>(computation)) return true;
    return parse_convolution_tiling(tiling).has_value();
}

/// [["128x192x64g2s4r", 0.25], ..]; nothing where there are none.
std::vector<TilingTime> times_in(const nlohmann::json& json, const std::string& where) {
    std::vector<TilingTime> times;
    if (!json.contains("measured")) return times;
    for (const nlohmann::json& each : json.at("measured").get<nlohmann::json::array_t>()) {
        if (!each.is_array() || each.size() != 2)
            throw_error(Error, "{}: no record of the tuner (measured: {}); remove the line and tune that kernel again",
                        where, each.dump());
        times.push_back({each[0], each[1]});
    }
    return times;
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
                       .spread = json.at("spread"),
                       .measured = times_in(json, where)};
    const auto [computation, has_tiling] = computation_of(record.kernel);
    if (has_tiling)
        throw_error(Error, "{}: '{}' tells its tiling; remove the line and tune the kernel of the name without it",
                    where, record.kernel);
    std::vector<std::string> tilings{record.tiling};
    for (const TilingTime& time : record.measured) tilings.push_back(time.tiling);
    for (const std::string& tiling : tilings)
        if (!may_have(computation, tiling))
            throw_error(Error, "{}: '{}' is no tiling of {}; remove the line and tune it again", where, tiling,
                        record.kernel);
    return record;
} catch (const nlohmann::json::exception& problem) {
    throw_error(Error, "{}: no record of the tuner ({}); remove the line and tune that kernel again", where,
                problem.what());
}

struct Tuned {
    Computation computation;
    std::string arch, tiling, device, version;
    double milliseconds;
};
std::vector<Tuned> tuned_of(const std::vector<TunedRecord>& records) {
    std::vector<Tuned> tuned;
    for (const TunedRecord& record : records)
        tuned.push_back({computation_of(record.kernel).computation, record.arch, record.tiling, record.device,
                         record.version, record.milliseconds});
    return tuned;
}

struct InUse {
    const RecordsInUse* owner;
    std::vector<Tuned> tuned;
};
/// Those that are asked first at the end.
std::vector<InUse>& all_in_use() {
    static std::vector<InUse> all = [] {
        std::vector<InUse> own;
        own.push_back({nullptr, tuned_of(parse_records(embedded_records(), "schedules/tuned/h200.jsonl"))});
        return own;
    }();
    return all;
}

const Tuned* find_tuned(const Computation& computation, const Target& target) {
    const std::vector<InUse>& all = all_in_use();
    for (auto records = all.rbegin(); records != all.rend(); ++records)
        for (const Tuned& tuned : records->tuned)
            if (tuned.arch == target.arch && tuned.computation == computation) return &tuned;
    return nullptr;
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
    for (const TunedRecord& r : records) {
        nlohmann::ordered_json json{{"kernel", r.kernel},  {"tiling", r.tiling}, {"milliseconds", r.milliseconds},
                                    {"spread", r.spread},  {"device", r.device}, {"arch", r.arch},
                                    {"version", r.version}};
        for (const TilingTime& time : r.measured) json["measured"].push_back({time.tiling, time.milliseconds});
        json["schedule"] = r.schedule;
        text += json.dump() + "\n";
    }
    return text;
}

void put_record(std::vector<TunedRecord>& records, const TunedRecord& record) {
    const NamedComputation of = computation_of(record.kernel);
    for (TunedRecord& old : records)
        if (old.device == record.device && computation_of(old.kernel).computation == of.computation) {
            old = record;
            return;
        }
    records.push_back(record);
}

std::string_view embedded_records() { return kTunedRecords; }

RecordsInUse::RecordsInUse(const std::vector<TunedRecord>& records) {
    all_in_use().push_back({this, tuned_of(records)});
}

RecordsInUse::~RecordsInUse() {
    std::erase_if(all_in_use(), [this](const InUse& records) { return records.owner == this; });
}

namespace {

/// That of the same sums behind which an element takes about as many instructions, whatever these compute.
const Tuned* find_tuned_with_as_many_behind(TensorProductShape named, double instructions, const Target& target) {
    constexpr double about = 1.1;
    for (Activation activation : {Activation::Gelu, Activation::GeluTanh})
        for (bool add_bias : {false, true}) {
            named.activation = activation;
            named.add_bias = add_bias;
            const Tuned* tuned = find_tuned(named, target);
            if (!tuned) continue;
            const double own = instructions_besides_sums(body_of(declare_tensor_product(named).c));
            if (std::max(own, instructions) <= about * std::min(own, instructions)) return tuned;
        }
    return nullptr;
}

}  // namespace

std::optional<ProductTiling> tuned_tiling(const TensorProductShape& shape, const Target& target) {
    TensorProductShape named = shape;
    named.neighbours = 0;
    named.made = 0;
    const Tuned* tuned = shape.made < many_instructions_behind
                             ? find_tuned(named, target)
                             : find_tuned_with_as_many_behind(named, shape.made, target);
    return tuned ? parse_tiling(tuned->tiling) : std::nullopt;
}

std::optional<ConvolutionTiling> tuned_tiling(const ConvolutionShape& shape, ConvolutionPass pass,
                                              const Target& target) {
    const Tuned* tuned = find_tuned(ConvolutionLayer{shape, pass}, target);
    return tuned ? parse_convolution_tiling(tuned->tiling) : std::nullopt;
}

std::optional<std::string> tuned_tiling(const std::string& kernel, const Target& target) {
    const Tuned* tuned = find_tuned(computation_of(kernel).computation, target);
    return tuned ? std::optional(tuned->tiling) : std::nullopt;
}

std::vector<TunedRecord> tuned_records_of(const std::string& kernel) {
    std::vector<TunedRecord> found;
    const Computation computation = computation_of(kernel).computation;
    const std::vector<InUse>& all = all_in_use();
    for (auto records = all.rbegin(); records != all.rend(); ++records)
        for (const Tuned& tuned : records->tuned)
            if (tuned.computation == computation)
                found.push_back({.kernel = kernel,
                                 .tiling = tuned.tiling,
                                 .schedule = {},
                                 .device = tuned.device,
                                 .arch = tuned.arch,
                                 .version = tuned.version,
                                 .milliseconds = tuned.milliseconds});
    return found;
}

}  // namespace tw::schedules

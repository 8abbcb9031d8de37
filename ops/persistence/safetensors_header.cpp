#include "ops/persistence/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "ops/persistence/array_bytes.h"
#include "support/error.h"

namespace tw {
namespace {

constexpr int64_t LengthBytes = 8, LongestHeader = 100'000'000;  // MAX_HEADER_SIZE of the format's own library
constexpr int64_t DataAlignment = 64;                            // a cache line; the format's own library has 8
constexpr const char* MetadataKey = "__metadata__";

struct DtypeName {
    Type type;
    std::string_view name;
};
constexpr std::array DtypeNames{
    DtypeName{Type::Bool, "BOOL"}, DtypeName{Type::I8, "I8"},        DtypeName{Type::U8, "U8"},
    DtypeName{Type::I32, "I32"},   DtypeName{Type::U32, "U32"},      DtypeName{Type::I64, "I64"},
    DtypeName{Type::F16, "F16"},   DtypeName{Type::BF16, "BF16"},    DtypeName{Type::E4M3, "F8_E4M3"},
    DtypeName{Type::F32, "F32"},   DtypeName{Type::E5M2, "F8_E5M2"}, DtypeName{Type::F64, "F64"}};

/// What the format has beside these, of whole bytes, and a type of as many.
constexpr std::array ForeignDtypes{DtypeName{Type::F16, "I16"}, DtypeName{Type::F16, "U16"},
                                   DtypeName{Type::I64, "U64"}, DtypeName{Type::I64, "C64"},
                                   DtypeName{Type::U8, "F8_E8M0"}};

/// Takes what a parser meets, in its order, and refuses at once what does not belong there.
class SafetensorsHeaderReader : public nlohmann::json_sax<nlohmann::json> {
public:
    explicit SafetensorsHeaderReader(const std::string& where) : where_(where) {}

    std::vector<SafetensorsEntry> entries;
    std::map<std::string, std::string> metadata;

    bool null() override { misplaced("null"); }
    bool boolean(bool value) override { misplaced(value ? "true" : "false"); }
    bool number_integer(int64_t value) override { misplaced(std::to_string(value)); }
    bool number_float(double, const std::string& text) override { misplaced(text); }
    bool binary(binary_t&) override { misplaced("binary"); }
    bool number_unsigned(uint64_t value) override {
        if (value > std::numeric_limits<int64_t>::max()) misplaced(std::to_string(value));
        if (place_ == Place::Shape)
            entries.back().shape.push_back(static_cast<int64_t>(value));
        else if (place_ == Place::Offsets)
            offsets_.push_back(static_cast<int64_t>(value));
        else
            misplaced(std::to_string(value));
        return true;
    }
    bool string(std::string& value) override {
        if (place_ == Place::Metadata)
            metadata[field_] = value;
        else if (place_ == Place::Tensor && field_ == "dtype")
            set_dtype(entries.back(), value);
        else
            misplaced("a string");
        return true;
    }
    bool start_object(size_t) override {
        if (place_ == Place::Outside)
            place_ = Place::Header;
        else if (place_ == Place::Header)
            place_ = name_ == MetadataKey ? Place::Metadata : Place::Tensor;
        else
            misplaced("an object");
        if (place_ == Place::Tensor) entries.push_back({.name = name_, .shape = {}});
        fields_.clear();
        offsets_.clear();
        return true;
    }
    bool key(std::string& key) override {
        std::set<std::string>& known = place_ == Place::Header ? names_ : fields_;
        if (!known.insert(key).second)
            throw_error(Error, "{}: {}'{}' stands twice; keep one, under another name", where_,
                        place_ == Place::Header ? "" : of_tensor(), printable(key));
        if (place_ == Place::Tensor && key != "dtype" && key != "shape" && key != "data_offsets")
            throw_error(Error, "{}: {}'{}' is no key of the format; keep dtype, shape and data_offsets", where_,
                        of_tensor(), printable(key));
        (place_ == Place::Header ? name_ : field_) = key;
        return true;
    }
    bool start_array(size_t) override {
        if (place_ != Place::Tensor || field_ == "dtype") misplaced("a list");
        place_ = field_ == "shape" ? Place::Shape : Place::Offsets;
        return true;
    }
    bool end_array() override {
        place_ = Place::Tensor;
        return true;
    }
    bool end_object() override {
        if (place_ == Place::Tensor) finish_tensor();
        place_ = place_ == Place::Header ? Place::Outside : Place::Header;
        return true;
    }
    bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& problem) override {
        const std::string_view text = problem.what();  // "[json.exception.parse_error.101] parse error at ..."
        throw_error(Error, "{}: byte {}: the header is no JSON ({}); copy or write the file again", where_,
                    LengthBytes + static_cast<int64_t>(position) - 1,
                    text.substr(std::min(text.find(' '), text.size() - 1) + 1));
    }

private:
    enum class Place { Outside, Header, Metadata, Tensor, Shape, Offsets };

    std::string of_tensor() const { return fmt::format("'{}': ", printable(name_)); }

    [[noreturn]] void misplaced(const std::string& what) const {
        const auto [subject, expected] = [&]() -> std::pair<std::string, const char*> {
            switch (place_) {
                case Place::Outside: return {"the header", "an object of tensors"};
                case Place::Header: return {fmt::format("'{}'", printable(name_)), "an object"};
                case Place::Metadata: return {of_tensor() + printable(field_), "a string"};
                case Place::Tensor: break;
                case Place::Shape: return {of_tensor() + "an extent", "an integer from 0 to 2^63 - 1"};
                case Place::Offsets: return {of_tensor() + "an offset", "an integer from 0 to 2^63 - 1"};
            }
            return {of_tensor() + field_, field_ == "dtype" ? "a string" : "a list of integers"};
        }();
        throw_error(Error, "{}: {} is {}, and must be {}; write the file again", where_, subject, what, expected);
    }

    void set_dtype(SafetensorsEntry& entry, const std::string& dtype) const {
        if (const auto known = std::ranges::find(DtypeNames, dtype, &DtypeName::name); known != DtypeNames.end()) {
            entry.type = known->type;
            return;
        }
        if (const auto foreign = std::ranges::find(ForeignDtypes, dtype, &DtypeName::name);
            foreign != ForeignDtypes.end()) {
            entry.type = foreign->type;
            entry.foreign_dtype = dtype;
            return;
        }
        throw_error(Error, "{}: {}no tensor here has dtype '{}'; convert it to one of {}", where_, of_tensor(),
                    printable(dtype), known_dtypes());
    }

    void finish_tensor() {
        for (const char* field : {"dtype", "shape", "data_offsets"})
            if (!fields_.contains(field))
                throw_error(Error, "{}: {}has no {}; write the file again", where_, of_tensor(), field);
        SafetensorsEntry& entry = entries.back();
        if (offsets_.size() != 2 || offsets_[0] > offsets_[1])
            throw_error(Error, "{}: {}data_offsets are {}, and must be where its bytes begin, and end", where_,
                        of_tensor(),
                        offsets_.size() > 2 ? fmt::format("{} numbers", offsets_.size()) : indices_text(offsets_));
        entry.begin = offsets_[0];
        entry.end = offsets_[1];
        const std::optional<int64_t> bytes = dense_bytes(entry.type, entry.shape);
        if (!bytes)
            throw_error(Error, "{}: {}a shape {} of {} exceeds 2^63 - 1 bytes; write the file again", where_,
                        of_tensor(), shape_of(entry), entry.type_text());
        if (*bytes != entry.end - entry.begin)
            throw_error(Error, "{}: {}{} {} has {} bytes, and data_offsets [{}, {}] hold {}; write the file again",
                        where_, of_tensor(), entry.type_text(), shape_of(entry), *bytes, entry.begin, entry.end,
                        entry.end - entry.begin);
    }

    static std::string shape_of(const SafetensorsEntry& entry) {
        constexpr size_t Most = 16;
        return entry.shape.size() <= Most ? indices_text(entry.shape)
                                          : fmt::format("of {} dimensions", entry.shape.size());
    }

    const std::string& where_;
    Place place_ = Place::Outside;
    std::string name_, field_;
    std::set<std::string> names_, fields_;
    std::vector<int64_t> offsets_;
};

/// The JSON text, without the spaces behind it.
std::string_view safetensors_json(std::span<const std::byte> file, const std::string& where) {
    const auto size = static_cast<int64_t>(file.size());
    if (size < LengthBytes)
        throw_error(Error,
                    "{}: has {} bytes, and a safetensors file begins with the {} of its header's length; "
                    "copy or write it again",
                    where, size, LengthBytes);
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    if (length > LongestHeader)
        throw_error(Error,
                    "{}: bytes 0 to 7 tell of a header of {} bytes, and {} is the limit; is this a safetensors "
                    "file?",
                    where, length, LongestHeader);
    if (std::cmp_greater(length, size - LengthBytes))
        throw_error(Error,
                    "{}: bytes 0 to 7 tell of a header of {} bytes, and {} follow: the file is cut off; copy or "
                    "write it again",
                    where, length, size - LengthBytes);
    std::string_view header(reinterpret_cast<const char*>(file.data()) + LengthBytes, static_cast<size_t>(length));
    if (!header.starts_with('{'))
        throw_error(Error,
                    "{}: byte 8: a header of {} bytes does not begin with an opening brace; is this a safetensors "
                    "file?",
                    where, length);
    // What the parser takes for the end of the text, and for blanks.
    for (const char unseen : {'\0', '\n', '\r', '\t'})
        if (const size_t at = header.find(unseen); at != std::string_view::npos)
            throw_error(Error,
                        "{}: byte {} is {:#04x}, and no blank but 0x20 may stand in a header; write the file again",
                        where, LengthBytes + static_cast<int64_t>(at), static_cast<int>(unseen));
    return header.substr(0, header.find_last_not_of(' ') + 1);
}

/// Each tensor begins where the one before it ends, and the last ends with the file.
void check_places(const SafetensorsHeader& header, int64_t file_bytes, const std::string& where) {
    int64_t at = 0;
    for (const SafetensorsEntry& entry : header.entries) {
        if (entry.begin != at)
            throw_error(Error,
                        "{}: '{}': its data_offsets begin at {}, and the bytes before it end at {}: there is {}; "
                        "write the file again",
                        where, printable(entry.name), entry.begin, at, entry.begin < at ? "an overlap" : "a hole");
        at = entry.end;
    }
    const int64_t there = file_bytes - header.data_begin;
    if (at != there)
        throw_error(Error,
                    "{}: the header tells of {} bytes of data from byte {} on, and {} are there: {}; copy or write "
                    "the file again",
                    where, at, header.data_begin, there,
                    there < at ? "the file is cut off" : "something follows that nobody knows");
}

std::string json_string(const std::string& text) {
    try {
        return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
        throw_error(Error,
                    "'{}' is no UTF-8, in which the names and texts of a safetensors file are; give it another "
                    "name",
                    printable(text));
    }
}

}  // namespace

std::string known_dtypes() {
    std::string known;
    for (const DtypeName& each : DtypeNames) known += fmt::format("{}{}", known.empty() ? "" : ", ", each.name);
    return known;
}

std::string_view safetensors_dtype(Type type, const std::string& name) {
    for (const DtypeName& each : DtypeNames)
        if (each.type == type) return each.name;
    throw_error(Error, "'{}' is {}, and safetensors files have no name for that; cast it to f32", printable(name),
                name_of(type));
}

SafetensorsHeader read_safetensors_header(std::span<const std::byte> file, const std::string& where) {
    const std::string_view json = safetensors_json(file, where);
    SafetensorsHeaderReader reader(where);
    nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    SafetensorsHeader header{.entries = std::move(reader.entries),
                             .metadata = std::move(reader.metadata),
                             .data_begin = LengthBytes + static_cast<int64_t>(length)};
    std::ranges::stable_sort(header.entries, {}, [](const SafetensorsEntry& e) { return std::pair(e.begin, e.end); });
    check_places(header, static_cast<int64_t>(file.size()), where);
    for (const SafetensorsEntry& entry : header.entries) {
        if (entry.type != Type::Bool) continue;
        const int64_t begin = header.data_begin + entry.begin;
        const auto wrong =
            first_no_bool(file.subspan(static_cast<size_t>(begin), static_cast<size_t>(entry.end - entry.begin)));
        if (wrong)
            throw_error(Error, "{}: '{}': byte {} is {}, and a BOOL is 0 or 1; write the file again", where,
                        printable(entry.name), begin + static_cast<int64_t>(*wrong),
                        std::to_integer<int>(file[static_cast<size_t>(begin) + *wrong]));
    }
    return header;
}

std::string write_safetensors_header(std::vector<SafetensorsEntry>& entries,
                                     const std::map<std::string, std::string>& metadata) {
    std::string json;
    const auto add = [&](const std::string& name, const std::string& value) {
        json += fmt::format("{}{}:{}", json.empty() ? "{" : ",", json_string(name), value);
    };
    if (!metadata.empty()) {
        std::string texts;
        for (const auto& [key, text] : metadata)
            texts += fmt::format("{}{}:{}", texts.empty() ? "" : ",", json_string(key), json_string(text));
        add(MetadataKey, "{" + texts + "}");
    }
    std::set<std::string> names{MetadataKey};
    int64_t at = 0;
    for (SafetensorsEntry& entry : entries) {
        if (!names.insert(entry.name).second)
            throw_error(Error, "'{}' is the name of two tensors, or of the metadata; give each its own",
                        printable(entry.name));
        entry.begin = at;
        entry.end = at += require_dense_bytes(entry.name, entry.type, entry.shape);
        add(entry.name, fmt::format(R"({{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                    safetensors_dtype(entry.type, entry.name), fmt::join(entry.shape, ","), entry.begin,
                                    entry.end));
    }
    json += json.empty() ? "{}" : "}";
    const auto over = static_cast<int64_t>(LengthBytes + json.size()) % DataAlignment;
    json.append(static_cast<size_t>((DataAlignment - over) % DataAlignment), ' ');
    const uint64_t length = json.size();
    if (length > LongestHeader)
        throw_error(Error,
                    "a header of {} bytes, for {} tensors and {} texts, and {} is the limit of safetensors files; "
                    "write several files",
                    length, entries.size(), metadata.size(), LongestHeader);
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes + json;
}

}  // namespace tw

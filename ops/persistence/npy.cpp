#include "ops/persistence/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "ops/persistence/array_bytes.h"
#include "ops/persistence/mapped_file.h"
#include "ops/persistence/write_aside.h"
#include "support/error.h"

namespace tw {
namespace {

constexpr std::string_view NpyMagic = "\x93NUMPY";
constexpr size_t VersionEnd = 8;             // magic and version
constexpr size_t LongestNpyHeader = 10'000;  // max_header_size of numpy.load()
constexpr size_t NpyAlignment = 64;          // ARRAY_ALIGN of numpy/lib/format.py

struct NpyTypeName {
    Type type;
    std::string_view descr;
};
constexpr std::array NpyTypeNames{
    NpyTypeName{Type::Bool, "|b1"}, NpyTypeName{Type::I8, "|i1"},  NpyTypeName{Type::U8, "|u1"},
    NpyTypeName{Type::I32, "<i4"},  NpyTypeName{Type::U32, "<u4"}, NpyTypeName{Type::I64, "<i8"},
    NpyTypeName{Type::F16, "<f2"},  NpyTypeName{Type::F32, "<f4"}, NpyTypeName{Type::F64, "<f8"}};

struct NpyHeader {
    Type type = Type::F32;
    std::vector<int64_t> shape;
};

/// A Python dictionary of the three keys, as text.
class NpyHeaderReader {
public:
    /// `first_byte` is where the text begins in the file.
    NpyHeaderReader(std::string_view text, size_t first_byte, const std::string& where)
        : text_(text), first_byte_(first_byte), where_(where) {}

    NpyHeader read() {
        expect("{");
        while (!take("}")) {
            read_entry();
            if (take("}")) break;
            expect(",");
        }
        if (at_ + 1 != text_.size() || text_[at_] != '\n') wrong("spaces, and a line's end as the last byte");
        for (const char* key : {"descr", "fortran_order", "shape"})
            if (!keys_.contains(key))
                throw_error(Error, "{}: the header has no '{}'; write the file again", where_, key);
        if (!dense_bytes(header_.type, header_.shape))
            throw_error(Error, "{}: a shape of {} dimensions exceeds 2^63 - 1 bytes; write the file again", where_,
                        header_.shape.size());
        return header_;
    }

private:
    void read_entry() {
        const std::string key = quoted();
        if (key != "descr" && key != "fortran_order" && key != "shape")
            throw_error(Error, "{}: '{}' is no key of the header; keep descr, fortran_order and shape", where_,
                        printable(key));
        if (!keys_.insert(key).second) throw_error(Error, "{}: '{}' stands twice in the header; keep one", where_, key);
        expect(":");
        if (key == "descr") header_.type = type_of(quoted());
        if (key == "shape") read_shape();
        if (key == "fortran_order" && !take("False")) {
            expect("True");
            throw_error(Error,
                        "{}: columns lie one behind the other (fortran_order), and rows are read here; save "
                        "numpy.ascontiguousarray() of it",
                        where_);
        }
    }

    Type type_of(const std::string& descr) const {
        for (const NpyTypeName& each : NpyTypeNames)
            if (each.descr == descr) return each.type;
        if (descr.starts_with('>'))
            throw_error(Error,
                        "{}: '{}' is big-endian, and little-endian numbers are read here; save .astype('<{}') of "
                        "it",
                        where_, printable(descr), printable(descr.substr(1)));
        std::vector<std::string_view> known;
        for (const NpyTypeName& each : NpyTypeNames) known.push_back(each.descr);
        throw_error(Error, "{}: no array here is of '{}'; convert it to one of {}", where_, printable(descr),
                    fmt::join(known, ", "));
    }

    /// (), (2,), (2, 3) and (2, 3,), but not (2), which Python takes for a number.
    void read_shape() {
        expect("(");
        while (!take(")")) {
            header_.shape.push_back(number());
            if (header_.shape.size() > 1 && take(")")) break;
            expect(",");
        }
    }

    int64_t number() {
        skip_spaces();
        int64_t value = 0;
        const auto [end, problem] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
        if (problem != std::errc() || value < 0) wrong("an extent from 0 to 2^63 - 1");
        at_ = static_cast<size_t>(end - text_.data());
        return value;
    }

    std::string quoted() {
        skip_spaces();
        const char quote = at_ < text_.size() ? text_[at_] : '\0';
        const size_t end = quote == '\'' || quote == '"' ? text_.find(quote, at_ + 1) : std::string_view::npos;
        if (end == std::string_view::npos) wrong("a text in quotes");
        const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
        if (inside.find('\\') != std::string_view::npos) wrong("a text without a backslash");
        at_ = end + 1;
        return std::string(inside);
    }

    bool take(std::string_view token) {
        skip_spaces();
        if (!text_.substr(at_).starts_with(token)) return false;
        at_ += token.size();
        skip_spaces();
        return true;
    }
    void expect(std::string_view token) {
        if (!take(token)) wrong(fmt::format("'{}'", token));
    }
    void skip_spaces() { at_ = std::min(text_.find_first_not_of(' ', at_), text_.size()); }

    [[noreturn]] void wrong(const std::string& expected) const {
        throw_error(Error, "{}: byte {}: the header must have {} there; write the file again", where_,
                    first_byte_ + at_, expected);
    }

    std::string_view text_;
    size_t first_byte_, at_ = 0;
    const std::string& where_;
    NpyHeader header_;
    std::set<std::string> keys_;
};

struct NpyParts {
    std::string_view header;
    size_t header_begin = 0, data_begin = 0;
};

NpyParts npy_parts(std::string_view file, const std::string& where) {
    if (!file.starts_with(NpyMagic))
        throw_error(Error, "{}: bytes 0 to 5 of {} are not '\\x93NUMPY'; is this an .npy file?", where, file.size());
    const int major = file.size() >= VersionEnd ? file[6] : 0, minor = file.size() >= VersionEnd ? file[7] : 0;
    if (major < 1 || major > 3 || minor != 0)
        throw_error(Error,
                    "{}: bytes 6 and 7 tell of version {}.{}, and 1.0, 2.0 and 3.0 are read here; write the file "
                    "again",
                    where, major, minor);
    const size_t length_bytes = major == 1 ? 2 : 4, begin = VersionEnd + length_bytes;
    uint32_t length = 0;
    if (file.size() >= begin) std::memcpy(&length, file.data() + VersionEnd, length_bytes);
    if (length > LongestNpyHeader)
        throw_error(Error, "{}: bytes 8 to {} tell of a header of {} bytes, and {} is the limit; write the file again",
                    where, begin - 1, length, LongestNpyHeader);
    if (file.size() < begin + length)
        throw_error(Error, "{}: has {} bytes, and its header ends at {}: the file is cut off; copy or write it again",
                    where, file.size(), begin + length);
    return {file.substr(begin, length), begin, begin + length};
}

}  // namespace

HostArray parse_npy(std::span<const std::byte> bytes, const std::string& where) {
    const NpyParts parts = npy_parts({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where);
    const NpyHeader header = NpyHeaderReader(parts.header, parts.header_begin, where).read();
    const std::span<const std::byte> data = bytes.subspan(parts.data_begin);
    const auto needed = static_cast<size_t>(*dense_bytes(header.type, header.shape));
    if (data.size() != needed)
        throw_error(Error,
                    "{}: its shape has {} bytes of data from byte {} on, and {} are there: {}; copy or write the "
                    "file again",
                    where, needed, parts.data_begin, data.size(),
                    data.size() < needed ? "the file is cut off" : "something follows that nobody knows");
    if (header.type == Type::Bool)
        if (const std::optional<size_t> wrong = first_no_bool(data))
            throw_error(Error, "{}: byte {} is {}, and a bool is 0 or 1; write the file again", where,
                        parts.data_begin + *wrong, std::to_integer<int>(data[*wrong]));
    return dense_array(header.type, header.shape, data);
}

HostArray read_npy(const std::filesystem::path& path) { return parse_npy(MappedFile(path).bytes(), path.string()); }

void write_npy(const std::filesystem::path& path, const HostArray& array) {
    const auto* named = std::ranges::find(NpyTypeNames, array.type, &NpyTypeName::type);
    if (named == NpyTypeNames.end())
        throw_error(Error, "{}: NumPy has no name for {}; cast it to f32, or write a safetensors file", path.string(),
                    name_of(array.type));
    std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", named->descr,
                                     fmt::join(array.shape, ", "), array.shape.size() == 1 ? "," : "");
    const size_t begin = VersionEnd + 2, over = (begin + header.size() + 1) % NpyAlignment;
    header += std::string((NpyAlignment - over) % NpyAlignment, ' ') + '\n';
    if (header.size() > LongestNpyHeader)
        throw_error(Error, "{}: a header of {} bytes, for {} dimensions, and {} is the limit of .npy files; join some",
                    path.string(), header.size(), array.shape.size(), LongestNpyHeader);
    const auto length = static_cast<uint16_t>(header.size());
    std::string first(NpyMagic);
    first += {'\x01', '\x00', static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
    first += header;
    const HostArray rows = dense_rows(path.filename().string(), array);
    write_aside(path, [&](const AsideFile& file) {
        file.write(std::as_bytes(std::span(first)));
        file.write(rows.bytes);
    });
}

}  // namespace tw

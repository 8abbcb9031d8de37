#include "ops/persistence/safetensors.h"

#include <algorithm>

#include "ops/persistence/array_bytes.h"
#include "ops/persistence/write_aside.h"
#include "support/error.h"

namespace tw {

Safetensors::Safetensors(const std::filesystem::path& path)
    : file_(path), where_(path.string()), bytes_(file_->bytes()), header_(read_safetensors_header(bytes_, where_)) {
    set_index();
}

Safetensors::Safetensors(std::span<const std::byte> bytes, std::string where)
    : where_(std::move(where)), bytes_(bytes), header_(read_safetensors_header(bytes_, where_)) {
    set_index();
}

void Safetensors::set_index() {
    for (size_t k = 0; k < header_.entries.size(); ++k) index_.emplace(header_.entries[k].name, k);
}

const SafetensorsEntry& Safetensors::entry(const std::string& name) const {
    if (const auto found = index_.find(name); found != index_.end()) return header_.entries[found->second];
    constexpr size_t Shown = 8;
    std::string names;
    for (size_t k = 0; k < std::min(Shown, entries().size()); ++k)
        names += fmt::format("{}'{}'", k > 0 ? ", " : "", printable(entries()[k].name));
    throw_error(Error, "{}: has no tensor '{}'; of {} it has {}{}", where_, printable(name), entries().size(),
                names.empty() ? "none" : names, entries().size() > Shown ? ", ..." : "");
}

std::span<const std::byte> Safetensors::bytes(const std::string& name) const {
    const SafetensorsEntry& found = entry(name);
    return bytes_.subspan(static_cast<size_t>(header_.data_begin + found.begin),
                          static_cast<size_t>(found.end - found.begin));
}

HostArray Safetensors::array(const std::string& name) const {
    const SafetensorsEntry& found = entry(name);
    if (!found.foreign_dtype.empty())
        throw_error(Error, "{}: '{}' is {}, which no tensor here can be; convert it to one of {}, or take its bytes()",
                    where_, printable(name), found.foreign_dtype, known_dtypes());
    return dense_array(found.type, found.shape, bytes(name));
}

void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsSource>& sources,
                       const std::map<std::string, std::string>& metadata) {
    std::vector<const SafetensorsSource*> order;
    for (const SafetensorsSource& source : sources) order.push_back(&source);
    std::ranges::stable_sort(order, std::greater(), [](const auto* source) { return bytes_of(source->type); });

    std::vector<SafetensorsEntry> entries;
    for (const SafetensorsSource* source : order)
        entries.push_back({.name = source->name, .type = source->type, .shape = source->shape});
    const std::string header = write_safetensors_header(entries, metadata);
    write_aside(path, [&](const AsideFile& file) {
        file.write(std::as_bytes(std::span(header)));
        for (const SafetensorsSource* source : order) {
            const HostArray rows = dense_rows(source->name, source->array());
            internal_check(rows.type == source->type && rows.shape == source->shape, "'{}' came with shape {}",
                           source->name, indices_text(rows.shape));
            file.write(rows.bytes);
        }
    });
}

void write_safetensors(const std::filesystem::path& path, const std::vector<std::pair<std::string, HostArray>>& arrays,
                       const std::map<std::string, std::string>& metadata) {
    std::vector<SafetensorsSource> sources;
    for (const auto& [name, array] : arrays)
        sources.push_back({name, array.type, array.shape, [&array = array] { return array; }});
    write_safetensors(path, sources, metadata);
}

}  // namespace tw

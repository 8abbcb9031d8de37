#include "ops/persistence/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <fmt/ranges.h>

#include "ops/persistence/array_bytes.h"
#include "support/error.h"
#include "support/overloaded.h"
#include "support/version.h"

namespace tw::nn {
namespace {

constexpr const char* version_key = "tilewright";  // among a file's texts: the version that wrote it

struct SavedKind {
    Type type;
    std::vector<int64_t> shape;
    std::string text() const { return fmt::format("{} {}", name_of(type), shape_text(shape)); }
};

std::string entry_text(const SafetensorsEntry& entry) {
    return fmt::format("{} {}", entry.type_text(), shape_text(entry.shape));
}

template <class Content>
SavedKind saved_kind(const Content& content) {
    return std::visit(Overloaded{[](const Tensor& tensor) {
                                     return SavedKind{tensor.type(), tensor.shape()};
                                 },
                                 [](const int64_t*) {
                                     return SavedKind{Type::I64, {}};
                                 },
                                 [](const HostArray* array) {
                                     return SavedKind{array->type, array->shape};
                                 }},
                      content);
}

template <class Content>
HostArray saved_array(const Content& content, std::source_location where) {
    return std::visit(Overloaded{[&](const Tensor& tensor) { return tensor.to_host(where); },
                                 [](const int64_t* number) {
                                     return dense_array(Type::I64, {}, std::as_bytes(std::span(number, 1)));
                                 },
                                 [](const HostArray* array) { return *array; }},
                      content);
}

template <class Content>
void restore(const Content& content, HostArray saved, std::source_location where) {
    std::visit(Overloaded{[&](const Tensor& tensor) { tensor.copy_from_host(saved, where); },
                          [&](int64_t* number) { std::memcpy(number, saved.bytes.data(), sizeof *number); },
                          [&](HostArray* array) { *array = std::move(saved); }},
               content);
}

}  // namespace

Checkpoint& Checkpoint::add_item(const std::string& name, Content content, std::source_location where) {
    user_check(std::ranges::none_of(items_, [&](const Item& item) { return item.name == name; }), where,
               "Checkpoint: '{}' has been added before; give each tensor and number a name of its own", name);
    items_.push_back({name, std::move(content)});
    return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, const Tensor& tensor, std::source_location where) {
    user_check(tensor.defined(), where, "Checkpoint: '{}' is an undefined tensor; add it when it has been made", name);
    safetensors_dtype(tensor.type(), name);
    return add_item(name, tensor, where);
}

Checkpoint& Checkpoint::add(const std::string& name, const std::vector<Tensor>& tensors, std::source_location where) {
    for (size_t k = 0; k < tensors.size(); ++k) add(fmt::format("{}.{}", name, k), tensors[k], where);
    return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, const Module& module, std::source_location where) {
    const std::string prefix = name.empty() ? "" : name + ".";
    for (const NamedTensors& kind : {module.named_parameters(), module.named_buffers()})
        for (const auto& [own, tensor] : kind) add(prefix + own, tensor, where);
    return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, int64_t& number, std::source_location where) {
    return add_item(name, &number, where);
}

Checkpoint& Checkpoint::add(const std::string& name, HostArray& array, std::source_location where) {
    safetensors_dtype(array.type, name);
    return add_item(name, &array, where);
}

Checkpoint& Checkpoint::add_setting(const std::string& name, const std::string& value, std::source_location where) {
    user_check(name != version_key && settings_.emplace(name, value).second, where,
               "Checkpoint: the setting '{}' has been added before; give each a name of its own", name);
    return *this;
}

void Checkpoint::refuse_in_step(const char* what, const char* instead, std::source_location where) const {
    for (const Item& item : items_)
        if (const Tensor* tensor = std::get_if<Tensor>(&item.content))
            tensor->backend()->refuse_in_step(what, instead, where);
}

void Checkpoint::save(const std::filesystem::path& path, std::source_location where) const {
    refuse_in_step("Checkpoint: is saved", "save it between runs", where);
    std::vector<SafetensorsSource> sources;
    for (const Item& item : items_) {
        const SavedKind kind = saved_kind(item.content);
        sources.push_back(
            {item.name, kind.type, kind.shape, [&item, where] { return saved_array(item.content, where); }});
    }
    std::map<std::string, std::string> texts = settings_;
    texts[version_key] = TILEWRIGHT_VERSION;
    write_safetensors(path, sources, texts);
}

std::vector<std::string> Checkpoint::differences_from(const Safetensors& file) const {
    std::vector<std::string> differences;
    for (const auto& [name, here] : settings_) {
        const auto there = file.metadata().find(name);
        if (there == file.metadata().end())
            differences.push_back(fmt::format("{} is {} here, and the file does not say", name, here));
        else if (there->second != here)
            differences.push_back(
                fmt::format("{} is {} here, and {} in the file", name, here, printable(there->second)));
    }
    std::set<std::string> names;
    for (const Item& item : items_) {
        names.insert(item.name);
        const std::string here = saved_kind(item.content).text();
        if (!file.contains(item.name)) {
            differences.push_back(fmt::format("'{}' {} is not in the file", item.name, here));
            continue;
        }
        const SafetensorsEntry& entry = file.entry(item.name);
        if (const std::string there = entry_text(entry); there != here)
            differences.push_back(fmt::format("'{}' is {} here, and {} in the file", item.name, here, there));
    }
    for (const SafetensorsEntry& entry : file.entries())
        if (!names.contains(entry.name))
            differences.push_back(
                fmt::format("'{}' {} is in the file alone", printable(entry.name), entry_text(entry)));
    return differences;
}

void Checkpoint::load(const std::filesystem::path& path, std::source_location where) const {
    refuse_in_step("Checkpoint: is loaded", "load it before run()", where);
    const Safetensors file(path);
    std::vector<std::string> differences = differences_from(file);
    if (!differences.empty()) {
        constexpr size_t Shown = 8;
        const size_t more = differences.size() - std::min(Shown, differences.size());
        differences.resize(differences.size() - more);
        user_error(where,
                   "{}: is a checkpoint of another training, and nothing was loaded: {}{}; go on with what was saved",
                   path.string(), fmt::join(differences, "; "), more > 0 ? fmt::format("; and {} more", more) : "");
    }
    for (const Item& item : items_)
        if (const Tensor* tensor = std::get_if<Tensor>(&item.content)) tensor->require_data(where);
    for (const Item& item : items_) restore(item.content, file.array(item.name), where);
}

}  // namespace tw::nn

#include "verify/symbolic_memory.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "ops/bound_arguments.h"

namespace tw::fuzz {
namespace {

size_t num_elements(const BufferNode& buffer) {
    int64_t elements = 1;
    for (const Expr& extent : buffer.shape) elements *= require_constant(extent);
    return static_cast<size_t>(elements);
}

void check_index(const BufferNode& buffer, size_t dimension, int64_t index, int64_t extent) {
    if (index < 0 || index >= extent)
        throw Misuse{fmt::format("index {} of '{}' is {}, its extent {}", dimension, buffer.name, index, extent)};
}

}  // namespace

SymbolicMemory::SymbolicMemory(Terms& terms, const codegen::ThreadKernel& kernel, const Bindings& sizes)
    : terms_(terms), kernel_(kernel), sizes_(sizes), struct_(codegen::shared_struct(kernel.shared, kernel.unions)) {
    for (size_t a = 0; a < kernel.arguments.size(); ++a) add_argument(kernel.arguments[a], static_cast<int>(a));
}

void SymbolicMemory::add_argument(const codegen::Buffer& buffer, int number) {
    auto [entry, is_new] = global_.try_emplace(array_of(buffer, kernel_), GlobalMemory{number, false, {}});
    entry->second.written = entry->second.written || kernel_.written[static_cast<size_t>(number)];
    if (!is_new) return;
    int64_t elements = bytes_spanned(*buffer, sizes_) / bytes_of(buffer->type);
    for (int64_t e = 0; e < elements; ++e) entry->second.elements.push_back(terms_.symbol(buffer->type, number, e));
}

void SymbolicMemory::start_block() {
    for (const codegen::Buffer& buffer : kernel_.shared) local_[buffer.get()].assign(num_elements(*buffer), kUnwritten);
}

void SymbolicMemory::declare_registers(const codegen::Buffer& buffer) {
    local_[buffer.get()].assign(num_elements(*buffer) * static_cast<size_t>(kernel_.threads), kUnwritten);
}

SymbolicMemory::GlobalMemory& SymbolicMemory::global(const codegen::Buffer& buffer) {
    return global_.at(array_of(buffer, kernel_));
}

std::vector<Term>& SymbolicMemory::elements_of(const codegen::Buffer& buffer) {
    return buffer->memory == Memory::Global ? global(buffer).elements : local_.at(buffer.get());
}

std::vector<size_t> SymbolicMemory::places(const codegen::Buffer& buffer,
                                           const std::vector<std::vector<int64_t>>& indices, const Threads& threads) {
    bool is_global = buffer->memory == Memory::Global;  // one index, into all of the memory
    std::vector<int64_t> offsets(threads.size(), 0);
    for (size_t d = 0; d < indices.size(); ++d) {
        int64_t extent = is_global ? 0 : require_constant(buffer->shape[d]);
        for (size_t t = 0; t < threads.size(); ++t) {
            if (!is_global) check_index(*buffer, d, indices[d][t], extent);
            offsets[t] = offsets[t] * extent + indices[d][t];
        }
    }
    if (buffer->memory == Memory::Registers)
        for (size_t t = 0; t < threads.size(); ++t)
            offsets[t] += threads[t] * static_cast<int64_t>(num_elements(*buffer));
    auto size = static_cast<int64_t>(elements_of(buffer).size());
    for (int64_t offset : offsets)
        if (offset < 0 || offset >= size)
            throw Misuse{fmt::format("element {} of '{}', which has {}", offset, buffer->name, size)};
    return {offsets.begin(), offsets.end()};
}

void SymbolicMemory::check_registers(const codegen::Buffer& buffer, int thread, size_t place) const {
    if (place / num_elements(*buffer) != static_cast<size_t>(thread))
        throw Misuse{fmt::format("registers behind the end of '{}'", buffer->name)};
}

Values SymbolicMemory::read(const codegen::Buffer& buffer, const std::vector<size_t>& places) {
    Values values;
    const std::vector<Term>& elements = elements_of(buffer);
    for (size_t place : places) {
        if (elements[place] == kUnderWay)
            throw Misuse{fmt::format("element {} of '{}' is read before its copy was waited for", place, buffer->name)};
        values.push_back(elements[place] == kUnwritten ? terms_.undefined(buffer->type) : elements[place]);
    }
    return values;
}

Values SymbolicMemory::read_unknown(const codegen::Buffer& buffer, const Values& indices) {
    const GlobalMemory& memory = global(buffer);
    if (memory.written) throw Undecided{"an address depends on data"};
    Values values;
    for (Term index : indices) values.push_back(terms_.element(buffer->type, memory.number, index));
    return values;
}

void SymbolicMemory::write(const codegen::Buffer& buffer, const std::vector<size_t>& places, const Values& values) {
    std::vector<Term>& elements = elements_of(buffer);
    for (size_t t = 0; t < places.size(); ++t) elements[places[t]] = values[t];
    const bool alone = buffer->memory != Memory::Shared || kernel_.unions.empty();
    for (size_t t = 0; !alone && t < places.size(); ++t) overwrite_others(buffer, places[t]);
}

void SymbolicMemory::begin_array(const codegen::Buffer& buffer) {
    local_[buffer.get()].assign(num_elements(*buffer), kUnwritten);
}

/// Elements of other arrays that lie at the same bytes.
void SymbolicMemory::overwrite_others(const codegen::Buffer& buffer, size_t place) {
    const auto own = static_cast<size_t>(std::ranges::find(kernel_.shared, buffer) - kernel_.shared.begin());
    const int64_t size = bytes_of(buffer->type),
                  first = struct_.places[own].offset + static_cast<int64_t>(place) * size;
    for (size_t b = 0; b < kernel_.shared.size(); ++b) {
        const auto& [offset, bytes] = struct_.places[b];
        const int64_t from = std::max(first - offset, int64_t{0}), to = std::min(first + size - offset, bytes);
        const int64_t width = bytes_of(kernel_.shared[b]->type);
        if (b == own || from >= to) continue;
        std::vector<Term>& elements = local_.at(kernel_.shared[b].get());
        for (int64_t e = from / width; e <= (to - 1) / width; ++e) elements[static_cast<size_t>(e)] = kUnwritten;
    }
}

Stored SymbolicMemory::stored() const {
    Stored stored;
    for (const auto& [array, memory] : global_) {
        for (size_t e = 0; e < memory.elements.size(); ++e)
            if (terms_.is_undefined(memory.elements[e]))
                throw Misuse{fmt::format("element {} of '{}' depends on what nobody wrote", e, array->name)};
        stored[array->name] = memory.elements;
    }
    return stored;
}

}  // namespace tw::fuzz

#include "bench/operand_sets.h"

#include <algorithm>

#include "bench/random_data.h"
#include "dsl/check_bindings.h"
#include "ops/bound_arguments.h"

namespace tw::bench {
namespace {

constexpr int64_t most_sets = 256;

Arguments random_set(const Tree& tree, Device& device, const FillInput& fill) {
    Arguments set;
    for (const BufferRef& input : tree.inputs) {
        HostArray array = host_array(input->type, extents_of(input->shape, {}), extents_of(input->strides, {}));
        uint64_t seed = 1 + set.buffers.size();
        if (!fill(input->name, array, seed)) fill_normal(array, seed);
        Buffer buffer = device.allocate(static_cast<int64_t>(array.bytes.size()), input->name);
        buffer.copy_from_host(array.bytes.data());
        set.buffers[input->name] = buffer;
    }
    for (const BufferRef& output : tree.outputs)
        set.buffers[output->name] = device.allocate(bytes_spanned(*output, {}), output->name);
    return set;
}

Arguments copy_of(const Arguments& first, const Tree& tree, Device& device) {
    Arguments set;
    for (const auto& [name, buffer] : first.buffers) set.buffers[name] = device.allocate(buffer.bytes(), name);
    for (const BufferRef& input : tree.inputs) device.copy(set.buffers.at(input->name), first.buffers.at(input->name));
    return set;
}

}  // namespace

OperandSets::OperandSets(const Tree& tree, Device& device, double least_bytes, const FillInput& fill) {
    sets_.push_back(random_set(tree, device, fill));
    for (const auto& [name, buffer] : sets_[0].buffers) bytes_ += buffer.bytes();
    double count = 1 + least_bytes / static_cast<double>(std::max<int64_t>(bytes_, 1));
    for (int64_t set = 1; set < std::min(most_sets, static_cast<int64_t>(count)); ++set)
        sets_.push_back(copy_of(sets_[0], tree, device));
}

}  // namespace tw::bench

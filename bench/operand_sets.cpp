#include "bench/operand_sets.h"

#include <algorithm>

#include "bench/random_data.h"
#include "dsl/check_bindings.h"
#include "ops/bound_arguments.h"

namespace tw::bench {
namespace {

constexpr int64_t most_sets = 256;

Arguments random_set(const Tree& tree, Device& device, const Bindings& numbers, const FillInput& fill) {
    Arguments set{.buffers = {}, .sizes = numbers.sizes, .scalars = numbers.scalars};
    for (const BufferRef& input : tree.inputs) {
        HostArray array =
            host_array(input->type, extents_of(input->shape, numbers), extents_of(input->strides, numbers));
        uint64_t seed = 1 + set.buffers.size();
        if (!fill(input->name, array, seed)) fill_normal(array, seed);
        Buffer buffer = device.allocate(static_cast<int64_t>(array.bytes.size()), input->name);
        buffer.copy_from_host(array.bytes.data());
        set.buffers[input->name] = buffer;
    }
    for (const BufferRef& output : tree.outputs)
        set.buffers[output->name] = device.allocate(bytes_spanned(*output, numbers), output->name);
    return set;
}

Arguments copy_of(const Arguments& first, const Tree& tree, Device& device) {
    Arguments set{.buffers = {}, .sizes = first.sizes, .scalars = first.scalars};
    for (const auto& [name, buffer] : first.buffers) set.buffers[name] = device.allocate(buffer.bytes(), name);
    for (const BufferRef& input : tree.inputs) device.copy(set.buffers.at(input->name), first.buffers.at(input->name));
    return set;
}

}  // namespace

Bindings numbers_of(const Tree& tree) {
    Bindings numbers;
    for (const Expr& size : tree.sizes) numbers.sizes[name_of(size)] = size.as<Variable>()->max.value_or(1);
    for (const Expr& scalar : tree.scalars)
        numbers.scalars[name_of(scalar)] =
            is_float(scalar.type()) ? make_value(scalar.type(), 0.75) : make_value(scalar.type(), int64_t{0});
    return numbers;
}

OperandSets::OperandSets(const Tree& tree, Device& device, double least_bytes, const FillInput& fill)
    : numbers_(numbers_of(tree)) {
    sets_.push_back(random_set(tree, device, numbers_, fill));
    for (const auto& [name, buffer] : sets_[0].buffers) bytes_ += buffer.bytes();
    double count = 1 + least_bytes / static_cast<double>(std::max<int64_t>(bytes_, 1));
    for (int64_t set = 1; set < std::min(most_sets, static_cast<int64_t>(count)); ++set)
        sets_.push_back(copy_of(sets_[0], tree, device));
}

}  // namespace tw::bench

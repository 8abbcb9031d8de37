#include "ops/bound_arguments.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "codegen/thread_passes/thread_passes.h"
#include "dsl/check_bindings.h"
#include "support/error.h"

namespace tw {
namespace {

bool share_bytes(const Buffer& one, const Buffer& other) {
    return one.pointer() < other.pointer() + uint64_t(other.bytes()) &&
           other.pointer() < one.pointer() + uint64_t(one.bytes());
}

Argument boolean_argument(bool value) {
    auto byte = static_cast<std::byte>(value);
    return Argument::bytes({&byte, 1});
}

std::optional<Im2col> im2col_of(const codegen::TensorMapUse& use) {
    if (!use.im2col) return std::nullopt;
    const codegen::Im2colUse& im2col = *use.im2col;
    return Im2col{.lower = im2col.lower, .upper = im2col.upper, .channels = im2col.channels, .pixels = im2col.pixels};
}

Swizzle swizzle_of(int bytes) {
    return bytes == 128  ? Swizzle::Bytes128
           : bytes == 64 ? Swizzle::Bytes64
           : bytes == 32 ? Swizzle::Bytes32
                         : Swizzle::None;
}

/// Checks the buffer at the sizes that are bound: their declaration knows only how small they may be.
void check_bytes(const BufferNode& buffer, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
    constexpr double most = 0x1p63;
    double elements = 1;
    for (size_t d = 0; d < shape.size(); ++d) {
        auto extent = static_cast<double>(std::max<int64_t>(shape[d], 1));
        elements = strides.empty() ? elements * extent : elements + (extent - 1) * static_cast<double>(strides[d]);
    }
    if (elements * bytes_of(buffer.type) >= most)
        throw_error(Error,
                    "launch: '{}' of shape [{}] takes {:.3g} bytes, but addresses end at 2^63; bind smaller sizes",
                    buffer.name, fmt::join(shape, ", "), elements * bytes_of(buffer.type));
}

}  // namespace

TensorElement tensor_element(Type type) {
    switch (type) {
        case Type::BF16: return TensorElement::BF16;
        case Type::F16: return TensorElement::F16;
        case Type::F32: return TensorElement::F32;
        default: break;
    }
    switch (bytes_of(type)) {
        case 1: return TensorElement::U8;
        case 2: return TensorElement::U16;
        case 4: return TensorElement::U32;
        default: return TensorElement::U64;
    }
}

const std::string& name_of_memory(const Tree& tree, const BufferRef& output) {
    for (const auto& [out, in] : tree.in_place)
        if (out == output) return in->name;
    return output->name;
}

int64_t bytes_spanned(const BufferNode& buffer, const Bindings& sizes) {
    std::vector<int64_t> shape = extents_of(buffer.shape, sizes), strides = extents_of(buffer.strides, sizes);
    check_bytes(buffer, shape, strides);
    return span_elements(shape, strides.empty() ? dense_strides(shape) : strides) * bytes_of(buffer.type);
}

BoundArguments::BoundArguments(const Program& program, const Arguments& given, Device& device)
    : tree_(program.tree()), numbers_{.inputs = {}, .sizes = given.sizes, .scalars = given.scalars} {
    for (const Expr& size : tree_.sizes) bound_size(size, numbers_);
    for (const Expr& scalar : tree_.scalars) bound_scalar(scalar, numbers_);
    for (const codegen::KernelText& kernel : program.kernels()) check_tickets(kernel);
    for (const BufferRef& input : tree_.inputs) bind_given_buffer(input, input->name, given);
    for (const BufferRef& output : tree_.outputs) bind_given_buffer(output, name_of_memory(tree_, output), given);
    for (size_t w = 0; w < tree_.workspaces.size(); ++w)
        bind_workspace(tree_.workspaces[w], w < given.workspaces.size() ? given.workspaces[w] : Buffer(), device);
    for (const codegen::KernelText& kernel : program.kernels()) {
        check_overlap(kernel);
        check_alignment(kernel);
    }
}

void BoundArguments::bind_given_buffer(const BufferRef& node, const std::string& name, const Arguments& given) {
    auto found = given.buffers.find(name);
    if (found == given.buffers.end() || !found->second)
        throw_error(Error,
                    "launch: no buffer is given for '{0}'; bind one of {1} bytes (a Runner's: set(\"{0}\", values))",
                    name, bytes_spanned(*node, numbers_));
    int64_t needed = bytes_spanned(*node, numbers_);
    if (found->second.bytes() < needed)
        throw_error(Error, "launch: the buffer of '{}' has {} bytes, its shape and strides span {}", name,
                    found->second.bytes(), needed);
    buffers_[node.get()] = found->second;
}

/// The last one that a block takes, and does not use, is as many further.
void BoundArguments::check_tickets(const codegen::KernelText& kernel) const {
    if (!kernel.tickets.defined()) return;
    const int64_t tickets = extent_of(kernel.tickets, numbers_), blocks = extent_of(kernel.grid[0], numbers_),
                  most = (int64_t{1} << 31) - blocks;
    if (tickets > most)
        throw_error(
            Error,
            "launch: kernel '{}' has {} iterations, of which {} blocks take {} at most by tickets; bind smaller "
            "sizes, or leave .dynamic out of persistent",
            kernel.name, tickets, blocks, most);
}

void BoundArguments::bind_workspace(const BufferRef& node, const Buffer& given, Device& device) {
    const int64_t needed = bytes_spanned(*node, numbers_);
    if (given && given.bytes() < needed)
        throw_error(Error, "launch: the memory given for the workspace '{}' has {} bytes, it spans {}", node->name,
                    given.bytes(), needed);
    Buffer buffer = given ? given : device.allocate(needed, node->name);
    const std::vector<std::byte> zeros(node->is_counter ? static_cast<size_t>(buffer.bytes()) : 0);
    if (node->is_counter) buffer.copy_from_host(zeros.data());  // waits, unlike fill: launches may go to any stream
    buffers_[node.get()] = std::move(buffer);
}

void BoundArguments::check_alignment(const codegen::KernelText& kernel) const {
    for (size_t a = 0; a < kernel.arguments.size(); ++a) {
        const Buffer& buffer = buffers_.at(kernel.arguments[a].get());
        const auto bytes = uint64_t(kernel.alignments[a]);
        if (buffer.bytes() > 0 && buffer.pointer() % bytes != 0)
            throw_error(Error,
                        "launch: the buffer of '{}' ('{}') begins at {:#x}, but kernel '{}' moves {} bytes of it at "
                        "once; give it memory at a multiple of {}, or schedule it without vectors",
                        kernel.arguments[a]->name, buffer.name(), buffer.pointer(), kernel.name, bytes, bytes);
    }
}

void BoundArguments::check_overlap(const codegen::KernelText& kernel) const {
    std::vector<std::pair<BufferRef, bool>> used;  // by the kernel, and whether it writes there
    for (size_t a = 0; a < kernel.arguments.size(); ++a) used.emplace_back(kernel.arguments[a], kernel.written[a]);
    for (const codegen::TensorMapUse& use : kernel.maps) used.emplace_back(use.tensor, use.writes);
    for (const auto& [written, writes] : used)
        for (const auto& [other, unimportant] : used)
            if (writes && !may_overlap(written, other) && !lie_between_each_other(*written, *other) &&
                share_bytes(buffers_.at(written.get()), buffers_.at(other.get())))
                throw_error(
                    Error,
                    "launch: the buffer of '{}' overlaps that of '{}', which kernel '{}' writes; give it memory "
                    "of its own, or declare in_place",
                    other->name, written->name, kernel.name);
}

bool BoundArguments::may_overlap(const BufferRef& one, const BufferRef& other) const {
    return one == other || std::any_of(tree_.in_place.begin(), tree_.in_place.end(), [&](const auto& pair) {
               return (pair.first == one && pair.second == other) || (pair.first == other && pair.second == one);
           });
}

/// Whether both are other columns of the same rows, as parts of a larger array are.
bool BoundArguments::lie_between_each_other(const BufferNode& one, const BufferNode& other) const {
    const std::vector<int64_t> strides = extents_of(one.strides, numbers_);
    if (strides.empty() || bytes_of(one.type) != bytes_of(other.type)) return false;
    const std::vector<int64_t> others = extents_of(other.strides, numbers_);
    if (others.empty() || others[0] != strides[0] || strides[0] <= 0) return false;
    auto bytes_of_row = [&](const BufferNode& node, std::vector<int64_t> own) {
        std::vector<int64_t> shape = extents_of(node.shape, numbers_);
        shape.erase(shape.begin()), own.erase(own.begin());
        return span_elements(shape, own) * bytes_of(node.type);
    };
    const int64_t row = strides[0] * bytes_of(one.type);
    const auto apart = static_cast<int64_t>(buffers_.at(&other).pointer() - buffers_.at(&one).pointer());
    const int64_t behind = (apart % row + row) % row;
    return behind >= bytes_of_row(one, strides) && row - behind >= bytes_of_row(other, others);
}

LaunchShape BoundArguments::shape_of(const codegen::KernelText& kernel) const {
    auto blocks = [&](int dimension) { return extent_of(kernel.grid[dimension], numbers_); };
    bool early = kernel.starts_early && blocks(0) * blocks(1) * blocks(2) >= kernel.overlaps_from;
    return {.grid = {blocks(0), blocks(1), blocks(2)},
            .block = {kernel.threads, 1, 1},
            .dynamic_shared_bytes = kernel.shared_bytes,
            .cluster = kernel.cluster,
            .starts_early = early,
            .waits_itself = kernel.starts_early};
}

/// Whether an output that leaves as boxes has the input's memory.
bool BoundArguments::is_overwritten_by_boxes(const codegen::KernelText& kernel, const BufferRef& input) const {
    return std::ranges::any_of(tree_.in_place, [&](const auto& pair) {
        return pair.second == input && std::ranges::any_of(kernel.maps, [&](const codegen::TensorMapUse& use) {
                   return use.writes && use.tensor == pair.first;
               });
    });
}

std::vector<Argument> BoundArguments::parameters_of(const codegen::KernelText& kernel) const {
    std::vector<Argument> parameters;
    for (size_t a = 0; a < kernel.arguments.size(); ++a) {
        const Buffer& buffer = buffers_.at(kernel.arguments[a].get());
        const bool is_written = kernel.written[a] || is_overwritten_by_boxes(kernel, kernel.arguments[a]);
        parameters.push_back(is_written ? Argument(buffer) : Argument::read_only(buffer));
    }
    for (const codegen::TensorMapUse& use : kernel.maps) parameters.push_back(map_argument(use));
    for (const Expr& size : kernel.sizes) parameters.push_back(size_argument(size));
    for (const Expr& scalar : kernel.scalars) parameters.push_back(scalar_argument(scalar));
    return parameters;
}

Argument BoundArguments::map_argument(const codegen::TensorMapUse& use) const {
    const BufferNode& tensor = *use.tensor;
    TensorLayout layout{.element = tensor_element(tensor.type),
                        .box = use.box,
                        .traversal_strides = use.traversal_strides,
                        .im2col = im2col_of(use),
                        .swizzle = swizzle_of(use.swizzle)};
    layout.sizes = extents_of(tensor.shape, numbers_);
    std::vector<int64_t> strides =
        tensor.strides.empty() ? dense_strides(layout.sizes) : extents_of(tensor.strides, numbers_);
    std::reverse(layout.sizes.begin(), layout.sizes.end());
    for (size_t d = strides.size() - 1; d-- > 0;) layout.strides.push_back(strides[d] * bytes_of(tensor.type));
    const Buffer& buffer = buffers_.at(use.tensor.get());
    if (std::ranges::find(layout.sizes, 0) != layout.sizes.end()) return map_of_nothing(buffer, layout);
    TensorMap map = encode_tensor_map(buffer, layout);
    return Argument::bytes(as_bytes(map), buffer);
}

/// Maps have no empty dimensions. One of a single zero brings what lies outside of a tensor, zeros, wherever a box
/// begins. The bounding box of im2col goes with the sizes: all pixels are one there, of zeros.
Argument BoundArguments::map_of_nothing(const Buffer& tensor, TensorLayout layout) {
    const int64_t stride = layout.im2col ? 0 : 16;
    for (int64_t& size : layout.sizes) size = layout.im2col ? std::max<int64_t>(size, 1) : 1;
    std::ranges::fill(layout.strides, stride);
    const int64_t bytes = std::max<int64_t>(256, layout.sizes[0] * bytes_of(layout.element));
    Buffer zero = tensor.device()->allocate(bytes, tensor.name());
    zero.fill(0);
    TensorMap map = encode_tensor_map(zero, layout);
    return Argument::bytes(as_bytes(map), zero);
}

Argument BoundArguments::size_argument(const Expr& size) const {
    int64_t value = bound_size(size, numbers_);
    return codegen::argument_type(size) == Type::I32 ? Argument(static_cast<int32_t>(value)) : Argument(value);
}

Argument BoundArguments::scalar_argument(const Expr& scalar) const {
    Value value = bound_scalar(scalar, numbers_);
    switch (scalar.type()) {
        case Type::F64: return Argument(value.real);
        case Type::F32: return Argument(static_cast<float>(value.real));
        case Type::I32: return Argument(static_cast<int32_t>(value.integer));
        case Type::U32: return Argument(static_cast<uint32_t>(value.integer));
        case Type::I64: return Argument(value.integer);
        case Type::Bool: return boolean_argument(value.integer != 0);
        default: fail_internal(__FILE__, __LINE__, "scalar type", fmt::format("{}", name_of(scalar.type())));
    }
}

}  // namespace tw

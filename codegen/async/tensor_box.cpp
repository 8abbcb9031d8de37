#include "codegen/async/tensor_box.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "codegen/access/conditions.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr size_t most_dimensions = 5;
constexpr int64_t most_boxes = 64;  // that a thread asks for in a row

}  // namespace

const TensorBox::Side* TensorBox::side_in_parts(int blocks) const {
    if (walk_) return nullptr;
    const auto slowest = std::ranges::find_if(sides_, [](const Side& side) { return side.extent > 1; });
    if (slowest == sides_.end() || &*slowest == &fast() || slowest->extent % (8 * blocks) != 0) return nullptr;
    return &*slowest;
}

bool TensorBox::mentions(const Expr& variable) const {
    if (walk_) return std::ranges::any_of(*in_tensor_, [&](const Expr& index) { return contains(index, variable); });
    return std::any_of(sides_.begin(), sides_.end(), [&](const Side& s) { return contains(s.first, variable); });
}

std::string TensorBox::examine() {
    if (std::string reason = find_ends(); !reason.empty()) return reason;
    if (tensor_->type != tile_->type)
        return fmt::format("it converts {} to {}", name_of(arrives_ ? tensor_->type : tile_->type),
                           name_of(arrives_ ? tile_->type : tensor_->type));
    if (tensor_->role == BufferNode::Role::Local) return fmt::format("'{}' is no tensor of the program", tensor_->name);
    if (in_tensor_->size() > most_dimensions)
        return fmt::format("'{}' has {} dimensions; boxes have at most {}", tensor_->name, in_tensor_->size(),
                           most_dimensions);
    if (std::string reason = add_sides(); !reason.empty()) return reason;
    for (const OpLoop& loop : op_.loops)
        if (!is_repeated(loop.variable) && std::none_of(sides_.begin(), sides_.end(), [&](const Side& s) {
                return s.variable.defined() && s.variable.same(loop.variable);
            }))
            return fmt::format("its loop '{}' runs along no dimension of '{}' alone", to_string(loop.variable),
                               tensor_->name);
    if (std::string reason = examine_memory(); !reason.empty()) return reason;
    return examine_mask();
}

std::string TensorBox::find_ends() {
    const StoreTo* store = op_.stores.size() == 1 ? &op_.stores[0] : nullptr;
    const Load* load = store ? store->value.as<Load>() : nullptr;
    if (!load) return "its elements are computed, not only moved";
    if (store->atomic && *store->atomic != BinaryOp::Add) return "boxes only add to a tensor";
    adds_ = store->atomic.has_value();
    if (adds_ && bytes_of(store->buffer->type) != 4)
        return fmt::format("boxes add numbers of 4 bytes, not {}", name_of(store->buffer->type));
    arrives_ = store->buffer->memory == Memory::Shared;
    tensor_ = arrives_ ? load->buffer : store->buffer;
    tile_ = arrives_ ? store->buffer : load->buffer;
    in_tensor_ = arrives_ ? &load->indices : &store->indices;
    in_tile_ = arrives_ ? &store->indices : &load->indices;
    if (tensor_->memory != Memory::Global || tile_->memory != Memory::Shared)
        return "it is no copy between global and shared memory";
    return {};
}

/// One box, or one for each iteration of some of the loops; a walk if there is no box.
std::string TensorBox::add_sides() {
    auto all = [&]() -> std::string {
        sides_.clear();
        walk_.reset();
        for (const Expr& index : *in_tensor_)
            if (std::string reason = add_side(index); !reason.empty()) return reason;
        return in_order() ? "" : "its tile has the dimensions of its box in another order";
    };
    std::string reason = all();
    std::vector<OpLoop> outer;
    for (const OpLoop& loop : op_.loops)
        if (!contains(in_tensor_->back(), loop.variable)) outer.push_back(loop);
    if (reason.empty() || !arrives_ || outer.empty()) return reason;
    std::ranges::stable_sort(outer, std::greater(),
                             [](const OpLoop& loop) { return as_constant(loop.extent).value_or(0); });
    const std::string no_box = reason;
    for (const OpLoop& moved : outer) {
        if (!repeat_all_but(moved).empty()) continue;
        if (all().empty()) return {};
        if (in_tensor_->size() > 2 && add_sides_of_walk(moved).empty()) return {};
    }
    if (in_tensor_->size() > 2 && repeat_all_but(outer[0]).empty())
        reason = fmt::format("{}, and {}", no_box, add_sides_of_walk(outer[0]));
    repeats_.clear();
    return reason;
}

/// Whether the tile has a box of more than two dimensions as it arrives, slower sides first.
bool TensorBox::in_order() const {
    std::vector<size_t> dimensions;
    for (const Side& side : sides_)
        if (side.extent > 1) dimensions.push_back(side.dimension);
    return dimensions.size() <= 2 || std::ranges::is_sorted(dimensions);
}

bool TensorBox::is_repeated(const Expr& variable) const {
    return std::ranges::any_of(repeats_, [&](const OpLoop& loop) { return loop.variable.same(variable); });
}

/// The loops beside that of the rows and `moved`.
std::string TensorBox::repeat_all_but(const OpLoop& moved) {
    repeats_.clear();
    int64_t boxes = 1;
    for (const OpLoop& loop : op_.loops) {
        if (loop.variable.same(moved.variable) || contains(in_tensor_->back(), loop.variable)) continue;
        if (std::ranges::none_of(*in_tile_, [&](const Expr& e) { return e.same(loop.variable); }))
            return fmt::format("its tile has no dimension for '{}'", to_string(loop.variable));
        boxes *= as_constant(loop.extent).value_or(most_boxes + 1);
        if (boxes > most_boxes) return fmt::format("it is more than {} boxes", most_boxes);
        repeats_.push_back(loop);
    }
    return {};
}

std::string TensorBox::add_side(const Expr& index) {
    Side side{index, {}, 1, 0};
    for (const OpLoop& loop : op_.loops) {
        if (!contains(index, loop.variable) || is_repeated(loop.variable)) continue;
        auto extent = as_constant(loop.extent);
        if (side.variable.defined() || !extent || coefficient(affine_of(index), loop.variable) != 1)
            return fmt::format("'{}' is copied at {}, which is no box", tensor_->name, to_string(index));
        side.variable = loop.variable;
        side.extent = *extent;
    }
    if (side.variable.defined()) {
        side.first = simplify(substitute(index, {{side.variable, integer(0)}}));
        auto own =
            std::find_if(in_tile_->begin(), in_tile_->end(), [&](const Expr& e) { return e.same(side.variable); });
        if (own == in_tile_->end()) return fmt::format("its tile is no box of '{}'", tensor_->name);
        side.dimension = static_cast<size_t>(own - in_tile_->begin());
        if (side.extent > longest_side && &index != &in_tensor_->back())
            return fmt::format("a box has at most {} elements along a dimension, not {}", longest_side, side.extent);
    }
    sides_.push_back(side);
    return {};
}

/// Of the loop beside that of the rows.
std::string TensorBox::add_sides_of_walk(const OpLoop& pixels) {
    sides_.clear();
    walk_.reset();
    PixelWalk walk = walk_of(pixels, *in_tensor_, tensor_->shape);
    if (!walk.reason.empty()) return walk.reason;
    auto own = std::ranges::find_if(*in_tile_, [&](const Expr& e) { return e.same(walk.variable); });
    if (own == in_tile_->end()) return fmt::format("its tile is no matrix of pixels of '{}'", tensor_->name);
    sides_.push_back({integer(0), walk.variable, walk.pixels, static_cast<size_t>(own - in_tile_->begin())});
    walk_ = std::move(walk);
    return add_side(in_tensor_->back());
}

std::string TensorBox::examine_memory() const {
    int64_t bytes = bytes_of(tensor_->type);
    std::vector<Expr> strides = tensor_->strides;
    Expr stride = integer(1);
    if (strides.empty())
        for (size_t d = tensor_->shape.size(); d-- > 0;
             stride = simplify(stride * cast_unchecked(Type::I64, tensor_->shape[d])))
            strides.insert(strides.begin(), stride);
    if (!is_constant(strides.back(), 1)) return fmt::format("rows of '{}' have gaps between elements", tensor_->name);
    for (size_t d = strides.size() - 1; d-- > 0;)  // the shortest first: it is why the others are none
        if (divisor_of(strides[d]) * bytes % alignment != 0)
            return fmt::format("rows of '{}' are {} elements apart, which is no multiple of 16 bytes", tensor_->name,
                               to_string(strides[d]));
    if (fast().extent * bytes % alignment != 0)
        return fmt::format("its rows of {} elements are no multiple of 16 bytes", fast().extent);
    if (divisor_of(fast().first) * bytes % alignment != 0)
        return fmt::format("its rows begin at element {}, which is no multiple of 16 bytes", to_string(fast().first));
    if (!arrives_ && divisor_of(cast_unchecked(Type::I64, tensor_->shape.back())) * bytes % alignment != 0)
        return fmt::format("boxes write whole units of 16 bytes, and rows of '{}' end within one", tensor_->name);
    return {};
}

/// Whether one says what the other does: 1 <= i where 0 <= 3 i - 3.
static bool says_the_same(const Expr& a, const Expr& b) { return follows_from_all(a, {b}) && follows_from_all(b, {a}); }

/// That the pixel lies in one of the images.
std::vector<Expr> TensorBox::ends_of_images() const {
    if (!walk_ || !walk_->fused.defined()) return {};
    const Expr images = cast_unchecked(Type::I64, tensor_->shape[0]);
    const Expr within = simplify(walk_->fused < images * walk_->pixels_of_image);
    const Expr uniform = uniform_over(within, walk_->variable, walk_->pixels);
    return uniform.defined() ? std::vector{within, uniform} : std::vector{within};
}

/// What says that an element lies within one of the tensor's ends.
std::vector<Expr> TensorBox::ends() const {
    std::vector<Expr> found = ends_of_images();
    for (size_t d = 0; d < in_tensor_->size(); ++d) {
        std::vector<Expr> ends = {simplify((*in_tensor_)[d] < cast_unchecked(Type::I64, tensor_->shape[d]))};
        if (arrives_) ends.push_back(simplify((*in_tensor_)[d] >= 0));
        for (const Expr& end : ends) {
            found.push_back(end);
            const bool has_side = !walk_ || d + 1 == in_tensor_->size();
            const Side* side = !has_side ? nullptr : walk_ ? &fast() : &sides_[d];
            if (!side || !side->variable.defined()) continue;
            const Expr uniform = uniform_over(end, side->variable, side->extent);
            if (uniform.defined()) found.push_back(simplify(uniform));
        }
    }
    return found;
}

/// What is masked must be what lies outside of the tensor, and zeros its value.
std::string TensorBox::examine_mask() const {
    if (op_.is<CopyOp>() && !is_constant(op_.active, 1))
        return fmt::format("it is made only where {}", to_string(op_.active));
    const std::vector<Expr> parts = conjuncts_of(op_.mask), known = parts.empty() ? parts : ends();
    std::vector<Expr> ends, others;
    for (const Expr& part : parts) {
        // Most are written alike, which is seen at once.
        const bool is_end = std::ranges::any_of(known, [&](const Expr& end) { return same_condition(part, end); }) ||
                            std::ranges::any_of(known, [&](const Expr& end) { return says_the_same(part, end); });
        (is_end ? ends : others).push_back(part);
    }
    for (const Expr& part : others)
        if (!follows_from_all(part, ends))
            return fmt::format("its mask {} is not the end of the tensor", to_string(part));
    if (op_.otherwise.defined() && !is_constant(op_.otherwise, 0)) {
        const FloatConstant* real = op_.otherwise.as<FloatConstant>();
        if (!real || real->value != 0) return "it stores other values than zero at its edges";
    }
    return {};
}

}  // namespace tw::codegen

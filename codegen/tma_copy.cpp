#include "codegen/tma_copy.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "codegen/conditions.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int64_t alignment = 16;  // bytes, of strides and of a box's rows
constexpr int64_t longest_side = 256;
constexpr size_t most_dimensions = 5;

Expr integer(int64_t value) { return constant(Type::I64, value); }

/// A box of a tensor that an op copies into a tile of shared memory.
class Box {
public:
    explicit Box(const TileOp& op) : op_(op) { reason_ = examine(); }
    const std::string& reason() const { return reason_; }

    struct Side {
        Expr first;     // index where the loop is at 0
        Expr variable;  // undefined: one element
        int64_t extent = 1;
        size_t dimension = 0;  // of the buffer in shared memory
    };
    const std::vector<Side>& sides() const { return sides_; }
    const Buffer& tensor() const { return tensor_; }
    /// The side of which so many blocks can load a part each: whole groups of eight rows. Nothing if there is none.
    const Side* side_in_parts(int blocks) const {
        for (const Side& side : sides_)
            if (&side != &fast() && side.extent % (8 * blocks) == 0) return &side;
        return nullptr;
    }
    bool mentions(const Expr& variable) const {
        return std::any_of(sides_.begin(), sides_.end(), [&](const Side& s) { return contains(s.first, variable); });
    }
    /// The tile's own innermost dimension.
    const Side& fast() const { return sides_.back(); }

private:
    std::string examine() {
        const Load* load = op_.stores.size() == 1 ? op_.stores[0].value.as<Load>() : nullptr;
        if (!load) return "its elements are computed, not only moved";
        tensor_ = load->buffer;
        const Buffer& tile = op_.stores[0].buffer;
        if (tensor_->memory != Memory::Global || tile->memory != Memory::Shared)
            return "it is no copy from global to shared memory";
        if (tensor_->type != tile->type)
            return fmt::format("it converts {} to {}", name_of(tensor_->type), name_of(tile->type));
        if (tensor_->role == BufferNode::Role::Local) return "its source is no tensor of the program";
        if (load->indices.size() > most_dimensions)
            return fmt::format("its source has {} dimensions; boxes have at most {}", load->indices.size(),
                               most_dimensions);
        for (const Expr& index : load->indices)
            if (std::string reason = add_side(index); !reason.empty()) return reason;
        for (const OpLoop& loop : op_.loops)
            if (std::none_of(sides_.begin(), sides_.end(),
                             [&](const Side& s) { return s.variable.defined() && s.variable.same(loop.variable); }))
                return fmt::format("its loop '{}' runs along no dimension of the source alone",
                                   to_string(loop.variable));
        if (std::string reason = examine_memory(); !reason.empty()) return reason;
        return examine_mask(*load);
    }

    std::string add_side(const Expr& index) {
        Side side{index, {}, 1, 0};
        for (const OpLoop& loop : op_.loops) {
            if (!contains(index, loop.variable)) continue;
            auto extent = as_constant(loop.extent);
            if (side.variable.defined() || !extent || coefficient(affine_of(index), loop.variable) != 1)
                return fmt::format("its source is read at {}, which is no box", to_string(index));
            side.variable = loop.variable;
            side.extent = *extent;
        }
        if (side.variable.defined()) {
            side.first = simplify(substitute(index, {{side.variable, integer(0)}}));
            const auto& to = op_.stores[0].indices;
            auto own = std::find_if(to.begin(), to.end(), [&](const Expr& e) { return e.same(side.variable); });
            if (own == to.end()) return "its tile is no box of the source";
            side.dimension = static_cast<size_t>(own - to.begin());
            if (side.extent > longest_side && sides_.size() + 1 < op_.stores[0].value.as<Load>()->indices.size())
                return fmt::format("a box has at most {} elements along a dimension, not {}", longest_side,
                                   side.extent);
        }
        sides_.push_back(side);
        return {};
    }

    std::string examine_memory() const {
        int64_t bytes = bytes_of(tensor_->type);
        std::vector<Expr> strides = tensor_->strides;
        Expr stride = integer(1);
        if (strides.empty())
            for (size_t d = tensor_->shape.size(); d-- > 0;
                 stride = simplify(stride * cast_unchecked(Type::I64, tensor_->shape[d])))
                strides.insert(strides.begin(), stride);
        if (!is_constant(strides.back(), 1))
            return fmt::format("rows of '{}' have gaps between elements", tensor_->name);
        for (size_t d = 0; d + 1 < strides.size(); ++d)
            if (divisor_of(strides[d]) * bytes % alignment != 0)
                return fmt::format("rows of '{}' are {} elements apart, which is no multiple of 16 bytes",
                                   tensor_->name, to_string(strides[d]));
        if (fast().extent * bytes % alignment != 0)
            return fmt::format("its rows of {} elements are no multiple of 16 bytes", fast().extent);
        if (divisor_of(fast().first) * bytes % alignment != 0)
            return fmt::format("its rows begin at element {}, which is no multiple of 16 bytes",
                               to_string(fast().first));
        size_t long_sides = 0;
        for (const Side& side : sides_) long_sides += side.extent > 1;
        if (long_sides > 2) return "its box has more than two dimensions";
        return {};
    }

    /// What is masked must be what lies outside of the tensor, and zeros its value.
    std::string examine_mask(const Load& load) const {
        if (op_.kind == TileOp::Kind::Copy && !is_constant(op_.active, 1))
            return fmt::format("it is made only where {}", to_string(op_.active));
        for (const Expr& part : conjuncts_of(op_.mask)) {
            bool outside = false;
            for (size_t d = 0; d < load.indices.size(); ++d) {
                Expr extent = cast_unchecked(Type::I64, tensor_->shape[d]);
                outside = outside || same_condition(part, simplify(load.indices[d] < extent)) ||
                          same_condition(part, simplify(load.indices[d] >= 0));
                if (sides_[d].variable.defined()) {
                    Expr uniform =
                        uniform_over(simplify(load.indices[d] < extent), sides_[d].variable, sides_[d].extent);
                    outside = outside || (uniform.defined() && same_condition(part, uniform));
                }
            }
            if (!outside) return fmt::format("its mask {} is not the end of the tensor", to_string(part));
        }
        if (op_.otherwise.defined() && !is_constant(op_.otherwise, 0)) {
            const FloatConstant* real = op_.otherwise.as<FloatConstant>();
            if (!real || real->value != 0) return "it stores other values than zero at its edges";
        }
        return {};
    }

    const TileOp& op_;
    std::string reason_;
    Buffer tensor_;
    std::vector<Side> sides_;
};

const SharedBuffer& shared_of(const TileKernel& kernel, const Buffer& buffer) {
    auto found = std::find_if(kernel.shared.begin(), kernel.shared.end(),
                              [&](const SharedBuffer& s) { return s.buffer == buffer; });
    internal_check(found != kernel.shared.end(), "{} is in no shared memory", buffer->name);
    return *found;
}

class Chooser {
public:
    Chooser(const TileKernel& kernel, const Target& target, const CiteStep& cite)
        : result_(kernel), target_(target), cite_(cite) {}

    TileKernel run() {
        result_.body = rewrite(result_.body);
        return std::move(result_);
    }

private:
    TileStmt rewrite(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) return make_tile(chosen(*op));
        if (const TileLoop* loop = stmt.as<TileLoop>()) {
            TileLoop copy = *loop;
            loops_.push_back(*loop);
            copy.body = rewrite(loop->body);
            loops_.pop_back();
            return make_tile(std::move(copy));
        }
        if (const TileAllocate* allocate = stmt.as<TileAllocate>())
            return make_tile(TileAllocate{allocate->buffer, rewrite(allocate->body), allocate->around});
        TileBlock block;
        for (const TileStmt& kid : stmt.as<TileBlock>()->stmts) block.stmts.push_back(rewrite(kid));
        return make_tile(std::move(block));
    }

    TileOp chosen(const TileOp& op) {
        if (op.role > 0 && (op.kind != TileOp::Kind::Copy || !stores_to(op, Memory::Shared)))
            throw_error(Error, "{}role '{}': '{}' is no copy into shared memory; leave it to the role that computes",
                        cite_(result_.roles[op.role].step), result_.roles[op.role].name, op.name);
        if (op.kind != TileOp::Kind::Copy || !stores_to(op, Memory::Shared)) return op;
        bool pipelined = !loops_.empty() && loops_.back().stages > 1;
        bool asked = op.via.copy == Copy::Tma || op.role > 0;
        bool suits = op.via.copy == Copy::Automatic && pipelined && turns_of(result_) == 1 &&
                     arch_number(target_) >= 90 && shared_of(result_, op.stores[0].buffer).fixed;
        if (!asked && !suits) return op;
        std::string reason = why_not(op, pipelined);
        if (!reason.empty() && op.role > 0)
            throw_error(
                Error,
                "{}role '{}' cannot copy '{}' by the tensor memory accelerator: {}; leave the copy to the role that "
                "computes, or change what it copies",
                cite_(result_.roles[op.role].step), result_.roles[op.role].name, op.name, reason);
        if (!reason.empty() && asked)
            throw_error(Error,
                        "{}{} cannot be copied by the tensor memory accelerator: {}; leave the choice open, or change "
                        "what it copies",
                        cite_(op.via.step), op.name, reason);
        if (!reason.empty()) {
            result_.notes.push_back(fmt::format("{}: not by the tensor memory accelerator: {}", op.name, reason));
            return op;
        }
        TileOp copy = op;
        copy.kind = TileOp::Kind::TmaCopy;
        Box box(op);
        bool same_for_all = result_.cluster > 1 && op.role > 0 && !box.mentions(result_.cluster_rank);
        if (same_for_all && box.side_in_parts(result_.cluster)) copy.shared_by = result_.cluster;
        add_map(copy);
        return copy;
    }

    std::string why_not(const TileOp& op, bool pipelined) {
        if (arch_number(target_) < 90) return fmt::format("{} has none", target_.arch);
        if (!pipelined) return "its loop is not pipelined; pipeline(loop, {.stages = 2}) has it run ahead";
        if (op.role > 0 && (op.via.copy == Copy::Vector || op.via.copy == Copy::Async))
            return fmt::format("via asks for {}", to_string(op.via.copy));
        if (op.role == 0 && turns_of(result_) > 1) return "its role takes turns; give the copy to another one";
        if (!counts_iterations())
            return "its loop has not always as many iterations, so that the barriers' phases cannot be told";
        if (!op.threads.empty()) return "its loops are bound to threads, and one thread asks for a whole box";
        Box box(op);
        if (!box.reason().empty()) return box.reason();
        int writers = 0;
        bool source_changes = false;
        visit_ops(result_.body, [&](const TileOp& other) {
            for (const StoreTo& store : other.stores) {
                writers += store.buffer == op.stores[0].buffer;
                source_changes = source_changes || store.buffer == box.tensor();
            }
        });
        if (source_changes) return "the kernel writes its source";
        if (writers != 1) return "several copies fill its memory";
        return fit_layout(op, box);
    }

    /// The loop that the copies stand in runs the same number of iterations each time, and so do those between it and
    /// the outermost one.
    bool counts_iterations() const {
        for (size_t inner = 1; inner < loops_.size(); ++inner) {
            for (size_t outer = 0; outer < inner; ++outer)
                if (contains(loops_[inner].extent, loops_[outer].variable)) return false;
            if (!result_.persistent) continue;
            for (const GridDigit& digit : result_.grid_digits)
                if (contains(loops_[inner].extent, digit.variable)) return false;
        }
        return true;
    }

    /// A layout that nobody has asked for yet becomes plain rows.
    std::string fit_layout(const TileOp& op, const Box& box) {
        const Buffer& buffer = op.stores[0].buffer;
        for (SharedBuffer& shared : result_.shared) {
            if (shared.buffer != buffer) continue;
            int64_t bytes = bytes_of(buffer->type);
            if (!shared.fixed) {
                if (shared.layout.digits.back().extent > longest_side) return "its rows are longer than 256 elements";
                if (shared.layout.digits.back().extent * bytes % 128 != 0 && box.sides().size() > 1)
                    return "its rows are no multiple of 128 bytes, which boxes in several stages need";
                shared.fixed = true;
                shared.alignment = 128;
            }
            if (shared.layout.digits.back().dimension != static_cast<int>(box.fast().dimension) ||
                !box.fast().variable.defined())
                return "its tile lies in another order in shared memory than its source";
        }
        return {};
    }

    void add_map(const TileOp& op) {
        Box box(op);
        const Layout& layout = shared_of(result_, op.stores[0].buffer).layout;
        TensorMapUse use;
        use.map = std::make_shared<const BufferNode>(BufferNode{.name = op.stores[0].buffer->name + "_map",
                                                                .type = box.tensor()->type,
                                                                .memory = Memory::Global,
                                                                .shape = {},
                                                                .strides = {}});
        use.tensor = box.tensor();
        use.swizzle = layout.swizzle;
        for (size_t d = box.sides().size(); d-- > 0;) use.box.push_back(box.sides()[d].extent);
        use.box[0] = layout.digits.back().extent;
        if (op.shared_by > 1) {
            size_t side = static_cast<size_t>(box.side_in_parts(op.shared_by) - box.sides().data());
            use.box[box.sides().size() - 1 - side] /= op.shared_by;
            result_.notes.push_back(
                fmt::format("{}: each of {} blocks loads a part and multicasts it", op.name, op.shared_by));
        }
        result_.maps.push_back(use);
        result_.notes.push_back(fmt::format("{}: by the tensor memory accelerator, boxes of {} elements", op.name,
                                            fmt::join(use.box, " x ")));
    }

    TileKernel result_;
    const Target& target_;
    const CiteStep& cite_;
    std::vector<TileLoop> loops_;  // around what is being rewritten
};

}  // namespace

TileKernel choose_tma(const TileKernel& kernel, const Target& target, const CiteStep& cite) {
    return Chooser(kernel, target, cite).run();
}

int64_t tma_bytes(const TileOp& copy) {
    int64_t elements = 1;
    for (const OpLoop& loop : copy.loops) elements *= require_constant(loop.extent);
    return elements * bytes_of(copy.stores[0].buffer->type);
}

TmaRequest tma_request(const TileKernel& kernel, const TileOp& copy, const Buffer& versions, const Buffer& barriers,
                       const Expr& stage) {
    Box box(copy);
    internal_check(box.reason().empty(), "a box of {}: {}", copy.name, box.reason());
    const Buffer& buffer = copy.stores[0].buffer;
    const Box::Side& fast = box.fast();
    auto use = std::find_if(kernel.maps.begin(), kernel.maps.end(),
                            [&](const TensorMapUse& u) { return u.map->name == buffer->name + "_map"; });
    internal_check(use != kernel.maps.end(), "{} has no tensor map", copy.name);
    int64_t line = use->box[0];
    auto in_version = [&](const Substitution& values) {
        std::vector<Expr> indices{stage};
        for (const Expr& index : copy.stores[0].indices) indices.push_back(simplify(substitute(index, values)));
        return indices;
    };
    const Box::Side* in_parts = copy.shared_by > 1 ? box.side_in_parts(copy.shared_by) : nullptr;
    Expr part = in_parts ? kernel.cluster_rank * (in_parts->extent / copy.shared_by) : Expr();
    TmaRequest result;
    for (int64_t start = 0; start < fast.extent; start += line) {
        Substitution values{{fast.variable, integer(start)}};
        for (const Box::Side& side : box.sides())
            if (side.variable.defined() && !side.variable.same(fast.variable))
                values.emplace_back(side.variable, &side == in_parts ? part : integer(0));
        std::string function = in_parts ? "tma_load_multicast" : "tma_load";
        ThreadCall call{fmt::format("{}_{}d", function, box.sides().size()), {}, {}, function};
        call.arguments.push_back({CallArgument::Effect::Address, {}, {versions, in_version(values)}});
        call.arguments.push_back({CallArgument::Effect::Map, {}, {use->map, {}}});
        for (size_t d = box.sides().size(); d-- > 0;) {
            Expr first = box.sides()[d].first;
            if (d + 1 == box.sides().size()) first = first + start;
            if (&box.sides()[d] == in_parts) first = first + part;
            call.arguments.push_back({CallArgument::Effect::Value, simplify(first), {}});
        }
        call.arguments.push_back({CallArgument::Effect::Read, {}, {barriers, {stage}}});
        if (in_parts)
            call.arguments.push_back({CallArgument::Effect::Value, integer((int64_t{1} << copy.shared_by) - 1), {}});
        result.calls.push_back(std::move(call));
    }
    TileOp& mark = result.mark;
    mark.kind = TileOp::Kind::Mark;
    mark.name = copy.name;
    mark.step = copy.step;
    mark.mask = mark.active = all_of({});
    mark.loops = copy.loops;
    int64_t width = alignment / bytes_of(buffer->type);
    Substitution wide;
    for (OpLoop& loop : mark.loops) {
        loop.execution = Execution::Serial;
        if (!loop.variable.same(fast.variable)) continue;
        Expr group = index_variable("piece", 0, fast.extent / width - 1);
        wide.emplace_back(loop.variable, group * width);
        loop = {group, integer(fast.extent / width)};
    }
    mark.call.arguments = {{CallArgument::Effect::Write, {}, {versions, in_version(wide)}, static_cast<int>(width)}};
    return result;
}

}  // namespace tw::codegen

#include "codegen/async/choose_tma.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/async/cluster.h"
#include "codegen/async/iterations.h"
#include "codegen/async/tensor_box.h"
#include "codegen/tile_passes/simulate_banks.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int tile_alignment = 128;  // bytes

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
        const TileLoop* loop = stmt.as<TileLoop>();
        if (loop) loops_.push_back(*loop);
        TileStmt result = map_children(stmt, [&](const TileStmt& kid) { return rewrite(kid); });
        if (loop) loops_.pop_back();
        return result;
    }

    TileOp chosen(const TileOp& op) {
        const CopyOp* copied = op.as<CopyOp>();
        if (op.role > 0 && (!copied || !stores_to(op, Memory::Shared)))
            throw_error(Error, "{}role '{}': '{}' is no copy into shared memory; leave it to the role that computes",
                        cite_(result_.roles[op.role].step), result_.roles[op.role].name, op.name);
        if (!copied) return op;
        const Via via = copied->via;
        if (!stores_to(op, Memory::Shared)) return via.copy == Copy::Tma ? leaving(op, via) : op;
        bool pipelined = !loops_.empty() && (loops_.back().stages > 1 || (loops_.back().is_block && op.role > 0));
        bool asked = via.copy == Copy::Tma || op.role > 0;
        bool suits = via.copy == Copy::Automatic && pipelined && turns_of(result_) == 1 && target_.has_tma &&
                     shared_of(result_, op.stores[0].buffer).fixed;
        if (!asked && !suits) return op;
        std::string reason = why_not(op, via, pipelined);
        if (!reason.empty() && op.role > 0)
            throw_error(
                Error,
                "{}role '{}' cannot copy '{}' by the tensor memory accelerator: {}; leave the copy to the role that "
                "computes, or change what it copies",
                cite_(result_.roles[op.role].step), result_.roles[op.role].name, op.name, reason);
        if (asked) refuse(op, via, reason);
        if (!reason.empty()) {
            result_.notes.push_back(fmt::format("{}: not by the tensor memory accelerator: {}", op.name, reason));
            return op;
        }
        TileOp copy = op;
        copy.action = TmaCopyOp{op.role > 0 ? shared_along(TensorBox(op)) : std::vector<Expr>()};
        add_map(copy);
        return copy;
    }

    /// The coordinates of the cluster on which the box does not depend, as far as one of its sides has a part for each
    /// block.
    std::vector<Expr> shared_along(const TensorBox& box) const {
        std::vector<Expr> along;
        for (const ClusterCoordinate& coordinate : result_.cluster_coordinates) {
            bool alike = coordinate.extent > 1 && !box.mentions(coordinate.variable);
            for (const TileLoop& loop : loops_) alike = alike && !contains(loop.extent, coordinate.variable);
            if (!alike) continue;
            along.push_back(coordinate.variable);
            if (!box.side_in_parts(BlockGroup(result_, along).blocks())) along.pop_back();
        }
        return along;
    }

    /// Throws if there is a reason.
    void refuse(const TileOp& op, const Via& via, const std::string& reason) const {
        if (reason.empty()) return;
        throw_error(Error,
                    "{}{} cannot be copied by the tensor memory accelerator: {}; leave the choice open, or change "
                    "what it copies",
                    cite_(via.step), op.name, reason);
    }

    TileOp leaving(const TileOp& op, const Via& via) {
        refuse(op, via, why_not_leave(op));
        TileOp copy = op;
        copy.action = TmaCopyOp{};
        add_map(copy);
        return copy;
    }

    std::string why_not_leave(const TileOp& op) {
        if (!target_.has_tma) return fmt::format("{} has none", target_.arch);
        if (!op.threads.empty()) return "its loops are bound to threads, and one thread asks for a whole box";
        TensorBox box(op);
        if (!box.reason().empty()) return box.reason();
        int uses = box.adds() ? 1 : 0;  // what adds may do so in several segments of a loop
        visit_ops(result_.body, [&](const TileOp& other) {
            if (box.adds() && other.stage == op.stage) return;
            for (const StoreTo& store : other.stores) uses += store.buffer == box.tensor();
            for (const Buffer& buffer : loads_of(other)) uses += buffer == box.tensor();
        });
        if (uses != 1) return fmt::format("other parts of the kernel use '{}' too", box.tensor()->name);
        return fit_layout(box);
    }

    std::string why_not(const TileOp& op, const Via& via, bool pipelined) {
        if (!target_.has_tma) return fmt::format("{} has none", target_.arch);
        if (!pipelined) return "its loop is not pipelined; pipeline(loop, {.stages = 2}) has it run ahead";
        if (op.role > 0 && (via.copy == Copy::Vector || via.copy == Copy::Async))
            return fmt::format("via asks for {}", to_string(via.copy));
        if (turns_of(result_) > 1 && loops_.back().is_block && !is_resident(result_, loops_.back(), op))
            return "it stands outside of pipelined loops, and groups that take turns have only those in common";
        if (op.role == 0 && turns_of(result_) > 1) return "its role takes turns; give the copy to another one";
        if (turns_of(result_) > 1 && loops_.size() > 2 && !equally_long(result_, loops_))
            return "its loop has not always as many iterations in loops around it, and groups that take turns do not "
                   "see the others'; have one group compute";
        for (size_t l = 1; turns_of(result_) > 1 && l + 1 < loops_.size(); ++l)
            if (prove(loops_[l].extent >= 1) != true)
                return fmt::format(
                    "loop '{}' around may have no iterations, and then no group of its role tells the "
                    "next one that its turn has come; have one group compute",
                    loops_[l].variable.as<Variable>()->name);
        if (!op.threads.empty()) return "its loops are bound to threads, and one thread asks for a whole box";
        TensorBox box(op);
        if (!box.reason().empty()) return box.reason();
        if (stores_in(result_.body, box.tensor()) > 0) return "the kernel writes its source";
        if (!is_only_writer(op)) return "several copies fill its memory";
        return fit_layout(box);
    }

    static int stores_in(const TileStmt& stmt, const Buffer& buffer) {
        int stores = 0;
        visit_ops(stmt, [&](const TileOp& op) {
            for (const StoreTo& store : op.stores) stores += store.buffer == buffer;
        });
        return stores;
    }

    /// Of its memory; of another role's, the same copy in other segments of the loop may fill it, too.
    bool is_only_writer(const TileOp& op) const {
        const Buffer& buffer = op.stores[0].buffer;
        int in_segments = 0;
        bool once_each = true;
        visit(result_.body, [&](const TileStmt& stmt) {
            const TileLoop* loop = stmt.as<TileLoop>();
            if (!loop || loop->loop < 0 || loop->loop != loops_.back().loop) return;
            const int here = stores_in(loop->body, buffer);
            once_each = once_each && here <= 1;
            in_segments += here;
        });
        const int all = stores_in(result_.body, buffer);
        return all == 1 || (op.role > 0 && once_each && in_segments == all);
    }

    /// A layout that nobody has asked for yet becomes lines where boxes leave, since threads fill those without
    /// conflicts, also from accumulators of tensor cores; and where they arrive, plain rows, if threads read those as
    /// fast.
    std::string fit_layout(const TensorBox& box) {
        if (!box.fast().variable.defined()) return fmt::format("its tile is no box of '{}'", box.tensor()->name);
        for (SharedBuffer& shared : result_.shared) {
            if (shared.buffer != box.tile()) continue;
            int64_t bytes = bytes_of(box.tile()->type);
            if (!shared.fixed) {
                Layout lines = lines_of(box);
                if (!lines.digits.empty() && can_take(box, lines, bytes) &&
                    (!box.arrives() || are_better_lines(shared, lines)))
                    shared.layout = lines;
                if (shared.layout.digits.back().extent > TensorBox::longest_side)
                    return "its rows are longer than 256 elements";
                const bool several = box.arrives() || turns_of(result_) > 1 || has_stages();
                if (several) align_stages(shared.layout, bytes);
                shared.fixed = true;
                shared.alignment = tile_alignment;
            }
            if (!begins_aligned(box, shared.layout, bytes))
                return fmt::format("it begins within '{}', not always at a multiple of {} bytes", box.tile()->name,
                                   alignment_in(shared.layout));
            if (shared.layout.digits.back().dimension != static_cast<int>(box.fast().dimension))
                return fmt::format("its tile lies in another order in shared memory than '{}'", box.tensor()->name);
            if (!is_dense(box, shared.layout)) return why_not_dense(box, shared.layout);
        }
        return {};
    }

    /// Boxes begin at multiples of so many bytes: swizzles are functions of addresses, with a period of eight rows.
    static int64_t alignment_in(const Layout& layout) {
        return std::max(tile_alignment, layout.swizzle > 16 ? 8 * layout.swizzle : 0);
    }

    /// Where the box's element stands that is the first along all sides, and the second along `second` if that is one.
    static Expr address_in(const TensorBox& box, const Layout& layout, const TensorBox::Side* second = nullptr) {
        Substitution element;
        for (const TensorBox::Side& side : box.sides())
            if (side.variable.defined()) element.emplace_back(side.variable, integer(&side == second));
        std::vector<Expr> indices;
        for (const Expr& index : box.place_in_tile()) indices.push_back(simplify(substitute(index, element)));
        const std::vector<Expr> place = layout.physical(indices), shape = layout.physical_shape();
        Expr address = integer(0);
        for (size_t d = 0; d < place.size(); ++d) address = simplify(address * shape[d] + place[d]);
        return address;
    }

    /// Whether the box's first element is where boxes begin in a tile that is. It may stand anywhere in the tile.
    static bool begins_aligned(const TensorBox& box, const Layout& layout, int64_t bytes) {
        Expr address = address_in(box, layout);
        return is_constant(address, 0) || divisor_of(address) * bytes % alignment_in(layout) == 0;
    }

    /// Whether the tile has the box's lines one behind another, as they arrive and leave, those of slower sides last.
    static bool is_dense(const TensorBox& box, const Layout& layout) {
        const int64_t line = layout.digits.back().extent;
        int64_t step = line;
        for (size_t d = box.sides().size() - 1; d-- > 0; step *= box.sides()[d].extent) {
            const Expr apart = simplify(address_in(box, layout, &box.sides()[d]) - address_in(box, layout));
            if (box.sides()[d].extent > 1 && !is_constant(apart, step)) return false;
        }
        return box.fast().extent % line == 0;
    }

    static std::string why_not_dense(const TensorBox& box, const Layout& layout) {
        const std::string reason = "its rows are not all of the tile's, one behind another";
        const int64_t line = layout.digits.back().extent;
        int64_t rows = 1;
        for (size_t d = box.sides().size() - 1; d-- > 0; rows *= box.sides()[d].extent) {
            const Expr apart = simplify(address_in(box, layout, &box.sides()[d]) - address_in(box, layout));
            const int64_t there = as_constant(apart).value_or(0) / line;
            if (box.sides()[d].extent > 1 && there > rows)
                return fmt::format(
                    "{}: {} in the tile, whose rows come in whole units, and {} that it brings; have it "
                    "bring {}",
                    reason, there, rows, there);
        }
        return reason;
    }

    /// Has the layout, one behind another, begin at multiples of what boxes begin at: by a gap behind a single row, or
    /// rows that nothing fills behind several.
    static void align_stages(Layout& layout, int64_t bytes) {
        const int64_t each = tile_alignment / bytes;
        if (layout.elements() == layout.pitch) layout.pitch = (layout.pitch + each - 1) / each * each;
        const auto slowest = std::ranges::find_if(layout.digits, [](const LayoutDigit& d) { return d.extent > 1; });
        while (layout.elements() % each != 0) ++slowest->extent;
    }

    /// Whether boxes arrive, or leave, in that layout.
    static bool can_take(const TensorBox& box, const Layout& layout, int64_t bytes) {
        return begins_aligned(box, layout, bytes) && is_dense(box, layout);
    }

    /// Where threads that are known already read those faster.
    bool are_better_lines(const SharedBuffer& shared, const Layout& lines) const {
        double plain = 0, other = 0;
        for (const SharedAccess& access : shared_accesses(result_, shared.buffer, target_)) {
            plain += cost_of(access, shared.buffer, shared.layout, target_);
            other += cost_of(access, shared.buffer, lines, target_);
        }
        return other < plain * 0.999;
    }

    /// Whether what stands here has several buffers.
    bool has_stages() const {
        return std::ranges::any_of(loops_, [](const TileLoop& loop) { return loop.stages > 1; });
    }

    static Layout lines_of(const TensorBox& box) {
        const std::vector<int64_t> shape = constant_shape(box.tile());
        std::vector<int> slow;
        bool is_whole = true;  // the box is all of the tile
        for (const TensorBox::Side& side : box.sides()) {
            is_whole = is_whole && side.extent == shape[side.dimension];
            if (&side != &box.fast() && side.extent > 1) slow.push_back(static_cast<int>(side.dimension));
        }
        if (slow.empty()) return {};
        // Parts of tiles, and boxes that arrive, have lines of one slow dimension.
        if (box.arrives() || !is_whole) slow.resize(1);
        return in_lines(shape, static_cast<int>(box.fast().dimension), slow, bytes_of(box.tile()->type));
    }

    /// Pixels in the place of the box.
    static void walk(TensorMapUse& use, const PixelWalk& walk) {
        Im2colUse pixels;
        pixels.channels = use.box[0];
        pixels.pixels = walk.pixels;
        use.traversal_strides = {1};
        for (const PixelWalk::Dimension& dimension : walk.dimensions) {
            pixels.lower.push_back(dimension.lower);
            pixels.upper.push_back(dimension.upper);
            use.traversal_strides.push_back(dimension.step);
        }
        use.traversal_strides.push_back(1);
        use.im2col = pixels;
    }

    /// Corners for both: where a walk begins further on, its base pixels do so less, and what it reads is farther from
    /// them (see tma_request).
    static void widen(Im2colUse& pixels, const PixelWalk& walk) {
        for (size_t d = 0; d < walk.dimensions.size(); ++d) {
            const PixelWalk::Dimension& other = walk.dimensions[d];
            const int64_t lower = std::min(pixels.lower[d], other.lower);
            pixels.upper[d] =
                std::max(pixels.upper[d] - (pixels.lower[d] - lower), other.upper - (other.lower - lower));
            pixels.lower[d] = lower;
        }
    }

    void add_map(const TileOp& op) {
        TensorBox box(op);
        auto has_map = [&](const TensorMapUse& use) { return use.map->name == box.map_name(); };
        if (auto known = std::ranges::find_if(result_.maps, has_map); known != result_.maps.end()) {
            if (box.walk()) widen(*known->im2col, *box.walk());  // by another segment of the loop
            return;
        }
        const Layout& layout = shared_of(result_, box.tile()).layout;
        TensorMapUse use;
        use.map = std::make_shared<const BufferNode>(BufferNode{
            .name = box.map_name(), .type = box.tensor()->type, .memory = Memory::Global, .shape = {}, .strides = {}});
        use.tensor = box.tensor();
        use.swizzle = layout.swizzle;
        use.writes = !box.arrives();
        for (size_t d = box.sides().size(); d-- > 0;) use.box.push_back(box.sides()[d].extent);
        use.box[0] = layout.digits.back().extent;
        if (box.walk()) walk(use, *box.walk());
        if (int blocks = BlockGroup(result_, op.as<TmaCopyOp>()->shared_along).blocks(); blocks > 1) {
            size_t side = static_cast<size_t>(box.side_in_parts(blocks) - box.sides().data());
            use.box[box.sides().size() - 1 - side] /= blocks;
            result_.notes.push_back(
                fmt::format("{}: each of {} blocks loads a part and multicasts it", op.name, blocks));
        }
        result_.notes.push_back(fmt::format("{}: by the tensor memory accelerator, {} of {} elements", op.name,
                                            use.im2col ? "pixels (im2col)" : "boxes", fmt::join(use.box, " x ")));
        if (use.im2col) use.box.clear();
        result_.maps.push_back(use);
        if (!box.arrives())
            result_.notes.push_back(fmt::format("{}: laid out as {}", box.tile()->name, layout.to_string()));
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

}  // namespace tw::codegen

#include <algorithm>
#include <functional>

#include "codegen/async/choose_tma.h"
#include "codegen/async/cluster.h"
#include "codegen/async/tensor_box.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {

int64_t tma_bytes(const TileOp& copy) {
    int64_t elements = 1;
    for (const OpLoop& loop : copy.loops) elements *= require_constant(loop.extent);
    return elements * bytes_of(copy.stores[0].buffer->type);
}

namespace {

/// What one thread asks for, line by line of the tile.
class Asking {
public:
    Asking(const TileKernel& kernel, const TileOp& copy)
        : copy_(copy), box_(copy), sharers_(kernel, copy.as<TmaCopyOp>()->shared_along) {
        internal_check(box_.reason().empty(), "a box of {}: {}", copy.name, box_.reason());
        auto use = std::find_if(kernel.maps.begin(), kernel.maps.end(),
                                [&](const TensorMapUse& u) { return u.map->name == box_.map_name(); });
        internal_check(use != kernel.maps.end(), "{} has no tensor map", copy.name);
        map_ = use->map;
        if (box_.walk()) shift_walk(*use->im2col);
        line_ = use->im2col ? use->im2col->channels : use->box[0];
        in_parts_ = sharers_.blocks() > 1 ? box_.side_in_parts(sharers_.blocks()) : nullptr;
        if (in_parts_) part_ = sharers_.place() * (in_parts_->extent / sharers_.blocks());
    }

    TmaRequest arriving(const Buffer& staged, const Buffer& barriers, const Expr& stage) const {
        auto place = [&](const Substitution& values) {
            std::vector<Expr> indices = in_tile(values);
            indices.insert(indices.begin(), stage);
            return Access{staged, indices};
        };
        TmaRequest result;
        for (const Substitution& first : lines()) {
            TmaLoad load{{place(first)}, {map_}, coordinates(first), {{barriers, {stage}}}};
            for (const PixelWalk::Dimension& dimension : walked_)
                load.offsets.push_back(simplify(substitute(dimension.offset, first)));
            if (in_parts_) load.ranks = integer(sharers_.ranks());
            if (Expr first = simplify(sharers_.first_rank()); in_parts_ && !is_constant(first, 0))
                load.first_rank = first;
            result.instructions.emplace_back(std::move(load));
        }
        result.access = access(true, place);
        return result;
    }

    TmaRequest leaving() const {
        auto place = [&](const Substitution& values) { return Access{box_.tile(), in_tile(values)}; };
        TmaRequest result;
        for (const Substitution& first : lines())
            result.instructions.emplace_back(TmaStore{{map_}, coordinates(first), {place(first)}, box_.adds()});
        result.access = access(false, place);
        return result;
    }

private:
    /// In terms of the map's corners, which may begin before the walk's.
    void shift_walk(const Im2colUse& pixels) {
        walked_ = box_.walk()->dimensions;
        for (size_t d = 0; d < walked_.size(); ++d) {
            // Of a dimension without offsets what another iteration seems to reach, ahead of the last one, is not read.
            const int64_t apart = walked_[d].lower - pixels.lower[d],
                          further = is_constant(walked_[d].offset, 0) ? std::max<int64_t>(apart, 0) : apart;
            walked_[d].base = simplify(walked_[d].base - further);
            walked_[d].offset = simplify(walked_[d].offset + further);
            const int64_t farthest = bounds_of(walked_[d].offset).max.value_or(0),
                          most = most_offset_of_walk(box_.walk()->dimensions.size() + 2);
            if (farthest > most)
                throw_error(Error,
                            "{} cannot be copied by the tensor memory accelerator: in parts of its loop together, it "
                            "reads pixels {} from each other, and a walk over {} dimensions holds offsets to {}; leave "
                            "the loop whole, or the copy to the role that computes",
                            copy_.name, farthest, walked_.size() + 2, most);
        }
    }

    /// The first element of each line of each box.
    std::vector<Substitution> lines() const {
        std::vector<Substitution> firsts = {{}};
        for (const OpLoop& repeat : box_.repeats()) {
            std::vector<Substitution> longer;
            for (const Substitution& first : firsts)
                for (int64_t i = 0; i < require_constant(repeat.extent); ++i) {
                    longer.push_back(first);
                    longer.back().emplace_back(repeat.variable, integer(i));
                }
            firsts = std::move(longer);
        }
        std::vector<Substitution> result;
        for (const Substitution& first : firsts)
            for (int64_t start = 0; start < box_.fast().extent; start += line_) {
                result.push_back(first);
                for (const TensorBox::Side& side : box_.sides())
                    if (side.variable.defined())
                        result.back().emplace_back(side.variable, &side == &box_.fast() ? integer(start)
                                                                  : &side == in_parts_  ? part_
                                                                                        : integer(0));
            }
        return result;
    }

    std::vector<Expr> in_tile(const Substitution& values) const {
        std::vector<Expr> indices;
        for (const Expr& index : box_.place_in_tile()) indices.push_back(simplify(substitute(index, values)));
        return indices;
    }

    /// In the tensor, innermost first.
    std::vector<Expr> coordinates(const Substitution& first) const {
        std::vector<Expr> result;
        auto add = [&](const Expr& coordinate) { result.push_back(simplify(substitute(coordinate, first))); };
        auto add_side = [&](const TensorBox::Side& side) {
            add(side.variable.defined() ? side.first + side.variable : side.first);
        };
        if (const PixelWalk* walk = box_.walk()) {
            add_side(box_.fast());
            for (const PixelWalk::Dimension& dimension : walked_) add(dimension.base);
            add(walk->image);
            return result;
        }
        for (size_t d = box_.sides().size(); d-- > 0;) add_side(box_.sides()[d]);
        return result;
    }

    /// All of the tile, in pieces of 16 bytes.
    TileOp access(bool writes, const std::function<Access(const Substitution&)>& place) const {
        TileOp op{{}, copy_.name};
        op.step = copy_.step;
        op.loops = copy_.loops;
        int64_t width = TensorBox::alignment / bytes_of(box_.tile()->type);
        Substitution wide;
        for (OpLoop& loop : op.loops) {
            loop.execution = Execution::Serial;
            if (!loop.variable.same(box_.fast().variable)) continue;
            Expr group = index_variable("piece", 0, box_.fast().extent / width - 1);
            wide.emplace_back(loop.variable, group * width);
            loop = {group, integer(box_.fast().extent / width)};
        }
        op.action = AccessOp{place(wide), static_cast<int>(width), writes};
        return op;
    }

    const TileOp& copy_;
    TensorBox box_;
    BlockGroup sharers_;
    Buffer map_;
    std::vector<PixelWalk::Dimension> walked_;
    int64_t line_ = 0;
    const TensorBox::Side* in_parts_ = nullptr;
    Expr part_;
};

}  // namespace

TmaRequest tma_request(const TileKernel& kernel, const TileOp& copy, const Buffer& staged, const Buffer& barriers,
                       const Expr& stage) {
    return Asking(kernel, copy).arriving(staged, barriers, stage);
}

TmaRequest tma_departure(const TileKernel& kernel, const TileOp& copy) { return Asking(kernel, copy).leaving(); }

}  // namespace tw::codegen

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "codegen/access/conditions.h"
#include "codegen/tile_ir/buffer_segments.h"
#include "codegen/tile_passes/compare_masks.h"
#include "codegen/tile_passes/drop_by_selects.h"
#include "codegen/tile_passes/stored_elements.h"
#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

/// A copy that, storing zeros where its mask is false, gives each element of a buffer below these extents a value.
struct Fill {
    const TileOp* op;
    const StoreTo* store;
    std::vector<int64_t> extents;
    bool wanted = false;          // some reader relies on there being a value,
    std::set<size_t> zeros = {};  // and on zeros where these parts of the mask are false
    bool for_atoms = false;       // of registers, as lanes share them
};

/// Those of a buffer, in a segment: one, or one in each part of a loop.
struct Fills {
    bool known = false;
    std::vector<Fill> each;
};

class Discharger {
public:
    explicit Discharger(const TileKernel& kernel) : kernel_(kernel) {
        kernel_.body = map_ops(kernel.body, with_uniform_masks);
    }

    TileKernel run() {
        collect_loops(kernel_.body);
        for (const ThreadCoordinate& coordinate : kernel_.thread_coordinates)
            if (coordinate.reduces) reduce_variables_.push_back(coordinate.variable);
        segments_.emplace(kernel_.body);
        visit_ops(kernel_.body, [&](const TileOp& op) { collect_fill(op); });
        visit_ops(kernel_.body, [&](const TileOp& op) {
            if (!moves_private(op) || op.stores[0].buffer->memory != Memory::Registers) return;
            kept_whole_.emplace(op.stores[0].buffer.get(), segments_->of(op.stores[0].buffer.get(), op));
            want_what_is_read(op);
        });
        while (keeps_more_whole()) {
        }
        visit_ops(kernel_.body, [&](const TileOp& op) {
            if (moves_private(op) && op.stores[0].buffer->memory == Memory::Shared) want_what_is_read(op);
        });
        visit_ops(kernel_.body, [&](const TileOp& op) { relax(op); });  // notes which zeros are relied on
        TileKernel result = kernel_;
        result.body = map_ops(kernel_.body, [&](const TileOp& op) {
            if (!moves_private(op)) return with_zeros(op, relax(op));
            TileOp bare = op;
            bare.mask = all_of({});
            return bare;
        });
        return result;
    }

private:
    /// Of shared memory, where the op's own mask is false, too.
    void want_what_is_read(const TileOp& op) {
        if (is_constant(op.mask, 1)) return;
        visit(op.stores[0].value, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            if (!load || load->buffer->memory != Memory::Shared) return;
            for (Fill* fill : fills_of(load->buffer, op)) fill->wanted = true;
        });
    }

    void collect_loops(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) {
            for (const OpLoop& loop : op->loops)
                if (loop.reduces) reduce_variables_.push_back(loop.variable);
            places_.emplace(op, places_.size());
            loops_around_[op] = around_;
        }
        const TileLoop* loop = stmt.as<TileLoop>();
        if (loop && loop->reduces) reduce_variables_.push_back(loop->variable);
        if (loop) around_.push_back(loop->variable);
        for (const TileStmt& kid : children(stmt)) collect_loops(kid);
        if (loop) around_.pop_back();
    }

    /// Whether each iteration of the loop around the fill has readers of its own: then it may store zeros over what
    /// another iteration stored.
    bool is_read_inside(const Expr& loop, const TileOp& fill, const Buffer& buffer) const {
        int segment = segments_->of(buffer.get(), fill);
        return std::ranges::all_of(loops_around_, [&](const auto& each) {
            const auto& [op, around] = each;
            std::vector<Buffer> loads = loads_of(*op);
            bool reads = std::ranges::find(loads, buffer) != loads.end() && segments_->of(buffer.get(), *op) == segment;
            return !reads || std::ranges::any_of(around, [&](const Expr& v) { return v.same(loop); });
        });
    }

    /// Whether all that use the buffer belong to iterations of a loop that runs in parts: each makes it anew.
    bool is_of_iterations(const Buffer& buffer) const {
        return std::ranges::all_of(loops_around_, [&](const auto& each) {
            const TileOp& op = *each.first;
            std::vector<Buffer> loads = loads_of(op);
            const bool uses = std::ranges::find(loads, buffer) != loads.end() ||
                              std::ranges::any_of(op.stores, [&](const StoreTo& s) { return s.buffer == buffer; });
            return !uses || op.iteration.defined();
        });
    }

    /// Neither do iterations of the loops around it store zeros over each other's values.
    bool masks_own_iterations(const TileOp& op, const StoreTo& store) const {
        return std::ranges::all_of(loops_around_.at(&op), [&](const Expr& variable) {
            bool in_place = std::ranges::any_of(store.indices, [&](const Expr& index) { return index.same(variable); });
            const bool anew =
                op.iteration.defined() && contains(op.iteration, variable) && is_of_iterations(store.buffer);
            return !contains(op.mask, variable) || in_place || anew || is_read_inside(variable, op, store.buffer);
        });
    }

    void collect_fill(const TileOp& op) {
        for (const StoreTo& store : op.stores) {
            if (store.buffer->memory == Memory::Global) continue;
            auto place = std::pair(store.buffer.get(), segments_->of(store.buffer.get(), op));
            writers_[place].emplace(op.stage, op.purpose);
            auto [found, fresh] = fills_.try_emplace(place);
            Fills& fills = found->second;
            auto box = box_stored(op, store);
            bool assigns = op.is<CopyOp>() || op.is<MapOp>();
            const bool in_box = box && masks_whole_elements(op, store);
            // Else several writers: nothing is known.
            fills.known = (fresh || (fills.known && fills_other_iteration(op, *fills.each[0].op))) && assigns &&
                          op.stores.size() == 1 && (in_box || stores_all_private(op, store)) &&
                          masks_own_iterations(op, store);
            if (fills.known)
                fills.each.push_back(in_box ? Fill{&op, &store, *box}
                                            : Fill{&op, &store, constant_shape(store.buffer), false, {}, true});
        }
    }

    /// In parts of a loop, the same stage makes the buffer for several iterations, each anew.
    static bool fills_other_iteration(const TileOp& op, const TileOp& first) {
        return op.iteration.defined() && first.iteration.defined() && op.stage == first.stage &&
               op.purpose == first.purpose;
    }

    /// The fills of a buffer that the op reads or writes, one unless parts of a loop have one each; none if nothing is
    /// known.
    std::vector<Fill*> fills_of(const Buffer& buffer, const TileOp& op) {
        auto found = fills_.find(std::pair(buffer.get(), segments_->of(buffer.get(), op)));
        if (found == fills_.end() || !found->second.known) return {};
        std::vector<Fill*> fills;
        for (Fill& fill : found->second.each) {
            if (op.is<UpdateOp>() && fill.for_atoms && zeros_cost_more(fill, op)) return {};
            fills.push_back(&fill);
        }
        return fills;
    }
    bool is_wanted(const Buffer& buffer, const TileOp& op) {
        return std::ranges::any_of(fills_of(buffer, op), [](const Fill* fill) { return fill->wanted; });
    }

    /// Sums that a thread keeps are whole, too, if none of what stores to them has a mask left.
    bool keeps_more_whole() {
        std::set<std::pair<const BufferNode*, int>> whole, partial;
        visit_ops(kernel_.body, [&](const TileOp& op) {
            for (const StoreTo& store : op.stores) {
                const auto place = std::pair(store.buffer.get(), segments_->of(store.buffer.get(), op));
                if (store.buffer->memory != Memory::Registers || kept_whole_.contains(place)) continue;
                const bool all = op.stores.size() == 1 && is_constant(relax(op).mask, 1);
                (all ? whole : partial).insert(place);
            }
        });
        std::erase_if(whole, [&](const auto& place) { return partial.contains(place); });
        kept_whole_.insert(whole.begin(), whole.end());
        return !whole.empty();
    }

    /// A mask is dropped part by part; what the parts rely on is noted in the fills.
    TileOp relax(const TileOp& op) {
        bool accumulates = op.is<InitOp>() || op.is<UpdateOp>();
        if (!accumulates || op.stores.size() != 1) return op;
        std::vector<Expr> kept;
        TileOp result = op;
        for (const Expr& part : conjuncts_of(op.mask)) {
            if (can_drop(op, part)) continue;
            if (!drops_by_selects(op, part))
                kept.push_back(part);
            else
                result.notes.push_back(
                    fmt::format("{}: where not {}, selects leave terms out: no mask does", op.name, to_string(part)));
        }
        result.mask = all_of(kept);
        return result;
    }

    bool can_drop(const TileOp& op, const Expr& part) {
        if (is_of_terms(op, part)) return drops_as_zero_term(op, part);
        return !idles_threads(op, part) && is_asked_by_readers(op, part) && drops_as_private(op);
    }

    /// Whether the part of the mask differs between terms. Reduce loops around the accumulator's start are those of
    /// other stages.
    bool is_of_terms(const TileOp& op, const Expr& part) const {
        for (const OpLoop& loop : op.loops) {  // that all add to the same elements
            auto tells = [&](const Expr& index) { return contains(index, loop.variable); };
            if (contains(part, loop.variable) && std::ranges::none_of(op.stores[0].indices, tells)) return true;
        }
        return std::ranges::any_of(reduce_variables_, [&](const Expr& variable) {
            if (!contains(part, variable)) return false;
            auto is_start = [&](const auto& each) {
                return each.first->template is<InitOp>() && each.first->stores[0].buffer == op.stores[0].buffer;
            };
            auto stands_in = [&](const auto& each) {
                return std::ranges::any_of(each.second, [&](const Expr& v) { return v.same(variable); });
            };
            std::vector<bool> inside;
            for (const auto& each : loops_around_)
                if (is_start(each)) inside.push_back(stands_in(each));
            return inside.empty() || std::ranges::find(inside, false) != inside.end();
        });
    }

    /// Readers may drop a part of a mask that they ask for themselves; terms that do not exist must not be summed.
    static bool is_asked_by_readers(const TileOp& op, const Expr& part) {
        const UpdateOp* update = op.as<UpdateOp>();
        if (!update || !update->readers_mask.defined()) return true;
        std::vector<Expr> asked = conjuncts_of(update->readers_mask);
        return std::any_of(asked.begin(), asked.end(), [&](const Expr& own) { return same_condition(own, part); });
    }

    /// Threads that never have an element do nothing, rather than compute what nobody reads.
    bool idles_threads(const TileOp& op, const Expr& part) const {
        auto variables = variables_of(part);
        auto is_coordinate = [&](const Expr& variable) {
            auto same = [&](const ThreadCoordinate& coordinate) { return coordinate.variable.same(variable); };
            return std::any_of(op.threads.begin(), op.threads.end(), same) ||
                   std::any_of(kernel_.thread_coordinates.begin(), kernel_.thread_coordinates.end(), same);
        };
        return std::all_of(variables.begin(), variables.end(), is_coordinate);
    }

    /// value = accumulator + term, where the term is zero whenever `part` is false.
    bool drops_as_zero_term(const TileOp& op, const Expr& part) {
        auto term = added_term(op.stores[0]);
        if (!term) return false;
        std::vector<std::pair<Fill*, std::set<size_t>>> used;
        bool all_filled = true;
        Expr zeroed = transform(*term, [&](const Expr& e) -> Expr {
            const Load* load = e.as<Load>();
            if (!load) return {};
            const std::vector<Fill*> fills = fills_of(load->buffer, op);
            const bool masked = std::ranges::all_of(fills, [&](Fill* fill) {
                auto& [_, relied] = used.emplace_back(fill, std::set<size_t>{});
                return in_bounds(load->indices, fill->extents) &&
                       is_masked_by({*fill->op, loops_around_.at(fill->op)}, *fill->store, {op, loops_around_.at(&op)},
                                    *load, part, relied);
            });
            const bool whole = std::ranges::any_of(fills, [&](const Fill* f) { return whole_makers_.contains(f->op); });
            if (fills.empty() || !masked || whole) {
                all_filled = false;
                return {};
            }
            return zero_of(e.type());
        });
        if (!all_filled || used.empty() || !is_zero(simplify(zeroed))) return false;
        for (auto& [fill, relied] : used) {
            fill->wanted = true;
            fill->zeros.insert(relied.begin(), relied.end());
        }
        return true;
    }

    /// Elements of which readers ask for the rest of the mask are all that count.
    bool drops_by_selects(const TileOp& op, const Expr& part) {
        if (!op.is<UpdateOp>() || !is_of_terms(op, part)) return false;
        std::vector<Expr> held;
        for (const Expr& own : conjuncts_of(op.mask))
            if (!is_of_terms(op, own) && is_asked_by_readers(op, own)) held.push_back(own);
        Makers used;
        const MakerOf maker_of = makers_of(op, used);
        if (!counts_nothing(op, part, held, maker_of, is_stored_for(op))) return false;
        for (const TileOp* maker : used) whole_makers_.insert(maker);
        return true;
    }

    /// What a thread keeps, made by one op for all elements. `used` gets those that were asked for.
    using Makers = std::set<const TileOp*>;
    MakerOf makers_of(const TileOp& reader, Makers& used) {
        return [this, &reader, &used](const Load& load) -> const TileOp* {
            if (load.buffer->memory != Memory::Registers) return nullptr;
            auto found = fills_.find(std::pair(load.buffer.get(), segments_->of(load.buffer.get(), reader)));
            if (found == fills_.end() || !found->second.known || found->second.each.size() != 1) return nullptr;
            const Fill& fill = found->second.each[0];
            const TileOp* maker = fill.op;
            const bool in_front = places_.at(maker) < places_.at(&reader) &&
                                  std::ranges::equal(loops_around_.at(maker), loops_around_.at(&reader), same_node);
            if (!in_front || !in_bounds(load.indices, fill.extents) ||
                !(is_constant(maker->mask, 1) || moves_private(*maker)))
                return nullptr;
            used.insert(maker);
            return maker;
        };
    }
    /// No: where a mask of what fills it asks for loops of the part, too.
    IsStored is_stored_for(const TileOp& reader) {
        return [this, &reader](const Load& load, const Expr& part) {
            bool stored = true;
            for (const Expr& variable : variables_of(part))
                for (const Fill* fill : fills_of(load.buffer, reader)) stored &= !contains(fill->op->mask, variable);
            return stored;
        };
    }
    static bool same_node(const Expr& a, const Expr& b) { return a.same(b); }

    /// Values of a private accumulator that nobody reads may be anything that can be computed: whoever reads it keeps a
    /// mask of its own.
    bool drops_as_private(const TileOp& op) {
        const StoreTo& store = op.stores[0];
        if (store.buffer->memory != Memory::Registers || !in_bounds(store.indices, constant_shape(store.buffer)))
            return false;
        std::vector<Fill*> used;
        bool safe = true;
        visit(store.value, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            if (!load || load->buffer == store.buffer || is_kept_whole(*load, op)) return;
            std::vector<Fill*> fills;
            if (load->buffer->memory != Memory::Global) fills = fills_of(load->buffer, op);
            safe = safe && !fills.empty() && std::ranges::all_of(fills, [&](const Fill* fill) {
                       return in_bounds(load->indices, fill->extents);
                   });
            used.insert(used.end(), fills.begin(), fills.end());
        });
        if (!safe) return false;
        for (Fill* fill : used) fill->wanted = true;
        return true;
    }

    /// Than that a thread asks for each element itself: unless it fills few for many, or steps of a loop load what a
    /// mask chooses, which the compiler has in one register, so that each step waits for the one before.
    bool zeros_cost_more(const Fill& fill, const TileOp& reader) const {
        return !reader.as<UpdateOp>()->atom && runs_of(reader) < 4 * runs_of(*fill.op) &&
               !chooses_loads(*fill.op, loops_around_.at(&reader));
    }

    /// Whether the element is one that a thread keeps, and has been computed whatever masks say.
    bool is_kept_whole(const Load& load, const TileOp& reader) {
        auto found = kept_whole_.find(std::pair(load.buffer.get(), segments_->of(load.buffer.get(), reader)));
        return found != kept_whole_.end() && in_bounds(load.indices, constant_shape(load.buffer));
    }

    /// Computes what a thread keeps, or a block, from what a thread keeps: for elements that are not there, it may be
    /// anything, since whoever reads them keeps a mask of its own. Under a mask, registers would also keep what they
    /// had before, and lanes could not store matrices together.
    bool moves_private(const TileOp& op) { return can_move_private(op) && !is_wanted(op.stores[0].buffer, op); }
    bool can_move_private(const TileOp& op) {
        bool assigns = op.is<CopyOp>() || op.is<MapOp>();
        if (!assigns || op.stores.size() != 1 || op.stores[0].buffer->memory == Memory::Global) return false;
        const StoreTo& store = op.stores[0];
        const bool shared = store.buffer->memory == Memory::Shared;
        if (shared && !op.lanes) return false;
        if (shared && !std::ranges::all_of(op.threads, [&](const ThreadCoordinate& thread) {
                return !contains(op.mask, thread.variable) ||
                       std::ranges::any_of(store.indices, [&](const Expr& i) { return contains(i, thread.variable); });
            }))
            return false;
        // In parts of a loop there may be several ops of the same stage.
        bool alone = writers_.at(std::pair(store.buffer.get(), segments_->of(store.buffer.get(), op))).size() == 1;
        bool told = std::all_of(op.loops.begin(), op.loops.end(), [&](const OpLoop& loop) {
            return !contains(op.mask, loop.variable) || is_told_by(loop.variable, op, store);
        });
        if (!alone || !told || !masks_own_iterations(op, store)) return false;
        bool safe = in_bounds(store.indices, constant_shape(store.buffer));
        visit(store.value, [&](const Expr& e) {
            const Load* load = e.as<Load>();
            const Binary* binary = e.as<Binary>();
            const bool divides = binary && (binary->op == BinaryOp::Div || binary->op == BinaryOp::Mod);
            const bool may_trap = divides && !is_float(e.type()) && as_constant(binary->b).value_or(0) <= 0;
            const bool kept = load && shared && load->buffer->memory == Memory::Registers;
            const bool there = !load || (kept ? is_kept_whole(*load, op) : is_there(*load, op));
            safe = safe && !may_trap && there && (!load || load->buffer != store.buffer);
        });
        return safe;
    }

    /// Whether the element is one that a thread keeps, or one of shared memory that is filled wherever masks of copies
    /// are false, too.
    bool is_there(const Load& load, const TileOp& op) {
        if (load.buffer->memory == Memory::Registers) return in_bounds(load.indices, constant_shape(load.buffer));
        const std::vector<Fill*> fills =
            load.buffer->memory == Memory::Shared ? fills_of(load.buffer, op) : std::vector<Fill*>{};
        return !fills.empty() &&
               std::ranges::all_of(fills, [&](const Fill* fill) { return in_bounds(load.indices, fill->extents); });
    }

    /// The parts of the mask where readers want zeros that the value itself does not have.
    Expr relied_on(const TileOp& op) {
        std::vector<Expr> held = conjuncts_of(op.mask), relied;
        const std::vector<Expr> parts = held;
        Makers used;
        const MakerOf maker_of = makers_of(op, used);
        for (const Fill* fill : fills_of(op.stores[0].buffer, op))
            if (fill->op == &op)
                for (size_t part : fill->zeros) {
                    std::erase_if(held, [&](const Expr& own) { return own.same(parts[part]); });
                    if (is_zero_without(op, parts[part], held, maker_of, is_stored_for(op))) continue;
                    relied.push_back(parts[part]);
                    held.push_back(parts[part]);
                }
        return all_of(relied);
    }

    /// `op` stands in the kernel, `relaxed` takes its place.
    TileOp with_zeros(const TileOp& op, const TileOp& relaxed) {
        if (op.stores.size() != 1 || is_constant(relaxed.mask, 1)) return relaxed;
        if (!is_wanted(op.stores[0].buffer, op)) return relaxed;
        TileOp result = relaxed;
        if (can_move_private(op)) result.mask = relied_on(op);
        if (is_constant(result.mask, 1)) return result;
        result.otherwise = zero_of(op.stores[0].value.type());
        result.notes.push_back(
            fmt::format("{}: zeros where not {}: sums of them need no mask for that", op.name, to_string(result.mask)));
        return result;
    }

    TileKernel kernel_;
    std::vector<Expr> reduce_variables_;
    std::vector<Expr> around_;                // variables of the loops around what is being collected
    std::map<const TileOp*, size_t> places_;  // in the order of the text
    std::map<const TileOp*, std::vector<Expr>> loops_around_;
    Makers whole_makers_;  // whose values are relied on where their masks are false
    std::optional<BufferSegments> segments_;
    std::map<std::pair<const BufferNode*, int>, Fills> fills_;
    std::map<std::pair<const BufferNode*, int>, std::set<std::pair<int, std::string>>>
        writers_;                                             // stages, and for what
    std::set<std::pair<const BufferNode*, int>> kept_whole_;  // written by one op, whatever masks say
};

}  // namespace

TileKernel discharge_masks(const TileKernel& kernel) {
    return mask_padding(Discharger(kernel).run());  // of copies that store zeros at their edges now
}

}  // namespace tw::codegen

#include "codegen/cost/warp_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "codegen/cost/device_speeds.h"
#include "codegen/cost/known_numbers.h"
#include "codegen/cost/known_values.h"
#include "codegen/cost/lane_places.h"
#include "codegen/cost/loop_traits.h"
#include "codegen/cost/operation_costs.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/tile_passes/simulate_banks.h"
#include "dsl/simplify.h"
#include "dsl/walk.h"
#include "support/overloaded.h"

namespace tw::codegen {
namespace {

constexpr int64_t line = 128;              // bytes that the first cache serves together
constexpr int64_t most_iterations = 17;    // of a loop that are run: a sector of 16-bit elements, and one more
constexpr int64_t most_statements = 4000;  // of a warp, run
constexpr int64_t iterations_by_data = 4;  // of a loop whose length is read from memory
constexpr double near_trip = 0.5;          // of a round trip, to arrays that others have brought to the second cache
constexpr int64_t unrolled_whole = 16;     // iterations that a compiler unrolls all of
constexpr double loads_ahead = 4;          // iterations whose loads a compiler puts side by side
constexpr double share_by_warps = 0.62;    // of these, that mma.sync reaches

constexpr double least_of_many = 32, wait_of_many = 0.6;  // results of a thread, of which each waits so much
constexpr double more_at_first = 2;  // as many instructions: then masks leave out what is in the middle

bool is_of_many(const BufferNode& registers) {
    double elements = 1;
    for (const Expr& extent : registers.shape) elements *= static_cast<double>(most_of(extent));
    return elements >= least_of_many;
}

/// One warp of the kernel's middle block, or of the first of two, as the last one may be masked.
class WarpRun {
public:
    WarpRun(const ThreadKernel& kernel, const Target& target, int warp, double resident_warps)
        : kernel_(kernel), target_(target), first_(warp * warp_lanes), first_cache_(resident_warps) {
        for (const Expr& size : kernel.sizes) scope_[size.id()] = LaneValues::all(most_of(size));
        for (int d = 0; d < 3; ++d)
            if (kernel.block[d].defined())
                scope_[kernel.block[d].id()] = LaneValues::all(middle_of(most_of(kernel.grid[d])));
        define_lanes(kernel.thread, [&](int64_t thread) { return thread; });
        const int all = kernel.threads + kernel.producer_threads;
        for (int lane = 0; lane < warp_lanes; ++lane) active_[lane] = first_ + lane < all;
    }

    WarpCounts run() {
        run(kernel_.body);
        end_trip();
        if (awaits_copies_) counts_.work.round_trips += 1;
        return counts_;
    }

private:
    static int64_t middle_of(int64_t blocks) { return blocks == 2 ? 0 : blocks / 2; }

    void define_lanes(const Expr& variable, const std::function<int64_t(int64_t thread)>& value) {
        if (!variable.defined()) return;
        LaneValues values;
        values.is_uniform = false;
        for (int lane = 0; lane < warp_lanes; ++lane) values.of_lane[lane] = value(first_ + lane);
        scope_[variable.id()] = values;
    }

    void run(const ThreadStmt& stmt) {
        ++statements_;
        std::visit([&](const auto& node) { run(node); }, (*stmt).kind);
    }
    void run(const ThreadBlock& block) {
        for (const ThreadStmt& stmt : block.stmts) run(stmt);
    }
    void run(const OneOf<ThreadComment, ThreadAccess> auto&) {}
    void run(const ThreadDeclare& declare) { values_.begin(declare.buffer.get()); }
    void run(const ThreadLet& let) {
        known_.define(let.variable, let.value);
        values_.define(let.variable, compute(let.value));
        if (auto value = evaluate_lanes(let.value, scope_))
            scope_[let.variable.id()] = *value;
        else
            scope_.erase(let.variable.id());
    }
    void run(const ThreadIf& branch) {
        compute(branch.condition);
        issue(1);
        const auto before = active_;
        const size_t values_before = values_.count();
        if (auto condition = evaluate_lanes(branch.condition, scope_); condition && !condition->by_data)
            for (int lane = 0; lane < warp_lanes; ++lane) active_[lane] = active_[lane] && condition->of_lane[lane];
        if (any_active()) run(branch.body);
        active_ = before;
        values_.keep_first(values_before);
    }
    void run(const ThreadRole& role) {
        if (first_ < role.first || first_ >= role.first + role.threads) return;
        const int64_t size = role.threads / role.turns;
        define_lanes(role.thread, [&](int64_t thread) { return (thread - role.first) % size; });
        define_lanes(role.turn, [&](int64_t thread) { return (thread - role.first) / size; });
        run(role.body);
    }
    void run(const ThreadBarrier&) {
        issue(1);
        end_trip();
        forget_all();
        counts_.work.barriers += 1;
    }
    /// What others have written since is read anew.
    void forget_all() { held_.clear(), values_.clear(); }

    /// Iterations that some lane runs.
    int64_t iterations_of(const ThreadLoop& loop) const {
        if (loop.next) {
            const double blocks = static_cast<double>(most_of(kernel_.grid[0]));
            const double all = static_cast<double>(most_of(kernel_.tickets.defined() ? kernel_.tickets : loop.extent));
            return static_cast<int64_t>(std::ceil(all / std::max(blocks, 1.0)));
        }
        auto extent = evaluate_lanes(loop.extent, scope_);
        if (!extent || extent->by_data) return std::min(most_of(loop.extent), iterations_by_data);
        int64_t most = 0;
        for (int lane = 0; lane < warp_lanes; ++lane)
            if (active_[lane]) most = std::max(most, extent->of_lane[lane]);
        return most;
    }

    /// What the function adds to the counts, which stay as they are.
    template <class F>
    WarpCounts counted(const F& function) {
        WarpCounts before = std::exchange(counts_, {});
        function();
        return std::exchange(counts_, std::move(before));
    }

    void run_iteration(const ThreadLoop& loop, int64_t iteration) {
        scope_[loop.variable.id()] = LaneValues::all(iteration);
        values_.define(loop.variable, loop.unroll ? KnownValues::of(iteration) : values_.fresh());
        if (!loop.unroll) {
            values_.clear();
            visit(loop.body, [&](const ThreadStmt& stmt) {  // what an iteration finds in registers, no compiler knows
                if (auto store = stmt.as<ThreadStore>()) forget(store->to);
            });
        }
        written_out_ += loop.unroll;
        run(loop.body);
        written_out_ -= loop.unroll;
        if (loop.unroll) return;
        forget_all();
        issue(2);
        end_trip();
    }

    /// Some iterations in the middle, as ends are masked. The others are as these on average, without the first of
    /// them, which finds nothing in the cache.
    void run(const ThreadLoop& loop) {
        const int64_t all = iterations_of(loop);
        if (all <= 0) return;
        const LoopTraits& traits = traits_of(loop);
        int64_t runs = std::min<int64_t>(all, traits.is_innermost || loop.unroll ? most_iterations : 2);
        if (!traits.touches_global) runs = std::min<int64_t>(runs, 3);
        if (!traits.touches_memory || statements_ > most_statements) runs = 1;
        const int64_t begin = (all - runs) / 2;
        WarpCounts first = counted([&] { run_iteration(loop, begin); }), others;
        for (int64_t more = 1; more < runs; ++more) others += counted([&] { run_iteration(loop, begin + more); });
        WarpCounts whole = first;
        const auto rest = static_cast<double>(all - 1);
        whole += runs == 1 ? rest * first : rest / static_cast<double>(runs - 1) * others;
        if (!loop.unroll && traits.is_innermost && !traits.meets && loop.unroll_by == 0)
            whole.work.round_trips /= all <= unrolled_whole ? static_cast<double>(all) : loads_ahead;
        if (traits.has_masks && all > runs) {
            const int64_t before_masks =
                iterations_before_masks(loop, begin, whole.work.instructions / static_cast<double>(all));
            if (before_masks > 0) {
                whole = static_cast<double>(all - before_masks) / static_cast<double>(all) * whole;
                whole += static_cast<double>(before_masks) * probe(loop, before_masks / 2);
            }
        }
        counts_ += whole;
    }

    /// What an iteration does, in the eyes of a warp that goes on where this one is.
    WarpCounts probe(const ThreadLoop& loop, int64_t iteration) const {
        WarpRun other = *this;
        return other.counted([&] { other.run_iteration(loop, iteration); });
    }
    /// Of a split that is far larger than what it splits, say, the middle is masked: how many iterations, all in front
    /// of `begin`, do far more than those of the middle, each of which has so many instructions; none mostly.
    int64_t iterations_before_masks(const ThreadLoop& loop, int64_t begin, double in_the_middle) const {
        const auto does_more = [&](int64_t iteration) {
            return probe(loop, iteration).work.instructions > more_at_first * in_the_middle;
        };
        if (!does_more(0)) return 0;
        int64_t last = 0, masked = begin;
        while (masked - last > 1) {
            const int64_t between = (last + masked) / 2;
            (does_more(between) ? last : masked) = between;
        }
        return last + 1;
    }

    const LoopTraits& traits_of(const ThreadLoop& loop) {
        auto [known, is_new] = traits_.try_emplace(&loop);
        if (is_new) known->second = loop_traits(loop);
        return known->second;
    }

    void run(const ThreadStore& store) {
        side_by_side_ =
            written_out_ > 0 && store.to.buffer->memory == Memory::Registers && is_of_many(*store.to.buffer);
        const KnownValues::Number value = compute(store.value);
        side_by_side_ = false;
        if (store.to.buffer->memory == Memory::Registers) {
            known_.store(store.to.buffer.get(), store.value);
            values_.write(store.to.buffer.get(), place_of(store.to), value);
            return;
        }
        access(store.to, 1, store.atomic ? Way::Combines : Way::Writes);
    }
    void run(const ThreadWide& wide) {
        if (wide.where.defined()) compute(wide.where);
        known_.forget(wide.to.buffer.get());
        const KnownValues::Number value = access(wide.from, wide.width, Way::Reads);
        access(wide.to, wide.width, Way::Writes);
        values_.write(wide.to.buffer.get(), place_of(wide.to), value);
    }

    void run(const Instruction& instruction) {
        issue(1);
        for (const Operand& operand : operands(instruction))
            if (const auto* written = std::get_if<WriteOperand>(&operand)) forget(written->place);
        std::visit(
            Overloaded{[&](const TmaLoad& load) {
                           const double blocks = load.ranks.defined() ? kernel_.cluster : 1;
                           move_box(load.map, blocks);
                       },
                       [&](const TmaStore& store) { move_box(store.map, 1); },
                       [&](const CpAsync& copy) {
                           touch(copy.from.place, copy.width, Way::Arrives);
                           touch(copy.to.place, copy.width, Way::Writes);
                       },
                       [&](const LdMatrix& load) { counts_.work.wavefronts += static_cast<double>(load.matrices); },
                       [&](const StMatrix& store) { counts_.work.wavefronts += static_cast<double>(store.matrices); },
                       [&](const Mma& mma) { multiply(*mma.atom, share_by_warps); },
                       [&](const Wgmma& product) { multiply(*product.atom, 4); },
                       [&](const OneOf<MbarrierWait, CpAsyncWait> auto&) { awaits_copies_ = true, forget_all(); },
                       [&](const BarrierSync&) { counts_.work.barriers += 1, forget_all(); },
                       [&](const PackRegisters& pack) { issue(pack.words.elements); }, [&](const auto&) {}},
            instruction);
    }

    void multiply(const Atom& atom, double share) {
        const double macs = static_cast<double>(atom.m) * atom.n * atom.k * bytes_of(atom.operand) / 2;
        counts_.work.unit_cycles += macs / tensor_core_macs / share;
    }

    void move_box(const MapOperand& map, double blocks) {
        for (const TensorMapUse& use : kernel_.maps)
            if (use.map == map.map)
                counts_.sectors[use.tensor.get()] +=
                    static_cast<double>(use.elements()) * bytes_of(use.tensor->type) / sector / blocks;
    }

    enum class Way { Reads, Arrives, Writes, Combines };

    /// By an instruction of its own, if it does not read what is there; the number of what it reads.
    KnownValues::Number access(const Access& place, int64_t width, Way way) {
        const KnownValues::Number value = values_.of(place.buffer.get(), place.indices, width);
        if (place.buffer->memory == Memory::Registers) return value;
        for (size_t d = 0; d < rank_of(*place.buffer); ++d)
            if (reads_memory(place.indices[d])) compute(place.indices[d]);
        if (way == Way::Reads && !values_.add(value)) return value;
        if (way != Way::Reads) values_.write(place.buffer.get(), place_of(place), values_.fresh());
        if (place.buffer->memory == Memory::Shared) {
            if (way == Way::Reads && written_out_ > 0 && is_held(place, width)) return value;
            if (way != Way::Reads) held_.forget(place.buffer.get());
        }
        issue(2);
        touch(place, width, way);
        return value;
    }
    KnownValues::Number place_of(const Access& place) const { return values_.of(nullptr, place.indices); }

    /// Whether loops that are written out have read it, or what a load brings with it, in this iteration around them.
    bool is_held(const Access& place, int64_t width) {
        for (size_t d = 0; d < rank_of(*place.buffer); ++d)
            if (reads_memory(place.indices[d])) return false;
        const auto starts = starts_of(place, scope_, active_);
        if (!starts || starts->empty()) return false;
        const auto found = held_.see(place.buffer.get(), *starts);
        const int64_t size = bytes_of(place.buffer->type), pieces = HeldReads::piece / (width * size);
        if (found == HeldReads::Found::Beside && pieces > 1) {  // its share of what they take together
            const double of_all = wavefronts_of(place, HeldReads::piece / size) - wavefronts_of(place, width);
            counts_.work.wavefronts += std::max(of_all, 0.0) / static_cast<double>(pieces - 1);
        }
        return found != HeldReads::Found::New;
    }

    /// Elements of memory, by an instruction that is counted.
    void touch(const Access& place, int64_t width, Way way) {
        if (!any_active()) return;
        if (place.buffer->memory == Memory::Shared)
            counts_.work.wavefronts += wavefronts_of(place, width);
        else if (place.buffer->memory == Memory::Global)
            touch_global(place, width, way);
    }

    double wavefronts_of(const Access& place, int64_t width) const {
        const int64_t bytes = width * bytes_of(place.buffer->type);
        const auto starts = starts_of(place, scope_, active_);
        if (!starts) return std::max(1.0, static_cast<double>(bytes) / 4);
        if (place.buffer->swizzle > 0)  // spreads rows over banks
            return std::max(1.0, static_cast<double>(bytes) * static_cast<double>(starts->size()) / line);
        return wavefronts(*starts, bytes, target_);
    }

    void touch_global(const Access& place, int64_t width, Way way) {
        const BufferNode* array = array_of(place.buffer, kernel_);
        const int64_t size = bytes_of(place.buffer->type), bytes = width * size;
        auto index = evaluate_lanes(place.indices[0], scope_);
        std::set<int64_t> sectors, lines;
        for (int lane = 0; lane < warp_lanes; ++lane) {
            if (!active_[lane]) continue;
            const int64_t start = index ? index->of_lane[lane] * size : lane * int64_t{1 << 20};
            for (int64_t at = start / sector; at <= (start + bytes - 1) / sector; ++at) sectors.insert(at);
            for (int64_t at = start / line; at <= (start + bytes - 1) / line; ++at) lines.insert(at);
        }
        counts_.work.wavefronts += static_cast<double>(lines.size());
        double passing = static_cast<double>(sectors.size());
        if (way == Way::Reads || way == Way::Arrives) {
            passing = 0;
            for (int64_t at : sectors) passing += first_cache_.keep(array, at) ? 1 : 0;
        }
        if (way == Way::Combines) counts_.atomics += passing;
        counts_.sectors[array] += passing;
        if (way == Way::Arrives) awaits_copies_ = true;
        if (way != Way::Reads || passing == 0) return;
        if (index && index->by_data) end_trip();
        const bool is_near = bytes_of_array(*array) < static_cast<double>(target_.l2_bytes) / 16;
        trip_ = std::max(trip_, is_near ? near_trip : 1.0);
    }

    /// What was read is used: what is read from here on begins its own way to memory.
    void end_trip() { counts_.work.round_trips += std::exchange(trip_, 0); }

    void forget(const Access& place) {
        known_.forget(place.buffer.get());
        values_.write(place.buffer.get(), place_of(place), values_.fresh());
    }
    void issue(double instructions) {
        counts_.work.instructions += instructions;
        counts_.work.waits += instructions * (side_by_side_ ? wait_of_many : 1);
    }

    /// Arithmetic of an expression, and the elements that it reads, but for what is there; its number.
    KnownValues::Number compute(const Expr& expr) {
        if (known_.holds(expr)) return values_.of(expr);
        if (const Load* load = expr.as<Load>()) return access({load->buffer, load->indices}, 1, Way::Reads);
        if (const Select* select = expr.as<Select>()) return compute_chosen(expr, *select);
        KnownValues::Operands operands;
        for_each_child(*expr, [&](const Expr& operand) { operands.add(compute(operand)); });
        if (operands.count == 0) return values_.of(expr);
        const KnownValues::Number value = values_.of(expr, operands);
        if (values_.add(value)) compute_operation(expr);
        return value;
    }

    void compute_operation(const Expr& expr) {
        if (const Unary* node = expr.as<Unary>()) {
            arithmetic(expr.type(), operations_of(node->op));
            counts_.work.special += specials_of(node->op);
        }
        if (const Binary* node = expr.as<Binary>()) compute_binary(*node);
        if (expr.as<Fma>()) arithmetic(expr.type(), 1);
        const Cast* cast = expr.as<Cast>();
        if (cast && (is_float(cast->a.type()) || is_float(expr.type()))) issue(1);
        if (cast && is_float(cast->a.type()) && is_integer(expr.type())) counts_.work.special += 1;
        if (!expr.as<Exchange>()) return;
        issue(1);
        counts_.work.wavefronts += 1;
    }

    KnownValues::Number compute_chosen(const Expr& expr, const Select& select) {
        KnownValues::Operands operands{{compute(select.condition)}, 3};
        auto condition = evaluate_lanes(select.condition, scope_);
        const bool is_known = condition && !condition->by_data;
        const auto before = active_;
        for (const bool side : {true, false}) {
            for (int lane = 0; is_known && lane < warp_lanes; ++lane)
                active_[lane] = before[lane] && (condition->of_lane[lane] != 0) == side;
            const Expr& chosen = side ? select.yes : select.no;
            operands.numbers[side ? 1 : 2] = !is_known || any_active() ? compute(chosen) : values_.of(chosen);
        }
        active_ = before;
        const KnownValues::Number value = values_.of(expr, operands);
        if (values_.add(value)) issue(1);
        return value;
    }

    void compute_binary(const Binary& node) {
        const bool divides = (node.op == BinaryOp::Div || node.op == BinaryOp::Mod) && !known_.holds(node.b);
        if (!is_float(node.a.type())) return issue(divides ? 5 : 1);
        arithmetic(node.a.type(), divides || node.op == BinaryOp::DivShared ? 8 : 1);
        if (divides) counts_.work.special += 2;  // a reciprocal, and whether it serves
    }

    void arithmetic(Type type, double operations) {
        issue(operations);
        if (type == Type::F64) counts_.work.doubles += operations;
    }

    bool any_active() const { return std::ranges::find(active_, true) != active_.end(); }
    const ThreadKernel& kernel_;
    const Target& target_;
    const int64_t first_;
    LaneScope scope_;
    std::array<bool, warp_lanes> active_ = {};
    WarpCounts counts_;
    int64_t statements_ = 0;
    bool awaits_copies_ = false;  // has asked for what arrives while it goes on
    double trip_ = 0;             // under way, for what it has read
    FirstCache first_cache_;
    HeldReads held_;             // of shared memory
    int written_out_ = 0;        // loops around that are
    bool side_by_side_ = false;  // what is computed is one of many results, none of which waits for another
    std::map<const ThreadLoop*, LoopTraits> traits_;
    KnownNumbers known_;
    KnownValues values_;
};

}  // namespace

double bytes_of_array(const BufferNode& buffer) {
    double bytes = bytes_of(buffer.type);
    for (const Expr& extent : declared_shape(buffer)) bytes *= static_cast<double>(most_of(extent));
    return bytes;
}

WarpCounts run_warp(const ThreadKernel& kernel, const Target& target, int warp, double resident_warps) {
    return WarpRun(kernel, target, warp, resident_warps).run();
}

}  // namespace tw::codegen

// Unrolled loops whose text would be longer than what a multiprocessor keeps of a program become loops: the elements of
// a register array that an iteration reads are the same in each, as the array moves behind it.
#include <algorithm>
#include <map>
#include <optional>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int64_t most_instructions = 8000;  // of unrolled text: about the 128 KB that warps fetch fast
constexpr int64_t wanted_instructions = most_instructions / 3;
constexpr int64_t least_instructions_a_move = 3;  // what an iteration computes for each register that it moves

/// Roughly: those of functions are counted as they are printed.
int64_t instructions_of(const Expr& expr) {
    int64_t count = 0;
    visit(expr, [&](const Expr& e) {
        const Unary* function = e.as<Unary>();
        const Binary* binary = e.as<Binary>();
        if (function && (function->op == UnaryOp::Erf || function->op == UnaryOp::ErfUnbranched))
            count += 24;
        else if (function && function->op == UnaryOp::NormalCdf)
            count += 11;
        else if (function && function->op >= UnaryOp::Sqrt)
            count += 8;
        else if (binary && binary->op == BinaryOp::Div && is_float(e.type()))
            count += 8;
        else if (is_float(e.type()) && (function || binary || e.as<Fma>() || e.as<Select>() || e.as<Cast>()))
            count += 1;
    });
    return count;
}

/// The loop if all of its iterations stand side by side.
const ThreadLoop* unrolled(const ThreadStmt& stmt) {
    const ThreadLoop* loop = stmt.as<ThreadLoop>();
    return loop && loop->unroll && loop->ends_at == 0 && as_constant(loop->extent) ? loop : nullptr;
}

/// Of the statement's text, with all copies that unrolled loops make of it.
int64_t instructions_of(const ThreadStmt& stmt) {
    int64_t count = 0;
    for (const Expr& expr : expressions(stmt)) count += instructions_of(expr);
    for (const ThreadStmt& kid : children(stmt)) count += instructions_of(kid);
    const ThreadLoop* loop = unrolled(stmt);
    return loop ? count * require_constant(loop->extent) : count;
}

bool mentions(const ThreadStmt& root, const Buffer& array) {
    bool found = false;
    visit(root, [&](const ThreadStmt& stmt) {
        for (const MemoryAccess& access : memory_accesses(stmt)) found = found || access.place.buffer == array;
    });
    return found;
}

/// An array whose elements an iteration reads `step` further along `dimension` than the one before.
struct ShiftedArray {
    Buffer array;
    size_t dimension;
    int64_t step;
};

/// The reads of an array in a loop's body.
class ReadsOf {
public:
    ReadsOf(const ThreadLoop& loop, const Buffer& array) : variable_(loop.variable), array_(array) {
        visit(loop.body, [&](const ThreadStmt& stmt) { look_at(stmt); });
    }
    bool depend() const { return depend_; }
    /// Undefined where reads differ, or are more than reads of single elements.
    std::optional<ShiftedArray> shifted() const {
        if (!fits_ || !found_ || found_->step <= 0) return {};
        return found_;
    }

private:
    void look_at(const ThreadStmt& stmt) {
        size_t reads = 0, accesses = 0;
        for (const Expr& expr : expressions(stmt))
            visit(expr, [&](const Expr& e) {
                const Load* load = e.as<Load>();
                if (!load || load->buffer != array_) return;
                look_at(load->indices);
                ++reads;
            });
        for (const MemoryAccess& access : memory_accesses(stmt))
            if (access.place.buffer == array_) {
                fits_ = fits_ && !access.writes && access.width == 1;
                for (const Expr& index : access.place.indices) depend_ = depend_ || contains(index, variable_);
                ++accesses;
            }
        fits_ = fits_ && accesses <= reads;
    }
    void look_at(const std::vector<Expr>& indices) {
        std::optional<ShiftedArray> own;
        for (size_t d = 0; d < indices.size(); ++d) {
            if (!contains(indices[d], variable_)) continue;
            const Expr start = simplify(substitute(indices[d], {{variable_, constant(variable_.type(), 0)}})),
                       next = simplify(substitute(indices[d], {{variable_, constant(variable_.type(), 1)}}));
            const auto step = as_constant(simplify(next - start));
            fits_ = fits_ && step && !own && equal(simplify(indices[d]), simplify(start + variable_ * *step));
            own = ShiftedArray{array_, d, step.value_or(0)};
        }
        fits_ = fits_ && own && (!found_ || (own->dimension == found_->dimension && own->step == found_->step));
        found_ = own;
    }

    const Expr variable_;
    const Buffer array_;
    bool depend_ = false, fits_ = true;
    std::optional<ShiftedArray> found_;
};

/// Registers that an iteration moves, if it is `iterations` of those of the unrolled loop.
int64_t moves_of(const std::vector<ShiftedArray>& arrays, int64_t iterations) {
    int64_t moves = 0;
    for (const ShiftedArray& each : arrays) {
        int64_t elements = 1;
        for (size_t d = 0; d < each.array->shape.size(); ++d) {
            const int64_t extent = require_constant(each.array->shape[d]);
            elements *= d == each.dimension ? std::max<int64_t>(extent - each.step * iterations, 0) : extent;
        }
        moves += elements;
    }
    return moves;
}

class Walk {
public:
    ThreadStmt operator()(const ThreadStmt& stmt) {
        if (const ThreadLoop* loop = unrolled(stmt); loop && instructions_of(stmt) > most_instructions)
            if (ThreadStmt shifted = shifted_loop(*loop, stmt); shifted.defined()) return shifted;
        std::vector<Buffer> outside;  // arrays of a loop's surroundings live on behind each iteration
        if (stmt.as<ThreadLoop>() || stmt.as<ThreadRole>()) outside.swap(own_);
        std::vector<ThreadStmt> kids = children(stmt);
        const size_t declared = own_.size(), behind = behind_.size();
        if (stmt.as<ThreadBlock>()) {
            behind_.insert(behind_.end(), kids.rbegin(), kids.rend());
            for (ThreadStmt& kid : kids) {
                behind_.pop_back();
                if (const ThreadDeclare* declare = kid.as<ThreadDeclare>()) own_.push_back(declare->buffer);
                kid = (*this)(kid);
            }
        } else
            for (ThreadStmt& kid : kids) kid = (*this)(kid);
        behind_.resize(behind);
        own_.resize(declared);
        if (stmt.as<ThreadLoop>() || stmt.as<ThreadRole>()) outside.swap(own_);
        return stmt.as<ThreadBlock>() ? block_of(kids) : with_children(stmt, kids);
    }

    bool has_shifted = false;

private:
    /// Arrays to move, where all that depends on the loop's variable may; nothing otherwise.
    std::optional<std::vector<ShiftedArray>> arrays_of(const ThreadLoop& loop) const {
        std::vector<Buffer> inside, used;
        visit(loop.body, [&](const ThreadStmt& stmt) {
            if (const ThreadDeclare* declare = stmt.as<ThreadDeclare>()) inside.push_back(declare->buffer);
            for (const MemoryAccess& access : memory_accesses(stmt))
                if (access.place.buffer->memory == Memory::Registers &&
                    std::ranges::find(used, access.place.buffer) == used.end())
                    used.push_back(access.place.buffer);
        });
        std::vector<ShiftedArray> arrays;
        for (const Buffer& array : used) {
            const ReadsOf reads(loop, array);
            if (!reads.depend()) continue;
            if (std::ranges::find(inside, array) != inside.end()) return {};
            const auto shifted = reads.shifted();
            const bool is_own = std::ranges::find(own_, array) != own_.end();
            const bool lives_on =
                std::ranges::any_of(behind_, [&](const ThreadStmt& stmt) { return mentions(stmt, array); });
            if (!shifted || !is_own || lives_on) return {};
            arrays.push_back(*shifted);
        }
        return arrays;
    }

    /// Iterations of the unrolled loop that make one of the loop.
    std::optional<int64_t> iterations_of(int64_t extent, int64_t instructions,
                                         const std::vector<ShiftedArray>& arrays) const {
        for (int64_t each = 1; each < extent; ++each) {
            if (extent % each != 0) continue;
            const int64_t of_iteration = instructions / extent * each;
            const bool is_long = of_iteration * 2 > wanted_instructions;
            if (is_long && of_iteration >= least_instructions_a_move * moves_of(arrays, each)) return each;
        }
        return {};
    }

    ThreadStmt shifted_loop(const ThreadLoop& loop, const ThreadStmt& stmt) {
        const auto arrays = arrays_of(loop);
        if (!arrays) return {};
        const int64_t extent = require_constant(loop.extent);
        const auto iterations = iterations_of(extent, instructions_of(stmt), *arrays);
        if (!iterations) return {};
        has_shifted = true;
        const int64_t rounds = extent / *iterations;
        const std::string& name = loop.variable.as<Variable>()->name;
        const Expr round = index_variable(*iterations == 1 ? name : name + "_round", 0, rounds - 1),
                   inner = index_variable(name, 0, *iterations - 1),
                   all = *iterations == 1 ? round : simplify(round * *iterations + inner),
                   own = *iterations == 1 ? constant(round.type(), 0) : inner;
        ThreadStmt body = with_places(loop, *arrays, own, all);
        if (*iterations > 1) {
            ThreadLoop part = loop;
            part.variable = inner;
            part.extent = constant(loop.extent.type(), *iterations);
            part.body = body;
            body = make_thread(std::move(part), stmt.step());
        }
        std::vector<ThreadStmt> moves;
        for (const ShiftedArray& each : *arrays) moves.push_back(moved(each, *iterations));
        const ThreadStmt moving = make_thread(ThreadIf{round < rounds - 1, block_of(moves)}, stmt.step());
        ThreadLoop outer = loop;
        outer.variable = round;
        outer.extent = constant(loop.extent.type(), rounds);
        outer.unroll = false;
        outer.unroll_by = 1;
        outer.body = block_of({body, moving});
        return make_thread(std::move(outer), stmt.step());
    }

    /// The body with `own` for the variable in places of the arrays, and `all` elsewhere.
    static ThreadStmt with_places(const ThreadLoop& loop, const std::vector<ShiftedArray>& arrays, const Expr& own,
                                  const Expr& all) {
        return map_all_expressions(loop.body, [&](const Expr& root) {
            const Expr placed = transform(root, [&](const Expr& e) -> Expr {
                const Load* load = e.as<Load>();
                auto is_it = [&](const ShiftedArray& each) { return load && each.array == load->buffer; };
                if (std::ranges::none_of(arrays, is_it)) return {};
                Load there = *load;
                for (Expr& index : there.indices) index = simplify(substitute(index, {{loop.variable, own}}));
                return make_expr(e.type(), std::move(there));
            });
            return contains(placed, loop.variable) ? simplify(substitute(placed, {{loop.variable, all}})) : placed;
        });
    }

    static ThreadStmt moved(const ShiftedArray& shifted, int64_t iterations) {
        const int64_t distance = shifted.step * iterations;
        std::vector<Expr> to, from;
        std::vector<std::pair<Expr, int64_t>> loops;
        for (size_t d = 0; d < shifted.array->shape.size(); ++d) {
            int64_t extent = require_constant(shifted.array->shape[d]);
            if (d == shifted.dimension) extent = std::max<int64_t>(extent - distance, 0);
            const Expr place = index_variable("moved", 0, std::max<int64_t>(extent - 1, 0));
            loops.emplace_back(place, extent);
            to.push_back(place);
            from.push_back(d == shifted.dimension ? place + distance : place);
        }
        ThreadStmt stmt =
            make_thread(ThreadStore{{shifted.array, to}, make_expr(shifted.array->type, Load{shifted.array, from})});
        for (auto loop = loops.rbegin(); loop != loops.rend(); ++loop)
            stmt = make_thread(ThreadLoop{loop->first, constant(loop->first.type(), loop->second), true, stmt});
        return stmt;
    }

    std::vector<Buffer> own_;         // arrays of the blocks around, with no loop in between
    std::vector<ThreadStmt> behind_;  // statements of these blocks behind the present one
};

}  // namespace

ThreadKernel shift_registers(const ThreadKernel& kernel) {
    ThreadKernel result = kernel;
    Walk walk;
    result.body = walk(kernel.body);
    if (walk.has_shifted)
        result.notes.push_back("long unrolled loops are loops that move the registers which they read");
    return result;
}

}  // namespace tw::codegen

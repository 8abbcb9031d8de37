#include "dsl/mma.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "dsl/edit.h"
#include "dsl/scaled_product.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

using State = Schedule::State;

/// What is added to the accumulator, if that is a product or several, and nothing multiplies all of them.
std::vector<SignedProduct> products_added(const Expr& update, const Expr& accumulator) {
    auto sum = sum_of_products(update, accumulator);
    if (!sum || sum->scale.defined()) return {};
    return std::move(sum->products);
}

bool is_truncated(const Expr& factor) {
    const Unary* function = factor.as<Unary>();
    return function && function->op == UnaryOp::TruncateTf32;
}

/// The read of a factor that is an element, converted or truncated or not.
const Read* element_of(const Expr& factor) {
    if (is_truncated(factor)) return factor.as<Unary>()->a.as<Read>();
    if (const Cast* cast = factor.as<Cast>()) return cast->a.as<Read>();
    return factor.as<Read>();
}

class Matcher {
public:
    Matcher(const State& state, int stage, std::source_location where)
        : state_(state),
          record_(state.stages[stage]),
          definition_(record_.definition),
          mma_(*record_.mma),
          where_(where) {}

    const Atom& run() const {
        check_reduction();
        check_types();
        check_loops();
        const std::vector<SignedProduct> products = this->products();
        const Atom* atom = nullptr;
        for (const SignedProduct& product : products) {
            const Atom& own = atom_of(product);
            require(!atom || own.operand == atom->operand,
                    "it sums products of {} and products of {}, which are instructions of two kinds; sum each kind in "
                    "a stage of its own",
                    name_of(atom ? atom->operand : own.operand), name_of(own.operand));
            require(!product.negative || is_float(own.operand),
                    "it subtracts products of {}, which no instruction does; sum what is subtracted in a stage of its "
                    "own",
                    name_of(own.operand));
            atom = &own;
        }
        check_registers(*atom);
        return *atom;
    }

private:
    template <class... Arguments>
    void require(bool holds, fmt::format_string<Arguments...> message, Arguments&&... arguments) const {
        if (!holds)
            user_error(where_, "mma({}, {}, ...): {}", definition_.name, to_string(mma_.unit),
                       fmt::format(message, std::forward<Arguments>(arguments)...));
    }

    const LoopRecord& loop(int id) const { return state_.loops[id]; }

    void check_reduction() const {
        bool sums = definition_.reducer && definition_.update.size() == 1 &&
                    atomic_operation(*definition_.reducer) == BinaryOp::Add;
        require(sums, "it is no sum; tensor cores compute sums of products");
        const std::vector<SignedProduct> products = this->products();
        const bool of_elements = std::ranges::all_of(
            products, [](const SignedProduct& product) { return element_of(product.a) && element_of(product.b); });
        require(!products.empty() && of_elements,
                "its terms are no products of two elements, and no sums of such, but for factors that all of them "
                "have; compute what stands around them in stages of their own; windows that are padded come by "
                "stage(.., As::Matrix), before mma");
    }

    /// What no order of loops mends.
    void check_types() const {
        require(mma_.unit != MatrixUnit::Wgmma || state_.target.has_wgmma,
                "only sm_90a has it, the target is {}; use mma_sync, or target(\"sm_90a\")", state_.target.arch);
        for (const SignedProduct& product : products()) {
            const Type a = type_of(product.a), b = type_of(product.b);
            require(a != f32 && b != f32,
                    "its factors are {} and {}; of f32 it multiplies the first 10 bits of the fraction: write "
                    "truncate_tf32(x) of both, or round the stages of the factors to a narrower type",
                    name_of(a), name_of(b));
            require(a == b, "its factors are {} and {}; no instruction multiplies these", name_of(a), name_of(b));
        }
    }

    std::vector<SignedProduct> products() const {
        return products_added(definition_.update[0], definition_.accumulators[0]);
    }

    const Atom& atom_of(const SignedProduct& product) const {
        const Substitution values = axes_over_loops();
        Factor rows = factor_of(product.a, values), columns = factor_of(product.b, values);
        if (depends(rows, mma_.n) || depends(columns, mma_.m)) std::swap(rows, columns);
        check_roles(rows, "rows", mma_.m, mma_.n);
        check_roles(columns, "columns", mma_.n, mma_.m);
        return atom_for(type_of(rows.value));
    }

    void check_loops() const {
        std::vector<int> wanted{mma_.m, mma_.n, mma_.k}, inner;
        if (record_.order.size() >= 3) inner.assign(record_.order.end() - 3, record_.order.end());
        require(std::is_permutation(inner.begin(), inner.end(), wanted.begin(), wanted.end()),
                "the loops '{}', '{}' and '{}' are not its innermost ones; order them last", loop(mma_.m).name,
                loop(mma_.n).name, loop(mma_.k).name);
        require(!loop(mma_.m).reduces && !loop(mma_.n).reduces && loop(mma_.k).reduces,
                "m and n must be loops of the result, k one of the reduction");
        for (int id : wanted) {
            require(loop(id).level == Level::Serial, "loop '{}' is bound to {}; the instruction runs it itself",
                    loop(id).name, to_string(loop(id).level));
            require(loop(id).is_whole() && loop(id).stages == 1, "loop '{}' is cut or pipelined; use one around it",
                    loop(id).name);
            require(attached_to(state_, id).empty(), "stages stand under the loop '{}'; place them around it",
                    loop(id).name);
        }
        int outermost = state_.first_reduce(static_cast<int>(&record_ - state_.stages.data()));
        require(record_.streams >= 0 || (state_.position(mma_.m) > outermost && state_.position(mma_.n) > outermost),
                "a loop of the reduction must stand outside of '{}' and '{}', so that all sums of a tile are kept: "
                "order({{{}}})",
                loop(mma_.m).name, loop(mma_.n).name, order_that_keeps_sums());
        bool groups = mma_.unit == MatrixUnit::Wgmma;
        const char* whole = groups ? "warpgroup" : "warp";
        for (int id : record_.order) {
            Level level = loop(id).level;
            require(!is_thread(level) || level == Level::Warpgroup || (level == Level::Warp && !groups),
                    "loop '{}' is bound to {}, but whole {}s work on it; bind it to {}", loop(id).name,
                    to_string(level), whole, whole);
        }
    }

    /// A warpgroup's sums are in registers as long as its instructions run.
    void check_registers(const Atom& atom) const {
        constexpr int64_t threads = 128;
        const int64_t m = as_constant(loop(mma_.m).extent).value_or(0),
                      n = as_constant(loop(mma_.n).extent).value_or(0);
        const int64_t sums = m * n * bytes_of(atom.accumulator) / 4 / threads;
        require(mma_.unit != MatrixUnit::Wgmma || sums < state_.target.max_registers_per_thread,
                "a warpgroup sums {} x {} elements, {} in each thread, which has {} registers at most; split '{}' or "
                "'{}', and bind to warpgroup or order around the reduction what is outside",
                m, n, sums, state_.target.max_registers_per_thread, loop(mma_.m).name, loop(mma_.n).name);
    }

    /// What to write instead: the reduction's loops in an order in which sums keep theirs.
    std::string order_that_keeps_sums() const {
        std::vector<std::string> names;
        for (int id : record_.order)
            if (loop(id).reduces && id != mma_.k) names.push_back(loop(id).name);
        bool alone = names.empty();
        if (alone) names.push_back(loop(mma_.k).name);
        for (int id : {mma_.m, mma_.n}) names.push_back(loop(id).name);
        if (!alone) names.push_back(loop(mma_.k).name);
        return fmt::format("{}", fmt::join(names, ", "));
    }

    struct Factor {
        Expr value;
        std::vector<Expr> indices;  ///< of its element, over loops
    };
    Substitution axes_over_loops() const {
        Substitution values;
        for (size_t d = 0; d < record_.roots.size(); ++d) {
            const Expr& axis = d < definition_.axes.size() ? definition_.axes[d]
                                                           : definition_.reduce_axes[d - definition_.axes.size()];
            values.emplace_back(axis, loop_value(state_, record_.roots[d]));
        }
        return values;
    }
    static Factor factor_of(const Expr& value, const Substitution& axes) {
        Factor factor{value, {}};
        for (const Expr& index : element_of(value)->indices)
            factor.indices.push_back(simplify(substitute(index, axes)));
        return factor;
    }
    /// Whether the factor's element changes with the loop.
    bool depends(const Factor& factor, int id) const {
        return std::ranges::any_of(factor.indices,
                                   [&](const Expr& index) { return contains(index, loop(id).variable); });
    }

    void check_roles(const Factor& factor, const char* what, int own, int other) const {
        const std::string& name = element_of(factor.value)->operation->name;
        require(depends(factor, own) && depends(factor, mma_.k) && !depends(factor, other),
                "'{}' should give the {}: it must depend on '{}' and '{}', and not on '{}'", name, what, loop(own).name,
                loop(mma_.k).name, loop(other).name);
    }

    /// What its copy, or it itself, is stored as; tf32 if an f32 is truncated to that.
    Type type_of(const Expr& factor) const {
        const Read* read = element_of(factor);
        int stage = state_.stage_of(read->operation.get());
        Type stored = stage >= 0 && state_.stages[stage].rounded
                          ? *state_.stages[stage].rounded
                          : read->operation->outputs[static_cast<size_t>(read->output)].type;
        return stored == f32 && is_truncated(factor) ? tf32 : stored;
    }

    const Atom& atom_for(Type factors) const {
        Type sum = definition_.accumulators[0].type();
        auto extent = [&](int id) { return as_constant(loop(id).extent).value_or(0); };
        auto divides = [&](int size, int id) { return extent(id) > 0 && extent(id) % size == 0; };
        const Atom* nearest = nullptr;
        for (const Atom& atom : atoms()) {
            if (atom.unit != mma_.unit || atom.operand != factors || atom.accumulator != sum) continue;
            nearest = &atom;
            if (!(state_.target.*atom.needed)) continue;
            if (divides(atom.m, mma_.m) && divides(atom.n, mma_.n) && divides(atom.k, mma_.k)) return atom;
        }
        require(nearest, "no instruction multiplies {} to sums of {}", name_of(factors), name_of(sum));
        require(state_.target.*nearest->needed, "{} {} needs {}, the target is {}", nearest->name, name_of(factors),
                first_target_with(nearest->needed), state_.target.arch);
        require(
            false,
            "{} {} works on {} x {} x {}; '{}', '{}' and '{}' have {}, {} and {} iterations, which must be multiples",
            nearest->name, name_of(factors), nearest->m, nearest->n, nearest->k, loop(mma_.m).name, loop(mma_.n).name,
            loop(mma_.k).name, extent(mma_.m), extent(mma_.n), extent(mma_.k));
        return *nearest;
    }

    const State& state_;
    const StageRecord& record_;
    const StageDefinition& definition_;
    const MmaRecord& mma_;
    std::source_location where_;
};

}  // namespace

const Atom& matching_atom(const State& state, int stage, std::source_location where) {
    return Matcher(state, stage, where).run();
}

namespace {

int64_t iterations_at(const State& state, const StageRecord& record, Level level) {
    int64_t product = 1;
    for (int id : record.order)
        if (state.loops[id].level == level) product *= as_constant(state.loops[id].extent).value_or(1);
    return product;
}

/// Along the loop, the fewest iterations that an instruction has.
int64_t least_of_unit(const State& state, const StageRecord& record, const Atom& atom, int loop) {
    constexpr int64_t least_columns = 8;
    const MmaRecord& mma = *record.mma;
    auto is_part = [&](int part) { return contains(loop_value(state, loop), state.loops[part].variable); };
    return is_part(mma.m) ? atom.m : is_part(mma.n) ? least_columns : is_part(mma.k) ? atom.k : 1;
}

/// Of a tile along a loop that has fewer elements than it, and than the unit takes.
std::string note_of_tile(const State& state, const StageRecord& record, const Atom& atom, const Relation& split) {
    const LoopRecord &whole = state.loops[split.whole], &inner = state.loops[split.inner];
    const auto elements = as_constant(whole.extent), tile = as_constant(inner.extent);
    if (split.kind != Relation::Kind::Split || !split.masked || !elements || !tile || *elements >= *tile) return {};
    if (*tile <= least_of_unit(state, record, atom, split.inner)) return {};
    return fmt::format(
        "'{}': tiles of {} along '{}' are larger than its {} elements: the rest is multiplied in vain; "
        "smaller ones suffice",
        record.definition.name, *tile, whole.name, *elements);
}

}  // namespace

std::vector<std::string> notes_of_unit(const State& state, int stage) {
    const StageRecord& record = state.stages[stage];
    std::vector<std::string> notes;
    if (!record.mma) return notes;
    const Atom& atom = matching_atom(state, stage, std::source_location());
    for (const Relation& relation : record.relations)
        if (std::string note = note_of_tile(state, record, atom, relation); !note.empty()) notes.push_back(note);
    constexpr int64_t warps_of_group = 4;
    const int64_t groups = iterations_at(state, record, Level::Warpgroup),
                  warps = iterations_at(state, record, Level::Warp);
    if (record.mma->unit == MatrixUnit::MmaSync && groups > 1 && warps < warps_of_group)
        notes.push_back(
            fmt::format("'{}': its warpgroups have four warps each, and mma_sync, a warp's instruction, "
                        "work for {}: the others repeat it; bind loops to warp",
                        record.definition.name, warps));
    return notes;
}

namespace {

/// A factor that all terms of the sum have is no part of what instructions multiply: it stands behind the sum. Several
/// products are added one after another.
void take_out_scale(State& state, StageDefinition& definition, int step) {
    if (!definition.reducer || definition.update.size() != 1 ||
        atomic_operation(*definition.reducer) != BinaryOp::Add || definition.finish.empty())
        return;
    const Expr& accumulator = definition.accumulators[0];
    const auto sum = sum_of_products(definition.update[0], accumulator);
    if (!sum) return;
    const Expr update = binary(BinaryOp::Add, accumulator, sum->term());
    definition.update[0] = sum->products.size() == 1 ? contract(update) : update;
    if (!sum->scale.defined()) return;  // signs alone
    const Expr whole = binary(BinaryOp::Mul, accumulator, sum->scale);
    for (Expr& element : definition.finish) element = substitute(element, {{accumulator, whole}});
    state.notes.push_back(fmt::format("[{}] the sum of '{}' is multiplied by {}, not each of its terms", step,
                                      definition.name, to_string(sum->scale)));
}

}  // namespace

void Schedule::mma(const StageRef& ref, MatrixUnit unit, const MmaLoops& loops, std::source_location where) {
    Edit edit(state_, where);
    int stage = edit.stage(ref, "mma");
    StageRecord& record = edit.state.stages[stage];
    for (auto [loop, field] : {std::pair(loops.m, ".m"), std::pair(loops.n, ".n"), std::pair(loops.k, ".k")})
        user_check(loop.id >= 0, where, "mma({}, {}, ...): {} is missing; name three loops, {{.m = , .n = , .k = }}",
                   record.definition.name, tw::to_string(unit), field);
    MmaRecord mma{unit, edit.alive(loops.m, "mma"), edit.alive(loops.n, "mma"), edit.alive(loops.k, "mma"), edit.step};
    for (int id : {mma.m, mma.n, mma.k})
        user_check(edit.state.loops[id].stage == stage, where, "mma({}, {}, ...): loop '{}' belongs to '{}'",
                   record.definition.name, tw::to_string(unit), edit.state.loops[id].name,
                   edit.state.stages[edit.state.loops[id].stage].definition.name);
    record.mma = mma;
    take_out_scale(edit.state, record.definition, edit.step);
    const Atom& atom = matching_atom(edit.state, stage, where);
    const bool rounds = !rounding_text(*record.definition.reducer).empty();
    edit.state.notes.push_back(fmt::format("[{}] '{}' is computed by {}{}", edit.step, record.definition.name,
                                           atom.name, rounds ? ": its terms are added in another order" : ""));
    std::string sum = edit.stage_as_cpp(stage), m = edit.loop_as_cpp(mma.m), n = edit.loop_as_cpp(mma.n),
                k = edit.loop_as_cpp(mma.k);
    edit.commit(fmt::format("s.mma({}, {}, {{.m = {}, .n = {}, .k = {}}});", sum, tw::to_string(unit), m, n, k),
                fmt::format("mma {} {} {} {} {}", stage, tw::to_string(unit), mma.m, mma.n, mma.k));
}

}  // namespace tw

// How each element of a reduction finds the terms that count for it, by ordinary stages: a stable counting sort of the
// terms by element, or, of few terms, a search for the first and the last of them.
//
// The terms are numbered in the order of the reduce axes, those behind the last that chooses an element left out; the
// elements likewise. Terms stand in blocks, so that the work grows with their number: a term's place is the number of
// terms for elements before, plus those for its element in blocks before, plus those in its own block before it.
#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "dsl/scattered.h"
#include "dsl/simplify.h"
#include "dsl/update.h"

namespace tw {
namespace {

using State = Schedule::State;

constexpr int64_t terms_of_a_block = 1024;
constexpr int64_t elements_of_a_chunk = 256;
constexpr int64_t threads = 256;
constexpr int64_t lanes = 32, least_shared_terms = 64;

const Expr& extent_of(const Expr& axis) { return axis.as<Variable>()->extent; }

Expr points(const std::vector<Expr>& axes) {
    Expr count = constant(Type::I64, 1);
    for (const Expr& axis : axes) count = count * extent_of(axis);
    return simplify(count);
}

/// The row-major number of the point with these values of the axes.
Expr number_of(const std::vector<Expr>& axes, const std::vector<Expr>& values) {
    Expr number = constant(Type::I64, 0);
    for (size_t a = 0; a < axes.size(); ++a) number = number * extent_of(axes[a]) + values[a];
    return simplify(number);
}

/// The axes' values at a point, from its number.
Substitution point_of(const std::vector<Expr>& axes, Expr number) {
    Substitution values;
    for (size_t a = axes.size(); a-- > 0;) {
        bool empty = is_constant(extent_of(axes[a]), 0);  // no point: nothing is ever divided
        Expr extent = empty ? constant(Type::I64, 1) : extent_of(axes[a]);
        values.emplace_back(axes[a], simplify(a == 0 ? number : number % extent));
        number = number / extent;
    }
    return values;
}

class FoundTerms {
public:
    FoundTerms(Edit& edit, int reduction, const Scattered& terms)
        : edit_(edit), reduction_(reduction), whole_(edit.state.stages[reduction].definition), terms_(terms) {
        for (const Expr& axis : whole_.axes) {
            bool chooses = std::any_of(terms.solved.begin(), terms.solved.end(),
                                       [&](const auto& solved) { return contains(solved.second, axis); });
            if (chooses) sorted_.push_back(axis);
            if (chooses || terms.is_solved(axis)) elements_.push_back(axis);
        }
        size_t choosing = 0;  // up to the last that chooses: no term comes before another that it stood behind
        for (size_t r = 0; r < whole_.reduce_axes.size(); ++r)
            if (is_among(terms.choosing, whole_.reduce_axes[r])) choosing = r + 1;
        sorted_.insert(sorted_.end(), whole_.reduce_axes.begin(), whole_.reduce_axes.begin() + choosing);
        num_terms_ = points(sorted_);
        num_elements_ = points(elements_);
    }

    void sort() {
        declare();
        for (StageDefinition& definition : stages_of({order_, offsets_}))
            for (const Tensor& tensor : made_)
                if (definition.operation == tensor.operation()) spread(add_stage(edit_.state, definition, edit_.step));
        for (const Tensor& tensor : {counts_, order_}) {
            int stage = edit_.state.stage_of(tensor.operation().get());
            Scattered terms = scattered_terms(edit_.state.stages[stage].definition).value();
            spread(scatter_atomically(edit_, stage, BinaryOp::Add, terms));
            spread(stage);
        }
        const Expr element = number_of(elements_, elements_);
        const Expr begin = offsets_(element), end = offsets_(element + 1);
        reduce_terms(cast(i64, end - begin), [&](const Expr& t) { return cast(i64, order_(begin + t)); }, {});
        note("the terms of '{}' are sorted by element, stably: each element combines its own in their order");
    }

    /// The first and the last term of each element; those between that count for others are left out as they come.
    void search() {
        const std::vector<Tensor> span = declare_span();
        for (const StageDefinition& definition : stages_of(span))
            if (definition.operation == span[0].operation()) spread(add_stage(edit_.state, definition, edit_.step));
        const Expr element = number_of(elements_, elements_);
        const Expr first = cast(i64, span[0](element)), last = cast(i64, span[1](element));
        reduce_terms(
            last - first + 1, [&](const Expr& t) { return first + t; },
            [&](const Expr& term) { return counts_for(term, elements_); });
        note(
            "each element of '{}' looks for its first and its last term among all, and combines its own of those "
            "between in their order");
    }

private:
    Tensor declare(const std::string& what, const Shape& shape,
                   const std::function<Expr(const std::vector<Expr>&)>& body) {
        std::string name = unique_stage_name(edit_.state, whole_.name + "_" + what);
        made_.push_back(compute(name, shape, body, edit_.where));
        return made_.back();
    }

    void declare() {
        using Point = const std::vector<Expr>&;
        Expr n = num_terms_, v = num_elements_;
        Expr blocks = simplify((n + (terms_of_a_block - 1)) / terms_of_a_block);
        Expr chunks = simplify(v / elements_of_a_chunk + 1);
        Expr zero = constant(Type::I32, 0);
        Axis term = reduce_axis("u", n), block = reduce_axis("b", blocks), chunk = reduce_axis("p", chunks);
        const int64_t most_in_block =
            std::clamp(as_constant(n).value_or(terms_of_a_block), int64_t{1}, terms_of_a_block);
        Axis in_block = reduce_axis("q", most_in_block), in_chunk = reduce_axis("q", elements_of_a_chunk);

        Tensor key = declare("key", {n}, [&](Point u) { return cast(i32, key_of(u[0])); });
        counts_ = declare("counts", {blocks, v}, [&](Point p) {
            return sum(cast(i32, key(term) == p[1] && term / terms_of_a_block == p[0]), term);
        });
        Tensor before = declare("before", {n}, [&](Point u) {  // in blocks before, for its element
            Expr counts = select(key(u[0]) < v && block < u[0] / terms_of_a_block, counts_(block, key(u[0])), zero);
            return sum(counts, block);
        });
        Tensor rank = declare("rank", {n}, [&](Point u) {  // in its block before it, for its element
            Expr other = padded(key, -1)(u[0] / terms_of_a_block * terms_of_a_block + in_block);
            return sum(cast(i32, in_block < u[0] % terms_of_a_block && other == key(u[0])), in_block);
        });
        Tensor count = declare("count", {v}, [&](Point t) { return sum(counts_(block, t[0]), block); });
        Tensor of_chunk = declare("chunk", {chunks}, [&](Point c) {
            return sum(padded(count, 0)(c[0] * elements_of_a_chunk + in_chunk), in_chunk);
        });
        Tensor before_chunk = declare("before_chunk", {chunks},
                                      [&](Point c) { return sum(select(chunk < c[0], of_chunk(chunk), zero), chunk); });
        offsets_ = declare("offsets", {v + 1}, [&](Point t) {
            Expr other = padded(count, 0)(t[0] / elements_of_a_chunk * elements_of_a_chunk + in_chunk);
            return padded(before_chunk, 0)(t[0] / elements_of_a_chunk) +
                   sum(select(in_chunk < t[0] % elements_of_a_chunk, other, zero), in_chunk);
        });
        order_ = declare("order", {n}, [&](Point p) {
            Expr place = cast(i64, offsets_(key(term)) + before(term) + rank(term));
            return sum(select(key(term) < v && place == p[0], cast(i32, term), zero), term);
        });
    }

    /// The numbers of an element's first and last term; the first is behind the last if it has none.
    std::vector<Tensor> declare_span() {
        const Expr most = constant(i32, int64_t{std::numeric_limits<int32_t>::max()}), none = constant(i32, -1);
        const Reducer outermost =
            make_reducer("span", {most, none}, [](const std::vector<Expr>& a, const std::vector<Expr>& b) {
                return std::vector<Expr>{min(a[0], b[0]), max(a[1], b[1])};
            });
        const std::string name = unique_stage_name(edit_.state, whole_.name + "_span");
        const Axis term = reduce_axis("u", num_terms_);
        return compute_tuple(
            name, {whole_.name + "_first", whole_.name + "_last"}, {num_elements_},
            [&](const std::vector<Expr>& t) {
                std::vector<Expr> element;
                for (const auto& [axis, value] : point_of(elements_, t[0])) element.insert(element.begin(), value);
                const Expr counts = counts_for(term, element), number = cast(i32, term);
                return reduce(outermost, {select(counts, number, most), select(counts, number, none)}, {term});
            },
            edit_.where);
    }

    /// The number of the element for which a term counts, or the number of elements if there is none.
    Expr key_of(const Expr& term) const {
        std::vector<Expr> conditions = own_conditions();
        for (const Expr& condition : terms_.inside()) conditions.push_back(condition);
        const Expr number = number_of(elements_, values_of(elements_));
        const Expr found = select_unchecked(all_of(conditions), number, num_elements_);
        return simplify(substitute(found, point_of(sorted_, term)));
    }

    /// Whether a term counts for the element with these values of its axes.
    Expr counts_for(const Expr& term, const std::vector<Expr>& element) const {
        std::vector<Expr> conditions = own_conditions();
        const std::vector<Expr> values = values_of(elements_);
        const Substitution at = point_of(sorted_, term);
        for (Expr& condition : conditions) condition = substitute(condition, at);
        for (size_t a = 0; a < values.size(); ++a) conditions.push_back(substitute(values[a], at) == element[a]);
        return simplify(all_of(conditions));
    }

    /// Conditions that decide with the index alone whether a term counts.
    std::vector<Expr> own_conditions() const {
        std::vector<Expr> own;
        for (const Expr& condition : terms_.conditions)
            if (is_own(condition)) own.push_back(condition);
        return own;
    }
    bool is_own(const Expr& condition) const {
        for (const auto* axes : {&whole_.axes, &whole_.reduce_axes})
            for (const Expr& axis : *axes)
                if (contains(condition, axis) && !is_among(sorted_, axis)) return false;
        return true;
    }

    std::vector<Expr> values_of(const std::vector<Expr>& axes) const {
        std::vector<Expr> values;
        for (const Expr& axis : axes) values.push_back(terms_.apply(axis));
        return values;
    }

    /// The reduction over so many terms of its element, each named by its number among all, and over what chooses no
    /// element. `counts`, if given: whether a term is the element's.
    void reduce_terms(const Expr& length, const std::function<Expr(const Expr&)>& term_at,
                      const std::function<Expr(const Expr&)>& counts) {
        State& state = edit_.state;
        StageDefinition& own = state.stages[reduction_].definition;
        Variable position{.name = "t", .min = 0};
        const Expr along = make_expr(Type::I64, position), term = term_at(along);
        Substitution at = point_of(sorted_, term);
        std::erase_if(at, [&](const auto& known) { return is_among(own.axes, known.first); });
        std::vector<Expr> conditions, axes{along}, extents{simplify(length)};
        for (const Expr& condition : terms_.conditions)
            if (!is_own(condition)) conditions.push_back(condition);
        Expr value = terms_.value;
        if (!conditions.empty()) value = select_unchecked(all_of(conditions), value, own.reducer->identity[0]);
        value = substitute(value, at);
        if (counts) value = select_unchecked(counts(term), value, own.reducer->identity[0]);
        Substitution operands{{own.reducer->left[0], own.accumulators[0]}, {own.reducer->right[0], simplify(value)}};
        own.update = {contract(simplify(substitute(own.reducer->combined[0], operands)))};
        for (const Expr& axis : own.reduce_axes)
            if (!is_among(sorted_, axis)) {
                axes.push_back(axis);
                extents.push_back(extent_of(axis));
            }
        own.reduce_axes = axes;
        own.reduce_extents = extents;
        add_root_loops(state, reduction_, own.operation->shape);
    }

    void note(std::string_view text) {
        edit_.state.notes.push_back(fmt::format("[{}] {}", edit_.step, fmt::format(fmt::runtime(text), whole_.name)));
    }

    /// A thread an element, neighbours side by side; a warp an element that has many terms.
    void spread(int stage) {
        StageRecord& record = edit_.state.stages[stage];
        const size_t rank = record.definition.axes.size();
        for (size_t d = 0; d + 1 < rank; ++d) bind(record.roots[d], Level::GridY);
        const std::vector<Expr>& axes = record.definition.reduce_axes;
        const auto terms = axes.size() == 1 ? as_constant(extent_of(axes[0])) : std::nullopt;
        const bool shares = terms && *terms >= least_shared_terms;
        auto [outer, inner] = split(stage, record.roots[rank - 1], shares ? threads / lanes : threads);
        bind(outer, Level::GridX);
        bind(inner, Level::Thread);
        if (!shares) return;
        auto [step, lane] = split(stage, record.roots[rank], lanes);
        std::iter_swap(std::ranges::find(record.order, step), std::ranges::find(record.order, lane));
        bind(lane, Level::Thread);
    }
    /// Outer and inner loop, in the place of a root.
    std::pair<int, int> split(int stage, int root, int64_t by) {
        State& state = edit_.state;
        StageRecord& record = state.stages[stage];
        const LoopRecord whole = state.loops[root];
        const Expr size = constant(Type::I64, by);
        const SplitNames names = default_names(whole.name);
        const int outer = state.add_loop(names.outer, simplify((whole.extent + (by - 1)) / size), stage, whole.reduces);
        const int inner = state.add_loop(names.inner, size, stage, whole.reduces);
        const auto place = std::ranges::find(record.order, root);
        *place = outer;
        record.order.insert(place + 1, inner);
        record.relations.push_back(
            {Relation::Kind::Split, root, outer, inner, size, divisor_of(whole.extent) % by != 0});
        state.loops[root].dead_step = edit_.step;
        return {outer, inner};
    }
    void bind(int loop, Level level) {
        edit_.state.loops[loop].level = level;
        edit_.state.loops[loop].bind_step = edit_.step;
    }

    Edit& edit_;
    int reduction_;
    const StageDefinition whole_;
    const Scattered& terms_;
    std::vector<Expr> sorted_, elements_;  // axes that number the terms and the elements
    Expr num_terms_, num_elements_;
    std::vector<Tensor> made_;
    Tensor counts_, offsets_, order_;
};

}  // namespace

void sort_terms(Edit& edit, int reduction, const Scattered& terms) { FoundTerms(edit, reduction, terms).sort(); }

void search_terms(Edit& edit, int reduction, const Scattered& terms) { FoundTerms(edit, reduction, terms).search(); }

}  // namespace tw

// How each element of a reduction finds the terms that count for it, by ordinary stages: a stable counting sort of the
// terms by element, or, of few terms, a search for the first and the last of them.
//
// The terms are numbered in the order of the reduce axes, those behind the last that chooses an element left out; the
// elements likewise. Terms stand in blocks, so that the work grows with their number: a term's place is the number of
// terms for elements before, plus those for its element in blocks before, plus those in its own block before it. Of few
// elements and blocks, all that comes before a block's terms for an element is one sum over the table of their counts.
#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "dsl/numbered_terms.h"
#include "dsl/simplify.h"
#include "dsl/update.h"

namespace tw {
namespace {

using State = Schedule::State;

// Ranks take terms x terms_of_a_block comparisons; counts elements x terms / terms_of_a_block words, which are zeroed
// and read; and what comes before a term is a sum over terms / terms_of_a_block of these. Picoseconds of each, measured
// on an H200.
constexpr int64_t least_of_a_block = 256, most_of_a_block = 1024;
constexpr double of_a_comparison = 0.5, of_a_word = 4.5, of_a_word_before = 2.5;
// Of running sums, by count: each word is added up by those of its run, which neighbours read together; and the kernels
// of runs of runs.
constexpr double of_a_running_word = 8, of_running_kernels = 1e7;
constexpr int64_t words_of_a_run = 32;
// Small tables are made by comparing, words x terms_of_a_block, and added up by as many comparisons as they have pairs
// of words: each of both takes less than the launch of a kernel.
constexpr int64_t most_words_of_small = 4096, most_comparisons_of_small = 1 << 24;
// Tiny ones are not counted at all: what comes before an element is found by comparing all terms with it.
constexpr int64_t most_comparisons_of_tiny = 1 << 22;
constexpr int64_t elements_of_a_chunk = 256, most_of_one_chunk = 2048, most_chunks_beside = 512;
constexpr int64_t threads = 256, threads_of_warps = 512;
constexpr int64_t lanes = 32, lanes_of_ranks = 8, least_shared_terms = 64;

const Expr& extent_of(const Expr& axis) { return axis.as<Variable>()->extent; }

class FoundTerms : NumberedTerms {
public:
    FoundTerms(Edit& edit, int reduction, const Scattered& terms) : NumberedTerms(edit, reduction, terms) {}

    void sort() {
        divide();
        if (!take_sorted()) declare_order();
        const Expr element = number_of(elements_, elements_);
        const Expr begin = begin_of(element), end = begin_of(element + 1);
        const Expr along = position();
        reduce_terms({along}, {cast(i64, end - begin)}, cast(i64, order_(begin + along)), {});
        note("the terms of '{}' are sorted by element, stably: each element combines its own in their order");
    }

    void declare_order() {
        declare_stages();
        for (StageDefinition& definition : stages_of({order_, offsets_}))
            for (const Tensor& tensor : made_)
                if (definition.operation == tensor.operation()) add_stage(edit_.state, definition, edit_.step);
        for (const Tensor& tensor : made_)
            if (!is_beside(tensor)) spread(tensor);
        const Expr term = position();
        edit_.state.sorted.push_back({term, key_of(term), {num_terms_, num_elements_}, whole_.name, offsets_, order_});
    }

    /// What another reduction has sorted by the same elements, if it did: the order is the same.
    bool take_sorted() {
        for (const SortedTerms& other : edit_.state.sorted) {
            const bool is_alike = equal(other.extents[0], num_terms_) && equal(other.extents[1], num_elements_) &&
                                  equal(other.key, key_of(other.term));
            if (!is_alike || stage_of(other.order) < 0 || stage_of(other.offsets) < 0) continue;
            order_ = other.order, offsets_ = other.offsets;
            note(fmt::format("the terms of '{{}}' are in the order of those of '{}'", other.of));
            return true;
        }
        return false;
    }

    /// The first and the last term of each element; those between that count for others are left out as they come.
    void search() {
        const std::vector<Tensor> span = declare_span();
        for (const StageDefinition& definition : stages_of(span))
            if (definition.operation == span[0].operation()) spread(add_stage(edit_.state, definition, edit_.step), {});
        const Expr element = number_of(elements_, elements_);
        const Expr first = cast(i64, span[0](element)), last = cast(i64, span[1](element));
        const Expr along = position();
        reduce_terms({along}, {last - first + 1}, first + along, counts_for(first + along, elements_));
        note(
            "each element of '{}' looks for its first and its last term among all, and combines its own of those "
            "between in their order");
    }

private:
    static Expr position() {
        Variable position{.name = "t", .min = 0};
        return make_expr(Type::I64, position);
    }

    /// Blocks of terms, and whether the table of counts is small.
    void divide() {
        const auto terms = as_constant(num_terms_), elements = as_constant(num_elements_);
        auto words = [&] { return *elements * ((*terms + terms_of_a_block_ - 1) / terms_of_a_block_); };
        if (terms && elements && *terms > 0 && *elements > 0) {
            terms_of_a_block_ = least_of_a_block;
            while (terms_of_a_block_ < most_of_a_block && words() > most_words_of_small / 2) terms_of_a_block_ *= 2;
            is_small_ = words() <= most_words_of_small && *terms * terms_of_a_block_ <= most_comparisons_of_small;
            if (!is_small_) terms_of_a_block_ = least_of_a_block;
            const double by_blocks =
                of_a_word * static_cast<double>(*elements) + of_a_word_before * static_cast<double>(*terms);
            auto of_a_term = [&](int64_t block) {
                return of_a_comparison * static_cast<double>(block) + by_blocks / static_cast<double>(block);
            };
            while (!is_small_ && terms_of_a_block_ < most_of_a_block &&
                   of_a_term(2 * terms_of_a_block_) < of_a_term(terms_of_a_block_))
                terms_of_a_block_ *= 2;
            if (!is_small_) run_words(static_cast<double>(*terms), static_cast<double>(*elements));
        }
        blocks_ = is_constant(num_terms_, 0) ? constant(i64, 1)
                                             : simplify((num_terms_ + (terms_of_a_block_ - 1)) / terms_of_a_block_);
    }

    /// Whether running sums of the table take less than a sum over blocks for each term, and blocks for these.
    void run_words(double terms, double elements) {
        const double by_words = (of_a_word + of_a_running_word) * elements;
        auto running = [&](int64_t block) {
            return terms * (of_a_comparison * static_cast<double>(block) + by_words / static_cast<double>(block)) +
                   of_running_kernels;
        };
        const auto own = static_cast<double>(terms_of_a_block_);
        const double summed = terms * (of_a_comparison * own + (of_a_word * elements + of_a_word_before * terms) / own);
        int64_t block = least_of_a_block;
        while (block < most_of_a_block && running(2 * block) < running(block)) block *= 2;
        is_running_ = running(block) < summed;
        if (is_running_) terms_of_a_block_ = block;
    }

    void declare_stages() {
        const Expr n = num_terms_, v = num_elements_;
        const Axis term = reduce_axis("u", n);
        if (!is_small_ || sorted_.size() > 1) declare_keys();
        if (is_tiny())
            offsets_ = declare("offsets", {v + 1}, [&](Point t) { return sum(cast(i32, key_at(term) < t[0]), term); });
        else if (is_small_)
            declare_small_counts();
        else  // and a word for what counts for none
            counts_ = declare("counts", {simplify(v * blocks_ + 1)},
                              [&](Point p) { return sum(cast(i32, word_of(term) == p[0]), term); });
        rank_ = declare("rank", {n}, [&](Point u) {  // in its block before it, for its element
            const Axis in_block = block_axis();
            const Expr other = key_within(u[0] / terms_of_a_block_ * terms_of_a_block_ + in_block);
            return sum(cast(i32, other == key_at(u[0]) && in_block < u[0] % terms_of_a_block_), in_block);
        });
        if (is_running_)
            offsets_ = running_sums("offsets", counts_, *as_constant(simplify(v * blocks_)));
        else if (is_small_ && !is_tiny())
            declare_small_offsets();
        else if (!is_small_)
            declare_offsets();
        order_ = declare("order", {n}, [&](Point p) {
            const Expr before =
                is_of_words() ? offsets_(min(word_of(term), v * blocks_)) : begin_of(key_at(term)) + before_(term);
            const Expr place = cast(i64, before + rank_(term));
            return sum(select(key_at(term) < v && place == p[0], cast(i32, term), constant(i32, 0)), term);
        });
    }

    /// Whether all terms are one block, and few beside few elements.
    bool is_tiny() const {
        return is_small_ && is_constant(blocks_, 1) &&
               *as_constant(num_terms_) * *as_constant(num_elements_) <= most_comparisons_of_tiny;
    }

    /// Of whole blocks of terms, if these have a number: none is -1.
    void declare_keys() {
        const Expr n = num_terms_;
        if (!as_constant(n) || divisor_of(n) % terms_of_a_block_ == 0) {
            key_ = declare("key", {n}, [&](Point u) { return cast(i32, key_of(u[0])); });
            return;
        }
        key_ = declare("key", {simplify(blocks_ * terms_of_a_block_)}, [&](Point u) {
            return select(u[0] < n, cast(i32, key_of(min(u[0], n - 1))), constant(i32, -1));
        });
    }

    /// Of each element and block of terms, by comparing these.
    void declare_small_counts() {
        counts_ = declare("counts", {simplify(num_elements_ * blocks_)}, [&](Point p) {
            const Axis in_block = block_axis();
            const Expr other = p[0] % blocks_ * terms_of_a_block_ + in_block;
            return sum(cast(i32, key_within(other) == cast(i32, p[0] / blocks_) && other < num_terms_), in_block);
        });
    }

    /// What comes before the terms that each word of the table counts.
    void declare_small_offsets() {
        const Expr words = simplify(num_elements_ * blocks_);
        const Axis word = reduce_axis("w", words);
        offsets_ =
            declare("offsets", {words + 1}, [&](Point t) { return sum(counts_(word) * cast(i32, word < t[0]), word); });
    }

    void declare_offsets() {
        const Expr v = num_elements_, zero = constant(i32, 0);
        const Axis block = reduce_axis("b", blocks_);
        before_ = declare("before", {num_terms_}, [&](Point u) {  // in blocks before, for its element
            const Expr word = min(cast(i64, key_(u[0])) * blocks_ + block, v * blocks_);
            return sum(counts_(word) * cast(i32, block < u[0] / terms_of_a_block_), block);
        });
        const Tensor count =
            declare("count", {v}, [&](Point t) { return sum(counts_(t[0] * blocks_ + block), block); });
        if (const auto elements = as_constant(v); elements && *elements > 0 && *elements <= most_of_one_chunk) {
            const Axis other = reduce_axis("q", v);
            offsets_ = declare("offsets", {v + 1},
                               [&](Point t) { return sum(count(other) * cast(i32, other < t[0]), other); });
            return;
        }
        const Expr chunks = simplify(v / elements_of_a_chunk + 1);
        const Axis chunk = reduce_axis("p", chunks), in_chunk = reduce_axis("q", elements_of_a_chunk);
        const Tensor of_chunk = declare("chunk", {chunks}, [&](Point c) {
            return sum(padded(count, 0)(c[0] * elements_of_a_chunk + in_chunk), in_chunk);
        });
        before_chunk_ = declare("before_chunk", {chunks},
                                [&](Point c) { return sum(select(chunk < c[0], of_chunk(chunk), zero), chunk); });
        offsets_ = declare("offsets", {v + 1}, [&](Point t) {
            const Expr other = padded(count, 0)(t[0] / elements_of_a_chunk * elements_of_a_chunk + in_chunk);
            return before_chunk_(t[0] / elements_of_a_chunk) +
                   sum(select(in_chunk < t[0] % elements_of_a_chunk, other, zero), in_chunk);
        });
    }

    Axis block_axis() const {
        const int64_t terms = as_constant(num_terms_).value_or(terms_of_a_block_);
        return reduce_axis("q", std::clamp(terms, int64_t{1}, terms_of_a_block_));
    }

    /// The number of a term's element, or the number of elements.
    Expr key_at(const Expr& term) const { return key_.defined() ? key_(term) : cast(i32, key_of(term)); }
    /// The same of any term of a block, of some other behind the last: reads that need no condition are under way
    /// together.
    Expr key_within(const Expr& term) const {
        if (!as_constant(num_terms_)) return padded(key_, -1)(term);
        return key_.defined() ? key_(term) : key_at(min(term, num_terms_ - 1));
    }
    /// Of the table, where the term is counted: element by element, a word for each block of terms.
    Expr word_of(const Expr& term) const { return cast(i64, key_at(term)) * blocks_ + term / terms_of_a_block_; }
    /// Where the element's terms begin in the order.
    Expr begin_of(const Expr& element) const { return offsets_(is_of_words() ? element * blocks_ : element); }
    /// Whether offsets are those of elements and blocks of terms, not of elements alone.
    bool is_of_words() const { return is_small_ || is_running_; }

    /// What comes before each of so many words, and before their end.
    Tensor running_sums(const std::string& name, const Tensor& words, int64_t count) {
        if (count <= most_of_one_chunk) {
            const Axis other = reduce_axis("q", count);
            return declare(name, {count + 1},
                           [&](Point t) { return sum(words(other) * cast(i32, other < t[0]), other); });
        }
        const int64_t runs = count / words_of_a_run + 1;
        const Axis in_run = reduce_axis("q", words_of_a_run);
        const Tensor of_run = declare(
            "run", {runs}, [&](Point c) { return sum(padded(words, 0)(c[0] * words_of_a_run + in_run), in_run); });
        const Tensor before = running_sums("runs_before", of_run, runs);
        return declare(name, {count + 1}, [&](Point t) {
            const Expr other = padded(words, 0)(t[0] / words_of_a_run * words_of_a_run + in_run);
            return before(t[0] / words_of_a_run) +
                   sum(select(in_run < t[0] % words_of_a_run, other, constant(i32, 0)), in_run);
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
        return simplify(select_unchecked(counts_at(term), element_at(term), num_elements_));
    }

    int stage_of(const Tensor& tensor) const { return edit_.state.stage_of(tensor.operation().get()); }
    static bool is(const Tensor& a, const Tensor& b) { return b.defined() && a.operation() == b.operation(); }

    /// Whether threads make its elements where they read them.
    bool is_beside(const Tensor& tensor) const {
        const auto chunks = before_chunk_.defined() ? as_constant(before_chunk_.shape()[0]) : std::nullopt;
        return is(tensor, rank_) || is(tensor, before_) ||
               (is(tensor, before_chunk_) && chunks && *chunks <= most_chunks_beside);
    }

    void spread(const Tensor& tensor) {
        const int stage = stage_of(tensor);
        if (is(tensor, order_) || (is(tensor, counts_) && !is_small_)) {
            const Scattered terms = scattered_terms(edit_.state.stages[stage].definition).value();
            const int updates = scatter_atomically(edit_, stage, BinaryOp::Add, terms);
            spread(updates, is(tensor, order_) ? std::vector{rank_, before_} : std::vector<Tensor>{});
        }
        spread(stage, is(tensor, offsets_) ? std::vector{before_chunk_} : std::vector<Tensor>{});
    }

    /// A thread an element, neighbours side by side; a warp an element that has many terms. Behind it, in registers,
    /// what is made beside it.
    void spread(int stage, const std::vector<Tensor>& read) {
        std::vector<int> beside;
        for (const Tensor& tensor : read)
            if (tensor.defined() && is_beside(tensor)) beside.push_back(stage_of(tensor));
        const size_t rank = edit_.state.stages[stage].definition.axes.size();
        const bool shares = shares_terms(stage) || std::ranges::any_of(beside, [&](int s) { return shares_terms(s); });
        for (size_t d = 0; d + 1 < rank; ++d) bind(edit_.state.stages[stage].roots[d], Level::GridY);
        const int64_t sharers = beside.empty() || !is(read[0], rank_) ? lanes : lanes_of_ranks;
        auto [outer, inner] =
            split(stage, edit_.state.stages[stage].roots[rank - 1], shares ? threads_of_warps / sharers : threads);
        bind(outer, Level::GridX);
        bind(inner, Level::Thread);
        if (shares) share_terms(stage, sharers);
        for (int each : beside) {
            StageRecord& record = edit_.state.stages[each];
            record.attach = inner;
            record.memory = Memory::Registers;
            fit_root_loops(edit_.state, each, edit_.where);
            if (shares) share_terms(each, sharers);
        }
    }

    bool shares_terms(int stage) const {
        const std::vector<Expr>& axes = edit_.state.stages[stage].definition.reduce_axes;
        const auto terms = axes.size() == 1 ? as_constant(extent_of(axes[0])) : std::nullopt;
        return terms && *terms >= least_shared_terms;
    }
    void share_terms(int stage, int64_t sharers) {
        StageRecord& record = edit_.state.stages[stage];
        if (record.definition.reduce_axes.empty()) return;
        auto [step, lane] = split(stage, record.roots[record.definition.axes.size()], sharers);
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

    int64_t terms_of_a_block_ = most_of_a_block;
    bool is_small_ = false, is_running_ = false;
    Expr blocks_;
    Tensor key_, counts_, rank_, before_, before_chunk_, offsets_, order_;
};

}  // namespace

void sort_terms(Edit& edit, int reduction, const Scattered& terms) { FoundTerms(edit, reduction, terms).sort(); }

void search_terms(Edit& edit, int reduction, const Scattered& terms) { FoundTerms(edit, reduction, terms).search(); }

}  // namespace tw

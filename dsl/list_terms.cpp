// From "each element looks at all terms" to "a block of elements lists its own, and each looks at those".
//
// A list is filled by the terms themselves, each at the place that the number of those before it gives: a scan, whose
// results are places. An entry is term * elements + element of the block.
#include "dsl/listed_terms.h"

#include <limits>
#include <numeric>

#include <fmt/ranges.h>

#include "dsl/declare_scan.h"
#include "dsl/numbered_terms.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

constexpr int64_t most_neighbours = 4;  // 16 bytes of indices of 32 bits

class TermLists : NumberedTerms {
public:
    TermLists(Edit& edit, int reduction, const Scattered& terms, const ListOptions& options)
        : NumberedTerms(edit, reduction, terms), elements_of_block_(options.elements), terms_of_chunk_(options.terms) {
        const auto all = as_constant(num_terms_), elements = as_constant(num_elements_);
        user_check(all && elements, edit.where,
                   "list_terms({}): its terms, {}, or elements, {}, are no constant number; use scatter({})", name(),
                   to_string(num_terms_), to_string(num_elements_), name());
        user_check(elements_of_block_ > 0 && terms_of_chunk_ > 0, edit.where,
                   "list_terms({}): lists for {} elements of {} terms; name at least one of each", name(),
                   elements_of_block_, terms_of_chunk_);
        constexpr double most = std::numeric_limits<uint32_t>::max();
        user_check(static_cast<double>(*all) * static_cast<double>(elements_of_block_) < most, edit.where,
                   "list_terms({}): {} terms times {} elements of a block do not fit into 32 bits; list for fewer "
                   "elements",
                   name(), *all, elements_of_block_);
        chunks_ = std::max<int64_t>((*all + terms_of_chunk_ - 1) / terms_of_chunk_, 1);
        blocks_ = std::max<int64_t>((*elements + elements_of_block_ - 1) / elements_of_block_, 1);
    }

    struct Made {
        int element, count, list, updates, entry;
    };
    Made run() {
        element_ =
            declare("element", {blocks_, chunks_ * terms_of_chunk_}, [&](Point p) { return element_in(p[0], p[1]); });
        const Axis term = reduce_axis("u", terms_of_chunk_);
        const Tensor count = declare("count", {blocks_, chunks_},
                                     [&](Point p) { return sum(cast(i32, is_listed(p[0], p[1], term)), term); });
        const Tensor list =
            declare("list", {blocks_, chunks_, terms_of_chunk_}, [&](Point) { return constant(u32, 0); });
        const Tensor before = declare("list_updates", {blocks_, chunks_, terms_of_chunk_}, [&](Point p) {
            return scan(sum, cast(i32, is_listed(p[0], p[1], term)), term, p[2], {.exclusive = true});
        });
        const Tensor entry =
            declare("entry", {blocks_, chunks_, terms_of_chunk_}, [&](Point p) { return list(p[0], p[1], p[2]); });
        const Made made{add(element_), add(count), add(list), add(before), add(entry)};
        fill(edit_.state.stages[made.updates].definition, list);
        reduce(count, entry);
        note("blocks of elements of '{}' list their terms, of which each element combines its own in their order");
        return made;
    }

private:
    const std::string& name() const { return whole_.name; }

    int add(const Tensor& tensor) {
        for (const StageDefinition& definition : stages_of({tensor}))
            if (definition.operation == tensor.operation()) return add_stage(edit_.state, definition, edit_.step);
        internal_check(false, "'{}' has no stage", tensor.name());
        return -1;
    }

    /// Which element of the block a term counts for, or how many it has.
    Expr element_in(const Expr& block, const Expr& number) const {
        const Expr none = constant(i32, elements_of_block_);
        if (is_constant(num_terms_, 0)) return none;
        const Expr term = term_near(number), first = block * elements_of_block_, element = element_at(term);
        const bool is_alone = elements_.size() == 1;  // then that it is the block's tells that it is inside
        const Expr behind = is_alone ? min(first + elements_of_block_, num_elements_) : first + elements_of_block_;
        const Expr counts = (is_alone ? own_counts_at(term) : counts_at(term)) && element >= first && element < behind;
        return simplify(select_unchecked(number < num_terms_ && counts, cast(i32, element - first), none));
    }
    /// The term, or one of the last, neighbours for neighbours: it is read without a condition, which would have each
    /// load wait for the one before.
    Expr term_near(const Expr& number) const {
        const int64_t all = as_constant(num_terms_).value(), neighbours = std::gcd(most_neighbours, all);
        if (all == chunks_ * terms_of_chunk_) return number;
        return simplify(min(number / neighbours, integer(all / neighbours - 1)) * neighbours + number % neighbours);
    }
    Expr number(const Expr& chunk, const Expr& in_chunk) const { return simplify(chunk * terms_of_chunk_ + in_chunk); }
    Expr is_listed(const Expr& block, const Expr& chunk, const Expr& in_chunk) const {
        return simplify(element_(block, number(chunk, in_chunk)) < constant(i32, elements_of_block_));
    }

    /// What counts the terms before each becomes updates: the place of a term in the list is their number.
    void fill(StageDefinition& updates, const Tensor& list) const {
        const Expr block = updates.axes[0], chunk = updates.axes[1], in_chunk = updates.axes[2];
        const Expr term = number(chunk, in_chunk), place = cast(i64, updates.finish[0]);
        updates.target = list.operation();
        updates.combine = BinaryOp::Add;
        updates.place = {block, chunk, place, is_listed(block, chunk, in_chunk)};
        updates.finish = {simplify(cast(u32, term * elements_of_block_) + cast(u32, element_(block, term)))};
    }

    void reduce(const Tensor& count, const Tensor& entry) {
        const Expr element = number_of(elements_, elements_), block = simplify(element / elements_of_block_);
        const Axis chunk = reduce_axis("chunk", chunks_), t = reduce_axis("t", terms_of_chunk_),
                   own = reduce_axis("own", int64_t{1});
        const Expr c = chunk.variable, at = t.variable, listed = cast(i64, entry(block, c, at));
        const Expr is_own = listed % elements_of_block_ == element % elements_of_block_;
        reduce_terms({c, at, own.variable}, {integer(chunks_), cast(i64, count(block, c)), cast(i64, is_own)},
                     listed / elements_of_block_, {});
    }

    int64_t elements_of_block_, terms_of_chunk_, chunks_ = 1, blocks_ = 1;
    Tensor element_;
};

}  // namespace

ListedTerms list_terms(Schedule& s, const StageRef& reduction, const ListOptions& options, std::source_location where) {
    Edit edit(Edit::state_of(s), where);
    const int whole = edit.stage(reduction, "list_terms");
    const Scattered terms = terms_to_find(edit, whole, "list_terms");
    const auto made = TermLists(edit, whole, terms, options).run();
    const std::string from = edit.stage_as_cpp(whole);
    std::vector<std::string> names;
    for (int stage : {made.element, made.count, made.list, made.updates, made.entry})
        names.push_back(edit.stage_as_cpp(stage));
    edit.commit(fmt::format("auto [{}] = list_terms(s, {}, {{.elements = {}, .terms = {}}});", fmt::join(names, ", "),
                            from, options.elements, options.terms),
                fmt::format("list_terms {} {} {}", whole, options.elements, options.terms));
    const auto handle = [&](int stage) { return Edit::state_of(s)->handle_of_stage(stage); };
    return {handle(made.element), handle(made.count), handle(made.list), handle(made.updates), handle(made.entry)};
}

}  // namespace tw

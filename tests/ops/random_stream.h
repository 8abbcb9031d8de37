// Random chains of reductions over the same terms, and schedules that compute each in one pass.
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "dsl/interpret.h"
#include "dsl/schedule.h"
#include "support/error.h"

namespace tw {

/// Who decides how many terms a row has.
enum class Lengths { Same, ByElement };

/// Some reductions over the columns of x, masked, and y, those behind the first of terms that read it or others.
/// While the inputs are small whole numbers, every one is exact in every order. With lengths by element, rows have as
/// many terms as their places say, or data: some have none.
class RandomStream {
public:
    /// With lazy references that may be so far away.
    explicit RandomStream(unsigned seed, Lengths lengths = Lengths::Same, std::vector<double> lazy = {1, 2, 3, 100})
        : random_(seed), of_references_(seed), lazy_(std::move(lazy)), lengths_(lengths) {
        declare();
    }

    std::vector<Tensor> outputs() const {
        std::vector<Tensor> all{members_.back()};
        for (size_t k = 0; k + 1 < members_.size(); ++k)
            if (is_output_[k]) all.push_back(members_[k]);
        if (weights_are_output_) all.push_back(weights_);
        return all;
    }

    /// A schedule with one pass, and whatever steps else are legal.
    Schedule schedule(const Target& target) {
        Schedule s(outputs(), target);
        std::vector<StageRef> reductions;
        for (const Tensor& member : members_)
            if (computes(s, member)) reductions.emplace_back(member);
        StageRef weights = weights_;
        if (between(0, 2) == 0) in_parts(s, reductions, weights);
        const StageRef owner = reductions.back();
        std::vector<Loop> order = s.data_loops(owner), around;
        if (in_parts_) around.push_back(order[0]), order.erase(order.begin());
        // Rows of a block have equally many terms, if they take the same ones together.
        const bool row_outside = chance();
        const int64_t block = lengths_ == Lengths::Same || row_outside ? between(1, 5) : alike_;
        auto [outer, row] = s.split(order[0], block, Tail::Mask, {"block", "row"});
        auto [tile, term] = s.split(s.reduce(owner), between(1, 9), Tail::Mask, {"tile", "term"});
        std::vector<Loop> inner{row, term};
        if (order.size() > 1) inner.insert(inner.begin() + between(0, 2), order[1]);
        if (row_outside) std::erase_if(inner, [&](const Loop& l) { return l.id == row.id; });
        std::vector<Loop> all = around;
        all.insert(all.begin() + between(0, static_cast<int>(around.size())), outer);
        if (row_outside) all.push_back(row);
        all.push_back(tile);
        all.insert(all.end(), inner.begin(), inner.end());
        s.order(all);
        const bool part_first = in_parts_ && all[0].id != outer.id;
        if (part_first) s.bind(around[0], grid.y);
        s.bind(outer, grid.x);
        if (in_parts_ && !part_first && chance()) s.bind(around[0], grid.y);
        if (reductions.size() < 2 || (in_parts_ && between(0, 4) == 0)) return s;
        s.stream(reductions, tile, references(s, reductions, tile));
        streamed_ = true;
        const int threads = between(0, 2);  // none, elements, terms
        // What threads fill together they need equally often.
        if (threads == 1 && !(row_outside && lengths_ == Lengths::ByElement)) attempt([&] { s.bind(row, thread); });
        if (threads == 2) attempt([&] { s.bind(term, thread); });
        if (chance()) attempt([&] { s.at(masked_, tile); });
        if (chance()) attempt([&] { s.inline_stage(masked_); });
        if (chance()) attempt([&] { s.inline_stage(weights); });
        if (chance()) attempt([&] { s.set_memory(weights, chance() ? Memory::Shared : Memory::Registers); });
        for (size_t k = 0; k + 1 < reductions.size(); ++k) rearrange(s, reductions[k], threads == 2);
        if (chance()) attempt([&] { s.stage(owner, y_, Memory::Shared, tile); });
        if (chance()) attempt([&] { s.pipeline(tile, {.stages = between(1, 3)}); });
        if (chance()) attempt([&] { s.skip(tile, masked_); });
        if (chance()) attempt([&] { s.cut(tile, {constant(i64, between(0, 3))}); });
        if (chance()) attempt([&] { s.cut(tile, where_partial(masked_)); });
        if (between(0, 2) == 0) attempt([&] { s.reverse(tile); });
        const size_t late = between(1, static_cast<int>(reductions.size()) - 1), before = between(0, 1) ? 0 : late - 1;
        if (chance())
            attempt([&] {
                DelayOptions options{.iterations = between(1, 2)};
                if (chance()) options.before = reductions[before];
                s.delay(reductions[late], tile, options);
            });
        if (between(0, 3) == 0) attempt([&] { s.unroll(tile); });
        return s;
    }

    /// What a launch is given: whole numbers, or any.
    Bindings bindings(bool whole) {
        Bindings result;
        for (const Tensor& input : {x_, y_, v_, w_, of_rows_}) {
            if (!input.defined()) continue;
            std::vector<int64_t> shape;
            for (const Expr& extent : input.shape()) shape.push_back(*as_constant(extent));
            HostArray array = host_array(input.type(), shape);
            if (input.type() == i32)
                fill_integers(array, -3, static_cast<int>(*as_constant(x_.shape()[1])) + 3, random_());
            else if (whole)
                fill_integers(array, -3, 3, random_());
            else
                fill_uniform(array, -2, 2, random_());
            result.inputs[input.name()] = array;
        }
        return result;
    }

    bool streamed() const { return streamed_; }
    /// How many references of the kind terms read.
    int count(Reference::Kind kind) const { return static_cast<int>(std::ranges::count(kinds_, kind)); }
    bool is_in_parts() const { return in_parts_; }
    /// Whether whole numbers are computed without any rounding but that of quotients at the end.
    bool is_exact() const { return is_exact_; }
    const std::string& text() const { return text_; }

private:
    int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
    bool chance() { return between(0, 1) == 1; }

    template <class Step>
    void attempt(Step step) {
        try {
            step();
        } catch (const Error&) {  // what is not legal here is left out
        }
    }

    static bool computes(const Schedule& s, const Tensor& tensor) {
        for (const auto& operation : operations_of(s.outputs()))
            if (operation == tensor.operation()) return true;
        return false;
    }

    /// Of some reductions that terms read; where a constant has no inverse, or terms read none, the values so far.
    std::vector<ReferenceOf> references(const Schedule& s, const std::vector<StageRef>& reductions, const Loop& tile) {
        std::vector<ReferenceOf> chosen;
        auto pick = [&](const std::vector<double>& numbers) { return numbers[of_references_() % numbers.size()]; };
        for (size_t k = 0; k + 1 < reductions.size(); ++k) {
            const double size = k == 0 ? offset_ : 0;  // of the first one's values, about
            Reference reference;
            switch (of_references_() % 5) {
                case 0: reference = Reference::lazy(pick(lazy_)); break;
                case 1: reference = Reference::offset(pick({-8, -1, 2, 5})); break;
                case 2: reference = Reference::constant(size + pick({-2, -1, 1, 4})); break;
                default: continue;
            }
            try {
                Schedule trial = s;
                trial.stream(reductions, tile, {{reductions[k], reference}});
                chosen.push_back({reductions[k], reference});
                kinds_.push_back(reference.kind);
            } catch (const Error&) {
            }
        }
        return chosen;
    }

    /// Of each reduction the parts that are to be computed in one pass.
    void in_parts(Schedule& s, std::vector<StageRef>& reductions, StageRef& weights) {
        std::vector<StageRef> named = reductions;
        const bool names_weights = weights_are_read(s);
        if (names_weights) named.insert(named.begin() + 1, weights);
        const Loop terms = s.reduce(named.back());
        auto [part, in_part] = s.split(terms, between(1, 16), Tail::Mask, {"part", "in_part"});
        std::vector<Stage> parts = s.rfactor(named, chance() ? part : in_part);
        if (names_weights) weights = parts[1], parts.erase(parts.begin() + 1);
        for (size_t k = 0; k < parts.size(); ++k) reductions[k] = parts[k];
        in_parts_ = true;
    }

    /// Whether terms of what is computed read the weights.
    bool weights_are_read(const Schedule& s) const {
        if (!computes(s, weights_)) return false;
        for (const Stage& reader : s.readers(weights_))
            for (const Tensor& member : members_)
                if (computes(s, member) && s[member].id == reader.id) return true;
        return false;
    }

    void rearrange(Schedule& s, const StageRef& member, bool by_threads) {
        if (chance()) attempt([&] { s.split(s.reduce(member), between(1, 4), Tail::Mask); });
        std::vector<Loop> loops = s.all_loops(member);
        std::shuffle(loops.begin(), loops.end(), random_);
        if (chance()) attempt([&] { s.order(loops); });
        if (by_threads && chance()) attempt([&] { s.bind(s.reduce(member), thread); });
    }

    /// Terms that depend on the reduction r of the masked x, which is a maximum or a minimum.
    Expr term(const Expr& i, const Expr& j, const Expr& r) {
        auto weight_of = [&](const Expr& score) { return exp2((is_least_ ? r - score : score - r) * scale_); };
        Expr weight = weights_apart_ ? Expr(weights_(i, j)) : weight_of(masked_(i, j));
        if (between(0, 3) == 0)  // nothing shows that there are no terms where r has none
            weight = select(abs(masked_(i, j)) < 1e30, weight_of(x_(i, j) + offset_), 0.0);
        if (norm_.defined() && chance()) {
            is_exact_ = false;
            if (chance()) return weight * y_(i, j) / norm_(i);
            return weight * rsqrt(norm_(i) + 0.5) * (chance() ? norm_(i) : Expr(w_(i)));
        }
        switch (between(0, 3)) {
            case 0: return weight;
            case 1: return weight * y_(i, j);
            case 2: return select(y_(i, j) > 0, weight * w_(i), 0.0);
            default: return -(y_(i, j) * weight) + weight;
        }
    }

    void declare() {
        const int64_t rows = between(1, 11), terms = between(1, 40), width = between(1, 5);
        x_ = input("x", f32, {rows, terms}), y_ = input("y", f32, {rows, terms});
        v_ = input("v", f32, {terms, width}), w_ = input("w", f32, {rows});
        is_least_ = between(0, 3) == 0;
        weights_apart_ = chance();
        weights_are_output_ = weights_apart_ && between(0, 4) == 0;
        scale_ = between(1, 2);
        offset_ = between(0, 3) ? 0.0 : is_least_ ? 300.0 : -300.0;  // exp2 of which is none
        if (lengths_ == Lengths::ByElement) declare_lengths(rows, terms);
        const int mask = between(0, 3), offset = between(-4, 4);
        masked_ = compute("masked", {rows, terms}, [&](Expr i, Expr j) {
            Expr none = is_least_ ? infinity : -infinity;
            if (mask <= 1) return select(j <= i + offset, x_(i, j) + offset_, none);
            if (mask == 2) return select(y_(i, j) < 0, x_(i, j) + offset_, none);
            return x_(i, j) + offset_;
        });
        const bool sink = between(0, 3) == 0;
        Tensor first = compute("first", {rows}, [&](Expr i) {
            const Axis j = terms_of(i, terms);
            Expr r = is_least_ ? reduce_min(masked_(i, j), j) : reduce_max(masked_(i, j), j);
            return !sink ? r : is_least_ ? min(r, w_(i)) : max(r, w_(i));
        });
        weights_ = compute("weights", {rows, terms}, [&](Expr i, Expr j) {
            return exp2((is_least_ ? first(i) - masked_(i, j) : masked_(i, j) - first(i)) * scale_);
        });
        members_ = {first};
        for (int count = between(1, 3); count > 0; --count) members_.push_back(another(rows, terms, width, count == 1));
        for (size_t k = 0; k < members_.size(); ++k) is_output_.push_back(chance());
        for (const Tensor& member : members_) text_ += to_string(*member.operation()) + "\n";
        text_ += to_string(*weights_.operation()) + "\n" + to_string(*masked_.operation()) + "\n";
    }

    void declare_lengths(int64_t rows, int64_t terms) {
        alike_ = between(1, 3);
        const int kind = between(0, 2), step = between(1, 9);
        if (kind > 0) of_rows_ = input("of_rows", i32, {(rows - 1) / alike_ + 2});
        length_of_ = [=, this](const Expr& i) {
            const Expr group = i / alike_;
            if (kind == 0) return min(group * step, terms);
            const Expr here = cast(i64, of_rows_(group));
            return min(kind == 1 ? here : cast(i64, of_rows_(group + 1)) - here, terms);
        };
    }

    Axis terms_of(const Expr& row, int64_t terms) const {
        return lengths_ == Lengths::Same ? reduce_axis("j", terms) : reduce_axis("j", length_of_(row));
    }

    Tensor another(int64_t rows, int64_t terms, int64_t width, bool is_last) {
        const std::string name = fmt::format("member{}", members_.size());
        const Tensor first = members_[0];
        const Tensor divisor =
            members_.size() > 1 && members_.back().rank() == 1 && chance() ? members_.back() : Tensor();
        const int kind = between(0, 6);
        if (kind == 0 && is_last)
            return compute(name, {rows, width}, [&](Expr i, Expr e) {
                const Axis j = terms_of(i, terms);
                Expr total = sum(term(i, j, first(i)) * v_(j, e), j);
                return divisor.defined() ? total / (abs(divisor(i)) + 1.0) : total;
            });
        if (kind == 1)
            return compute_tuple(name, {rows}, [&](const std::vector<Expr>& at) {
                const Axis j = terms_of(at[0], terms);
                return argmax(y_(at[0], j) - first(at[0]), j);
            })[0];
        if (kind == 6 && !is_last) {
            norm_ = compute(name, {rows}, [&](Expr i) {
                const Axis j = terms_of(i, terms);
                return sum(weights_(i, j), j);
            });
            return norm_;
        }
        return compute(name, {rows}, [&](Expr i) {
            const Axis j = terms_of(i, terms);
            if (kind == 2) return reduce_max(y_(i, j) * 2.0 - first(i), j);
            if (kind == 3) return sum(y_(i, j), j);  // of nothing that runs
            Expr total = sum(term(i, j, first(i)), j);
            return divisor.defined() ? total / (abs(divisor(i)) + 1.0) : total + w_(i);
        });
    }

    std::mt19937 random_, of_references_;
    std::vector<double> lazy_;
    std::vector<Reference::Kind> kinds_;
    Lengths lengths_;
    int64_t alike_ = 1;  // rows side by side that have equally many terms
    std::function<Expr(const Expr& row)> length_of_;
    Tensor of_rows_;  // the data that decide
    Tensor x_, y_, v_, w_, masked_, weights_;
    Tensor norm_;  // a sum of weights
    std::vector<Tensor> members_;
    std::vector<bool> is_output_;
    bool is_least_ = false, weights_apart_ = false, weights_are_output_ = false, streamed_ = false, in_parts_ = false,
         is_exact_ = true;
    double scale_ = 1, offset_ = 0;
    std::string text_;
};

/// The report of a difference, where the declaration gives a number: of rows without terms, of which it makes NaN,
/// a stream may make something.
inline std::optional<std::string> differs_in_numbers(const std::vector<HostArray>& got, std::vector<HostArray> expected,
                                                     const Match& match) {
    for (size_t k = 0; k < got.size(); ++k) {
        if (!is_float(got[k].type)) {
            if (auto differs = difference("output", got[k], expected[k], bitwise)) return differs;
            continue;
        }
        std::vector<int64_t> at(got[k].shape.size());
        if (got[k].num_elements() > 0) do {
                if (std::isnan(expected[k].at(at).real)) expected[k].set(at, got[k].at(at));
            } while (advance(at, got[k].shape));
        if (auto differs = difference("output", got[k], expected[k], match)) return differs;
    }
    return {};
}

/// How what a schedule of the chain gives differs from what is declared: three of four seeds of whole numbers, bit for
/// bit where the chain is exact.
inline std::optional<std::string> differs_from_declared(
    RandomStream& chain, const Schedule& s, unsigned seed,
    const std::function<std::vector<HostArray>(const Bindings&)>& run) {
    const bool whole = seed % 4 != 0;
    const Bindings launch = chain.bindings(whole);
    return differs_in_numbers(run(launch), interpret_plain(s.outputs(), launch),
                              whole && chain.is_exact() ? equal_values : near(64, 1e-4));
}

}  // namespace tw

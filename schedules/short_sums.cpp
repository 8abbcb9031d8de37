#include "schedules/short_sums.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/joined_axes.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

constexpr int64_t most_written = 8;  // of terms

std::vector<Expr> own_axes_of(const Reduce& reduction) { return {reduction.axes.begin(), reduction.axes.end()}; }

/// Whether it is of few terms, and of one value each.
bool is_short(const Reduce& reduction) {
    if (reduction.values.size() != 1) return false;
    const int64_t terms = schedules::points_of(own_axes_of(reduction));
    return terms > 0 && terms <= most_written;
}

Expr written_out(const Reduce& reduction) {
    const std::vector<Expr> axes = own_axes_of(reduction);
    const Reducer& reducer = reduction.reducer;
    Expr all;
    for (int64_t number = 0; number < schedules::points_of(axes); ++number) {
        const Expr term = substitute(reduction.values[0], digits(axes, integer(number)));
        all = all.defined() ? substitute(reducer->combined[0], {{reducer->left[0], all}, {reducer->right[0], term}})
                            : term;
    }
    return simplify(all);
}

/// Whether it has another value at each term of the reduction, not one for all of them.
bool belongs_to_terms(const Expr& part, const Reduce& reduction) {
    return std::ranges::any_of(reduction.axes, [&](const Expr& axis) { return contains(part, axis); });
}

/// What stands for a part of a body.
using Written = std::vector<std::pair<Expr, Expr>>;

/// The short reductions among the terms of others.
Written short_terms(const std::vector<Expr>& bodies) {
    Written found;
    for (const Expr& body : bodies)
        visit(body, [&](const Expr& e) {
            const Reduce* outer = e.as<Reduce>();
            if (!outer) return;
            for (const Expr& value : outer->values)
                visit(value, [&](const Expr& part) {
                    const Reduce* own = part.as<Reduce>();
                    if (own && own != outer && is_short(*own) && belongs_to_terms(part, *outer))
                        found.emplace_back(part, written_out(*own));
                });
        });
    return found;
}

class WritingOut {
public:
    explicit WritingOut(const std::vector<Tensor>& outputs) : given_(outputs) {}

    Redeclared run() {
        for (const auto& operation : operations_of(given_)) {
            if (operation->is_input()) continue;
            const Tensor given(operation, 0), present = whole_.of(given);
            const std::vector<Expr> read = with(bodies_of(*present.operation()), terms_read(*present.operation()));
            const Written terms = short_terms(read);
            if (terms.empty()) continue;
            whole_.put(given, Tensor(declared_again(*present.operation(), operation->name, with(read, terms)), 0));
            result_.notes.push_back(
                fmt::format("'{}': reductions of few terms inside of its own are written out", operation->name));
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    static std::vector<Expr> with(const std::vector<Expr>& bodies, const Written& written) {
        return changed_together(bodies, [&](const Expr& all) {
            return transform(all, [&](const Expr& e) -> Expr {
                for (const auto& [part, by] : written)
                    if (part.same(e)) return by;
                return {};
            });
        });
    }

    /// Elements that are short reductions, each of which is a term of the operation's reduction, and nothing else.
    Written terms_read(const Operation& operation) const {
        Written found;
        for (const Expr& body : bodies_of(operation))
            visit(body, [&](const Expr& e) {
                const Reduce* outer = e.as<Reduce>();
                if (!outer) return;
                std::vector<Expr> loops = operation.axes;
                loops.insert(loops.end(), outer->axes.begin(), outer->axes.end());
                for (const Expr& value : outer->values)
                    visit(value, [&](const Expr& part) {
                        const Read* read = part.as<Read>();
                        if (read && !read->guarded && is_read_once(*read, schedules::points_of(loops)))
                            found.emplace_back(
                                part, over(read->operation->axes, read->operation->outputs[0].body, read->indices));
                    });
            });
        return found;
    }

    /// Whether that is what is read of a tensor that is made of a short reduction, so often as it has elements.
    bool is_read_once(const Read& read, int64_t times) const {
        const Operation& made = *read.operation;
        if (made.is_input() || made.outputs.size() != 1 || schedules::points_of(made.axes) != times) return false;
        const Reduce* reduction = only_reduction(made.outputs[0].body);
        if (!reduction || !is_short(*reduction)) return false;
        int count = 0;
        for (const auto& operation : operations_of(given_))
            for (const Expr& body : bodies_of(*operation))
                if (!operation->is_input())
                    visit(body, [&](const Expr& e) {
                        const Read* other = e.as<Read>();
                        count += other && other->operation->name == made.name;
                    });
        return count == 1 && std::ranges::none_of(
                                 given_, [&](const Tensor& output) { return output.operation()->name == made.name; });
    }

    const std::vector<Tensor>& given_;
    Replacement whole_;
    Redeclared result_;
};

}  // namespace

Redeclared short_sums(const std::vector<Tensor>& outputs) { return WritingOut(outputs).run(); }

}  // namespace tw::schedules

#include "schedules/products_apart.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/scaled_product.h"
#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/declared_as.h"
#include "schedules/free_names.h"
#include "schedules/matrix_factors.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

/// The reductions of the body, each once, as they appear.
std::vector<Expr> reductions_in(const Expr& body) {
    std::vector<Expr> found;
    visit(body, [&](const Expr& e) {
        if (e.as<Reduce>() && std::ranges::none_of(found, [&](const Expr& each) { return equal(each, e); }))
            found.push_back(e);
    });
    return found;
}

/// Whether it can be a tensor: of one value, over axes of constant extents, with no reduction inside.
bool is_separable(const Expr& reduction) {
    const Reduce& own = *reduction.as<Reduce>();
    return own.values.size() == 1 && reductions_in(own.values[0]).empty() &&
           std::ranges::all_of(own.axes, [](const Expr& axis) {
               const Expr& extent = axis.as<Variable>()->extent;
               return extent.defined() && as_constant(extent);
           });
}

bool is_plain_sum(const Reduce& reduction) {
    return reduction.values.size() == 1 && atomic_operation(*reduction.reducer) == BinaryOp::Add;
}

/// The sum of the term, over the axes of `sum`.
Expr sum_of_term(const Reduce& sum, const Expr& term) {
    Reduce own = sum;
    own.values = {term};
    return make_expr(term.type(), std::move(own));
}

/// A product of two matrices that tensor cores do not take, as one of f32, and that is worth tiles of its own: beside
/// other sums each element would go through all terms alone.
bool is_for_tiles_of_threads(const Tensor& sum) {
    constexpr int64_t least = 64;
    const auto factors = matrix_factors(sum);
    return factors && std::min({factors->shape.m, factors->shape.n, factors->shape.k}) >= least;
}

class Separation {
public:
    explicit Separation(const std::vector<Tensor>& outputs) : given_(outputs), names_(outputs) {}

    Redeclared run() {
        for (const auto& operation : operations_of(given_)) {
            if (operation->is_input() || operation->outputs.size() != 1 || operation->axes.size() < 2) continue;
            const Tensor given(operation, 0);
            if (const Tensor separated = separated_in(whole_.of(given)); separated.defined())
                whole_.put(given, separated);
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    /// Undefined if nothing is to be a tensor of its own.
    Tensor separated_in(const Tensor& tensor) {
        Expr body = by_terms(tensor);
        const std::vector<Expr> reductions = reductions_in(body);
        const auto last = std::find_if(reductions.rbegin(), reductions.rend(),
                                       [&](const Expr& each) { return is_product(tensor, each); });
        if (reductions.size() == 1 && last != reductions.rend() && !equal(body, body_of(tensor))) {
            const bool joins = reductions_in(body_of(tensor)).size() > 1;
            result_.notes.push_back(
                joins ? fmt::format("the products of '{}' have one sum", tensor.name())
                      : fmt::format("the sum of '{}' is multiplied by what all its terms are multiplied by",
                                    tensor.name()));
            return declared_as(tensor, body);
        }
        auto depends = [&](const Expr& reduction) { return !axes_of(tensor, reduction).empty(); };
        if (reductions.size() < 2 || last == reductions.rend() || !std::ranges::all_of(reductions, is_separable) ||
            !std::ranges::all_of(reductions, depends))
            return {};
        std::vector<std::string> names;
        for (const Expr& each : reductions) {
            if (each.same(*last)) continue;
            const Tensor own = tensor_of(tensor, each);
            names.push_back("'" + own.name() + "'");
            const std::vector<Expr> axes = axes_of(tensor, each);
            const Expr element = own.read({axes.begin(), axes.end()});
            body = transform(body, [&](const Expr& e) { return equal(e, each) ? element : Expr(); });
        }
        result_.notes.push_back(
            fmt::format("{}: what '{}' is made of beside its last product, each by a kernel in front",
                        fmt::join(names, ", "), tensor.name()));
        return declared_as(tensor, body);
    }

    /// The body, with sums of several products taken as a sum for each, or sums that have one accumulation as one, and
    /// what multiplies all terms of one behind it.
    static Expr by_terms(const Tensor& tensor) {
        return transform(body_of(tensor), [&](const Expr& e) -> Expr {
            if (const Binary* pair = e.as<Binary>()) return one_sum(tensor, *pair);
            const Reduce* sum = e.as<Reduce>();
            if (!sum || !is_plain_sum(*sum)) return {};
            const Expr sums = sum_by_terms(tensor, *sum, sum->values[0]);
            const std::vector<Expr> own = reductions_in(sums);
            auto is_own = [&](const Expr& each) { return is_product(tensor, each); };
            const bool changed = own.size() > 1 || !equal(sums, e);
            return changed && !own.empty() && std::ranges::all_of(own, is_own) ? sums : Expr();
        });
    }

    /// sum_k p + sum_l q as sum_k (p + q), if there are as many k as l and a unit sums both together; else undefined.
    static Expr one_sum(const Tensor& tensor, const Binary& pair) {
        const Reduce *a = pair.a.as<Reduce>(), *b = pair.b.as<Reduce>();
        if ((pair.op != BinaryOp::Add && pair.op != BinaryOp::Sub) || !a || !b || !is_plain_sum(*a) ||
            !is_plain_sum(*b) || a->axes.size() != 1 || b->axes.size() != 1)
            return {};
        const Expr &all = a->axes[0].as<Variable>()->extent, &others = b->axes[0].as<Variable>()->extent;
        if (!all.defined() || !others.defined() || !equal(all, others)) return {};
        const Expr term = substitute(b->values[0], {{b->axes[0], a->axes[0]}});
        const Expr whole = sum_of_term(*a, binary(pair.op, a->values[0], term));
        return is_product(tensor, whole) ? whole : Expr();
    }

    /// sum(p + q) as sum(p) + sum(q), and so on, unless a unit sums both together: differences and negated terms too,
    /// and sum(s * p) as sum(p) * s.
    static Expr sum_by_terms(const Tensor& tensor, const Reduce& sum, const Expr& term) {
        if (const Expr whole = summed_together(tensor, sum, term); whole.defined()) return whole;
        if (const Binary* pair = term.as<Binary>(); pair && (pair->op == BinaryOp::Add || pair->op == BinaryOp::Sub)) {
            const Expr a = sum_by_terms(tensor, sum, pair->a), b = sum_by_terms(tensor, sum, pair->b);
            return make_expr(term.type(), Binary{pair->op, a, b});
        }
        if (const Unary* negated = term.as<Unary>(); negated && negated->op == UnaryOp::Negate)
            return make_expr(term.type(), Unary{UnaryOp::Negate, sum_by_terms(tensor, sum, negated->a)});
        return sum_of_term(sum, term);
    }

    /// Of a product, or of several that have one accumulation; else undefined.
    static Expr summed_together(const Tensor& tensor, const Reduce& sum, const Expr& term) {
        const auto all = sum_of_products(term);
        if (!all) return {};
        const bool several = all->products.size() > 1;
        const Expr products = sum_of_term(sum, several && !all->scale.defined() ? term : all->term());
        if (several && !is_product(tensor, products)) return {};
        return all->scale.defined() ? binary(BinaryOp::Mul, products, all->scale) : products;
    }

    static bool is_product(const Tensor& tensor, const Expr& reduction) {
        if (!is_plain_sum(*reduction.as<Reduce>())) return false;
        const Tensor own = declared_as(tensor, reduction);
        return unit_product(own) || thin_product(own) || is_for_tiles_of_threads(own);
    }

    static std::vector<Expr> axes_of(const Tensor& tensor, const Expr& reduction) {
        std::vector<Expr> axes = tensor.operation()->axes;
        std::erase_if(axes, [&](const Expr& axis) { return !contains(reduction, axis); });
        return axes;
    }
    /// Over the axes that it depends on.
    Tensor tensor_of(const Tensor& tensor, const Expr& reduction) {
        const std::vector<Expr> axes = axes_of(tensor, reduction);
        Shape shape;
        for (const Expr& axis : axes) shape.emplace_back(axis.as<Variable>()->extent);
        return compute(
            names_.take(tensor.name() + "_part"), shape,
            [&](const std::vector<Expr>& at) { return over(axes, reduction, at); }, tensor.operation()->where);
    }

    const std::vector<Tensor>& given_;
    FreeNames names_;
    Replacement whole_;
    Redeclared result_;
};

}  // namespace

Redeclared products_apart(const std::vector<Tensor>& outputs) { return Separation(outputs).run(); }

}  // namespace tw::schedules

#include "dsl/declare_scan.h"
#include "ops/broadcasting.h"
#include "ops/of_two.h"
#include "ops/reduced.h"
#include "ops/reductions.h"
#include "ops/views.h"
#include "support/error.h"

namespace tw::nn {
namespace {

using ReduceBy = Expr (*)(const Operand& value, const std::vector<Axis>& axes);

Tensor call_reduction(const char* who, ReduceBy reduce, const Tensor& x, const std::vector<int>& dims, bool keep,
                      std::source_location where) {
    return operator_with(who, fmt::format("{} {}", shape_text({dims.begin(), dims.end()}), keep),
                         [=, name = std::string(who)](const std::vector<tw::Tensor>& in) {
                             const Reduced of(in[0], dims, keep);
                             return compute(name, of.shape, [&](const std::vector<Expr>& at) {
                                 const Expr term = of.term(at);
                                 return cast(in[0].type(), of.axes.empty() ? term : reduce(term, of.axes));
                             });
                         })({x}, where);
}

void check_terms(const char* who, const Tensor& x, const std::vector<int>& dims, std::source_location where) {
    user_check(terms_of(x, dims) > 0, where, "{}: x is {}, and there are no elements to choose from; give some", who,
               shape_text(x.shape()));
}

Tensor call_extreme(const char* who, ReduceBy reduce, const Tensor& x, const std::vector<int>& dims, bool keep,
                    std::source_location where) {
    const std::vector<int> named = dimensions_of(who, x, dims, where);
    check_terms(who, x, named, where);
    return call_reduction(who, reduce, x, named, keep, where);
}

/// What has the largest one where x has the smallest one: of integers ~x, as the least one has no negative.
Expr turned(const Expr& x) { return is_float(x.type()) ? -x : number_of(x.type(), -1) - x; }

Tensor call_place(const char* who, bool is_least, const Tensor& x, std::optional<int> dim, bool keep,
                  std::source_location where) {
    if (!dim && x.shape().size() != 1) {
        const std::vector<int> all = dimensions_of(who, x, {}, where);
        check_terms(who, x, all, where);
        const Tensor place = call_place(who, is_least, reshape(x, {terms_of(x, all)}, where), 0, false, where);
        return keep ? reshape(place, std::vector<int64_t>(x.shape().size(), 1), where) : place;
    }
    const std::vector<int> along{dimension_of(who, x.shape(), dim.value_or(0), where)};
    check_terms(who, x, along, where);
    return operator_with(who, fmt::format("{} {}", along[0], keep), [=](const std::vector<tw::Tensor>& in) {
        const Reduced of(in[0], along, keep);
        return compute("place", of.shape, [&](const std::vector<Expr>& at) {
            const Expr term = of.term(at);
            const Expr place = tw::argmax(is_least ? turned(term) : term, of.axes[0])[1];
            return cast(i32, select(place < of.axes[0].extent, place, 0));  // of NaN alone: the first
        });
    })({x}, where);
}

Tensor call_whether(const char* who, ReduceBy reduce, const Tensor& x, const std::vector<int>& dims, bool keep,
                    std::source_location where) {
    check_boolean(who, x, where);
    const std::vector<int> named = dimensions_of(who, x, dims, where);
    return operator_with(who, fmt::format("{} {}", shape_text({named.begin(), named.end()}), keep),
                         [=, name = std::string(who)](const std::vector<tw::Tensor>& in) {
                             const Reduced of(in[0], named, keep);
                             return compute(name, of.shape, [&](const std::vector<Expr>& at) {
                                 const Expr term = of.term(at);
                                 return of.axes.empty() ? term : reduce(cast(i32, term), of.axes) > 0;
                             });
                         })({x}, where);
}

}  // namespace

Tensor max(const Tensor& x, const std::vector<int>& dims, bool keep, std::source_location where) {
    return call_extreme("max", tw::reduce_max, x, dims, keep, where);
}
Tensor min(const Tensor& x, const std::vector<int>& dims, bool keep, std::source_location where) {
    return call_extreme("min", tw::reduce_min, x, dims, keep, where);
}
Tensor argmax(const Tensor& x, std::optional<int> dim, bool keep, std::source_location where) {
    return call_place("argmax", /*is_least=*/false, x, dim, keep, where);
}
Tensor argmin(const Tensor& x, std::optional<int> dim, bool keep, std::source_location where) {
    return call_place("argmin", /*is_least=*/true, x, dim, keep, where);
}
Tensor any(const Tensor& x, const std::vector<int>& dims, bool keep, std::source_location where) {
    return call_whether("any", tw::reduce_max, x, dims, keep, where);
}
Tensor all(const Tensor& x, const std::vector<int>& dims, bool keep, std::source_location where) {
    return call_whether("all", tw::reduce_min, x, dims, keep, where);
}
Tensor prod(const Tensor& x, const std::vector<int>& dims, bool keep, std::source_location where) {
    return call_reduction("prod", tw::prod, x, dimensions_of("prod", x, dims, where), keep, where);
}

Tensor cumsum(const Tensor& x, int dim, std::source_location where) {
    const size_t along = static_cast<size_t>(dimension_of("cumsum", x.shape(), dim, where));
    return operator_with("cumsum", fmt::format("{}", along), [along](const std::vector<tw::Tensor>& in) {
        const std::vector<Expr>& shape = in[0].shape();
        const Axis k = reduce_axis("k", shape[along]);
        return compute("cumsum", {shape.begin(), shape.end()}, [&](const std::vector<Expr>& at) {
            std::vector<Operand> places(at.begin(), at.end());
            places[along] = k;
            const Expr term = cast(computed_type(in[0].type()), in[0].read(places));
            return cast(in[0].type(), scan(tw::sum, term, k, at[along]));
        });
    })({x}, where);
}

}  // namespace tw::nn

#include <limits>

#include "dsl/differentiate.h"
#include "ops/broadcasting.h"
#include "ops/reduced.h"
#include "ops/reductions.h"
#include "support/error.h"

namespace tw::nn {
namespace {

Expr total_of(const Reduced& of, const Expr& term) { return of.axes.empty() ? term : tw::sum(term, of.axes); }

Expr read_at(const tw::Tensor& x, const std::vector<Expr>& at) { return x.read({at.begin(), at.end()}); }

/// Whose slope at 0 is taken as 0, and so are the slopes of that: a side of select() that is not taken adds nothing.
tw::Tensor root_of(const std::string& name, const tw::Tensor& x, Type type) {
    const Shape shape(x.shape().begin(), x.shape().end());
    const tw::Tensor root =
        compute(name, shape, [&](const std::vector<Expr>& at) { return cast(type, sqrt(read_at(x, at))); });
    return with_gradient(root, {x}, [=](const tw::Tensor&, const tw::Tensor& adjoint) {
        return std::vector{compute("d_" + name, shape, [&](const std::vector<Expr>& at) {
            const Expr given = read_at(adjoint, at), square = read_at(x, at);
            return select(square == 0.0, constant(square.type(), 0.0), given * 0.5 * rsqrt(square));
        })};
    });
}

/// [variance, standard deviation]
tw::Tensor declared_moment(const tw::Tensor& x, const std::vector<int>& dims, int correction, bool keep, bool is_root) {
    const Reduced of(x, dims, keep);
    const Type type = computed_type(x.type());
    const tw::Tensor mean = compute("mean", of.shape, [&](const std::vector<Expr>& at) {
        return total_of(of, of.term(at)) / constant(type, of.count);
    });
    const tw::Tensor variance = compute(is_root ? "square" : "var", of.shape, [&](const std::vector<Expr>& at) {
        const Expr error = of.term(at) - read_at(mean, at);
        const Expr moment = total_of(of, error * error) / constant(type, of.count - correction);
        return is_root ? moment : cast(x.type(), moment);
    });
    return is_root ? root_of("std", variance, x.type()) : variance;
}

Tensor call_moment(bool is_root, const Tensor& x, const std::vector<int>& dims, int correction, bool keep,
                   std::source_location where) {
    const char* who = is_root ? "std" : "var";
    check_float(who, x, where);
    const std::vector<int> named = dimensions_of(who, x, dims, where);
    user_check(0 <= correction && correction < terms_of(x, named), where,
               "{}: of {} elements with a correction of {}; give one from 0 on that is less than the elements", who,
               terms_of(x, named), correction);
    const std::string key = fmt::format("{} {} {}", shape_text({named.begin(), named.end()}), correction, keep);
    return operator_with(who, key, [=](const std::vector<tw::Tensor>& in) {
        return declared_moment(in[0], named, correction, keep, is_root);
    })({x}, where);
}

tw::Tensor declared_logsumexp(const tw::Tensor& x, const std::vector<int>& dims, bool keep) {
    const Reduced of(x, dims, keep);
    const Type type = computed_type(x.type());
    const Expr infinity = constant(type, std::numeric_limits<double>::infinity());
    const tw::Tensor top = stop_gradient(compute("top", of.shape, [&](const std::vector<Expr>& at) {
        return of.axes.empty() ? of.term(at) : reduce_max(of.term(at), of.axes);
    }));
    const auto lowered_by = [&](const std::vector<Expr>& at) {  // differences from an infinity would be NaN
        const Expr largest = read_at(top, at);
        return select(tw::abs(largest) < infinity, largest, constant(type, 0.0));
    };
    const tw::Tensor total = compute("total", of.shape, [&](const std::vector<Expr>& at) {
        return total_of(of, tw::exp(of.term(at) - lowered_by(at)));
    });
    return compute("logsumexp", of.shape, [&](const std::vector<Expr>& at) {
        return cast(x.type(), tw::log(read_at(total, at)) + lowered_by(at));
    });
}

}  // namespace

Tensor var(const Tensor& x, const std::vector<int>& dims, int correction, bool keep, std::source_location where) {
    return call_moment(/*is_root=*/false, x, dims, correction, keep, where);
}
Tensor std(const Tensor& x, const std::vector<int>& dims, int correction, bool keep, std::source_location where) {
    return call_moment(/*is_root=*/true, x, dims, correction, keep, where);
}

Tensor norm(const Tensor& x, const std::vector<int>& dims, bool keep, std::source_location where) {
    check_float("norm", x, where);
    const std::vector<int> named = dimensions_of("norm", x, dims, where);
    const std::string key = fmt::format("{} {}", shape_text({named.begin(), named.end()}), keep);
    return operator_with("norm", key, [=](const std::vector<tw::Tensor>& in) {
        const Reduced of(in[0], named, keep);
        const tw::Tensor square = compute(
            "square", of.shape, [&](const std::vector<Expr>& at) { return total_of(of, of.term(at) * of.term(at)); });
        return root_of("norm", square, in[0].type());
    })({x}, where);
}

Tensor logsumexp(const Tensor& x, const std::vector<int>& dims, bool keep, std::source_location where) {
    check_float("logsumexp", x, where);
    const std::vector<int> named = dimensions_of("logsumexp", x, dims, where);
    const std::string key = fmt::format("{} {}", shape_text({named.begin(), named.end()}), keep);
    return operator_with("logsumexp", key, [=](const std::vector<tw::Tensor>& in) {
        return declared_logsumexp(in[0], named, keep);
    })({x}, where);
}

}  // namespace tw::nn

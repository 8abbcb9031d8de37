#include "schedules/fused_training.h"

#include <numbers>
#include <regex>

#include "dsl/philox.h"
#include "schedules/choose_in_place.h"

namespace tw::schedules {
namespace {

const double epsilon = 1e-5;  // of the variance, as in the usual layers
const double left_out = 0.1;  // by dropout

Expr wide(const Expr& v) { return cast(f32, v); }
Tensor matrix(const char* name, int64_t rows, int64_t columns) { return input(name, bf16, {rows, columns}); }

/// d gelu(z) / dz: the normal distribution at z, and z times its density.
Expr slope_of_gelu(const Expr& z) {
    const double root = std::numbers::sqrt2 / 2, density = std::numbers::inv_sqrtpi * root;
    return 0.5 * (1 + erf(z * root)) + z * exp(z * z * -0.5) * density;
}

/// What was saved of a norm's rows, and what it makes of an element.
struct Norm {
    Tensor r, dn, dr, gain, scale, mean;
    int64_t rows, columns;

    Norm(int64_t rows, int64_t columns, bool centred) : rows(rows), columns(columns) {
        dn = matrix("dn", rows, columns), r = matrix("r", rows, columns), dr = matrix("dr", rows, columns);
        gain = input("gain", bf16, {columns}), scale = input("scale", f32, {rows});
        if (centred) mean = input("mean", f32, {rows});
    }
    Expr standardised(const Expr& i, const Expr& j) const {
        return (mean.defined() ? wide(r(i, j)) - mean(i) : wide(r(i, j))) * scale(i);
    }
    Expr adjoint(const Expr& i, const Expr& j) const { return wide(dn(i, j)) * wide(gain(j)); }
    /// scale (g - mean of g - standardised * mean of both) + dr, the mean of g only of centred rows.
    Tensor dx() const {
        const Axis k = reduce_axis("k", columns);
        const Tensor along = compute("along", {rows}, [&](Expr i) {
            return sum(adjoint(i, k) * standardised(i, k), k) / static_cast<double>(columns);
        });
        Tensor level;
        if (mean.defined())
            level =
                compute("level", {rows}, [&](Expr i) { return sum(adjoint(i, k), k) / static_cast<double>(columns); });
        return compute("dx", {rows, columns}, [&](Expr i, Expr j) {
            Expr rest = adjoint(i, j) - standardised(i, j) * along(i);
            if (mean.defined()) rest = rest - level(i);
            return cast(bf16, scale(i) * rest + wide(dr(i, j)));
        });
    }
    Tensor dgain() const {
        const Axis n = reduce_axis("n", rows);
        return compute("dgain", {columns}, [&](Expr j) { return sum(wide(dn(n, j)) * standardised(n, j), n); });
    }
};

/// The sum of each column of x over all rows.
Tensor sum_of_columns(const char* name, const Tensor& x) {
    const Axis n = reduce_axis("n", x.shape()[0]);
    return compute(name, {x.shape()[1]}, [&](Expr j) { return sum(wide(x(n, j)), n); });
}

}  // namespace

Declared residual_layernorm(int64_t rows, int64_t columns) {
    const Tensor x = matrix("x", rows, columns), y = matrix("y", rows, columns), gain = input("gain", bf16, {columns}),
                 bias = input("bias", bf16, {columns});
    const Axis k = reduce_axis("k", columns);
    const Tensor r =
        compute("r", {rows, columns}, [&](Expr i, Expr j) { return cast(bf16, wide(x(i, j)) + wide(y(i, j))); });
    const Tensor mean =
        compute("mean", {rows}, [&](Expr i) { return sum(wide(r(i, k)), k) / static_cast<double>(columns); });
    auto centred = [&](const Expr& i, const Expr& j) { return wide(r(i, j)) - mean(i); };
    const Tensor scale = compute("scale", {rows}, [&](Expr i) {
        return rsqrt(sum(centred(i, k) * centred(i, k), k) / static_cast<double>(columns) + epsilon);
    });
    const Tensor n = compute("n", {rows, columns}, [&](Expr i, Expr j) {
        return cast(bf16, centred(i, j) * scale(i) * wide(gain(j)) + wide(bias(j)));
    });
    return {{r, n, mean, scale}};
}

Declared layernorm_backward(int64_t rows, int64_t columns) {
    const Norm norm(rows, columns, true);
    return {{norm.dx(), norm.dgain(), sum_of_columns("dbias", norm.dn)}};
}

Declared rmsnorm_backward(int64_t rows, int64_t columns) {
    const Norm norm(rows, columns, false);
    return {{norm.dx(), norm.dgain()}};
}

Declared gelu_dropout(int64_t rows, int64_t columns) {
    const Tensor x = matrix("x", rows, columns), bias = input("bias", bf16, {columns}), seed = input("seed", u32, {1});
    return {{compute("y", {rows, columns}, [&](Expr i, Expr j) {
        return cast(bf16, tw::dropout(gelu(wide(x(i, j)) + wide(bias(j))), left_out, seed(0), i * columns + j));
    })}};
}

Declared gelu_dropout_backward(int64_t rows, int64_t columns) {
    const Tensor x = matrix("x", rows, columns), dy = matrix("dy", rows, columns),
                 bias = input("bias", bf16, {columns}), seed = input("seed", u32, {1});
    const Tensor dx = compute("dx", {rows, columns}, [&](Expr i, Expr j) {
        const Expr kept = tw::dropout(wide(dy(i, j)), left_out, seed(0), i * columns + j);
        return cast(bf16, kept * slope_of_gelu(wide(x(i, j)) + wide(bias(j))));
    });
    return {{dx, sum_of_columns("dbias", dx)}};
}

Declared cross_entropy_both(int64_t rows, int64_t columns) {
    const Tensor logits = matrix("logits", rows, columns), label = input("label", i64, {rows});
    const Axis k = reduce_axis("k", columns);
    auto element = [&](const Expr& i, const Expr& j) { return wide(logits(i, j)); };
    const Tensor largest = compute("largest", {rows}, [&](Expr i) { return reduce_max(element(i, k), k); });
    auto power = [&](const Expr& i, const Expr& j) { return exp2((element(i, j) - largest(i)) * std::numbers::log2e); };
    const Tensor total = compute("total", {rows}, [&](Expr i) { return sum(power(i, k), k); });
    const Tensor hit = compute("hit", {rows}, [&](Expr i) { return element(i, label(i)); });
    const Tensor loss = compute("loss", {rows}, [&](Expr i) { return largest(i) + log(total(i)) - hit(i); });
    const Tensor dlogits = compute("dlogits", {rows, columns}, [&](Expr i, Expr j) {
        const Expr target = select(cast(i32, label(i)) == cast(i32, j), 1.0, 0.0);
        return cast(bf16, (power(i, j) / total(i) - target) * (1.0 / static_cast<double>(rows)));
    });
    return {{dlogits, loss}, {{dlogits, logits}}};
}

Declared embedding_with_places(int64_t positions, int64_t words, int64_t width, int64_t length) {
    const Tensor table = matrix("table", words, width), places = matrix("places", length, width),
                 ids = input("ids", i32, {positions});
    return {{compute("y", {positions, width}, [&](Expr p, Expr j) {
        return cast(bf16, wide(table(cast(i64, ids(p)), j)) + wide(places(p % length, j)));
    })}};
}

Declared embedding_with_places_backward(int64_t positions, int64_t words, int64_t width, int64_t length) {
    const Tensor dy = matrix("dy", positions, width), ids = input("ids", i32, {positions});
    const Axis p = reduce_axis("p", positions), b = reduce_axis("b", (positions + length - 1) / length);
    const bool whole = positions % length == 0;
    const Tensor dtable = compute("dtable", {words, width}, [&](Expr w, Expr j) {
        return sum(select(cast(i64, ids(p)) == w, wide(dy(p, j)), constant(f32, 0.0)), p);
    });
    const Tensor dplaces = compute("dplaces", {length, width}, [&](Expr t, Expr j) {
        const Expr at = b * length + t;
        return sum(wide(whole ? dy(at, j) : padded(dy, 0.0)(at, j)), b);
    });
    return {{dtable, dplaces}};
}

Declared adamw_clipped(int64_t count) {
    auto array = [&](const char* name) { return input(name, f32, {count}); };
    const Tensor p = array("p"), g = array("g"), m = array("m"), v = array("v"), clip = input("clip", f32, {1});
    auto number = [](const char* name) { return scalar(name, f32); };
    const Expr lr = number("lr"), beta1 = number("beta1"), beta2 = number("beta2"), eps = number("eps"),
               decay = number("decay"), correction1 = number("correction1"), correction2 = number("correction2");
    auto step = [&](const std::vector<Expr>& index) {
        const Expr i = index[0], gradient = g(i) * clip(0);
        const Expr mean = m(i) + (1 - beta1) * (gradient - m(i)),
                   square = v(i) + (1 - beta2) * (gradient * gradient - v(i));
        const Expr direction = mean * correction1 / (sqrt(square * correction2) + eps),
                   weight = p(i) - lr * (direction + decay * p(i));
        return std::vector<Expr>{weight, mean, square, cast(bf16, weight)};
    };
    const std::vector<Tensor> next = compute_tuple("next", {"p_next", "m_next", "v_next", "p_bf16"}, {count}, step);
    return {next, {{next[0], p}, {next[1], m}, {next[2], v}}};
}

Declared linear_gelu(int64_t m, int64_t n, int64_t k) {
    const Tensor x = matrix("x", m, k), w = matrix("w", n, k), bias = input("bias", bf16, {n});
    const Axis t = reduce_axis("t", k);
    const Tensor pre = compute("pre", {m, n}, [&](Expr i, Expr j) {
        return cast(bf16, sum(wide(x(i, t)) * wide(w(j, t)), t) + wide(bias(j)));
    });
    const Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) { return cast(bf16, gelu(wide(pre(i, j)))); });
    return {{pre, y}};
}

Declared linear_residual(int64_t m, int64_t n, int64_t k) {
    const Tensor x = matrix("x", m, k), w = matrix("w", n, k), bias = input("bias", bf16, {n}),
                 residual = matrix("residual", m, n);
    const Axis t = reduce_axis("t", k);
    return {{compute("y", {m, n}, [&](Expr i, Expr j) {
        return cast(bf16, sum(wide(x(i, t)) * wide(w(j, t)), t) + wide(bias(j)) + wide(residual(i, j)));
    })}};
}

Declared linear_gelu_backward(int64_t m, int64_t n, int64_t k) {
    const Tensor dy = matrix("dy", m, k), w = matrix("w", k, n), pre = matrix("pre", m, n);
    const Axis t = reduce_axis("t", k);
    const Tensor dpre = compute("dpre", {m, n}, [&](Expr i, Expr j) {
        return cast(bf16, sum(wide(dy(i, t)) * wide(w(t, j)), t) * slope_of_gelu(wide(pre(i, j))));
    });
    return {{dpre, sum_of_columns("dbias", dpre)}};
}

Declared weight_gradient(int64_t n, int64_t k, int64_t m) {
    const Tensor dy = matrix("dy", m, n), h = matrix("h", m, k), before = input("dw_before", f32, {n, k});
    const Axis t = reduce_axis("t", m);
    const Tensor dw =
        compute("dw", {n, k}, [&](Expr i, Expr j) { return before(i, j) + sum(wide(dy(t, i)) * wide(h(t, j)), t); });
    return {{dw}};
}

namespace {

using NamedExtents = std::vector<int64_t>;

template <Declared (*declare)(int64_t, int64_t)>
Declared of_two(const NamedExtents& e) {
    return declare(e[0], e[1]);
}
template <Declared (*declare)(int64_t, int64_t, int64_t)>
Declared of_three(const NamedExtents& e) {
    return declare(e[0], e[1], e[2]);
}
template <Declared (*declare)(int64_t, int64_t, int64_t, int64_t)>
Declared of_four(const NamedExtents& e) {
    return declare(e[0], e[1], e[2], e[3]);
}

/// Each operand and each result once.
double bytes_of_all(const Declared& declared) {
    double bytes = 0;
    auto add = [&](const Tensor& tensor) {
        double own = bytes_of(tensor.type());
        for (const Expr& extent : tensor.shape()) own *= static_cast<double>(*as_constant(extent));
        bytes += own;
    };
    for (const auto& operation : operations_of(declared.outputs))
        if (operation->is_input()) add(Tensor(operation, 0));
    for (const Tensor& output : declared.outputs) add(output);
    return bytes;
}

}  // namespace

const std::vector<FusedKernel>& fused_kernels() {
    static const std::vector<FusedKernel> all = {
        {"residual_layernorm", "x + y, their layer norm and its statistics; rows x columns", 2,
         of_two<residual_layernorm>, 9},
        {"layernorm_backward", "dx of a layer norm plus a residual's, dgain and dbias; rows x columns", 2,
         of_two<layernorm_backward>, 15},
        {"rmsnorm_backward", "dx of an RMS norm plus a residual's, and dgain; rows x columns", 2,
         of_two<rmsnorm_backward>, 11},
        {"gelu_dropout", "dropout of gelu(x + bias); rows x columns", 2, of_two<gelu_dropout>, 10},
        {"gelu_dropout_backward", "dx of dropout of gelu(x + bias), and dbias; rows x columns", 2,
         of_two<gelu_dropout_backward>, 20},
        {"cross_entropy", "losses of rows of logits and the gradient of their mean; rows x columns", 2,
         of_two<cross_entropy_both>, 9},
        {"embedding", "rows of a table at ids, and of places; positions x words x width x length", 4,
         of_four<embedding_with_places>, 0},
        {"embedding_backward", "gradients of the rows of a table and of places; positions x words x width x length", 4,
         of_four<embedding_with_places_backward>, 0},
        {"adamw", "an AdamW step in place of clipped gradients, and bf16 copies", 1,
         [](const NamedExtents& e) { return adamw_clipped(e[0]); }, 17},
        {"linear_gelu", "pre = x w' + bias and gelu of it; m x n x k", 3, of_three<linear_gelu>, 2},
        {"linear_residual", "x w' + bias + residual; m x n x k", 3, of_three<linear_residual>, 2},
        {"linear_gelu_backward", "(dy w) times the slope of gelu, and its column sums; m x n x k", 3,
         of_three<linear_gelu_backward>, 2},
        {"weight_gradient", "dw + dy' h, f32; n x k x m", 3, of_three<weight_gradient>, 2},
    };
    return all;
}

std::optional<CatalogEntry> fused_entry(const std::string& name) {
    static const std::regex form("fused_([a-z_]+)_([0-9]{1,10}(?:x[0-9]{1,10})*)"), number("[0-9]+");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    const std::string digits = match[2];
    NamedExtents extents;
    for (std::sregex_iterator at(digits.begin(), digits.end(), number), end; at != end; ++at)
        extents.push_back(std::stoll(at->str()));
    for (const FusedKernel& kernel : fused_kernels()) {
        if (kernel.name != match[1].str() || kernel.rank != extents.size()) continue;
        double flops = kernel.flops;
        for (int64_t extent : extents) {
            if (extent == 0) return {};
            flops *= static_cast<double>(extent);
        }
        const Declared declared = kernel.declare(extents);
        return CatalogEntry{name, kernel.description, flops,
                            [declared](const Target& target) { return choose_in_place(declared, target); },
                            bytes_of_all(declared)};
    }
    return {};
}

}  // namespace tw::schedules

#include <fmt/format.h>

#include "tests/unknown/computations.h"

namespace tw::unknown {

std::vector<Tensor> log_sum_exp_pooling(int64_t images, int64_t height, int64_t width, int64_t channels) {
    Tensor x = input("u", f32, {images, height, width, channels});
    Axis r = reduce_axis("r", 3), s = reduce_axis("s", 3);
    const Shape pooled{images, (height - 3) / 2 + 1, (width - 3) / 2 + 1, channels};
    auto pixel = [&](Expr n, Expr p, Expr q, Expr c) { return x(n, p * 2 + r, q * 2 + s, c); };
    Tensor most = compute("most", pooled, [&](Expr n, Expr p, Expr q, Expr c) {
        return reduce_max(pixel(n, p, q, c), {r, s});
    });
    return {compute("y", pooled, [&](Expr n, Expr p, Expr q, Expr c) {
        return most(n, p, q, c) + log(sum(exp(pixel(n, p, q, c) - most(n, p, q, c)), {r, s}));
    })};
}

std::vector<Tensor> four_diffusion_steps(int64_t height, int64_t width) {
    Tensor u = input("u0", f32, {height, width});
    for (int step = 1; step <= 4; ++step) {
        Padded around = padded(u, 0.0);
        u = compute(fmt::format("u{}", step), {height, width}, [&](Expr i, Expr j) {
            Expr neighbours = around(i - 1, j) + around(i + 1, j) + around(i, j - 1) + around(i, j + 1);
            return u(i, j) + (neighbours - 4 * u(i, j)) * 0.2;
        });
    }
    return {u};
}

std::vector<Tensor> moving_variance(int64_t series, int64_t times, int64_t channels, int64_t window) {
    Tensor x = input("u", f32, {series, times, channels});
    const Shape windows{series, times - window + 1, channels};
    Axis r = reduce_axis("r", window);
    Tensor mean =
        compute("mean", windows, [&](Expr b, Expr t, Expr c) { return sum(x(b, t + r, c), r) / double(window); });
    return {compute("variance", windows, [&](Expr b, Expr t, Expr c) {
        Expr difference = x(b, t + r, c) - mean(b, t, c);
        return sum(difference * difference, r) / double(window);
    })};
}

}  // namespace tw::unknown

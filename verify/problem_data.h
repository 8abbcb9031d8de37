// Shapes and data of random problems.
#pragma once
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "verify/problem.h"

namespace tw::fuzz {

/// An extent that schedules trip over: 1, primes, powers of two, one more; now and then 0.
int64_t random_extent(Random& random, int64_t largest = 40);
/// Several, whose product (with 0 taken as 1) is at most `points`.
std::vector<int64_t> random_extents(Random& random, int count, int64_t points = 3000);

/// Builds a problem: the inputs, with the ranges of their data, and what is given at launch.
class ProblemBuilder {
public:
    explicit ProblemBuilder(Random& random) : random_(random) {}

    /// Exact data are the integers lo..hi; real data are uniform in [-1, 1), integers for integer types.
    Tensor input(const std::string& name, Type type, const Shape& shape, int64_t lo = -3, int64_t hi = 3);
    /// As above, with random strides: columns side by side, gaps between rows.
    Tensor strided_input(const std::string& name, Type type, const std::vector<int64_t>& shape);
    Expr scalar(const std::string& name, Type type = f32);
    /// A named size and its values, one a launch.
    Expr size(const std::string& name, const std::vector<int64_t>& values);

    Problem problem(std::vector<Tensor> outputs);

private:
    struct Given {
        Tensor tensor;
        int64_t lo, hi;
    };
    Bindings bindings(bool reals, size_t launch);

    Random& random_;
    std::vector<Given> given_;
    std::vector<Expr> scalars_;
    std::map<std::string, std::vector<int64_t>> sizes_;
};

}  // namespace tw::fuzz

#include "verify/problem_data.h"

#include <algorithm>

#include "dsl/check_bindings.h"
#include "support/error.h"

namespace tw::fuzz {

int64_t random_extent(Random& random, int64_t largest) {
    static const std::vector<int64_t> kExtents = {1,  2,  3,  4,  5,  7,  8,  9,  11, 12, 13,
                                                  16, 17, 19, 24, 30, 32, 33, 37, 40, 48, 64};
    if (random.chance(0.015)) return 0;
    int64_t extent;
    do extent = random.pick(kExtents);
    while (extent > largest);
    return extent;
}

std::vector<int64_t> random_extents(Random& random, int count, int64_t points) {
    std::vector<int64_t> extents;
    for (int d = 0; d < count; ++d)
        extents.push_back(random_extent(random, std::max<int64_t>(1, std::min<int64_t>(64, points))));
    auto product = [&] {
        int64_t result = 1;
        for (int64_t extent : extents) result *= std::max<int64_t>(extent, 1);
        return result;
    };
    while (product() > points) {
        int64_t& largest = *std::max_element(extents.begin(), extents.end());
        largest = random_extent(random, largest - 1);
    }
    return extents;
}

Tensor ProblemBuilder::input(const std::string& name, Type type, const Shape& shape, int64_t lo, int64_t hi) {
    given_.push_back({tw::input(name, type, shape), lo, hi});
    return given_.back().tensor;
}

Tensor ProblemBuilder::strided_input(const std::string& name, Type type, const std::vector<int64_t>& shape) {
    std::vector<size_t> order;  // of the dimensions in memory, slowest first
    for (size_t d = 0; d < shape.size(); ++d) order.push_back(d);
    random_.shuffle(order);
    std::vector<int64_t> strides(shape.size());
    int64_t step = 1;
    for (auto d = order.rbegin(); d != order.rend(); ++d) {
        strides[*d] = step;
        step *= std::max<int64_t>(shape[*d], 1) + (random_.chance(0.4) ? random_.below(4) : 0);
    }
    Shape extents(shape.begin(), shape.end()), steps(strides.begin(), strides.end());
    given_.push_back({tw::input(name, type, extents, steps), -3, 3});
    return given_.back().tensor;
}

Expr ProblemBuilder::scalar(const std::string& name, Type type) {
    return scalars_.emplace_back(tw::scalar(name, type));
}

Expr ProblemBuilder::size(const std::string& name, const std::vector<int64_t>& values) {
    sizes_[name] = values;
    auto [lo, hi] = std::minmax_element(values.begin(), values.end());
    return tw::size(name, {.min = *lo, .max = *hi + random_.below(3)});
}

Bindings ProblemBuilder::bindings(bool reals, size_t launch) {
    Bindings bound;
    for (const auto& [name, values] : sizes_) bound.sizes[name] = values[launch];
    for (const Expr& scalar : scalars_) {
        bool real = reals && is_float(scalar.type());
        Value value = real ? make_value(scalar.type(), static_cast<double>(random_.between(-40, 40)) / 16)
                           : make_value(scalar.type(), random_.between(-3, 3));
        bound.scalars[scalar.as<Variable>()->name] = value;
    }
    for (const Given& given : given_) {
        const Operation& operation = *given.tensor.operation();
        std::vector<int64_t> shape = extents_of(operation.shape, bound), strides = extents_of(operation.strides, bound);
        HostArray array = host_array(given.tensor.type(), shape, strides);
        if (reals && is_float(array.type))
            fill_uniform(array, -1, 1, random_.next());
        else
            fill_integers(array, given.lo, given.hi, random_.next());
        bound.inputs[operation.name] = std::move(array);
    }
    return bound;
}

Problem ProblemBuilder::problem(std::vector<Tensor> outputs) {
    Problem problem;
    problem.outputs = std::move(outputs);
    size_t launches = sizes_.empty() ? 1 : sizes_.begin()->second.size();
    for (size_t launch = 0; launch < launches; ++launch) {
        problem.exact.push_back(bindings(false, launch));
        problem.reals.push_back(bindings(true, launch));
    }
    return problem;
}

std::vector<Tensor> tensors_of(const Problem& problem) {
    std::vector<Tensor> tensors;
    for (const auto& operation : operations_of(problem.outputs))
        for (size_t o = 0; o < operation->outputs.size(); ++o) tensors.emplace_back(operation, static_cast<int>(o));
    return tensors;
}

std::string describe(const Problem& problem) {
    std::vector<std::string> parts;
    for (const auto& operation : operations_of(problem.outputs)) {
        std::string text = to_string(*operation);
        if (!operation->strides.empty()) {
            std::vector<std::string> strides;
            for (const Expr& stride : operation->strides) strides.push_back(to_string(stride));
            text += fmt::format(" strides [{}]", fmt::join(strides, ", "));
        }
        if (!operation->is_input()) {
            std::vector<std::string> extents;
            for (const Expr& extent : operation->shape) extents.push_back(to_string(extent));
            text += fmt::format("   shape [{}]", fmt::join(extents, ", "));
        }
        parts.push_back(text);
    }
    for (const Bindings& launch : problem.exact)
        for (const auto& [name, value] : launch.sizes) parts.push_back(fmt::format("{} = {}", name, value));
    return fmt::format("{}", fmt::join(parts, "\n"));
}

}  // namespace tw::fuzz

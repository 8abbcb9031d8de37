// Arrays in rows, and calls on the tape, by themselves and as one graph, against plain loops over them in float64.
#pragma once
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ops/elementwise.h"
#include "ops/reductions.h"
#include "ops/step/compile_step.h"
#include "tests/ops/modules/slopes.h"
#include "tests/support/on_device.h"

namespace tw::nn {

using Dims = std::vector<int64_t>;

inline int64_t count_of(const Dims& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

/// Numbers in rows, as NumPy reads them.
struct Array {
    Dims shape;
    Values values;

    /// At a place of a shape to which this is broadcast.
    double operator()(const Dims& at) const {
        int64_t place = 0;
        for (size_t d = 0; d < shape.size(); ++d)
            place = place * shape[d] + (shape[d] == 1 ? 0 : at[at.size() - shape.size() + d]);
        return values.at(static_cast<size_t>(place));
    }
};

/// f of each place of the shape.
inline Array array(const Dims& shape, const std::function<double(const Dims& at)>& f) {
    Array result{shape, {}};
    Dims at(shape.size());
    for (int64_t e = 0; e < count_of(shape); ++e) {
        int64_t rest = e;
        for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) at[d] = rest % shape[d];
        result.values.push_back(f(at));
    }
    return result;
}

using OnTape = std::function<Tensor(const std::vector<Tensor>& in)>;
using Plain = std::function<Array(const std::vector<Array>& in)>;

/// Calls on the tape against plain loops.
class OnTapeTests : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (device_) backend_ = std::make_shared<Backend>(device_);
    }
    Tensor leaf(const Array& array, const std::string& name) const {
        return of_values(backend_, array.shape, array.values, name).set_requires_grad();
    }
    Tensor random_leaf(const Dims& shape, uint64_t seed) const {
        return leaf({shape, random_values(count_of(shape), seed)}, "x");
    }

    /// Elements lie in `low`..`high`.
    void expect_like(const OnTape& on_tape, const Plain& plain, const std::vector<Dims>& shapes, double low = -1,
                     double high = 1) const {
        std::vector<Array> in;
        std::vector<Tensor> leaves;
        for (const Dims& shape : shapes) {
            Values values = random_values(count_of(shape), 7 + in.size());
            for (double& value : values) value = static_cast<float>(low + (high - low) * (value + 1) / 2);
            in.push_back({shape, values});
            leaves.push_back(leaf(in.back(), fmt::format("x{}", leaves.size())));
        }
        const Array expected = plain(in);
        const Array weights{expected.shape, random_values(count_of(expected.shape), 99)};
        const Tensor w = of_values(backend_, weights.shape, weights.values, "weights");
        const auto step = [&] {
            const Tensor y = on_tape(leaves);
            backward(sum(y * w));
            std::vector<Tensor> results{y + 0};
            for (const Tensor& x : leaves) results.push_back(x.grad() + 0);
            return results;
        };
        const auto loss = [&] {
            const Array y = plain(in);
            return std::inner_product(y.values.begin(), y.values.end(), weights.values.begin(), 0.0);
        };
        std::vector<Values> gradients;
        for (Array& x : in) gradients.push_back(slopes(x.values, loss));
        const CompiledStep compiled = compile(backend_, step);
        compiled.run();
        for (const std::vector<Tensor>& got : {step(), compiled.results()}) {
            EXPECT_EQ(got[0].shape(), expected.shape);
            expect_near(values_of(got[0]), expected.values, 2e-6, "result");
            for (size_t k = 0; k < in.size(); ++k) {
                EXPECT_EQ(got[k + 1].shape(), in[k].shape);
                expect_near(values_of(got[k + 1]), gradients[k], 2e-5, fmt::format("gradient {}", k));
            }
        }
    }
    std::shared_ptr<Backend> backend_;
};
inline Plain of_two(const Dims& shape, const std::function<double(double x, double y)>& f) {
    return [=](const std::vector<Array>& in) {
        return array(shape, [&](const Dims& at) { return f(in[0](at), in[1](at)); });
    };
}

inline Plain of_one(const std::function<double(double x)>& f) {
    return
        [=](const std::vector<Array>& in) { return array(in[0].shape, [&](const Dims& at) { return f(in[0](at)); }); };
}

}  // namespace tw::nn

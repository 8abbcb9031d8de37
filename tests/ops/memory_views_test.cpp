// Views by calls: in the memory of what they are of where that is possible, copies elsewhere; their gradients.
#include <numeric>
#include <random>

#include <gmock/gmock.h>

#include "ops/checkpoint.h"
#include "ops/elementwise.h"
#include "ops/optimizer.h"
#include "ops/reductions.h"
#include "ops/step/compile_step.h"
#include "ops/tape/tape.h"
#include "ops/views.h"
#include "tests/ops/modules/slopes.h"
#include "tests/ops/random_views.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

using testing::ElementsAre;
/// Of elements, in order.
Dims taken(const Dims& from, const Dims& elements) {
    Dims result;
    for (const int64_t element : elements) result.push_back(from.at(static_cast<size_t>(element)));
    return result;
}

class MemoryViews : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (device_) backend_ = std::make_shared<Backend>(device_);
    }
    Tensor tensor(const Dims& shape, Type type = f32, const std::string& name = "x") {
        HostArray host = host_array(type, shape);
        fill_uniform(host, -4, 4, random_());
        return {backend_, host, name};
    }
    Values weights(int64_t count) { return random_values(count, random_()); }
    static Values numbers_of(const Tensor& x) {
        const HostArray host = x.to_host();
        Values numbers;
        Dims at(x.shape().size(), 0);
        if (num_places(x.shape()) == 0) return {};
        do numbers.push_back(host.at(at).real);
        while (advance(at, x.shape()));
        return numbers;
    }
    size_t num_launches(const std::function<void()>& calls) const { return backend_->record(calls).size(); }
    int64_t offset(const Tensor& view, const Tensor& of) const {
        return static_cast<int64_t>(view.data().pointer() - of.data().pointer());
    }

    std::mt19937_64 random_{std::random_device{}()};
    std::shared_ptr<Backend> backend_;
};
TW_ON_EACH_DEVICE(MemoryViews);

TEST_P(MemoryViews, RunNoKernelsAndTakeNoMemory) {
    const Tensor x = tensor({4, 6, 8}).set_requires_grad();
    const auto expect_in_memory = [&](const std::function<Tensor()>& call, const Dims& shape, int64_t first) {
        Tensor view;
        EXPECT_EQ(num_launches([&] { view = call(); }), 0u);
        EXPECT_EQ(view.shape(), shape);
        EXPECT_EQ(offset(view, x), first * 4);
        EXPECT_EQ(view.data().bytes(), num_places(shape) * 4);
        EXPECT_TRUE(view.shares_memory(x) && x.shares_memory(view) && !view.data().owning());
        EXPECT_TRUE(view.requires_grad() && view.creator());
    };
    expect_in_memory([&] { return reshape(x, {-1, 8}); }, {24, 8}, 0);
    expect_in_memory([&] { return slice(x, 0, 1, 3); }, {2, 6, 8}, 48);
    expect_in_memory([&] { return slice(x, 0, -1, 4, 7); }, {1, 6, 8}, 144);
    expect_in_memory([&] { return slice(slice(x, 0, 2, 3), 1, 4, 6); }, {1, 2, 8}, 128);
    expect_in_memory([&] { return slice(x, 2, 0, 8); }, {4, 6, 8}, 0);
    expect_in_memory([&] { return split(x, {1, 3}, 0)[1]; }, {3, 6, 8}, 48);
    expect_in_memory([&] { return transpose(unsqueeze(x, 1), 0, 1); }, {1, 4, 6, 8}, 0);
    expect_in_memory([&] { return squeeze(slice(x, 0, 3, 4), 0); }, {6, 8}, 144);
    expect_in_memory([&] { return broadcast_to(x, {1, 4, 6, 8}); }, {1, 4, 6, 8}, 0);
    EXPECT_EQ(backend_->num_built(), 0u);
    const auto expect_copied = [&](const std::function<Tensor()>& call, const Dims& shape) {
        Tensor view;
        EXPECT_EQ(num_launches([&] { view = call(); }), 1u);
        EXPECT_EQ(view.shape(), shape);
        EXPECT_TRUE(!view.shares_memory(x) && view.data().owning());
    };
    expect_copied([&] { return transpose(x, 0, 1); }, {6, 4, 8});
    expect_copied([&] { return slice(x, 1, 0, 3); }, {4, 3, 8});
    expect_copied([&] { return slice(x, 0, 0, 4, 3); }, {2, 6, 8});
    expect_copied([&] { return broadcast_to(x, {2, 4, 6, 8}); }, {2, 4, 6, 8});
    expect_copied([&] { return clone(x); }, {4, 6, 8});
}

/// Whether a view is in the memory of what it is of follows from which elements it has.
TEST_P(MemoryViews, AreTheElementsOfRandomChains) {
    int num_in_memory = 0;
    for (int chain = 0; chain < 16; ++chain) {
        const uint64_t seed = random_();
        SCOPED_TRACE(fmt::format("seed {}", seed));
        RandomViews views(seed);
        const Type type = std::vector<Type>{f32, bf16, f16, f64}[seed % 4];
        const Tensor base = tensor(views.shape(), type);
        const Values values = numbers_of(base);
        Tensor x = base;
        Dims elements(values.size());
        std::iota(elements.begin(), elements.end(), 0);
        for (int step = 0; step < 4; ++step) {
            const Made made = views.next(x);
            elements = taken(elements, made.elements);
            Values expected;
            for (const int64_t element : elements) expected.push_back(values[static_cast<size_t>(element)]);
            ASSERT_EQ(numbers_of(made.view), expected) << made.view.name() << shape_text(made.view.shape());
            bool is_in_row = true;
            for (size_t e = 0; e < made.elements.size(); ++e)
                is_in_row = is_in_row && made.elements[e] == made.elements[0] + static_cast<int64_t>(e);
            const bool is_aligned =
                (x.data().pointer() + static_cast<uint64_t>(made.elements[0] * bytes_of(type))) % 16 == 0;
            EXPECT_EQ(made.view.shares_memory(x), is_in_row && (is_aligned || made.elements[0] == 0))
                << made.view.name() << shape_text(made.view.shape()) << " of " << shape_text(x.shape());
            num_in_memory += made.view.shares_memory(x);
            x = made.view;
        }
    }
    EXPECT_GT(num_in_memory, 10);
}

/// Kernels move 16 bytes of bf16 at once: from an odd element on they could not.
TEST_P(MemoryViews, BeginWhereKernelsMayRead) {
    const Tensor x = tensor({4096 + 24}, bf16);
    const Values values = numbers_of(x);
    for (const int64_t begin : {0, 1, 4, 7, 8, 13, 16, 24}) {
        const Tensor view = slice(x, 0, begin, begin + 4096), wide = cast(view, f32);
        EXPECT_EQ(view.shares_memory(x), begin % 8 == 0) << begin;
        EXPECT_EQ(numbers_of(wide), Values(values.begin() + begin, values.begin() + begin + 4096)) << begin;
    }
}

TEST_P(MemoryViews, ShowWhatOverwritesTheirMemory) {
    Tensor x = tensor({4, 8});
    const Tensor rows = slice(x, 0, 2, 4), flat = reshape(rows, {-1}), copy = clone(flat), other = transpose(x, 0, 1);
    const Values before = numbers_of(flat), turned = numbers_of(other);
    EXPECT_EQ(numbers_of(copy), before);
    const Tensor next = tensor({4, 8});
    const Values after = numbers_of(next);
    x.copy_from_host(next.to_host());
    EXPECT_EQ(numbers_of(flat), Values(after.begin() + 16, after.end()));
    EXPECT_EQ(numbers_of(copy), before);
    EXPECT_EQ(numbers_of(other), turned);
    EXPECT_FALSE(copy.shares_memory(flat) || slice(x, 0, 0, 2).shares_memory(rows));
    flat.copy_from_host(copy.to_host());
    Values mixed(after.begin(), after.begin() + 16);
    mixed.insert(mixed.end(), before.begin(), before.end());
    EXPECT_EQ(numbers_of(x), mixed);
    x = {};  // a view keeps the memory
    const Tensor elsewhere = tensor({4, 8});
    EXPECT_EQ(numbers_of(rows), before);
    EXPECT_FALSE(Tensor(backend_, input("symbol", f32, {2}), "symbol").shares_memory(rows));
}

TEST_P(MemoryViews, FollowUpdatesAndRunsOfSteps) {
    const Tensor w = tensor({16}, f32, "w").set_requires_grad();
    Tensor early;
    {
        const NoGrad guard;
        early = reshape(w, {4, 4});
        EXPECT_FALSE(early.requires_grad() || early.creator());
    }
    const Values before = numbers_of(w);
    Sgd sgd({w}, 0.5);
    const auto step = [&] {
        const Tensor loss = sum(reshape(w, {2, 8}) * reshape(w, {2, 8}));
        backward(loss);
        sgd.step();
        return std::vector{loss, early + 0};
    };
    step();
    EXPECT_EQ(numbers_of(early), Values(16, 0.0));  // w -= 0.5 * 2 w
    early.copy_from_host([&] {
        HostArray values = host_array(f32, {4, 4});
        for (int64_t e = 0; e < 16; ++e) values.set({e / 4, e % 4}, make_value(f32, before[static_cast<size_t>(e)]));
        return values;
    }());
    EXPECT_EQ(numbers_of(w), before);
    Tensor made;
    const Graph recorded = backend_->record([&] { made = reshape(reshape(w, {4, 4}) + 1, {16}); });
    const Tensor x = tensor({16});
    w.copy_from_host(x.to_host());
    recorded.run();
    Values expected = numbers_of(x);
    for (double& value : expected) value = static_cast<float>(value) + 1.0F;
    EXPECT_EQ(numbers_of(made), expected);

    const Tensor outside = slice(early, 0, 1, 3);  // begins at 16 bytes
    const CompiledStep compiled = compile(backend_, [&] {
        return std::vector{slice(early, 0, 1, 3) + 1, reshape(outside, {8}) + 1};
    });
    compiled.run();
    EXPECT_EQ(numbers_of(compiled.results()[1]), numbers_of(compiled.results()[0]));
    const Tensor result = reshape(compiled.results()[0], {8});
    EXPECT_EQ(numbers_of(result), Values(expected.begin() + 4, expected.begin() + 12));
    w.copy_from_host(tensor({16}).to_host());
    compiled.run();
    Values second = numbers_of(slice(early, 0, 1, 3));
    for (double& value : second) value = static_cast<float>(value) + 1.0F;
    EXPECT_EQ(numbers_of(result), second);
}

/// Whether a step would read such a view before or behind the update, nothing says.
TEST_P(MemoryViews, OfWhatAStepOverwritesAreMadeInIt) {
    const Tensor w = tensor({16}, f32, "w").set_requires_grad();
    const NoGrad guard;
    const Tensor view = slice(w, 0, 0, 4), apart = slice(w, 0, 4, 8), copy = clone(view);
    Sgd sgd({w}, 0.5);
    const auto step_with = [&](const Tensor& other) {
        return [&, other] {
            const GradScope on_the_tape(true);
            const Tensor inside = slice(w, 0, 0, 4), loss = sum(w * w);
            backward(loss);
            sgd.step();
            return std::vector{inside - other, slice(w, 0, 0, 4) + 0};
        };
    };
    EXPECT_ERROR(compile(backend_, step_with(view)),
                 "'w' [16] is overwritten by the step that is captured, and lies in memory that 'slice' [4] is in");
    EXPECT_ERROR(compile(backend_, step_with(apart)), "make views inside of the function, or give it a clone()");
    const CompiledStep compiled = compile(backend_, step_with(copy));
    compiled.run();
    EXPECT_EQ(numbers_of(compiled.results()[0]), Values(4, 0.0));  // as w was then
    EXPECT_EQ(numbers_of(compiled.results()[1]), Values(4, 0.0));  // w - 0.5 * 2 w
    const CompiledStep reads = compile(backend_, [&] { return std::vector{view + slice(w, 0, 12, 16)}; });
    const Tensor next = tensor({16});
    w.copy_from_host(next.to_host());
    reads.run();
    const Values values = numbers_of(next), got = numbers_of(reads.results()[0]);
    for (size_t e = 0; e < 4; ++e)
        EXPECT_EQ(got[e], static_cast<float>(values[e]) + static_cast<float>(values[12 + e]));
}

/// sum(chain(x) w) + sum(chain'(x) w') + sum(x w''): what x's elements are multiplied by, all of it.
TEST_P(MemoryViews, HaveGradientsAlongRandomChains) {
    for (int round = 0; round < 6; ++round) {
        const uint64_t seed = random_();
        SCOPED_TRACE(fmt::format("seed {}", seed));
        RandomViews views(seed);
        const Tensor x = tensor(views.shape()).set_requires_grad();
        const int64_t count = num_places(x.shape());
        const Values own = weights(count);
        Values expected = own;
        std::vector<Tensor> terms;
        if (seed % 2 == 0) terms.push_back(sum(x * of_values(backend_, x.shape(), own, "own")));
        for (int chain = 0; chain < 2; ++chain) {
            Tensor y = x;
            Dims elements(static_cast<size_t>(count));
            std::iota(elements.begin(), elements.end(), 0);
            for (int step = 0; step < 3; ++step) {
                const Made made = views.next(y);
                y = made.view;
                elements = taken(elements, made.elements);
            }
            const Values w = weights(static_cast<int64_t>(elements.size()));
            for (size_t e = 0; e < w.size(); ++e) expected[static_cast<size_t>(elements[e])] += w[e];
            terms.push_back(sum(y * of_values(backend_, y.shape(), w, "w")));
        }
        if (seed % 2 == 1) terms.push_back(sum(x * of_values(backend_, x.shape(), own, "own")));
        const Tensor loss = terms[0] + terms[1] + terms[2];
        expect_near(values_of(gradients(loss, {x}, {.retain = true})[0]), expected, 1e-5, "gradients");
        backward(loss);
        EXPECT_EQ(x.grad().shape(), x.shape());
        expect_near(values_of(x.grad()), expected, 1e-5, "backward");
    }
}

/// Where nothing moves on the way there, nothing does on the way back.
TEST_P(MemoryViews, HaveGradientsWithoutKernels) {
    const Tensor x = tensor({4, 8}).set_requires_grad(), w = tensor({32});
    const auto launches = [&](const std::function<Tensor()>& loss) {
        backward(loss());
        const Values expected = numbers_of(x.grad());
        EXPECT_EQ(expected, numbers_of(w));
        return num_launches([&] { backward(loss()); });
    };
    const size_t plain = launches([&] { return sum(x * reshape(w, {4, 8})); });
    EXPECT_EQ(launches([&] { return sum(squeeze(reshape(unsqueeze(x, 0), {1, 32}), 0) * w); }), plain);
    const Tensor half = tensor({2, 24}, bf16).set_requires_grad();
    const Values by = weights(24);
    backward(sum(cast(slice(half, 0, 1, 2), f32) * of_values(backend_, {24}, by, "by")));
    EXPECT_EQ(half.grad().type(), bf16);
    Values expected(24, 0.0);
    const Values rounded = numbers_of(cast(of_values(backend_, {24}, by, "by"), bf16));
    expected.insert(expected.end(), rounded.begin(), rounded.end());
    EXPECT_EQ(numbers_of(half.grad()), expected);
}

/// A gradient that a hook has kept stays what it was, whichever use of x comes first.
TEST_P(MemoryViews, AddGradientsInMemoryOfTheirOwn) {
    for (int first = 0; first < 3; ++first) {
        const Tensor x = tensor({4, 8}).set_requires_grad(), view = reshape(x, {32});
        const Values w = weights(32), v = weights(32);
        const Tensor by = of_values(backend_, {32}, w, "w"), others = of_values(backend_, {4, 8}, v, "v");
        Tensor kept;
        view.on_gradient([&](const Tensor& gradient) { return kept = gradient; });
        std::vector<Tensor> terms{sum(view * by), sum(x * others), sum(reshape(x, {8, 4}) * reshape(others, {8, 4}))};
        std::ranges::rotate(terms, terms.begin() + first);
        backward(terms[0] + terms[1] + terms[2]);
        Values expected;
        for (size_t e = 0; e < w.size(); ++e) expected.push_back(w[e] + 2 * v[e]);
        EXPECT_EQ(numbers_of(kept), w);
        expect_near(values_of(x.grad()), expected, 1e-6, "sum");
        EXPECT_FALSE(x.grad().shares_memory(kept));
    }
}

/// The adjoint of a loss is the backend's, and serves all.
TEST_P(MemoryViews, AreNoViewsOfTheAdjointOfALoss) {
    const Tensor x = tensor({1, 1}).set_requires_grad();
    for (int round = 0; round < 2; ++round) {
        backward(reshape(x, {}));
        EXPECT_EQ(numbers_of(x.grad()), Values{1});
        const HostArray five = [] {
            HostArray value = host_array(f32, {1, 1});
            value.set({0, 0}, make_value(f32, 5.0));
            return value;
        }();
        x.grad().copy_from_host(five);
        gradients(reshape(x, {}), {x})[0].copy_from_host(five);
    }
}

/// d/dx sum(g^2), where g = d sum(v^3 w)/dx and v is a chain of views of x.
TEST_P(MemoryViews, AreDifferentiatedTwice) {
    const Tensor x = tensor({4, 8}).set_requires_grad();
    const Values values = numbers_of(x), w = weights(16);
    const auto chain = [&] { return unsqueeze(reshape(slice(x, 0, 1, 3), {16}), 0); };
    const Tensor loss = sum(pow(chain(), 3) * of_values(backend_, {1, 16}, w, "w"));
    const Tensor g = gradients(loss, {x}, {.create_graph = true})[0];
    EXPECT_EQ(g.shape(), x.shape());
    const Values first = numbers_of(g);
    backward(sum(reshape(g, {32}) * reshape(g, {32})));
    Values expected(32, 0.0), slope(32, 0.0);
    for (size_t e = 0; e < 16; ++e) {
        slope[8 + e] = 3 * values[8 + e] * values[8 + e] * w[e];
        expected[8 + e] = 2 * slope[8 + e] * 6 * values[8 + e] * w[e];
    }
    expect_near(first, slope, 1e-5, "first");
    expect_near(numbers_of(x.grad()), expected, 1e-5, "second");
}

TEST_P(MemoryViews, AreMadeAgainByCheckpoints) {
    const Tensor x = tensor({4, 8}).set_requires_grad();
    const Values values = numbers_of(x), w = weights(16);
    const Tensor by = of_values(backend_, {16}, w, "w");
    const Tensor inside =
        checkpoint([](const std::vector<Tensor>& in) { return reshape(pow(slice(in[0], 0, 2, 4), 2), {16}); }, {x});
    const Tensor only_view = checkpoint([](const std::vector<Tensor>& in) { return reshape(in[0], {32}); }, {x});
    EXPECT_TRUE(only_view.shares_memory(x));
    backward(sum(inside * by) + sum(only_view));
    Values expected(32, 1.0);
    for (size_t e = 0; e < 16; ++e) expected[16 + e] += 2 * values[16 + e] * w[e];
    expect_near(values_of(x.grad()), expected, 1e-5, "gradient");
}

TEST_P(MemoryViews, OfNoElements) {
    const Tensor x(backend_, f32, {0, 4}, "x");
    std::vector<Tensor> views;
    EXPECT_EQ(num_launches([&] {
                  views = {reshape(x, {-1}), transpose(x, 0, 1), slice(x, 1, 0, 4), broadcast_to(x, {2, 0, 4})};
              }),
              0u);
    EXPECT_THAT(views[0].shape(), ElementsAre(0));
    EXPECT_THAT(views[1].shape(), ElementsAre(4, 0));
    EXPECT_THAT(views[3].shape(), ElementsAre(2, 0, 4));
    for (const Tensor& view : views) EXPECT_EQ(view.to_host().bytes.size(), 0u);
    EXPECT_FALSE(views[0].shares_memory(x));
}

TEST_P(MemoryViews, RefuseWhatNoViewIs) {
    const Tensor x = tensor({4, 6});
    EXPECT_EQ(slice(x, -1, 1, 3).shape(), slice(x, 1, 1, 3).shape());
    EXPECT_EQ(permute(x, {-1, 0}).shape(), permute(x, {1, 0}).shape());
    EXPECT_ERROR(reshape(x, {5, 5}), "there are 24 elements, not 25");
    EXPECT_ERROR(reshape(x, {5, -1}), "there are 24 elements, not a multiple of 5");
    EXPECT_ERROR(reshape(x, {-1, -1, 24}), "extents are positive, but for one that may be -1");
    EXPECT_ERROR(reshape(x, {-1, 0}), "extents are positive, but for one that may be -1");
    EXPECT_ERROR(slice(x, 2, 0, 1), "there is no dimension 2");
    EXPECT_ERROR(slice(x, 0, 2, 5), "from 2 to 5 along dimension 0");
    EXPECT_ERROR(slice(x, 0, 2, 2), "from 2 to 2 along dimension 0");
    EXPECT_ERROR(permute(x, {0, 0}), "permute");
    EXPECT_ERROR(permute(x, {0}), "permute");
    EXPECT_ERROR(reshape(Tensor(), {1}), "an nn::Tensor is undefined");
    EXPECT_ERROR(Tensor().shares_memory(x), "an nn::Tensor is undefined");
}

}  // namespace
}  // namespace tw::nn

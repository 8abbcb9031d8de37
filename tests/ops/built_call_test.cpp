// Calls of one program with other buffers each time.
#include <random>

#include <gtest/gtest.h>

#include "ops/built_call.h"
#include "schedules/choose.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw::nn {
namespace {

class BuiltCalls : public OnEachDevice {
protected:
    std::mt19937_64 random_{std::random_device{}()};

    std::vector<float> draw(size_t count) {
        std::uniform_real_distribution<float> uniform(-1, 1);
        std::vector<float> values(count);
        for (float& value : values) value = uniform(random_);
        return values;
    }
    Buffer buffer(const std::vector<float>& values) const {
        Buffer made = device_->allocate(static_cast<int64_t>(values.size() * sizeof(float)), "values");
        made.write(values);
        return made;
    }
    void run(BuiltCall& call, const std::vector<Buffer>& buffers) const {
        for (const Launch& launch : call.launches(buffers)) launch.run();
        call.forget();
    }
};
TW_ON_EACH_DEVICE(BuiltCalls);

/// Of two kernels with a workspace between them (a sum in parts), and of one with vectors.
TEST_P(BuiltCalls, HaveOtherBuffersEachTime) {
    const int64_t rows = 2048, columns = 16;
    const Tensor x = input("x", f32, {rows, columns});
    const Axis r = reduce_axis("r", rows);
    const Tensor sums = compute("sums", {columns}, [&](Expr j) { return sum(x(r, j), r); });
    const Tensor twice = compute("twice", {rows, columns}, [&](Expr i, Expr j) { return 2.0 * x(i, j); });
    const Executable of_sums(build(schedules::choose_schedule({sums}, device_target())), device_);
    const Executable of_twice(build(schedules::choose_schedule({twice}, device_target())), device_);
    EXPECT_EQ(of_sums.kernels().size(), 2u);
    BuiltCall add(of_sums, {"x", "sums"}), scale(of_twice, {"twice", "x"});
    EXPECT_EQ(add.results()[0].shape, std::vector<int64_t>{columns});
    for (int round = 0; round < 4; ++round) {
        const std::vector<float> values = draw(rows * columns);
        const Buffer from = buffer(values), total = buffer(std::vector<float>(columns, NAN)),
                     to = buffer(std::vector<float>(rows * columns, NAN));
        run(add, {from, total});
        run(scale, {to, from});
        const std::vector<float> got = total.read<float>(), scaled = to.read<float>();
        for (size_t j = 0; j < columns; ++j) {
            double expected = 0;
            for (size_t i = 0; i < rows; ++i) expected += values[i * columns + j];
            EXPECT_NEAR(got[j], expected, 1e-3);
        }
        for (size_t e = 0; e < values.size(); ++e) ASSERT_EQ(scaled[e], 2 * values[e]);
    }
}

/// What the first call checks by name, later ones must not let through.
TEST_P(BuiltCalls, RefuseWhatKernelsCannotRead) {
    const int64_t count = 1 << 20;
    const Tensor x = input("x", f32, {count});
    const Tensor twice = compute("twice", {count}, [&](Expr i) { return 2.0 * x(i); });
    const Executable executable(build(schedules::choose_schedule({twice}, device_target())), device_);
    BuiltCall call(executable, {"x", "twice"});
    const std::vector<float> values = draw(count + 1);
    const Buffer longer = buffer(values), to = buffer(std::vector<float>(count, NAN));
    const Buffer unaligned = longer.view(4, count * 4), aligned = longer.view(0, count * 4);
    run(call, {aligned, to});
    EXPECT_ERROR(run(call, {unaligned, to}), "but kernel 'twice_kernel' moves 16 bytes of it at once");
    EXPECT_ERROR(run(call, {Buffer(), to}), "no buffer is given for 'x'");
    run(call, {aligned, to});
    EXPECT_EQ(to.read<float>()[count - 1], 2 * values[count - 1]);
}

}  // namespace
}  // namespace tw::nn

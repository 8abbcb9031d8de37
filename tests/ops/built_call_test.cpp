// Calls of one program with other buffers each time.
#include <random>

#include <gtest/gtest.h>

#include "ops/built_call.h"
#include "ops/operator.h"
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
    const tw::Tensor x = input("x", f32, {rows, columns});
    const Axis r = reduce_axis("r", rows);
    const tw::Tensor sums = compute("sums", {columns}, [&](Expr j) { return sum(x(r, j), r); });
    const tw::Tensor twice = compute("twice", {rows, columns}, [&](Expr i, Expr j) { return 2.0 * x(i, j); });
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
    const tw::Tensor x = input("x", f32, {count});
    const tw::Tensor twice = compute("twice", {count}, [&](Expr i) { return 2.0 * x(i); });
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

/// Rows that an operand names: one outside of the table is found while the launch runs.
const Operator& rows_named() {
    static const Operator op("rows_named", [](const std::vector<tw::Tensor>& in) {
        return compute("rows", {in[1].shape()[0]}, [&](Expr i) { return in[0](cast(i64, in[1](i))); });
    });
    return op;
}

/// Handles to memory count among those of the device.
TEST_P(BuiltCalls, ForgetBuffersWhereLaunchesThrow) {
    if (device_->kind() != DeviceKind::Emulated) GTEST_SKIP() << "a GPU is lost by a kernel that leaves its memory";
    const auto backend = std::make_shared<Backend>(device_);
    const auto call = [&](int32_t row) {
        const Tensor table(backend, f32, {8}, "table"), ids(backend, i32, {4}, "ids");
        table.data().write(draw(8));
        ids.data().write(std::vector<int32_t>{0, 7, row, 1});
        rows_named()({table, ids});
    };
    call(3);
    const long before = device_.use_count();
    EXPECT_ERROR(call(1 << 20), "out of bounds");
    EXPECT_EQ(device_.use_count(), before);
    call(3);
    EXPECT_EQ(device_.use_count(), before);
}

/// Each list of types and shapes has kernels of its own, which are found again.
TEST_P(BuiltCalls, AreKnownByTheirOperands) {
    const auto backend = std::make_shared<Backend>(device_);
    const Operator twice("twice", [](const std::vector<tw::Tensor>& in) {
        return compute("twice", {in[0].shape().begin(), in[0].shape().end()}, [&](const std::vector<Expr>& at) {
            const Expr element = in[0].read({at.begin(), at.end()});
            return element + element;
        });
    });
    const std::vector<std::vector<int64_t>> shapes{{1}, {2}, {1, 2}, {2, 1}, {2, 2}, {4}, {4, 1}, {1, 4}, {3, 1}};
    for (int round = 0; round < 3; ++round)
        for (const std::vector<int64_t>& shape : shapes) {
            HostArray values = host_array(f32, shape);
            fill_uniform(values, -1, 1, random_());
            const HostArray got = twice({Tensor(backend, values, "x")}).to_host();
            ASSERT_EQ(got.shape, shape);
            std::vector<int64_t> at(shape.size(), 0);
            do EXPECT_EQ(got.at(at).real, 2 * values.at(at).real);
            while (advance(at, shape));
        }
    EXPECT_EQ(backend->num_built(), shapes.size());
}

}  // namespace
}  // namespace tw::nn

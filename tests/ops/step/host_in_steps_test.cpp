// What the host does in a function that is captured or recorded happens once, where calls of it do it each time: it is
// refused, with the line. Results refuse to be read before a run.
#include <random>

#include <gmock/gmock.h>
#include <unistd.h>

#include "ops/checkpoint.h"
#include "ops/elementwise.h"
#include "ops/layers.h"
#include "ops/operator.h"
#include "ops/optimizer.h"
#include "ops/parameters.h"
#include "ops/persistence/checkpoint.h"
#include "ops/reductions.h"
#include "ops/step/compiled_function.h"
#include "ops/views.h"
#include "runtime/driver/pinned_buffer.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

class HostInSteps : public OnDevice {
protected:
    void SetUp() override {
        OnDevice::SetUp();
        if (!device_) return;
        backend_ = std::make_shared<Backend>(device_);
        x_ = random_tensor({5, 4}, "x");
        w_ = uniform_parameter(backend_, {5, 4}, 1, random_(), "w");
    }
    Tensor random_tensor(const std::vector<int64_t>& shape, const std::string& name) {
        return {backend_, random(shape), name};
    }
    HostArray random(const std::vector<int64_t>& shape) {
        HostArray host = host_array(f32, shape);
        fill_uniform(host, -1, 1, random_());
        return host;
    }
    static double number(const Tensor& tensor) { return tensor.to_host().at({}).real; }
    /// sum of x w^2
    Tensor loss() const { return sum(x_ * w_ * w_); }

    /// Does it in the function, behind an update of w, each way; nothing has changed then.
    void expect_refused(const std::function<void()>& action, const std::string& text) {
        Sgd sgd({w_}, 0.5);
        const std::vector<float> before = w_.data().read<float>(), batch = x_.data().read<float>();
        const auto f = [&] {
            backward(loss());
            sgd.step();
            action();
            return std::vector{loss()};
        };
        EXPECT_ERROR(compile(backend_, f), text + " while a step is captured");
        EXPECT_ERROR(backend_->record([&] { f(); }), text + " while a step is recorded");
        EXPECT_EQ(w_.data().read<float>(), before);
        EXPECT_EQ(x_.data().read<float>(), batch);
        f();  // outside it is done
    }

    std::shared_ptr<Backend> backend_;
    Tensor x_, w_;
    std::mt19937_64 random_{std::random_device{}()};
};
TW_ON_EACH_DEVICE(HostInSteps);

/// What builds a kernel of a step may run and read what it measures: it is no part of the step.
TEST_P(HostInSteps, KernelsAreMeasured) {
    float read = 0;
    const auto made = [&](const Target& target) {
        const Buffer own = device_->allocate(sizeof(float), "own");
        const float two = 2;
        own.copy_from_host(&two);
        read = own.read<float>()[0];
        const tw::Tensor x = input("x", f32, {4});
        return Schedule({compute("y", {4}, [&](Expr i) { return x(i); })}, target);
    };
    (void)backend_->record([&] { (void)backend_->built("measured", std::function<Schedule(const Target&)>(made)); });
    EXPECT_EQ(read, 2);
}

/// As the function was called: only what still requires a gradient has one.
TEST_P(HostInSteps, FreezingBeforeBackward) {
    const Tensor v = uniform_parameter(backend_, {3}, 1, random_(), "v");
    const Tensor total = sum(w_ * x_) + sum(v);
    w_.set_requires_grad(false);
    backward(total);
    EXPECT_FALSE(w_.requires_grad());
    EXPECT_EQ(v.grad().data().read<float>(), std::vector<float>(3, 1));
}

TEST_P(HostInSteps, TensorsAreNotReadOrWritten) {
    const auto here = [](int line) { return fmt::format("host_in_steps_test.cpp:{}: ", line); };
    int line = __LINE__ + 1;
    expect_refused([&] { (void)w_.to_host(); }, here(line) + "'w' is read");
    line = __LINE__ + 1;
    expect_refused([&] { (void)x_.to_host(); }, here(line) + "'x' is read");
    const HostArray host = random({5, 4});
    line = __LINE__ + 1;
    expect_refused([&] { x_.copy_from_host(host); }, here(line) + "'x' is overwritten from the host");
    EXPECT_EQ(x_.to_host().bytes, host.bytes);
    const PinnedBuffer pinned = device_->allocate_pinned(80, "pinned");
    pinned.write(std::vector<float>(20, 0.25F));
    const Stream stream = device_->create_stream();
    line = __LINE__ + 1;
    expect_refused([&] { x_.upload(pinned, stream); }, here(line) + "'x' is uploaded to");
    stream.synchronize();
    EXPECT_EQ(x_.data().read<float>(), std::vector<float>(20, 0.25F));
    line = __LINE__ + 1;
    expect_refused([&] { (void)w_.data().read<float>(); }, here(line) + "buffer 'w' is read");
    line = __LINE__ + 1;
    expect_refused([&] { x_.data().write(std::vector<float>(20, 0.5F)); }, here(line) + "buffer 'x' is written");
    line = __LINE__ + 1;
    expect_refused([&] { x_.data().copy_from_host(host.bytes.data()); }, here(line) + "buffer 'x' is written");
}

/// What the device is asked for by itself is no operator, and so no part of the step.
TEST_P(HostInSteps, TheDeviceDoesNothingAtOnce) {
    const auto here = [](int line) { return fmt::format("host_in_steps_test.cpp:{}: ", line); };
    const Tensor y = random_tensor({5, 4}, "y");
    int line = __LINE__ + 1;
    expect_refused([&] { device_->copy(x_.data(), y.data()); }, here(line) + "buffer 'x' is copied to");
    EXPECT_EQ(x_.to_host().bytes, y.to_host().bytes);
    const PinnedBuffer pinned = device_->allocate_pinned(80, "pinned");
    pinned.write(std::vector<float>(20, 0.25F));
    line = __LINE__ + 1;
    expect_refused([&] { device_->copy(pinned, y.data()); }, here(line) + "pinned buffer 'pinned' is copied to");
    line = __LINE__ + 1;
    expect_refused([&] { device_->copy(x_.data(), pinned); }, here(line) + "buffer 'x' is copied to");
    line = __LINE__ + 1;
    expect_refused([&] { x_.data().fill(0); }, here(line) + "buffer 'x' is filled");
    EXPECT_EQ(x_.data().read<float>(), std::vector<float>(20, 0));
    line = __LINE__ + 1;
    EXPECT_ERROR(backend_->record([&] {
        device_->copy(Tensor(backend_, f32, {5, 4}).data(), y.data());
    }),
                 here(line) +
                     "buffer 'tensor' is copied to while a step is recorded: that happens once, now, and in no "
                     "run of the step; do it outside, or call an operator, which belongs to the step");

    const CompiledStep other = compile(backend_, [&] { return std::vector{loss()}; });
    const Graph graph = backend_->record([&] { loss(); });
    const Launch launch = other.planned().launches()[0];
    const Stream stream = device_->default_stream();
    const Event event = device_->create_event();
    const std::string kernel = "kernel '" + launch.kernel().entry() + "' is launched";
    line = __LINE__ + 1;
    expect_refused([&] { launch.run(); }, here(line) + kernel);
    line = __LINE__ + 1;
    expect_refused([&] { launch.run(stream); }, here(line) + kernel);
    const std::string of_device = fmt::format("of '{}' is ", device_->name());
    line = __LINE__ + 1;
    expect_refused([&] { graph.run(); }, here(line) + "a graph " + of_device + "run");
    line = __LINE__ + 1;
    expect_refused([&] { other.planned().run(stream); }, here(line) + "a graph " + of_device + "run");
    line = __LINE__ + 1;
    expect_refused([&] { event.record(stream); }, here(line) + "an event " + of_device + "recorded");
    line = __LINE__ + 1;
    expect_refused([&] { stream.wait(event); }, here(line) + "a stream " + of_device + "made to wait for an event");
}

/// Recorded tensors have memory, and nothing in it yet.
TEST_P(HostInSteps, WhatIsRecordedIsNotReadFromItsMemory) {
    EXPECT_ERROR(
        backend_->record([&] { (void)loss().data().read<float>(); }),
        "is read while a step is recorded, which computes nothing yet; do it outside of the step: write before "
        "it runs, and read behind that");
    Tensor made;
    const Graph graph = backend_->record([&] { made = loss(); });
    graph.run();
    EXPECT_EQ(made.data().read<float>()[0], static_cast<float>(number(loss())));
}

TEST_P(HostInSteps, RatesCheckpointsAndOtherStepsStayOutside) {
    Sgd sgd({w_}, 0.5);
    const auto here = [](int line) { return fmt::format("host_in_steps_test.cpp:{}: ", line); };
    int line = __LINE__ + 1;
    expect_refused([&] { sgd.set_rate(0.25); }, here(line) + "Sgd: the rate is set");
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / fmt::format("host_in_steps_{}", getpid());
    Checkpoint checkpoint;
    checkpoint.add("w", w_);
    line = __LINE__ + 1;
    expect_refused([&] { checkpoint.save(path); }, here(line) + "Checkpoint: is saved");
    line = __LINE__ + 1;
    EXPECT_ERROR(compile(backend_,
                         [&] {
                             checkpoint.load(path);
                             return std::vector{loss()};
                         }),
                 here(line) +
                     "Checkpoint: is loaded while a step is captured: that happens once, now, and in no run of the "
                     "step; load it before run()");
    std::filesystem::remove(path);
    const CompiledStep other = compile(backend_, [&] { return std::vector{loss()}; });
    line = __LINE__ + 1;
    expect_refused([&] { other.run(); }, here(line) + "a compiled step is run");
    CompiledFunction function(backend_, [](const std::vector<Tensor>& in) { return std::vector{sum(in[0])}; });
    line = __LINE__ + 1;
    expect_refused([&] { function({x_}); }, here(line) + "CompiledFunction: it is called");
    const std::string around = "record: a step is recorded or captured around this one; record the whole of it";
    EXPECT_ERROR(backend_->record([&] { backend_->record([&] { loss(); }); }), around);
    EXPECT_ERROR(compile(backend_,
                         [&] {
                             backend_->record([&] { loss(); });
                             return std::vector{loss()};
                         }),
                 around);
}

/// A constant may be made in the function. What is overwritten may not: calls would begin anew.
TEST_P(HostInSteps, MemoryOfTheFunctionIsConstant) {
    const HostArray host = random({5, 4});
    const auto scaled = [&] {
        const Tensor copied(backend_, f32, {5, 4}, "copied"), written(backend_, f32, {4}, "written");
        copied.copy_from_host(host);
        written.data().write(std::vector<float>{1, 2, 3, 4});
        return std::vector{sum(x_ * Tensor(backend_, host, "scale") * copied * written)};
    };
    const CompiledStep step = compile(backend_, scaled);
    step.run();
    EXPECT_NEAR(number(step.results()[0]), number(scaled()[0]), 1e-5);
    Tensor recorded;
    backend_->record([&] { recorded = scaled()[0]; }).run();
    EXPECT_NEAR(number(recorded), number(scaled()[0]), 1e-5);
    const auto written_late = [&] {
        const Tensor scale(backend_, host, "scale");
        const Tensor result = sum(x_ * scale);
        scale.copy_from_host(host);
        return std::vector{result};
    };
    EXPECT_ERROR(compile(backend_, written_late), "'scale' is overwritten from the host while a step is captured");
    EXPECT_ERROR(backend_->record([&] { written_late(); }),
                 "'scale' is overwritten from the host while a step is recorded");
    const auto with_momentum = [&](double momentum) {
        return compile(backend_, [&] {
            backward(loss());
            Sgd({w_}, 0.5, momentum).step();
            return std::vector{loss()};
        });
    };
    EXPECT_ERROR(with_momentum(0.9),
                 "'velocity' is allocated by the function that is captured, and overwritten there: calls would begin "
                 "with it anew, and runs of the step go on with it; make it outside of the function");
    const std::vector<float> before = w_.data().read<float>(), x = x_.data().read<float>();
    with_momentum(0).run();
    const std::vector<float> after = w_.data().read<float>();
    for (size_t k = 0; k < 20; ++k) EXPECT_NEAR(after[k], before[k] * (1 - x[k]), 1e-6);
}

/// Not by where it begins: parts of it are new, or used, by themselves.
TEST_P(HostInSteps, MemoryOfTheFunctionIsToldApartByItsBytes) {
    const HostArray half = random({4, 4}), whole = random({8, 4});
    const auto f = [&] {
        const Tensor rows(backend_, whole, "rows");
        rows.data().view(64, 64).write(std::vector<float>(16, 2));  // 4 rows of 16 bytes
        rows.data().view(16, 16).fill(0);
        return std::vector{sum(rows)};
    };
    double expected = 2 * 16;
    for (int64_t k = 0; k < 16; ++k) expected += k / 4 == 1 ? 0 : whole.at({k / 4, k % 4}).real;
    const CompiledStep step = compile(backend_, f);
    step.run();
    EXPECT_NEAR(number(step.results()[0]), expected, 1e-5);
    Tensor recorded;
    backend_->record([&] { recorded = f()[0]; }).run();
    EXPECT_NEAR(number(recorded), expected, 1e-5);

    const auto writes = [&](int64_t first, int64_t last, const HostArray& values) {
        return backend_->record([&] {
            const Tensor rows(backend_, whole, "rows");
            recorded = sum(slice(rows, 0, 4, 8));
            slice(rows, 0, first, last).copy_from_host(values);
        });
    };
    EXPECT_ERROR(writes(0, 8, whole), "'slice' is overwritten from the host while a step is recorded");
    EXPECT_ERROR(writes(3, 7, half), "'slice' is overwritten from the host while a step is recorded");
    EXPECT_ERROR(writes(7, 8, random({1, 4})), "'slice' is overwritten from the host while a step is recorded");
    writes(0, 4, half).run();
    expected = 0;
    for (int64_t k = 16; k < 32; ++k) expected += whole.at({k / 4, k % 4}).real;
    EXPECT_NEAR(number(recorded), expected, 1e-5);
    backend_->record([&] { recorded = sum(Tensor(backend_, f32, {0, 4}, "none")); }).run();  // of no bytes
}

/// What checkpoint() makes of a result that is not there yet is not there, either.
TEST_P(HostInSteps, CheckpointsOfResultsAreReadBehindARun) {
    const CompiledStep step = compile(backend_, [&] { return std::vector{x_ * w_}; });
    const Tensor result = step.results()[0];
    result.set_requires_grad();
    Tensor flat;
    (void)backend_->record([&] { flat = checkpoint([](const Tensor& in) { return reshape(in, {20}); }, result); });
    EXPECT_TRUE(flat.shares_memory(result));
    EXPECT_ERROR((void)flat.to_host(), "is a result of a compiled step that has not run; call run() before it is read");
    step.run();
    EXPECT_EQ(flat.to_host().bytes, result.to_host().bytes);
}

TEST_P(HostInSteps, ResultsAreReadBehindARun) {
    const CompiledStep step = compile(backend_, [&] { return std::vector{loss()}; });
    const Tensor result = step.results()[0];
    const std::string early = "' is a result of a compiled step that has not run; call run() before it is read";
    EXPECT_ERROR((void)result.to_host(), early);
    EXPECT_ERROR((void)result.data().read<float>(), early);
    EXPECT_ERROR(relu(result), early);
    EXPECT_ERROR(
        CompiledFunction(backend_, [](const std::vector<Tensor>& in) { return std::vector{relu(in[0])}; })({result}),
        early);
    Tensor twice;
    const Graph graph = backend_->record([&] { twice = 2.0 * result; });
    const CompiledStep behind = compile(backend_, [&] { return std::vector{3.0 * result}; });
    step.run();
    graph.run();
    behind.run();
    const double expected = number(loss());
    EXPECT_NEAR(number(result), expected, 1e-5);
    EXPECT_NEAR(number(twice), 2 * expected, 1e-5);
    EXPECT_NEAR(number(behind.results()[0]), 3 * expected, 1e-5);
    // By its plan, too, which streams take.
    const CompiledStep on_stream = compile(backend_, [&] { return std::vector{loss()}; });
    on_stream.planned().run(device_->default_stream());
    EXPECT_NEAR(number(on_stream.results()[0]), expected, 1e-5);
}

/// The way back ends at results: they are no leaves that get a gradient in place of what they are made of.
TEST_P(HostInSteps, ResultsAreOffTheTape) {
    const CompiledStep step = compile(backend_, [&] { return std::vector{loss()}; });
    step.run();
    EXPECT_FALSE(step.results()[0].requires_grad());
    int line = __LINE__ + 1;
    EXPECT_ERROR(backward(2.0 * step.results()[0]), fmt::format("host_in_steps_test.cpp:{}: backward: ", line));
    line = __LINE__ + 1;
    EXPECT_ERROR(gradients(2.0 * step.results()[0], {w_}), fmt::format("host_in_steps_test.cpp:{}: gradients: ", line));
}

}  // namespace
}  // namespace tw::nn

// Binding buffers: what is refused, and what a launch may write.
#include "ops/executable.h"
#include "codegen/print/print_cuda.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tw {
namespace {

/// y[i] = alpha * x[i] + w[i], z[i] = y[i] - w[i], by two kernels over n elements.
class Binding : public testing::Test {
protected:
    Expr n_ = size("n", {.min = 1, .max = 64}), alpha_ = scalar("alpha", f32);
    Tensor x_ = input("x", f32, {n_}), w_ = input("w", f32, {n_});
    Tensor y_ = compute("y", {n_}, [&](Expr i) { return alpha_ * x_(i) + w_(i); });
    Tensor z_ = compute("z", {n_}, [&](Expr i) { return y_(i) - w_(i); });
    std::shared_ptr<Device> device_ = open_device("emulated");
    Executable executable_{build(Schedule({y_, z_}, target("sm_90a"))), device_};

    Arguments good() {
        Arguments arguments{.buffers = {}, .sizes = {{"n", 10}}, .scalars = {{"alpha", make_value(f32, 2.0)}}};
        for (const char* name : {"x", "w", "y", "z"}) arguments.buffers[name] = device_->allocate(40, name);
        arguments.buffers["x"].write(std::vector<float>(10, 3.0f));
        arguments.buffers["w"].write(std::vector<float>(10, 0.5f));
        return arguments;
    }

    template <class Change>
    void bind_with(Change change) {
        Arguments arguments = good();
        change(arguments);
        executable_.bind(arguments);
    }
};

TEST_F(Binding, RunsOnceBound) {
    EXPECT_ERROR(executable_.run(), "run: nothing is bound; call bind() with buffers first");
    Arguments arguments = good();
    executable_.bind(arguments);
    executable_.run();
    device_->synchronize();
    EXPECT_EQ(arguments.buffers["z"].read<float>(), std::vector<float>(10, 6.0f));
}

TEST_F(Binding, NamesWhatIsMissing) {
    EXPECT_ERROR(bind_with([](Arguments& a) { a.buffers.erase("w"); }),
                 "no buffer is given for 'w'; bind one of 40 bytes");
    EXPECT_ERROR(bind_with([](Arguments& a) { a.buffers["z"] = Buffer(); }), "no buffer is given for 'z'");
    EXPECT_ERROR(bind_with([](Arguments& a) { a.sizes.clear(); }), "size 'n' has no value");
    EXPECT_ERROR(bind_with([](Arguments& a) { a.scalars.clear(); }), "scalar 'alpha' has no value");
}

TEST_F(Binding, RefusesWhatDoesNotFit) {
    EXPECT_ERROR(bind_with([](Arguments& a) { a.sizes["n"] = 11; }),
                 "the buffer of 'x' has 40 bytes, its shape and strides span 44");
    EXPECT_ERROR(bind_with([](Arguments& a) { a.sizes["n"] = 65; }), "size 'n' is 65, but is at most 64");
    EXPECT_ERROR(bind_with([](Arguments& a) { a.scalars["alpha"] = make_value(f64, 2.0); }),
                 "scalar 'alpha' is f64, but is declared as f32");
    Buffer elsewhere = open_device("emulated")->allocate(40, "elsewhere");
    EXPECT_ERROR(bind_with([&](Arguments& a) { a.buffers["x"] = elsewhere; }), "lies on another device");
}

/// z is made of y in two kernels, the first of which keeps its sums in memory of the program's.
TEST(BindingWorkspaces, MayBeGiven) {
    const Tensor x = input("x", f32, {64});
    const Axis k = reduce_axis("k", 64);
    const Tensor total = compute("total", {1}, [&](Expr) { return sum(x(k), k); });
    const Tensor y = compute("y", {64}, [&](Expr i) { return x(i) - total(0); });
    const auto device = open_device("emulated");
    const Executable executable(build(Schedule({y}, target("sm_90a"))), device);
    ASSERT_EQ(executable.program().tree().workspaces.size(), 1u);
    Arguments arguments;
    for (const char* name : {"x", "y"}) arguments.buffers[name] = device->allocate(256, name);
    arguments.buffers["x"].write(std::vector<float>(64, 2.0f));
    const Buffer mine = device->allocate(4, "mine");
    arguments.workspaces = {mine};
    for (const Launch& launch : executable.prepare(arguments)) launch.run();
    device->synchronize();
    EXPECT_EQ(mine.read<float>(), std::vector<float>{128.0f});
    EXPECT_EQ(arguments.buffers["y"].read<float>(), std::vector<float>(64, -126.0f));
    arguments.workspaces = {device->allocate(2, "small")};
    EXPECT_ERROR(executable.prepare(arguments), "the memory given for the workspace 'total' has 2 bytes, it spans 4");
}

TEST_F(Binding, RefusesOverlap) {
    const char* message =
        "the buffer of 'w' overlaps that of 'y', which kernel 'y_kernel' writes; give it memory of its own";
    EXPECT_ERROR(bind_with([](Arguments& a) { a.buffers["y"] = a.buffers["w"]; }), message);
    Buffer both = device_->allocate(76, "both");  // one element in common
    EXPECT_ERROR(bind_with([&](Arguments& a) {
                     a.buffers["w"] = both.view(0, 40);
                     a.buffers["y"] = both.view(36, 40);
                 }),
                 message);
    Buffer apart = device_->allocate(80, "apart");
    EXPECT_NO_THROW(bind_with([&](Arguments& a) {
        a.buffers["w"] = apart.view(0, 40);
        a.buffers["y"] = apart.view(40, 40);
    }));
    EXPECT_NO_THROW(bind_with([](Arguments& a) { a.buffers["x"] = a.buffers["w"]; })) << "both are only read";
}

// Boxes reach tensors without pointers.
TEST_F(Binding, RefusesOverlapOfBoxes) {
    Tensor x = input("x", f32, {64, 32});
    Tensor y = compute("y", {64, 32}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Schedule s({y}, target("sm_90a"));
    auto [i, j] = s.loops<2>(y);
    auto [io, ii] = s.split(i, 8);
    s.bind(io, grid.x);
    s.via(s.stage(y, Memory::Shared, io), Copy::Tma);
    Executable executable(build(s), device_);
    Buffer both = device_->allocate(8192 + 4096, "both");
    Arguments arguments;
    arguments.buffers["x"] = both.view(0, 8192);
    arguments.buffers["y"] = both.view(4096, 8192);
    EXPECT_ERROR(executable.bind(arguments), "the buffer of 'x' overlaps that of 'y'");
}

TEST_F(Binding, InPlaceExcusesTheDeclaredPairOnly) {
    Schedule s({z_}, target("sm_90a"));
    s.inline_stage(y_);
    s.in_place(z_, x_);
    Executable executable(build(s), device_);
    Arguments arguments = good();
    executable.bind(arguments);
    executable.run();
    device_->synchronize();
    EXPECT_EQ(arguments.buffers["x"].read<float>(), std::vector<float>(10, 6.0f));
    arguments.buffers["w"] = arguments.buffers["x"];
    EXPECT_ERROR(executable.bind(arguments), "the buffer of 'w' overlaps that of 'z'");
}

TEST_F(Binding, AFailureLeavesWhatWasBound) {
    Arguments arguments = good();
    executable_.bind(arguments);
    EXPECT_ERROR(bind_with([](Arguments& a) { a.buffers.erase("z"); }), "no buffer is given for 'z'");
    executable_.run();
    device_->synchronize();
    EXPECT_EQ(arguments.buffers["z"].read<float>(), std::vector<float>(10, 6.0f));
}

TEST_F(Binding, InputsAreReadOnly) {
    executable_.bind(good());
    const codegen::KernelText& kernel = executable_.program().kernels()[0];
    const ArgumentBlock& arguments = executable_.launches()[0].arguments();
    ASSERT_EQ(kernel.arguments.size(), 3u);
    for (size_t a = 0; a < 3; ++a) EXPECT_EQ(arguments[a].writable(), kernel.arguments[a]->name == "y");
}

TEST_F(Binding, LaunchesKeepTheirMemory) {
    Buffer z;
    {
        Arguments arguments = good();
        executable_.bind(arguments);
        z = arguments.buffers["z"];
    }
    executable_.run();
    device_->synchronize();
    EXPECT_EQ(z.read<float>(), std::vector<float>(10, 6.0f));
}

}  // namespace
}  // namespace tw

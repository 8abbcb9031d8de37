// A kernel on one's own data: given in every way, run, read, checked, timed, dumped.
#include "ops/runner.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "ops/dump.h"
#include "tests/ops/on_each_device.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

std::vector<float> ramp(int64_t count) {
    std::vector<float> values(count);
    for (int64_t n = 0; n < count; ++n) values[n] = std::sin(0.37f * float(n));
    return values;
}

Schedule an_element_a_thread(const Tensor& y, const Target& target) {
    Schedule s({y}, target);
    auto [block, inside] = s.split(s.fuse(s.data_loops(y)), 32, Tail::Mask);
    s.bind(block, grid.x);
    s.bind(inside, thread);
    return s;
}

class RunnerTest : public OnEachDevice {};
TW_ON_EACH_DEVICE(RunnerTest);

TEST_P(RunnerTest, TakesVectorsAndNumbers) {
    Expr n = size("n", {.min = 1, .max = 4096}), alpha = scalar("alpha", f32), shift = scalar("shift", i64);
    Tensor x = input("x", f32, {n});
    Tensor y = compute("y", {n}, [&](Expr i) { return alpha * x(i) + cast(f32, shift); });
    Runner runner(an_element_a_thread(y, device_target()), device_);
    for (int64_t count : {1000, 77, 4096}) {
        std::vector<float> values = ramp(count), expected = values;
        for (float& value : expected) value = std::fma(0.5f, value, 3.0f);
        runner.set("n", count).set("x", values).set("alpha", 0.5).set("shift", 3).run();
        EXPECT_EQ(runner.read<float>("y"), expected);
        EXPECT_EQ(runner.read<double>("y"), std::vector<double>(expected.begin(), expected.end()));
        EXPECT_EQ(runner.read<float>("x"), values);
        CheckResult check = runner.check();
        EXPECT_TRUE(check.ok) << check.text;
        EXPECT_EQ(check.elements, count);
        EXPECT_EQ(check.text.substr(0, 13), "y: max error ");
    }
    runner.set("n", 5);
    EXPECT_ERROR(runner.run(), "set: 4096 values for 'x', whose shape [5] and strides [1] span 5");
}

TEST_P(RunnerTest, NarrowTypesGoThroughFloats) {
    for (Type type : {f16, bf16, tf32, e4m3, e5m2, f32, f64}) {
        Tensor x = input("x", type, {100});
        Tensor y = compute("y", {100}, [&](Expr i) { return x(i); });
        Runner runner(an_element_a_thread(y, device_target()), device_);
        std::vector<float> values = ramp(100), expected;
        for (float value : values) expected.push_back(float(round_to_type(type, value)));
        runner.set("x", values).run();
        EXPECT_EQ(runner.read<float>("y"), expected) << name_of(type);
    }
}

TEST_P(RunnerTest, IntegersGoToIntegersThatHoldThem) {
    Tensor x = input("x", u8, {5}), flag = input("flag", boolean, {5});
    Tensor y = compute("y", {5}, [&](Expr i) { return select(flag(i), cast(i32, x(i)), constant(i32, -1)); });
    Runner runner(an_element_a_thread(y, device_target()), device_);
    runner.set("x", std::vector<int64_t>{0, 1, 128, 254, 255}).set("flag", std::vector<uint8_t>{1, 0, 1, 1, 1}).run();
    EXPECT_EQ(runner.read<int32_t>("y"), (std::vector<int32_t>{0, -1, 128, 254, 255}));
    EXPECT_EQ(runner.read<uint8_t>("x"), (std::vector<uint8_t>{0, 1, 128, 254, 255}));
    EXPECT_ERROR((runner.set("x", std::vector<int32_t>{0, 1, 256, 3, 4})), "runner_test.cpp:");
    EXPECT_ERROR((runner.set("x", std::vector<int32_t>{0, 1, 256, 3, 4})),
                 "set: element 2 of 'x' is 256, which u8 does not hold");
    EXPECT_ERROR(runner.set("flag", std::vector<uint8_t>(5, 2)), "element 0 of 'flag' is 2, which bool does not hold");
    EXPECT_ERROR(runner.set("x", ramp(5)), "set: 'x' is u8; give it integers, not floats");
}

TEST_P(RunnerTest, StridedInputsAreGivenAsTheyLie) {
    Tensor x = input("x", f32, {7, 5}, {9, 1});
    Tensor y = compute("y", {7, 5}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
    Runner runner(an_element_a_thread(y, device_target()), device_);
    std::vector<float> values(6 * 9 + 5, std::numeric_limits<float>::quiet_NaN()), expected;
    for (int i = 0; i < 7; ++i)
        for (int j = 0; j < 5; ++j) expected.push_back(2 * (values[i * 9 + j] = float(10 * i + j)));
    runner.set("x", values).run();
    EXPECT_EQ(runner.read<float>("y"), expected);
    EXPECT_TRUE(runner.check().ok);
    runner.set("x", ramp(35));
    EXPECT_ERROR(runner.run(), "set: 35 values for 'x', whose shape [7, 5] and strides [9, 1] span 59");
}

TEST_P(RunnerTest, BuffersAreUsedWhereTheyLie) {
    Tensor x = input("x", f32, {64});
    Tensor y = compute("y", {64}, [&](Expr i) { return x(i) + 1.0; });
    Runner runner(an_element_a_thread(y, device_target()), device_);
    Buffer theirs = device_->allocate(256, "theirs"), result = device_->allocate(256, "result");
    theirs.write(std::vector<float>(64, 2.0f));
    runner.set("x", device_->wrap(theirs.pointer(), 256, "x of others")).set("y", result);
    runner.run(device_->wrap_stream(device_->create_stream().handle(), "stream of others"));
    EXPECT_EQ(runner.read<float>("y"), std::vector<float>(64, 3.0f));
    EXPECT_EQ(result.read<float>(), std::vector<float>(64, 3.0f));
    EXPECT_EQ(runner.buffer("x").name(), "x of others");
    EXPECT_TRUE(runner.check().ok);
    EXPECT_ERROR(runner.set("x", Buffer()), "set: the buffer of 'x' has no memory");
    EXPECT_ERROR(runner.set("x", open_device("null")->allocate(256, "elsewhere")),
                 "set: the buffer 'elsewhere' of 'x' lies on null (sm_90a), the kernels are on ");
    runner.set("x", theirs.view(0, 128, "half"));
    EXPECT_ERROR(runner.run(), "launch: the buffer of 'x' has 128 bytes, its shape and strides span 256");
}

// Vectors go to multiples of their bytes: an address that is none is refused before it crashes a GPU.
TEST_P(RunnerTest, AddressesAreMultiplesOfWhatMovesAtOnce) {
    Tensor x = input("x", f32, {64});
    Tensor y = compute("y", {64}, [&](Expr i) { return x(i) + 1.0; });
    auto run_from = [&](int64_t vectors, int64_t offset) {
        Schedule s({y}, device_target());
        auto [threads, inside] = s.split(s.loops<1>(y)[0], vectors);
        s.bind(threads, thread);
        if (vectors > 1) s.bind(inside, tw::vector);
        Buffer memory = device_->allocate(512, "memory");
        memory.fill(0);
        Runner runner(s, device_);
        runner.set("x", memory.view(offset, 256, "part")).run();
        EXPECT_EQ(runner.read<float>("y"), std::vector<float>(64, 1.0f));
    };
    run_from(4, 16);
    run_from(2, 8);
    run_from(1, 4);
    EXPECT_ERROR(run_from(4, 8), "launch: the buffer of 'x' ('part') begins at 0x");
    EXPECT_ERROR(run_from(4, 8),
                 "but kernel 'y_kernel' moves 16 bytes of it at once; give it memory at a multiple of 16");
    EXPECT_ERROR(run_from(2, 4), "moves 8 bytes of it at once");
}

TEST_P(RunnerTest, InPlaceGoesOnFromWhereItWas) {
    Tensor x = input("x", f32, {64});
    Tensor y = compute("y", {64}, [&](Expr i) { return x(i) * 2.0; });
    Schedule s = an_element_a_thread(y, device_target());
    s.in_place(y, x);
    Runner runner(s, device_);
    runner.set("x", std::vector<float>(64, 1.0f)).run();
    runner.run();
    EXPECT_EQ(runner.read<float>("y"), std::vector<float>(64, 4.0f));
    CheckResult check = runner.check();
    EXPECT_TRUE(check.ok) << check.text;
    EXPECT_EQ(runner.read<float>("x"), std::vector<float>(64, 8.0f));
    Buffer mine = device_->allocate(256, "mine");
    mine.write(std::vector<float>(64, 3.0f));
    runner.set("y", mine).run();  // the same memory by either name
    EXPECT_EQ(mine.read<float>(), std::vector<float>(64, 6.0f));
    EXPECT_EQ(runner.buffer("x").pointer(), mine.pointer());
}

TEST_P(RunnerTest, RandomBindingsAndSeveralOutputs) {
    Tensor x = input("x", f32, {33, 20});
    Tensor y = compute("y", {33}, [&](Expr i) { return exp(x(i, 3)); });
    Tensor z = compute("z", {33, 20}, [&](Expr i, Expr j) { return x(i, j) - x(i, 0); });
    Runner runner(Schedule({y, z}, device_target()), device_);
    CheckResult check = runner.set(random_bindings({y, z}, 7)).check();
    EXPECT_TRUE(check.ok) << check.text;
    EXPECT_EQ(check.elements, 33 + 660);
    EXPECT_NE(check.text.find("\nz: max error"), std::string::npos) << check.text;
    runner.set("x", host_array(f32, {20, 33}));
    EXPECT_ERROR(runner.run(), "launch: input 'x' has shape [20, 33], but is declared as [33, 20]");
}

TEST_P(RunnerTest, TellsTime) {
    Tensor x = input("x", f32, {1000});
    Tensor y = compute("y", {1000}, [&](Expr i) { return x(i) * 2.0; });
    Runner runner(an_element_a_thread(y, device_target()), device_);
    RunTime time = runner.set("x", ramp(1000)).time(1);
    EXPECT_EQ(time.bytes, 8000);
    EXPECT_EQ(time.measured, device_->kind() == DeviceKind::Cuda);
    if (time.measured) {
        EXPECT_GT(time.seconds, 0);
        EXPECT_GT(time.copy_seconds, 0);
        EXPECT_NE(time.text.find(" of a copy of 0.0 MB"), std::string::npos) << time.text;
    } else {
        EXPECT_EQ(time.text, "not timed: emulated sm_90a runs no kernel as a GPU does; open \"cuda\"");
        EXPECT_EQ(time.gigabytes_per_second() + time.share_of_copy(), 0);
    }
    EXPECT_ERROR(runner.time(0), "time: 0 rounds; it takes at least one");
}

TEST(Runner, SaysWhatThereIs) {
    Expr n = size("n", {.min = 1, .max = 64});
    Tensor x = input("x", f32, {n});
    Tensor y = compute("y", {n}, [&](Expr i) { return x(i) * 2.0; });
    Runner runner(Schedule({y}, target("sm_90a")), open_device("emulated"));
    EXPECT_ERROR(runner.set("z", ramp(3)), "set: 'z' is no input that the kernels read; inputs: x");
    EXPECT_ERROR(runner.set("y", ramp(3)), "set: 'y' is no input that the kernels read; inputs: x");
    EXPECT_ERROR(runner.read<float>("z"), "'z' is no tensor that the kernels read or write; inputs: x; outputs: y");
    EXPECT_ERROR(runner.set("m", 3), "the kernels have no size and no scalar 'm'; sizes: n; scalars: none");
    EXPECT_ERROR(runner.set("n", 2.5), "set: 'n' is 2.5, which i64 does not hold");
    EXPECT_ERROR(runner.set("n", 1e300), "set: 'n' is 1e+300, which i64 does not hold");
    EXPECT_ERROR(runner.read<float>("y"), "'y' has no memory on the device yet; call run() first");
    runner.set("n", 65).set("x", ramp(65));
    EXPECT_ERROR(runner.run(), "launch: size 'n' is 65, but is at most 64");
    runner.set("n", 3);
    EXPECT_ERROR(runner.run(), "set: 65 values for 'x', whose shape [3] and strides [1] span 3");
    EXPECT_ERROR(Runner(Schedule({y}, target("sm_90a")), open_device("emulated")).set("n", 3).run(),
                 "no buffer is given for 'x'; bind one of 12 bytes (a Runner's: set(\"x\", values))");
    EXPECT_ERROR(Runner(Schedule({y}, target("sm_90a")), open_device("emulated")).set("x", ramp(3)).run(),
                 "launch: size 'n' has no value; set(\"n\", value) gives a Runner one");
    EXPECT_ERROR(runner.set("n", ramp(3)), "set: 'n' is a size; give it one number: set(\"n\", 2)");
}

TEST(Runner, ReadsNumbersThatTheTypeHolds) {
    Tensor x = input("x", f32, {3});
    Tensor y = compute("y", {3}, [&](Expr i) { return x(i) * 2.0; });
    Tensor z = compute("z", {3}, [&](Expr i) { return cast(i32, x(i)); });
    Runner runner(Schedule({y, z}, target("sm_90a")), open_device("emulated"));
    auto run_on = [&](const std::vector<float>& values) { runner.set("x", values).run(); };
    run_on({-64, 63.5, 5});
    EXPECT_EQ(runner.read<int8_t>("y"), (std::vector<int8_t>{-128, 127, 10}));
    EXPECT_EQ(runner.read<double>("z"), (std::vector<double>{-64, 63, 5}));
    EXPECT_ERROR(runner.read<uint8_t>("y"), "read: element 0 of 'y' is -128, which the numbers asked for do not hold");
    EXPECT_ERROR(runner.read<uint32_t>("z"), "element 0 of 'z' is -64, which the numbers asked for do not hold; read");
    run_on({0, 0.25, 1600});
    EXPECT_ERROR(runner.read<int8_t>("y"), "element 1 of 'y' is 0.5");
    run_on({0, 1600, std::nanf("")});
    EXPECT_ERROR(runner.read<int8_t>("y"), "element 1 of 'y' is 3200");
    EXPECT_ERROR(runner.read<int>("y"), "element 2 of 'y' is nan");
    EXPECT_ERROR(runner.read<int8_t>("z"), "element 1 of 'z' is 1600");
    run_on({0x1p31, 0, 0});
    EXPECT_EQ(runner.read<int64_t>("y")[0], int64_t{1} << 32);
    EXPECT_ERROR(runner.read<int64_t>("y", (run_on({0x1p62, 0, 0}), std::source_location::current())), "element 0");
}

// A wrong kernel: its text is another computation's.
TEST(Runner, ChecksWhatRan) {
    Tensor x = input("x", f32, {64});
    Axis k = reduce_axis("k", 64);
    Reducer wrong =
        make_reducer("plus", {constant(f32, 1)},
                     [](const std::vector<Expr>& a, const std::vector<Expr>& b) { return std::vector{a[0] + b[0]}; });
    Tensor y = compute("y", {}, [&](const std::vector<Expr>&) { return reduce(wrong, {x(k)}, {k})[0]; });
    Schedule s({y}, target("sm_90a"));
    s.bind(s.split(s.reduce(y), 8)[1], thread);  // each of the eight begins with what is no identity
    CheckResult check = Runner(s, open_device("emulated")).set("x", ramp(64)).check();
    EXPECT_FALSE(check.ok) << check.text;
    EXPECT_NE(check.text.find("WRONG"), std::string::npos);
}

std::string content(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Dump, WritesAllThatBecomesOfASchedule) {
    std::string folder = (std::filesystem::temp_directory_path() / "tw-dump-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    Tensor x = input("x", f32, {64});
    Tensor y = compute("y", {64}, [&](Expr i) { return x(i) * 2.0; });
    Schedule s = an_element_a_thread(y, target("sm_90a"));
    std::filesystem::path inside = std::filesystem::path(folder) / "mine";
    std::vector<std::string> files = dump(s, inside.string());
    EXPECT_EQ(content(inside / "y_kernel.cu"), build(s).kernels()[0].cuda);
    EXPECT_EQ(content(inside / "nest.txt"), s.to_string());
    EXPECT_EQ(replay(content(inside / "trace.txt"), {y}, target("sm_90a")).to_string(), s.to_string());
    EXPECT_EQ(content(inside / "trace.cpp"), s.trace_as_cpp());
    EXPECT_EQ(content(inside / "explain.txt"), build(s).explain());
    EXPECT_NE(content(inside / "y.01_make_tiles.txt"), "");
    EXPECT_GT(files.size(), 15u);
    for (const std::string& file : files) EXPECT_TRUE(std::filesystem::exists(file)) << file;
    EXPECT_ERROR(dump(s, files[0]), "dump: cannot make the folder ");
    std::filesystem::remove(inside / "nest.txt");
    std::filesystem::create_directory(inside / "nest.txt");
    EXPECT_ERROR(dump(s, inside.string()), "dump: cannot write ");
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tw

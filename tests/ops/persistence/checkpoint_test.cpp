// Checkpoints: what is loaded is what was saved, bit for bit, and training goes on as if nothing had been.
#include "ops/persistence/checkpoint.h"

#include <limits>

#include <gmock/gmock.h>

#include "tests/ops/persistence/files.h"
#include "tests/ops/persistence/small_training.h"
#include "tests/support/expect_error.h"
#include "tests/support/on_device.h"

namespace tw::nn {
namespace {

class Checkpoints : public OnDevice {
protected:
    FileFolder folder_;
};
TW_ON_EACH_DEVICE(Checkpoints);

void expect_same_state(const SmallTraining& got, const SmallTraining& expected) {
    const auto a = got.state(), b = expected.state();
    ASSERT_EQ(a.size(), b.size());
    for (size_t k = 0; k < a.size(); ++k) EXPECT_TRUE(same_array(a[k].second, b[k].second)) << k << " " << a[k].first;
}

TEST_P(Checkpoints, KeepAllBits) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto backend = std::make_shared<Backend>(device_);
    std::vector<Tensor> tensors;
    std::vector<HostArray> contents;
    for (const Type type : {boolean, i8, u8, i32, u32, i64, f16, bf16, e4m3, e5m2, f32, f64})
        for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {5}, {3, 7}}) {
            contents.push_back(random_bits(type, shape, random));
            tensors.emplace_back(backend, contents.back());
        }
    HostArray rows = random_bits(i32, {4, 2}, random);
    const HostArray saved_rows = rows;
    int64_t smallest = std::numeric_limits<int64_t>::min(), largest = std::numeric_limits<int64_t>::max();
    Checkpoint checkpoint;
    checkpoint.add("all", tensors).add("rows", rows).add("smallest", smallest).add("largest", largest);
    checkpoint.save(folder_ / "checkpoint");

    for (size_t k = 0; k < tensors.size(); ++k)
        tensors[k].copy_from_host(random_bits(tensors[k].type(), tensors[k].shape(), random));
    rows = random_bits(i32, {4, 2}, random);
    smallest = largest = 3;
    checkpoint.load(folder_ / "checkpoint");
    for (size_t k = 0; k < tensors.size(); ++k) EXPECT_TRUE(same_array(tensors[k].to_host(), contents[k])) << k;
    EXPECT_TRUE(same_array(rows, saved_rows));
    EXPECT_EQ(smallest, std::numeric_limits<int64_t>::min());
    EXPECT_EQ(largest, std::numeric_limits<int64_t>::max());
}

/// Into the same network, and into one that began elsewhere: both end where the first one did.
TEST_P(Checkpoints, ResumeWithTheSameBits) {
    SmallTraining first(device_, 1), second(device_, 100);
    for (int k = 0; k < 7; ++k) first.advance();
    first.checkpoint.save(folder_ / "at 7");
    for (int k = 0; k < 9; ++k) first.advance();
    second.advance();
    second.checkpoint.load(folder_ / "at 7");
    EXPECT_EQ(second.step, 7);
    for (int k = 0; k < 9; ++k) second.advance();
    expect_same_state(second, first);
    first.checkpoint.load(folder_ / "at 7");
    for (int k = 0; k < 9; ++k) first.advance();
    expect_same_state(first, second);
    // The same state makes the same file.
    first.checkpoint.save(folder_ / "first");
    second.checkpoint.save(folder_ / "second");
    EXPECT_TRUE(file_text(folder_ / "first") == file_text(folder_ / "second"));
}

/// Each item matters: without it, what is loaded goes on differently.
TEST_P(Checkpoints, HoldNothingThatCouldBeLeftOut) {
    SmallTraining training(device_, 1);
    for (int k = 0; k < 3; ++k) training.advance();
    training.checkpoint.save(folder_ / "checkpoint");
    for (int k = 0; k < 4; ++k) training.advance();
    training.checkpoint.save(folder_ / "whole");
    const std::string whole = file_text(folder_ / "whole");
    std::vector<std::pair<std::string, HostArray>> saved;
    const Safetensors file(folder_ / "checkpoint");
    for (const SafetensorsEntry& entry : file.entries()) saved.emplace_back(entry.name, file.array(entry.name));
    for (auto& [name, array] : saved) {
        const HostArray before = array;
        // Of floats a high bit of the mantissa: the lowest may be rounded away.
        for (size_t byte = array.type == f32 ? 2 : 0; byte < array.bytes.size(); byte += bytes_of(array.type))
            array.bytes[byte] ^= std::byte{0x20};
        if (name == "position") array.set({}, make_value(i64, (before.at({}).integer + 1) % SmallTraining::Batches));
        if (name == "order") {
            array = before;
            array.set({training.Batches - 2}, before.at({training.Batches - 1}));
            array.set({training.Batches - 1}, before.at({training.Batches - 2}));
        }
        write_safetensors(folder_ / "changed", saved);
        training.checkpoint.load(folder_ / "changed");
        for (int k = 0; k < 4; ++k) training.advance();
        training.checkpoint.save(folder_ / "changed");
        EXPECT_FALSE(file_text(folder_ / "changed") == whole) << name;
        array = before;
    }
    training.checkpoint.load(folder_ / "checkpoint");
    for (int k = 0; k < 4; ++k) training.advance();
    training.checkpoint.save(folder_ / "again");
    EXPECT_TRUE(file_text(folder_ / "again") == whole);
}

TEST(Checkpoint, ReadsWeightsThatOthersHaveWritten) {
    const auto backend = std::make_shared<Backend>(open_device("emulated"));
    const FileFolder folder;
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    put_text(folder / "weights", safetensors_text(header, std::string("\0\0\xc0\x3f\0\0\0\xc0", 8)));
    const Tensor w(backend, f32, {2}, "weight");
    Checkpoint().add("w", w).load(folder / "weights");
    EXPECT_THAT(w.data().read<float>(), testing::ElementsAre(1.5f, -2.0f));
}

TEST(Checkpoint, RefusesWhatItCannotName) {
    const auto backend = std::make_shared<Backend>(open_device("emulated"));
    const Tensor w(backend, f32, {2}, "weight");
    int64_t step = 0;
    HostArray rounded = host_array(tf32, {2});
    Checkpoint checkpoint;
    checkpoint.add("w", w).add("list.0", w);
    EXPECT_ERROR(checkpoint.add("w", step),
                 "Checkpoint: 'w' has been added before; give each tensor and number a name of its own");
    EXPECT_ERROR(checkpoint.add("list", std::vector{w}), "Checkpoint: 'list.0' has been added before");
    EXPECT_ERROR(checkpoint.add("u", Tensor()), "Checkpoint: 'u' is an undefined tensor; add it when it has been made");
    EXPECT_ERROR(checkpoint.add("t", Tensor(backend, tf32, {2})), "'t' is tf32, and safetensors files have no name");
    EXPECT_ERROR(checkpoint.add("t", rounded), "'t' is tf32, and safetensors files have no name");
}

TEST(Checkpoint, KnowsWhatATrainingWasMadeWith) {
    const FileFolder folder;
    int64_t step = 5;
    const auto checkpoint_of = [&](const std::map<std::string, std::string>& settings) {
        Checkpoint checkpoint;
        checkpoint.add("step", step);
        for (const auto& [name, value] : settings) checkpoint.add_setting(name, value);
        return checkpoint;
    };
    checkpoint_of({{"seed", "1"}, {"values", "f32"}}).save(folder / "file");
    checkpoint_of({}).save(folder / "older");
    step = 7;
    EXPECT_ERROR(checkpoint_of({{"seed", "2"}, {"values", "f32"}}).load(folder / "file"),
                 "is a checkpoint of another training, and nothing was loaded: seed is 2 here, and 1 in the file; go "
                 "on with what was saved");
    EXPECT_ERROR(checkpoint_of({{"seed", "1"}}).load(folder / "older"), "seed is 1 here, and the file does not say");
    EXPECT_EQ(step, 7);
    checkpoint_of({{"seed", "1"}, {"values", "f32"}}).load(folder / "file");
    EXPECT_EQ(step, 5);
    Checkpoint twice = checkpoint_of({{"seed", "1"}});
    EXPECT_ERROR(twice.add_setting("seed", "1"),
                 "Checkpoint: the setting 'seed' has been added before; give each a name of its own");
    EXPECT_ERROR(twice.add_setting("tilewright", "1"), "the setting 'tilewright' has been added before");
    const std::string foreign =
        safetensors_text(R"({"step":{"dtype":"U64","shape":[],"data_offsets":[0,8]}})", std::string(8, '\1'));
    put_text(folder / "foreign", foreign);
    EXPECT_ERROR(checkpoint_of({}).load(folder / "foreign"), "'step' is i64 [] here, and U64 [] in the file");
}

TEST(Checkpoint, LeavesTheFileWhenItCannotBeSaved) {
    const auto backend = std::make_shared<Backend>(open_device("emulated"));
    const Tensor w(backend, f32, {2}, "weight");
    const FileFolder folder;
    Checkpoint checkpoint;
    checkpoint.add("w", w).save(folder / "checkpoint");
    const std::string before = file_text(folder / "checkpoint");
    backend->record(
        [&] { EXPECT_ERROR(checkpoint.save(folder / "checkpoint"), "Checkpoint: is saved while a step is recorded"); });
    EXPECT_TRUE(file_text(folder / "checkpoint") == before);
    EXPECT_EQ(folder.count(""), 1u);
}

TEST(Checkpoint, ChangesNothingUnlessAllFits) {
    const auto backend = std::make_shared<Backend>(open_device("emulated"));
    const FileFolder folder;
    const Tensor w(backend, host_array(f32, {2, 3}), "w"), b(backend, host_array(bf16, {3}), "b");
    int64_t step = 5;
    HostArray order = host_array(i32, {4});
    Checkpoint checkpoint;
    checkpoint.add("w", w).add("b", b).add("step", step).add("order", order);
    HostArray ones = host_array(f32, {2, 3});
    fill_integers(ones, 1, 1, 0);
    const auto load = [&](const std::vector<std::pair<std::string, HostArray>>& arrays) {
        write_safetensors(folder / "file", arrays);
        checkpoint.load(folder / "file");
    };
    const HostArray bias = host_array(bf16, {3}), number = host_array(i64, {}), rows = host_array(i32, {4});
    const std::string of_another = "/file: is a checkpoint of another training, and nothing was loaded: ";
    EXPECT_ERROR(load({{"w", ones}, {"b", bias}, {"step", number}}),
                 of_another + "'order' i32 [4] is not in the file; go on with what was saved");
    EXPECT_ERROR(load({{"w", ones}, {"b", bias}, {"step", number}, {"order", rows}, {"ema\n", ones}}),
                 of_another + "'ema\\n' f32 [2, 3] is in the file alone; go on with what was saved");
    EXPECT_ERROR(load({{"w", ones}, {"b", host_array(f16, {3})}, {"step", number}, {"order", host_array(i32, {5})}}),
                 of_another +
                     "'b' is bf16 [3] here, and f16 [3] in the file; 'order' is i32 [4] here, and i32 [5] in "
                     "the file; go on with what was saved");
    EXPECT_ERROR(load({{"w", ones}, {"b", bias}, {"step", host_array(i64, {1})}, {"order", rows}}),
                 of_another + "'step' is i64 [] here, and i64 [1] in the file");
    std::vector<std::pair<std::string, HostArray>> many{{"w", ones}, {"b", bias}, {"step", number}, {"order", rows}};
    for (int k = 0; k < 10; ++k) many.emplace_back(fmt::format("other.{}", k), number);
    const int line = __LINE__ + 1;
    EXPECT_ERROR(checkpoint.add("w", b), fmt::format("checkpoint_test.cpp:{}: Checkpoint: 'w' has been added", line));
    EXPECT_ERROR(load(many), "'other.7' i64 [] is in the file alone; and 2 more; go on with what was saved");
    write_safetensors(folder / "cut", {{"w", ones}, {"b", bias}, {"step", number}, {"order", rows}});
    const std::string whole = file_text(folder / "cut");
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
        put_text(folder / "cut", whole.substr(0, bytes));
        EXPECT_THROW(checkpoint.load(folder / "cut"), Error) << bytes;
    }
    EXPECT_EQ(w.data().read<float>(), std::vector<float>(6, 0));
    EXPECT_EQ(step, 5);
    load({{"w", ones}, {"b", bias}, {"step", number}, {"order", rows}});
    EXPECT_EQ(w.data().read<float>(), std::vector<float>(6, 1));
    EXPECT_EQ(step, 0);
}

/// A tensor that a step makes has no data to be replaced.
TEST(Checkpoint, ChangesNothingIfATensorHasNoData) {
    const auto backend = std::make_shared<Backend>(open_device("emulated"));
    const FileFolder folder;
    const Tensor x(backend, host_array(f32, {2, 3}), "x");
    Tensor inner;
    const CompiledStep step = compile(backend, [&] {
        inner = relu(x);
        return std::vector{gelu(inner)};
    });
    int64_t number = 5;
    Checkpoint checkpoint;
    checkpoint.add("number", number).add("inner", inner);
    EXPECT_ERROR(checkpoint.save(folder / "file"), "is made by a step that was captured, and has no data");
    write_safetensors(folder / "file", {{"number", host_array(i64, {})}, {"inner", host_array(f32, {2, 3})}});
    EXPECT_ERROR(checkpoint.load(folder / "file"), "is made by a step that was captured, and has no data");
    EXPECT_EQ(number, 5);
}

}  // namespace
}  // namespace tw::nn

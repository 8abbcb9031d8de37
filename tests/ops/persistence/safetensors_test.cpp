// Files of named arrays: what is written is read, bit for bit, and stands there as the format has it.
#include "ops/persistence/safetensors.h"

#include <gmock/gmock.h>

#include "tests/ops/persistence/files.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using NamedArrays = std::vector<std::pair<std::string, HostArray>>;

constexpr Type kSavedTypes[] = {boolean, i8, u8, i32, u32, i64, f16, bf16, e4m3, e5m2, f32, f64};

/// All types, scalars and empty arrays among them, of random bits: NaNs of all payloads.
NamedArrays random_arrays(std::mt19937_64& random) {
    NamedArrays arrays;
    const uint64_t count = random() % 20;
    for (uint64_t k = 0; k < count; ++k) {
        std::vector<int64_t> shape(random() % 4);
        for (int64_t& extent : shape) extent = static_cast<int64_t>(random() % 6);
        arrays.emplace_back(fmt::format("layers.{}.\"wéight\"\n", k),
                            random_bits(kSavedTypes[random() % std::size(kSavedTypes)], shape, random));
    }
    return arrays;
}

TEST(SafetensorsFiles, AreReadAsTheyWereWritten) {
    const uint64_t seed = std::random_device{}();
    std::mt19937_64 random(seed);
    const FileFolder folder;
    for (int round = 0; round < 60; ++round) {
        SCOPED_TRACE(fmt::format("seed {}, round {}", seed, round));
        const NamedArrays arrays = random_arrays(random);
        std::map<std::string, std::string> metadata;
        for (uint64_t k = random() % 3; k > 0; --k) metadata[fmt::format("key {}\t\\", k)] = "text\n\u2713";
        write_safetensors(folder / "arrays", arrays, metadata);
        const Safetensors file(folder / "arrays");
        EXPECT_EQ(file.metadata(), metadata);
        ASSERT_EQ(file.entries().size(), arrays.size());
        for (const auto& [name, array] : arrays) {
            EXPECT_TRUE(same_array(file.array(name), array)) << name;
            // Aligned, so that who maps the file may read elements in place.
            EXPECT_EQ(reinterpret_cast<uintptr_t>(file.bytes(name).data()) % bytes_of(array.type), 0u);
        }
    }
}

TEST(SafetensorsFiles, KeepThePayloadsOfNans) {
    HostArray array = host_array(f32, {2});
    const uint32_t bits[] = {0x7fa01234, 0xffc00001};  // a signaling and a quiet one
    std::memcpy(array.bytes.data(), bits, sizeof bits);
    const FileFolder folder;
    write_safetensors(folder / "nans", {{"x", array}});
    EXPECT_EQ(std::memcmp(Safetensors(folder / "nans").bytes("x").data(), bits, sizeof bits), 0);
}

TEST(SafetensorsFiles, StandAsTheFormatHasThem) {
    HostArray bias = host_array(bf16, {3}), scale = host_array(f32, {});
    const uint16_t bf16_bits[] = {0x3f80, 0x4000, 0x7fc1};
    std::memcpy(bias.bytes.data(), bf16_bits, sizeof bf16_bits);
    scale.set({}, make_value(f32, 1.5));
    const FileFolder folder;
    write_safetensors(folder / "file", {{"bias", bias}, {"scale", scale}, {"none", host_array(f32, {0, 2})}},
                      {{"epoch", "3"}});
    const std::string header =
        R"({"__metadata__":{"epoch":"3"},"scale":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
        R"("none":{"dtype":"F32","shape":[0,2],"data_offsets":[4,4]},)"
        R"("bias":{"dtype":"BF16","shape":[3],"data_offsets":[4,10]}})";
    const std::string spaces(248 - header.size(), ' ');  // 8 + 248 is a multiple of 64
    EXPECT_EQ(file_text(folder / "file"),
              safetensors_text(header + spaces, std::string("\0\0\xc0\x3f\x80\x3f\x00\x40\xc1\x7f", 10)));
    write_safetensors(folder / "empty", NamedArrays{});
    EXPECT_EQ(file_text(folder / "empty"), safetensors_text("{}" + std::string(54, ' ')));
    EXPECT_THAT(Safetensors(folder / "empty").entries(), testing::IsEmpty());
}

/// Bytes that safetensors 0.8 for Python writes, where keys of a tensor come in its order, and data at a multiple of 8.
TEST(SafetensorsFiles, OfThePythonLibraryAreRead) {
    const std::string header = R"({"__metadata__":{"format":"np"},"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                               R"("bias":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                               R"("weight":{"dtype":"F16","shape":[2,3],"data_offsets":[16,28]},)"
                               R"("none":{"dtype":"U8","shape":[0,3],"data_offsets":[28,28]},)"
                               R"("on":{"dtype":"BOOL","shape":[2],"data_offsets":[28,30]}} )";
    const std::string text =
        safetensors_text(header, std::string("\7\0\0\0\0\0\0\0\0\0\xc0?\0\0\0\xc0\0\0\0<\0@\0B\0D\0E\1\0", 30));
    ASSERT_EQ(text[0], '@');  // 320 bytes, as that library pads it
    const Safetensors file(text_bytes(text), "python");
    EXPECT_EQ(file.metadata().at("format"), "np");
    EXPECT_EQ(file.array("n").at({}).integer, 7);
    EXPECT_EQ(file.array("bias").at({0}).real, 1.5);
    EXPECT_EQ(file.array("bias").at({1}).real, -2);
    EXPECT_EQ(file.array("weight").at({1, 2}).real, 5);
    EXPECT_EQ(file.array("none").shape, (std::vector<int64_t>{0, 3}));
    EXPECT_EQ(file.array("on").at({0}).integer, 1);
    EXPECT_EQ(file.array("on").at({1}).integer, 0);
}

/// Keys in any order, tensors too, blanks between them, escapes in names.
TEST(SafetensorsFiles, MayHaveAnyOrder) {
    const std::string header = R"({ "b" : {"data_offsets" :[2, 4], "shape":[ 2 ],"dtype":"I8"}, )"
                               R"("\u0061\n": {"shape": [1, 2], "dtype": "U8", "data_offsets": [0, 2]}}   )";
    const std::string text = safetensors_text(header, "\1\2\3\4");
    const Safetensors file(text_bytes(text), "by hand");
    ASSERT_EQ(file.entries().size(), 2u);
    EXPECT_EQ(file.entries()[0].name, "a\n");  // by place
    EXPECT_EQ(file.array("a\n").at({0, 1}).integer, 2);
    EXPECT_EQ(file.array("b").at({1}).integer, 4);
    EXPECT_FALSE(file.contains("a"));
}

TEST(SafetensorsFiles, HoldDenseRowsOfWhateverStrides) {
    HostArray columns = host_array(i32, {2, 3}, {1, 4}), repeated = host_array(f16, {3, 2}, {0, 1});
    fill_integers(columns, -100, 100, 1);
    fill_uniform(repeated, -1, 1, 2);
    const FileFolder folder;
    write_safetensors(folder / "views",
                      {{"columns", columns}, {"repeated", repeated}, {"none", host_array(f32, {2, 0}, {1, 1})}});
    const Safetensors file(folder / "views");
    EXPECT_EQ(file.array("columns").strides, (std::vector<int64_t>{3, 1}));
    EXPECT_FALSE(difference("columns", file.array("columns"), columns));
    EXPECT_FALSE(difference("repeated", file.array("repeated"), repeated));
    EXPECT_THAT(file.array("none").bytes, testing::IsEmpty());
}

TEST(SafetensorsFiles, StayMappedWhenTheyAreReplaced) {
    const FileFolder folder;
    HostArray first = host_array(f32, {1000}), second = host_array(f32, {10});
    fill_uniform(first, -1, 1, 1);
    write_safetensors(folder / "file", {{"x", first}});
    std::optional<Safetensors> opened(folder / "file");
    const Safetensors file = std::move(*opened);
    opened.reset();
    write_safetensors(folder / "file", {{"x", second}});
    EXPECT_TRUE(same_array(file.array("x"), first));
    EXPECT_TRUE(same_array(Safetensors(folder / "file").array("x"), second));
}

TEST(SafetensorsFiles, AreNotWrittenWhereTheFormatHasNoPlace) {
    const FileFolder folder;
    const HostArray x = host_array(f32, {2});
    put_text(folder / "file", "before");
    const auto write = [&](const NamedArrays& arrays, const std::map<std::string, std::string>& metadata = {}) {
        write_safetensors(folder / "file", arrays, metadata);
    };
    EXPECT_ERROR(write({{"x", x}, {"x", x}}), "'x' is the name of two tensors, or of the metadata; give each its own");
    EXPECT_ERROR(write({{"__metadata__", x}}), "'__metadata__' is the name of two tensors, or of the metadata");
    EXPECT_ERROR(
        write({{"x\xff", x}}),
        "'x\\ufffd' is no UTF-8, in which the names and texts of a safetensors file are; give it another name");
    EXPECT_ERROR(write({}, {{"key", "\xc0\x80"}}), "'\\ufffd\\ufffd' is no UTF-8");
    EXPECT_ERROR(write({{"t", host_array(tf32, {2})}}),
                 "'t' is tf32, and safetensors files have no name for that; cast it to f32");
    EXPECT_ERROR(write({}, {{"key", std::string(100'000'000, 'x')}}),
                 "a header of 100000056 bytes, for 0 tensors and 1 texts, and 100000000 is the limit of safetensors "
                 "files; write several files");
    EXPECT_ERROR(write({{"x", {f32, {2, -1}, {1, 1}, {}}}}),
                 "'x': a shape [2, -1] of f32 has a negative extent, or exceeds 2^63 - 1 bytes; give another one");
    EXPECT_ERROR(write({{"x", {f32, {0, int64_t{1} << 62}, {1, 1}, {}}}}), "exceeds 2^63 - 1 bytes");
    EXPECT_ERROR(write({{"x", {f32, {2, 3}, {3, 1}, {}}}}),
                 "'x': 0 bytes are no array [2, 3] with strides [3, 1] of f32; make it with host_array()");
    EXPECT_ERROR(write({{"x", {f32, {2}, {}, std::vector<std::byte>(8)}}}), "are no array [2] with strides [] of f32");
    EXPECT_EQ(file_text(folder / "file"), "before");
    EXPECT_EQ(folder.count(""), 1u);
}

}  // namespace
}  // namespace tw

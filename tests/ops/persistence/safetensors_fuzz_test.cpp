// Files that were changed at random: tensors or an Error come of them, in memory that their size bounds.
#include "ops/persistence/safetensors.h"
#include "tests/ops/persistence/files.h"
#include "tests/ops/persistence/largest_allocation.h"
#include "tests/ops/persistence/mutate.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

std::vector<std::string> sound_files() {
    return {
        safetensors_text("{}"),
        safetensors_text(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678"),
        safetensors_text(R"({"__metadata__":{"a":"b"},"w":{"dtype":"BOOL","shape":[1,2],"data_offsets":[4,6]},)"
                         R"("b":{"dtype":"BF16","shape":[],"data_offsets":[2,4]},)"
                         R"("c":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}  )",
                         std::string("abcd\0\1", 6)),
        safetensors_text(R"({"x\u0031":{"data_offsets":[0,0],"shape":[0,3],"dtype":"F64"}})"),
    };
}

TEST(SafetensorsFuzz, GivesTensorsOrAnError) {
    const std::vector<std::string> files = sound_files(), tokens{"{",
                                                                 "}",
                                                                 "[",
                                                                 "]",
                                                                 ",",
                                                                 ":",
                                                                 "\"",
                                                                 "\\u0000",
                                                                 "\\ud800",
                                                                 "0",
                                                                 "-1",
                                                                 "9",
                                                                 "1e9",
                                                                 "9223372036854775807",
                                                                 "18446744073709551615",
                                                                 "4294967296",
                                                                 "\"w\"",
                                                                 "\"dtype\"",
                                                                 "\"shape\"",
                                                                 "\"data_offsets\"",
                                                                 "\"__metadata__\"",
                                                                 "\"U8\"",
                                                                 "[0,0]",
                                                                 "[0,8]",
                                                                 "null",
                                                                 "\xff",
                                                                 "\xef\xbb\xbf",
                                                                 "//",
                                                                 " ",
                                                                 std::string(1, '\0')};
    std::mt19937_64 random(20240607);
    int64_t read = 0, refused = 0;
    for (int k = 0; k < num_fuzzed_files; ++k) {
        std::string text = mutated(files[random() % files.size()], tokens, random);
        // Half of them with a length that is right again, so that what comes behind it is reached.
        if (text.size() >= 8 && random() % 2 == 0) {
            const uint64_t length = std::min<uint64_t>(text.size() - 8, text.rfind('}') + 1 - 8);
            std::memcpy(text.data(), &length, sizeof length);
        }
        const std::vector<std::byte> bytes_of_file = own_bytes(text);
        start_watching_allocations();
        try {
            const Safetensors file(bytes_of_file, "fuzzed");
            size_t bytes = 0;
            for (const SafetensorsEntry& entry : file.entries()) bytes += file.array(entry.name).bytes.size();
            ASSERT_LE(bytes, text.size());
            ++read;
        } catch (const Error& error) {
            ASSERT_TRUE(std::string_view(error.what()).starts_with("fuzzed: ")) << error.what();
            ++refused;
        }
        ASSERT_LE(largest_allocation(), 8 * text.size() + 4096) << "input " << k;
    }
    EXPECT_GT(read, num_fuzzed_files / 30);  // the mutations are not all alike
    EXPECT_GT(refused, num_fuzzed_files / 3);
}

/// Numbers that promise much, and a header that is large: what stands behind them counts, not they.
TEST(SafetensorsFuzz, AllocatesNothingForPromises) {
    std::vector<std::string> promises{
        safetensors_text(R"({"w":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})"),
        safetensors_text(
            R"({"w":{"dtype":"F64","shape":[1152921504606846975],"data_offsets":[0,9223372036854775800]}})")};
    for (const uint64_t length : {uint64_t{99'999'999}, uint64_t{1} << 40, ~uint64_t{0}}) {
        promises.push_back(safetensors_text("{}"));
        std::memcpy(promises.back().data(), &length, sizeof length);
    }
    for (const std::string& text : promises) {
        start_watching_allocations();
        EXPECT_THROW(Safetensors(text_bytes(text), "promise"), Error);
        EXPECT_LE(largest_allocation(), 8192u);
    }
    start_watching_allocations();
    const std::string seen(1 << 20, 'x');  // the watch itself is awake
    EXPECT_GE(largest_allocation(), size_t{1} << 20);
}

}  // namespace
}  // namespace tw

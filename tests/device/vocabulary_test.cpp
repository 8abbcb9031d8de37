// The texts of the primitives: complete, ordered, guarded.
#include "device/vocabulary.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/error.h"

namespace tw::device {
namespace {

TEST(Vocabulary, PrintsOnlyWhatIsUsedAndNeeded) {
    std::string text = vocabulary_text({"exp"});
    EXPECT_NE(text.find("ex2_approx_ftz(float x)"), std::string::npos);
    EXPECT_EQ(text.find("atomic_add"), std::string::npos);
    EXPECT_LT(text.find("ex2_approx_ftz(float x)"), text.find("inline float exp(float x)"));
    EXPECT_EQ(vocabulary_text({}), "");
}

TEST(Vocabulary, LeavesOutWhatTheEmulatorReplaces) {
    std::string text = vocabulary_text({"load", "floor_div"}) + "void kernel() {}\n", left = for_emulator(text);
    EXPECT_EQ(text.find('#'), text.find("#pragma unroll")) << "no switches";
    EXPECT_LT(text.find("void load"), text.find("int floor_div"));
    EXPECT_EQ(left.find("void load"), std::string::npos);
    EXPECT_NE(left.find("int floor_div"), std::string::npos);
    EXPECT_NE(left.find("void kernel() {}"), std::string::npos);
    EXPECT_EQ(std::count(left.begin(), left.end(), '\n'), std::count(text.begin(), text.end(), '\n'));
    EXPECT_EQ(for_emulator("no marks\n"), "no marks\n");
}

TEST(Vocabulary, HasAVersionOfItsOwnForEachTypeOfAnOverload) {
    std::string text = vocabulary_text({"floor_div_i32", "wgmma_fence_operand_f32"});
    EXPECT_NE(text.find("int floor_div(int a, int b)"), std::string::npos);
    EXPECT_EQ(text.find("long long floor_div("), std::string::npos);
    EXPECT_NE(text.find("void wgmma_fence_operand(float (&d)[N])"), std::string::npos);
    EXPECT_EQ(text.find("void wgmma_fence_operand(int (&d)[N])"), std::string::npos);
    EXPECT_NE(vocabulary_text({"floor_div"}).find("long long floor_div("), std::string::npos) << "all of them";
}

TEST(Vocabulary, EveryPrimitiveHasTextAndKnownNeeds) {
    for (const std::string& name : vocabulary()) EXPECT_FALSE(vocabulary_text({name}).empty()) << name;
    EXPECT_THROW(vocabulary_text({"no_such_primitive"}), InternalError);
}

TEST(Vocabulary, MakesMembersOfTheWgmmaFamilyWhenAskedFor) {
    std::string text = vocabulary_text({"wgmma_m64n24k16_f16_registers", "wgmma_fence"});
    EXPECT_NE(text.find("inline void wgmma_m64n24k16_f16_registers(float (&d)[12], const unsigned* a, unsigned long long b"),
              std::string::npos);
    EXPECT_NE(text.find("wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16"), std::string::npos);
    for (const std::string& line : {std::string("%11}"), std::string("{%12, %13, %14, %15}, %16, p, 1, 1, %18")})
        EXPECT_NE(text.find(line), std::string::npos) << text;
    std::string::size_type longest = 0, begin = 0;
    for (std::string all = vocabulary_text({"wgmma_m64n256k16_bf16"}); begin < all.size();) {
        const auto end = all.find('\n', begin);
        longest = std::max(longest, end - begin);
        begin = end + 1;
    }
    EXPECT_LE(longest, 120u);
    EXPECT_THROW(vocabulary_text({"wgmma_m64n12k16_bf16"}), InternalError);
}

TEST(Vocabulary, KnowsWhatIsApproximate) {
    EXPECT_TRUE(is_approximate("tanh"));
    EXPECT_FALSE(is_approximate("fma"));
}

}  // namespace
}  // namespace tw::device

// The texts of the primitives: complete, ordered, guarded.
#include "device/vocabulary.h"

#include <gtest/gtest.h>

#include "support/error.h"

namespace tw::device {
namespace {

TEST(Vocabulary, PrintsOnlyWhatIsUsedAndNeeded) {
    std::string text = vocabulary_text({"exp"});
    EXPECT_NE(text.find("ex2_approx(float x)"), std::string::npos);
    EXPECT_EQ(text.find("atomic_add"), std::string::npos);
    EXPECT_LT(text.find("ex2_approx(float x)"), text.find("inline float exp(float x)"));
    EXPECT_EQ(vocabulary_text({}), "");
}

TEST(Vocabulary, GuardsWhatTheEmulatorReplaces) {
    std::string text = vocabulary_text({"load", "floor_div"});
    size_t guard = text.find("#ifndef TW_EMULATED"), end = text.find("#endif");
    EXPECT_LT(guard, text.find("void load"));
    EXPECT_LT(text.find("void load"), end);
    EXPECT_LT(end, text.find("int floor_div"));
}

TEST(Vocabulary, EveryPrimitiveHasTextAndKnownNeeds) {
    for (const std::string& name : vocabulary()) EXPECT_FALSE(vocabulary_text({name}).empty()) << name;
    EXPECT_THROW(vocabulary_text({"no_such_primitive"}), InternalError);
}

TEST(Vocabulary, KnowsWhatIsApproximate) {
    EXPECT_TRUE(is_approximate("tanh"));
    EXPECT_FALSE(is_approximate("fma"));
}

}  // namespace
}  // namespace tw::device

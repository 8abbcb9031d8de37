#include "tools/numbers.h"

#include <gtest/gtest.h>

namespace tw {
namespace {

TEST(Numbers, WholeOnesAreReadToTheirEnd) {
    CLI::Validator count = whole_number(1, 1000);
    for (std::string text : {"1", "7", "1000"}) EXPECT_EQ(count(text), "") << text;
    for (std::string text : {"0", "-1", "1001", "1.5", "1e2", "", " 3", "3x", "99999999999999999999999"})
        EXPECT_EQ(count(text), "'" + text + "' is no whole number from 1 to 1000");
}

TEST(Numbers, SeedsHave64Bits) {
    CLI::Validator seed = seed_number();
    for (std::string text : {"0", "18446744073709551615"}) EXPECT_EQ(seed(text), "") << text;
    for (std::string text : {"18446744073709551616", "-1", "0x10"}) EXPECT_NE(seed(text), "") << text;
}

TEST(Numbers, RealOnesArePositiveAndFinite) {
    CLI::Validator seconds = positive_real();
    for (std::string text : {"1", "0.5", "1e3"}) EXPECT_EQ(seconds(text), "") << text;
    for (std::string text : {"0", "-2", "inf", "nan", "1e999", "2s"})
        EXPECT_EQ(seconds(text), "'" + text + "' is no number above 0");
    CLI::Validator decay = non_negative_real();
    for (std::string text : {"0", "0.1", "1e-3"}) EXPECT_EQ(decay(text), "") << text;
    for (std::string text : {"-1", "inf", "nan", ""}) EXPECT_EQ(decay(text), "'" + text + "' is no number from 0 on");
}

}  // namespace
}  // namespace tw

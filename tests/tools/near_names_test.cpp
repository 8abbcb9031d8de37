#include "tools/near_names.h"

#include <gmock/gmock.h>

namespace tw {
namespace {

using testing::ElementsAre;

TEST(EditDistance, CountsChangesInsertionsAndRemovals) {
    EXPECT_EQ(edit_distance("", ""), 0u);
    EXPECT_EQ(edit_distance("", "abc"), 3u);
    EXPECT_EQ(edit_distance("softmax", "sofmax"), 1u);
    EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
    EXPECT_EQ(edit_distance("sitting", "kitten"), 3u);
}

TEST(NearNames, NearestFirstAndFarOnesNever) {
    std::vector<std::string> names = {"transpose_1x1", "softmax_1x1", "softmax_131x37", "row_sum_1x1"};
    EXPECT_THAT(near_names("softmax_131x7", names), ElementsAre("softmax_131x37", "softmax_1x1"));
    EXPECT_THAT(near_names("softmax_131x7", names, 1), ElementsAre("softmax_131x37"));
    EXPECT_THAT(near_names("zzzz", names), ElementsAre());
}

}  // namespace
}  // namespace tw

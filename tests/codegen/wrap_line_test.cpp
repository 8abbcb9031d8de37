#include "codegen/print/wrap_line.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace tw::codegen {
namespace {

std::string wrapped(std::string_view statement, size_t columns) {
    return fmt::format("{}", fmt::join(wrap_line(statement, columns), "\n"));
}

TEST(WrapLine, LeavesWhatFits) {
    EXPECT_EQ(wrapped("f(a, b);", 8), "f(a, b);");
    EXPECT_EQ(wrapped("#pragma unroll 1 and so on", 8), "#pragma unroll 1 and so on");
}

TEST(WrapLine, ContinuesBehindTheOpenParenthesis) {
    EXPECT_EQ(wrapped("tw::f(first[i], second[j], third[k]);", 28),
              "tw::f(first[i], second[j],\n"
              "      third[k]);");
}

TEST(WrapLine, BreaksAsFewParenthesesDeepAsItCan) {
    EXPECT_EQ(wrapped("tw::f(one, tw::g(two, three), four);", 30),
              "tw::f(one, tw::g(two, three),\n"
              "      four);");
    EXPECT_EQ(wrapped("const int x = (a + b) * (c + d) + e;", 33),
              "const int x =\n"
              "    (a + b) * (c + d) + e;");
    EXPECT_EQ(wrapped("f(a[bb + cc * d][tw::g<1, 2>(h, i)]);", 30),
              "f(a[bb + cc * d]\n"
              "  [tw::g<1, 2>(h, i)]);");
}

TEST(WrapLine, HangsWhatIsTooLongBehindTheParenthesis) {
    EXPECT_EQ(wrapped("a_long_name_of_a_function(first, a_longer_argument[i * 8]);", 36),
              "a_long_name_of_a_function(first,\n"
              "    a_longer_argument[i * 8]);");
}

TEST(WrapLine, LeavesLiteralsAndCommentsWhole) {
    EXPECT_EQ(wrapped("f(tw::inside(i, 9, \"x, y, z\", 0), a);", 20),
              "f(tw::inside(i, 9,\n"
              "             \"x, y, z\",\n"
              "             0), a);");
    EXPECT_EQ(wrapped("if (a) {  // one, two, three", 14), "if (a) {  // one, two, three");
    EXPECT_EQ(wrapped("// one two three four five", 16), "// one two three\n//     four five");
    EXPECT_EQ(wrapped("// ooooooooooooooooooooooooo", 16), "// ooooooooooooo\n//     ooooooooo\n//     ooo");
}

/// Of any statement, the words stay; no line is longer than it must be.
TEST(WrapLine, LosesNothing) {
    unsigned random = 1;
    auto next = [&](unsigned below) { return (random = random * 1664525u + 1013904223u) / 65536u % below; };
    for (int n = 0; n < 400; ++n) {
        std::string statement;
        for (unsigned words = 1 + next(30), depth = 0; words > 0; --words) {
            statement += statement.empty() ? "" : " ";
            if (next(3) == 0) statement += "f(", ++depth;
            statement += std::string(1 + next(12), 'x');
            if (depth > 0 && next(3) == 0) statement += ")", --depth;
            statement += next(2) ? "," : " +";
        }
        const size_t columns = 20 + next(60);
        std::string joined;
        for (const std::string& line : wrap_line(statement, columns)) {
            size_t begin = line.find_first_not_of(' ');
            joined += (joined.empty() ? "" : " ") + line.substr(begin);
            EXPECT_TRUE(line.size() <= columns || line.find(' ', begin) == line.npos ||
                        line.find(", ", begin) == line.npos)
                << line;
        }
        EXPECT_EQ(joined, statement);
    }
}

}  // namespace
}  // namespace tw::codegen

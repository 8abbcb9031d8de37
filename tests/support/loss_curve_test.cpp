// Losses of a run as a table and as a picture.
#include "support/loss_curve.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>

#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::HasSubstr;

std::string written(const auto& write) {
    std::string name = (std::filesystem::temp_directory_path() / "loss-curve-XXXXXX").string();
    const int opened = mkstemp(name.data());
    EXPECT_GE(opened, 0);
    close(opened);
    write(name);
    std::ifstream file(name, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    std::filesystem::remove(name);
    return text;
}

TEST(LossCurves, AreTables) {
    const LossCurve curve{{1, 2.5}, {20, 0.123456789}, {30, std::nan("")}};
    EXPECT_EQ(written([&](const std::string& path) { write_csv(path, curve); }),
              "step,loss\n1,2.5\n20,0.123457\n30,nan\n");
}

/// From 4 on top to 1 at the bottom, of 260 pixels: 2 in the middle. What is not finite is left out.
TEST(LossCurves, ArePictures) {
    const LossCurve curve{{0, 4}, {50, 2}, {75, std::nan("")}, {100, 1}};
    const std::string svg = written([&](const std::string& path) { write_svg(path, curve, "of a test"); });
    EXPECT_THAT(svg,
                testing::AllOf(testing::StartsWith("<svg "), testing::EndsWith("</svg>\n"), HasSubstr(">of a test<"),
                               HasSubstr(">100 steps<"), HasSubstr("points=\"56.0,28.0 342.0,158.0 628.0,288.0 \"")));
}

TEST(LossCurves, SayWhereTheyCannotBeWritten) {
    EXPECT_ERROR(write_csv("/nonexistent/loss", {}),
                 "cannot write /nonexistent/loss; name a file in a folder that exists and has room");
    EXPECT_ERROR(write_svg("/nonexistent/loss", {}, ""), "cannot write /nonexistent/loss");
}

}  // namespace
}  // namespace tw

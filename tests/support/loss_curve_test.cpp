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

/// Read back as it was written; a last line that was not written to its end is none.
TEST(LossCurves, AreReadBack) {
    LossCurve read;
    written([&](const std::string& path) {
        std::ofstream(path) << csv_text({{1, 2.5}, {20, 1e-7}}) << "30,1";
        read = read_csv(path);
    });
    EXPECT_EQ(read, (LossCurve{{1, 2.5}, {20, 1e-7}}));
    const auto refuse = [](const std::string& text, const std::string& message) {
        written([&](const std::string& path) {
            std::ofstream(path) << text;
            EXPECT_ERROR(read_csv(path), message);
        });
    };
    refuse("time,loss\n1,2\n", "line 1, 'time,loss', is none of a table of losses, 'step,loss' and numbers");
    refuse("1,2\n", "line 1, '1,2'");
    for (const std::string line : {"3", "3,", "3;1", "3,1,2", "x,1", "3,x", ""})
        refuse("step,loss\n1,2\n" + line + "\n", "line 3, '" + line + "', is none of a table of losses");
    EXPECT_ERROR(read_csv("/nonexistent/loss"), "cannot read /nonexistent/loss; name a file that exists");
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

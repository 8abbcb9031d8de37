// tw train, as users run it.
#include "tests/tools/tw_program.h"

namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The number in front of the text.
double number_before(const std::string& out, const std::string& text) {
    const size_t end = out.find(text), begin = out.rfind('\n', end) + 1;
    return std::stod(out.substr(begin, end - begin));
}

TEST_F(Tw, TrainsNetworks) {
    const std::string curve = (folder_ / "loss").string();
    const Outcome mlp = tw("train mlp --small --device emulated --explain --loss " + curve + ".csv --svg " + curve +
                           ".svg --memory " + curve + "_memory.svg");
    ASSERT_EQ(mlp.status, 0) << mlp.err;
    EXPECT_GT(number_before(mlp.out, " % of 359 images"), 80) << mlp.out;
    EXPECT_THAT(mlp.out, AllOf(HasSubstr("64 pixels, 32 hidden units"), HasSubstr("group 0: "), HasSubstr("arena: "),
                               HasSubstr("bound by"), HasSubstr(" in use\n")));
    EXPECT_THAT(content(curve + "_memory.svg"), AllOf(testing::StartsWith("<svg "), HasSubstr("<title>")));
    const std::string csv = content(curve + ".csv"), svg = content(curve + ".svg");
    EXPECT_THAT(csv, AllOf(testing::StartsWith("step,loss\n10,"), HasSubstr("\n150,")));
    EXPECT_THAT(svg, AllOf(testing::StartsWith("<svg "), HasSubstr("<polyline"), testing::EndsWith("</svg>\n")));
    const Outcome chars = tw("train chars --small --device emulated --steps 4 --every 2 --values bf16");
    ASSERT_EQ(chars.status, 0) << chars.err;
    EXPECT_THAT(chars.out, AllOf(HasSubstr("4 steps in "), HasSubstr(" nats a character on ")));
}

/// Killed behind a checkpoint, and called again.
TEST_F(Tw, ResumesTraining) {
    const std::string run = "train cnn --small --device emulated --steps 12 --save-every 4 --checkpoint ";
    const fs::path whole = folder_ / "whole", parts = folder_ / "parts";
    ASSERT_EQ(tw(run + whole.string()).status, 0);
    const std::string killed =
        fmt::format("'{}' {}'{}' > /dev/null & until [ -e '{}' ]; do sleep 0.02; done; kill -9 \\$!", TW_PROGRAM, run,
                    parts.string(), parts.string());
    std::system(fmt::format("TW_CACHE_DIR='{}/cache' sh -c \"{}\"", folder_.string(), killed).c_str());
    const Outcome resumed = tw(run + parts.string() + " --resume");
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_THAT(resumed.out, testing::ContainsRegex("resumed behind step (4|8|12)"));
    EXPECT_EQ(content(parts), content(whole)) << "other bits";
}

TEST_F(Tw, SaysWhyItDoesNotTrain) {
    EXPECT_EQ(tw("train lstm").status, 2);
    EXPECT_THAT(tw("train mlp --resume --small --device emulated").err, HasSubstr("name it with --checkpoint FILE"));
    EXPECT_THAT(tw("train chars --small --device emulated --text /nonexistent/text").err,
                HasSubstr("train: cannot read /nonexistent/text; name text files that exist"));
    std::ofstream(folder_ / "short") << "too short";
    EXPECT_THAT(tw("train chars --small --device emulated --text " + (folder_ / "short").string()).err,
                HasSubstr("train: 0 characters of text are held out, and a batch has 32; give more text"));
    EXPECT_THAT(tw("train mlp --small --device emulated --batch 100000").err,
                HasSubstr("train: a batch of 100000 images; there are 1438 to learn from"));
    EXPECT_THAT(tw("train mlp --small --device emulated --steps 10 --rate 1e30").err, HasSubstr("take a lower --rate"));
    EXPECT_THAT(tw("train mlp --small --device emulated --steps 2 --loss /nonexistent/loss").err,
                HasSubstr("train: cannot write /nonexistent/loss; name a file in a folder that exists and has room"));
}

}  // namespace

// tw train, as users run it.
#include <algorithm>
#include <cmath>
#include <sstream>

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
                               HasSubstr("bound by"), HasSubstr("emulated us"), HasSubstr("linear (hidden)"),
                               HasSubstr(" in use\n")));
    EXPECT_THAT(content(curve + "_memory.svg"), AllOf(testing::StartsWith("<svg "), HasSubstr("<title>")));
    const std::string csv = content(curve + ".csv"), svg = content(curve + ".svg");
    EXPECT_THAT(csv, AllOf(testing::StartsWith("step,loss\n10,"), HasSubstr("\n150,")));
    EXPECT_THAT(svg, AllOf(testing::StartsWith("<svg "), HasSubstr("<polyline"), testing::EndsWith("</svg>\n")));
    const Outcome chars = tw("train chars --small --device emulated --steps 4 --every 2 --values bf16");
    ASSERT_EQ(chars.status, 0) << chars.err;
    EXPECT_THAT(chars.out, AllOf(HasSubstr("4 steps in "), HasSubstr(" nats a character on ")));
}

/// Adjoints in f16: losses are scaled. 65536 is too much for no network here, or halved where it is.
TEST_F(Tw, TrainsInF16) {
    for (const std::string network : {"mlp", "cnn", "chars"}) {
        const std::string run = "train " + network + " --small --device emulated --values f16 --every 1 ";
        const Outcome trained = tw(run + "--steps 12 --loss " + (folder_ / "loss").string());
        ASSERT_EQ(trained.status, 0) << trained.err;
        EXPECT_THAT(trained.out, testing::ContainsRegex("loss scale [0-9]+ at last; [0-9]+ of 12 steps were skipped"));
        const size_t at = trained.out.find("loss scale ");
        const double scale = std::stod(trained.out.substr(at + 11));
        const int skipped = std::stoi(trained.out.substr(trained.out.find("at last; ", at) + 9));
        EXPECT_EQ(scale, std::ldexp(65536.0, -skipped)) << network;
        std::istringstream rows(content(folder_ / "loss"));
        std::vector<double> losses;
        std::string row;
        for (std::getline(rows, row); std::getline(rows, row);)
            losses.push_back(std::stod(row.substr(row.find(',') + 1)));
        ASSERT_EQ(losses.size(), 12u);
        EXPECT_LT(losses.back(), losses.front()) << network;
    }
    EXPECT_THAT(tw("train mlp --small --device emulated --steps 2").out, testing::Not(HasSubstr("loss scale")));
}

/// Products are sums along rows of one image, rows whose own rows elements of [1, digits] have too.
TEST_F(Tw, TrainsOnOneImageAStep) {
    const Outcome trained = tw("train mlp --small --device emulated --batch 1 --steps 2");
    ASSERT_EQ(trained.status, 0) << trained.err;
    EXPECT_THAT(trained.out, HasSubstr("2 steps in "));
}

/// What a checkpoint was made with is what goes on.
TEST_F(Tw, ResumesNoOtherTraining) {
    const std::string run = "train mlp --small --device emulated --steps 4 --checkpoint " + (folder_ / "run").string();
    ASSERT_EQ(tw(run + " --values f16").status, 0);
    EXPECT_THAT(tw(run + " --values f16").err, HasSubstr("is there already; go on from it with --resume"));
    EXPECT_THAT(tw(run + " --values f16 --resume").out, HasSubstr("all 4 steps are done; --steps 8 would go on"));
    const auto refusal = [&](const std::string& options) { return tw(run + " --resume " + options).err; };
    EXPECT_THAT(refusal("--values f16 --seed 2"),
                AllOf(HasSubstr("is a checkpoint of another training, and nothing was loaded: seed is 2 here, and 1 in "
                                "the file"),
                      HasSubstr("go on with what was saved")));
    EXPECT_THAT(refusal(""), AllOf(HasSubstr("values is f32 here, and f16 in the file"),
                                   HasSubstr("'loss_scale.0' f32 [] is in the file alone")));
    EXPECT_THAT(refusal("--values bf16"), HasSubstr("values is bf16 here, and f16 in the file"));
    EXPECT_THAT(refusal("--values f16 --batch 8"), HasSubstr("batch is 8 here, and as the network says in the file"));
    EXPECT_THAT(tw("train cnn" + run.substr(9) + " --values f16 --resume").err,
                HasSubstr("network is cnn --small here, and mlp --small in the file"));
}

/// Nor one that learns from another text, though it has as many characters of as many kinds.
TEST_F(Tw, ResumesNoOtherText) {
    std::string text;
    for (int n = 0; n < 30000; ++n) text += static_cast<char>('a' + n * n % 17);
    const auto options = [&](const char* name) {
        std::ofstream(folder_ / name) << text;
        return fmt::format("train chars --small --device emulated --steps 1 --text {} --checkpoint {}",
                           (folder_ / name).string(), (folder_ / "run").string());
    };
    ASSERT_EQ(tw(options("text")).status, 0);
    for (char& character : text) ++character;
    EXPECT_THAT(tw(options("other") + " --resume").err, HasSubstr("data is 30000 characters, checksum"));
}

/// Killed behind a checkpoint, and called again: the same bits, and each loss once, also of steps that it had made
/// behind the checkpoint, and makes again.
TEST_F(Tw, ResumesTraining) {
    const std::string run = "train cnn --small --device emulated --steps 12 --save-every 4 --every 1 ";
    const auto files = [&](const std::string& name) {
        const std::string path = (folder_ / name).string();
        return fmt::format("--checkpoint {0} --loss {0}.csv --svg {0}.svg", path);
    };
    const fs::path whole = folder_ / "whole", parts = folder_ / "parts";
    std::ofstream(folder_ / "whole.csv") << "1,of another run\n";
    ASSERT_EQ(tw(run + files("whole")).status, 0);
    const std::string killed = fmt::format(
        "'{}' {} > /dev/null & until [ -e '{}' ]; do sleep 0.02; done; kill -9 \\$!; wait \\$! 2> /dev/null",
        TW_PROGRAM, run + files("parts"), parts.string());
    std::system(fmt::format("TW_CACHE_DIR='{}/cache' sh -c \"{}\"", folder_.string(), killed).c_str());
    const fs::path csv = folder_ / "parts.csv";
    EXPECT_THAT(content(csv), testing::ContainsRegex("^step,loss\n1,[0-9.]+\n2,[0-9.]+\n3,[0-9.]+\n4,[0-9.]+\n"));
    EXPECT_THAT(content(folder_ / "parts.svg"), testing::StartsWith("<svg "));
    std::ofstream(csv, std::ios::app) << "13,99\n14";  // two that it made later than the checkpoint, one of them partly
    const Outcome resumed = tw(run + files("parts") + " --resume");
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_THAT(resumed.out, testing::ContainsRegex("resumed behind step (4|8|12)"));
    EXPECT_EQ(content(parts), content(whole)) << "other bits";
    const std::string curve = content(folder_ / "whole.csv");
    EXPECT_EQ(std::ranges::count(curve, '\n'), 13) << curve;
    EXPECT_EQ(content(csv), curve);
    EXPECT_EQ(content(folder_ / "parts.svg"), content(folder_ / "whole.svg"));
}

/// After one pass alone; before the cut there is no plan.
TEST_F(Tw, ShowsTheStepAfterAPass) {
    const std::string run = "train mlp --small --device emulated --steps 1 --after ";
    const Outcome declared = tw(run + "declared"), placed = tw(run + "place");
    ASSERT_EQ(declared.status, 0) << declared.err;
    EXPECT_THAT(declared.out, AllOf(HasSubstr("after declared:\n"), testing::Not(HasSubstr("group 0: "))));
    EXPECT_THAT(placed.out, AllOf(HasSubstr("after place:\n"), HasSubstr("group 0: "), HasSubstr("arena: "),
                                  testing::Not(HasSubstr("after cut:"))));
    EXPECT_THAT(tw(run + "fold").err, HasSubstr("train: there is no pass 'fold'; --after takes declared, canonicalise, "
                                                "round, layout, cut, order, recompute, place"));
}

TEST_F(Tw, SaysWhyItDoesNotTrain) {
    EXPECT_EQ(tw("train lstm").status, 2);
    const Outcome values = tw("train mlp --values f8");
    EXPECT_EQ(values.status, 2);
    EXPECT_THAT(values.err, HasSubstr("--values"));
    EXPECT_THAT(tw("train mlp --resume --small --device emulated").err, HasSubstr("name it with --checkpoint FILE"));
    EXPECT_THAT(tw("train mlp --small --device emulated --checkpoint /nonexistent/run").err,
                HasSubstr("train: cannot write /nonexistent/run; name a file in a folder that exists"));
    EXPECT_THAT(tw("train mlp --small --device emulated --text README.md").err,
                HasSubstr("train: mlp learns from no text; --text is for chars"));
    EXPECT_EQ(tw("train mlp --small --device emulated --save-every 2").status, 2);
    EXPECT_THAT(tw("train chars --small --device emulated --text /nonexistent/text").err,
                HasSubstr("train: cannot read /nonexistent/text; name text files that exist"));
    std::ofstream(folder_ / "short") << "too short";
    EXPECT_THAT(tw("train chars --small --device emulated --text " + (folder_ / "short").string()).err,
                HasSubstr("train: 0 characters of text are held out, and a batch has 32; give more text"));
    EXPECT_THAT(tw("train mlp --small --device emulated --batch 100000").err,
                HasSubstr("train: a batch of 100000 images; there are 1438 to learn from"));
    EXPECT_THAT(tw("train mlp --small --device emulated --steps 10 --rate 1e30").err, HasSubstr("take a lower --rate"));
    EXPECT_THAT(tw("train mlp --small --device emulated --steps 2 --loss /nonexistent/loss").err,
                HasSubstr("cannot write /nonexistent/loss; name a file in a folder that exists and has room"));
}

}  // namespace

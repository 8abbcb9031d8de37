// Tuning of any declaration: a clock that the test winds says what is fastest; what is kept is found again.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>

#include <sys/wait.h>

#include <gmock/gmock.h>

#include <tilewright/tune.h>

#include "runtime/compile/cubin_cache.h"
#include "schedules/catalog.h"
#include "schedules/register_kernel.h"
#include "support/error.h"
#include "tests/support/expect_error.h"
#include "tuning/tunable_declaration.h"

namespace tw {
namespace {

using schedules::choose_schedule;
using schedules::picks_text;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Records go to a folder that no other test has.
class TuneDeclaration : public testing::Test {
protected:
    void SetUp() override {
        std::string name = (std::filesystem::temp_directory_path() / "tw_tune_XXXXXX").string();
        ASSERT_NE(mkdtemp(name.data()), nullptr);
        folder_ = name;
        const char* before = std::getenv("TW_CACHE_DIR");
        if (before) before_ = before;
        setenv("TW_CACHE_DIR", folder_.c_str(), 1);
    }
    void TearDown() override {
        before_.empty() ? unsetenv("TW_CACHE_DIR") : setenv("TW_CACHE_DIR", before_.c_str(), 1);
        std::filesystem::remove_all(folder_);
    }

    std::filesystem::path folder_;
    std::string before_;
};

Tensor scaled(float factor = 2.0f) {
    const Tensor x = input("x", f32, {64, 256});
    return compute("y", {64, 256}, [&](Expr i, Expr j) { return x(i, j) * factor; });
}

/// Milliseconds where the picks have such a text, another number where they have not.
std::function<double(const std::string&)> clock_of(const std::string& fast, double of_fast, double of_others) {
    return [=](const std::string& picks) { return (picks == fast ? of_fast : of_others) * 1e-3; };
}

TEST_F(TuneDeclaration, TakesTheFastestAndKeepsIt) {
    const Tensor y = scaled();
    const Target limits = target("sm_90a");
    const std::string by_rule = choose_schedule({y}, limits).save();
    const auto device = open_device("emulated");
    const TunedDeclaration tuned =
        tune({y}, device, {.limit = 9, .generated = 0, .clock = clock_of("y.threads=256", 1, 2)});
    EXPECT_EQ(picks_text(tuned.picks), "y.threads=256");
    EXPECT_NE(tuned.schedule.save(), by_rule);
    EXPECT_THAT(tuned.schedule.trace_as_cpp(), HasSubstr("  // [0] tune_declaration_test.cpp:"));
    EXPECT_EQ(tuned.result.measured.size(), 9u);
    EXPECT_EQ(tuned.result.measured[0].tiling, "y.threads=256");
    EXPECT_THAT(tuned.text,
                HasSubstr("1.0000 ms by y.threads=256, 2.00 times as fast as the rule (2.0000 ms); 9 measured"));
    EXPECT_THAT(tuned.text, HasSubstr("2.0000 ms  rule\n"));
    const auto kept = kept_records(schedules::declaration_key({y}, "choose_schedule"));
    ASSERT_EQ(kept.size(), 1u);
    EXPECT_EQ(kept[0], tuned.result.record);
    EXPECT_EQ(kept[0].measured, tuned.result.measured);
    // Equal declarations have it from now on, in this process as in others; others have not.
    EXPECT_EQ(choose_schedule({scaled()}, limits).save(), tuned.schedule.save());
    EXPECT_EQ(
        choose_schedule({compute("z", {64}, [&](Expr i) { return scaled()(i, 1); })}, limits).explain().find("tuned"),
        std::string::npos);
    EXPECT_EQ(choose_schedule({y}, target("sm_80")).explain().find("as tuned"), std::string::npos);
    // Tuned again, the rule is what the rule says, not what the record does.
    const TunedDeclaration again = tune({y}, device, {.limit = 9, .generated = 0, .clock = clock_of("rule", 1, 2)});
    EXPECT_TRUE(again.picks.empty());
    EXPECT_THAT(again.text, HasSubstr("1.0000 ms, by rule: no candidate is faster by enough"));
    EXPECT_EQ(choose_schedule({y}, limits).save(), by_rule);
}

/// The registry's program is the tuned one at once; who comes later finds the record, and so do like declarations.
TEST_F(TuneDeclaration, HappensOnFirstUse) {
    const auto device = open_device("emulated");
    const Target limits = target("sm_90a");
    Registry registry;
    int measured = 0;
    const auto clock = [&](const std::string& picks) {
        ++measured;
        return picks == "y.threads=256" ? 1e-3 : 2e-3;
    };
    tune_on_first_use(registry, device, {.limit = 9, .generated = 0, .clock = clock});
    const Selection first = registry.select({scaled()}, limits);
    EXPECT_EQ(first.why, "as tuned on " + device->name() + ": y.threads=256, 1.0000 ms");
    const int once = measured;
    EXPECT_GE(once, 9);
    EXPECT_EQ(registry.select({scaled()}, limits).origin, Provenance::Tuned);
    EXPECT_EQ(measured, once);
    EXPECT_EQ(Registry().select({scaled(3)}, limits).origin, Provenance::Bucket);
    registry.tune_by({});
    EXPECT_EQ(registry.select({scaled(3)}, limits).origin, Provenance::Bucket);
    EXPECT_EQ(measured, once);
}

TEST_F(TuneDeclaration, HappensAsTheEnvironmentSays) {
    const auto emulated = open_device("emulated");
    std::vector<std::string> warnings;
    const WarningSink before = set_warning_sink([&](const std::string& text) { warnings.push_back(text); });
    for (const char* nothing : {"off", ""}) {
        setenv("TW_TUNE", nothing, 1);
        Registry registry;
        tune_on_first_use(registry, emulated);
    }
    EXPECT_TRUE(warnings.empty());
    setenv("TW_TUNE", "5", 1);
    Registry registry;
    tune_on_first_use(registry, emulated);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], HasSubstr("TW_TUNE=5 tunes nothing: "));
    EXPECT_EQ(registry.select({scaled()}, target("sm_90a")).origin, Provenance::Rule);
    EXPECT_EQ(warnings.size(), 1u);
    for (const char* wrong : {"yes", "-1", "0", "5s", "nan", "1e9"}) {
        setenv("TW_TUNE", wrong, 1);
        EXPECT_ERROR(tune_on_first_use(registry, emulated),
                     "TW_TUNE is '" + std::string(wrong) + "'; give seconds for each declaration");
    }
    unsetenv("TW_TUNE");
    set_warning_sink(before);
    EXPECT_ERROR(tune_on_first_use(registry, nullptr, {}), "tune_on_first_use: no device");
    EXPECT_ERROR(tune_on_first_use(registry, emulated, {}), "has no times to choose by; give a GPU");
    EXPECT_ERROR(tune_on_first_use(registry, emulated, {.keep = false, .clock = clock_of("rule", 1, 2)}),
                 "tune_on_first_use: keep = false; what is measured is found again as a record");
}

/// Choices of two stages, each faster than the rule's: both together are measured, too, and taken if that is right.
TEST_F(TuneDeclaration, JoinsWhatIsFasterOfSeveralStages) {
    const Tensor x = input("x", f32, {64, 256});
    auto times = [&](const std::string& name, float factor) {
        return compute(name, {64, 256}, [&](Expr i, Expr j) { return x(i, j) * factor; });
    };
    const Axis k = reduce_axis("k", 64);
    const Tensor y = times("y", 2), z = compute("z", {256}, [&](Expr j) { return sum(x(k, j), k); });
    for (const bool together_is_faster : {true, false}) {
        std::set<std::string> asked;
        const auto clock = [&](const std::string& picks) {
            asked.insert(picks);
            const bool of_y = picks.find("y.threads=512") != std::string::npos;
            const bool of_z = picks.find("z.sharers=16") != std::string::npos;
            if (of_y && of_z) return together_is_faster ? 1e-3 : 5e-3;
            return of_y ? 3e-3 : of_z ? 2e-3 : 4e-3;
        };
        const TunedDeclaration tuned =
            tune({y, z}, open_device("emulated"), {.limit = 24, .generated = 0, .keep = false, .clock = clock});
        const std::string of_z = "z.sharers=16 z.tiling=none", both = "y.threads=512 " + of_z;
        EXPECT_TRUE(asked.contains(both));
        EXPECT_EQ(picks_text(tuned.picks), together_is_faster ? both : of_z) << tuned.text;
        EXPECT_EQ(tuned.result.measured.size(), 25u) << tuned.text;
        EXPECT_EQ(tuned.result.record.measured, tuned.result.measured);
    }
}

/// What is faster by less than is asked for is not taken, nor is anything kept that is not to be.
TEST_F(TuneDeclaration, StaysWithTheRule) {
    const Tensor y = scaled();
    const auto device = open_device("emulated");
    auto picks = [&](double of_fast, double least_gain) {
        return picks_text(tune({y}, device,
                               {.limit = 9,
                                .generated = 0,
                                .least_gain = least_gain,
                                .keep = false,
                                .clock = clock_of("y.threads=256", of_fast, 1)})
                              .picks);
    };
    EXPECT_EQ(picks(0.985, 0.02), "rule");
    EXPECT_EQ(picks(0.975, 0.02), "y.threads=256");
    EXPECT_EQ(picks(1, 0), "rule");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "tuned"));
}

/// A rule of one's own, whose fastest schedule is wrong: that is named, and the next is taken.
TEST_F(TuneDeclaration, ProvesARuleOfOnesOwn) {
    const schedules::ScheduleRule own = [](const std::vector<Tensor>& outputs, const Target& limits) {
        const int64_t threads = schedules::pick("y", "threads", {32, 64, 128}, 256);
        const std::vector<Tensor> made = threads == 32 ? std::vector{scaled(2.5f)} : outputs;
        Schedule s(made, limits);
        schedules::schedule_each_element(s, made[0], threads);
        return s;
    };
    const Tensor y = scaled();
    const auto clock = [](const std::string& picks) {
        return picks == "y.threads=32" ? 1e-3 : picks == "y.threads=128" ? 2e-3 : 3e-3;
    };
    const TunedDeclaration tuned =
        tune({y}, open_device("emulated"), {.generated = 0, .rule = own, .rule_name = "own", .clock = clock});
    EXPECT_EQ(picks_text(tuned.picks), "y.threads=128");
    ASSERT_EQ(tuned.result.skipped.size(), 1u);
    EXPECT_THAT(tuned.result.skipped[0].reason, HasSubstr("WRONG: 'y': max error"));
    EXPECT_THAT(tuned.text, HasSubstr("skipped  y.threads=32: WRONG"));
    EXPECT_THAT(tuned.result.record.measured,
                ElementsAre(schedules::TilingTime{"y.threads=128", 2}, schedules::TilingTime{"rule", 3},
                            schedules::TilingTime{"y.threads=64", 3}));
    const Target limits = target("sm_90a");
    EXPECT_EQ(schedules::schedule_as_tuned({y}, limits, "own", own).save(), tuned.schedule.save());
    EXPECT_THAT(schedules::schedule_as_tuned({y}, limits, "another", own).explain(), Not(HasSubstr("as tuned")));
}

/// Scalars, named sizes, rows and integers that are indices.
TEST_F(TuneDeclaration, TakesWhateverIsDeclared) {
    const Expr n = size("n", {.min = 1, .max = 40}), factor = scalar("factor", f32);
    const Tensor x = input("x", f32, {n, 70}), where = input("where", i32, {70});
    const Axis k = reduce_axis("k", 70);
    const Tensor total = compute("total", {n}, [&](Expr i) { return sum(x(i, where(k)) * factor, k); });
    const Tensor y = compute("y", {n, 70}, [&](Expr i, Expr j) { return x(i, j) / (total(i) * total(i) + 1.0f); });
    const TunedDeclaration tuned = tune({y, total}, open_device("emulated"),
                                        {.limit = 3, .generated = 0, .clock = [](const std::string&) { return 1e-3; }});
    EXPECT_TRUE(tuned.picks.empty());
    EXPECT_EQ(tuned.result.measured.size(), 3u) << tuned.text;
}

TEST_F(TuneDeclaration, SaysWhatItLacks) {
    const Tensor y = scaled();
    EXPECT_ERROR(
        tune({y}, open_device("emulated")),
        "tune: 'y': emulated sm_90a has no times to choose by; give a GPU, as open_device(\"cuda\"), or a clock");
    EXPECT_ERROR(tune({y}, nullptr), "tune: 'y': no device; give one");
    EXPECT_ERROR(tune({}, nullptr), "tune: no outputs; give what is declared");
}

/// A process that is killed while it writes leaves the old record or the new one.
TEST_F(TuneDeclaration, RecordsOutliveWhoIsKilled) {
    const Tensor y = scaled();
    const schedules::DeclarationKey key = schedules::declaration_key({y}, "choose_schedule");
    auto record = [&](const std::string& picks, size_t length) {
        return schedules::TunedRecord{.kernel = key.name,
                                      .tiling = picks,
                                      .schedule = std::string(length, 's'),
                                      .device = "a device",
                                      .arch = "sm_90a",
                                      .version = TILEWRIGHT_VERSION};
    };
    keep_record(key, record("y.threads=512", 1));
    for (int round = 0; round < 8; ++round) {
        const pid_t writer = fork();
        ASSERT_GE(writer, 0);
        if (writer == 0)
            for (bool turn = false;; turn = !turn)
                keep_record(key, record(turn ? "y.threads=512" : "y.threads=64", 1 << 20));
        usleep(10000 + 3000 * round);
        kill(writer, SIGKILL);
        waitpid(writer, nullptr, 0);
        const std::vector<schedules::TunedRecord> kept = kept_records(key);
        ASSERT_EQ(kept.size(), 1u);
        EXPECT_THAT(kept[0].tiling, testing::AnyOf("y.threads=512", "y.threads=64"));
        EXPECT_THAT(choose_schedule({y}, target("sm_90a")).explain(), HasSubstr("as tuned on a device"));
    }
}

/// Of a kernel by its name: what it has scheduled by rule, also where its own function adds to the rule's schedule.
TEST_F(TuneDeclaration, FindsWhatAKernelHasByRule) {
    const Target limits = target("sm_90a");
    const auto softmax = tuning::tunable_kernel(*schedules::find_kernel("softmax_131x37_automatic"), limits,
                                                {.limit = 5, .generated = 0});
    const std::vector<std::string> tilings = softmax.tunable.tilings(limits);
    ASSERT_EQ(tilings.size(), 5u);
    EXPECT_EQ(tilings[0], "rule");
    const std::vector<Tensor> outputs = schedules::find_kernel("softmax_131x37")->make(limits).outputs();
    EXPECT_EQ(softmax.key.text, schedules::declaration_key(outputs, "choose_schedule").text);
    EXPECT_ERROR(
        tuning::tunable_kernel(*schedules::find_kernel("softmax_131x37"), limits, {.limit = 5, .generated = 0}),
        "'softmax_131x37' has a schedule of its own, which leaves nothing to choose; tune "
        "softmax_131x37_automatic");
}

}  // namespace
}  // namespace tw

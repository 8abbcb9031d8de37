// Processes that are killed in the midst of tune(): what was kept stays, and is whole.
#include <csignal>
#include <cstdlib>
#include <random>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include <tilewright/tune.h>

#include "runtime/compile/cubin_cache.h"
#include "schedules/tuned_declarations.h"
#include "support/error.h"
#include "tests/support/cache_folder.h"

namespace tw {
namespace {

using schedules::TunedRecord;

constexpr const char* descriptor_of_steps = "TW_TEST_STEPS";

Tensor tripled() {
    const Tensor x = input("x", f32, {64, 256});
    return compute("y", {64, 256}, [&](Expr i, Expr j) { return x(i, j) * 3.0; });
}

TuneRequest request_of(const std::string& fastest) {
    return {
        .limit = 5, .threads = 1, .clock = [=](const std::string& picks) { return picks == fastest ? 1e-3 : 2e-3; }};
}
const char* fastest_in(bool turn) { return turn ? "y.vector=2" : "y.vector=4"; }

/// What a child does: it tunes, now with one winner and now with another, and writes a byte at each step.
TEST(KilledTuning, DISABLED_TunesUntilKilled) {
    const char* text = std::getenv(descriptor_of_steps);
    ASSERT_NE(text, nullptr) << "the other test calls this one";
    const int steps = std::atoi(text);
    const auto device = open_device("emulated");
    for (bool turn = false;; turn = !turn) {
        TuneRequest request = request_of(fastest_in(turn));
        request.show = [&](const std::string&, int64_t, int64_t, const std::string&) {
            if (write(steps, ".", 1) != 1) std::abort();
        };
        tune({tripled()}, device, request);
    }
}

class Child {
public:
    Child() {
        int ends[2];
        if (pipe(ends) != 0) throw_error(Error, "no pipe");
        steps_ = ends[0];
        id_ = fork();
        if (id_ == 0) {
            setenv(descriptor_of_steps, std::to_string(ends[1]).c_str(), 1);
            execl("/proc/self/exe", "tune_test", "--gtest_filter=KilledTuning.DISABLED_TunesUntilKilled",
                  "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
            _exit(1);
        }
        close(ends[1]);
    }
    ~Child() {
        if (id_ > 0) kill(id_, SIGKILL), waitpid(id_, nullptr, 0);
        close(steps_);
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    /// False if it ended before.
    bool wait_for_steps(int count) const {
        char step;
        for (int seen = 0; seen < count; ++seen)
            if (read(steps_, &step, 1) != 1) return false;
        return true;
    }

private:
    int steps_ = -1;
    pid_t id_ = -1;
};

/// At steps by chance, and a while behind them: the record is the one before or one that the child's tune() kept, with
/// all of its candidates' times, and so is the bucket's; that of another declaration is as it was.
TEST(KilledTuning, LeavesWholeRecords) {
    const CacheFolder cache;
    std::vector<std::string> warnings;
    const WarningSink before = set_warning_sink([&](const std::string& text) { warnings.push_back(text); });
    const auto device = open_device("emulated");
    const Tensor y = tripled(), other = compute("z", {300}, [](Expr i) { return cast(f32, i); });
    int steps = 0;
    std::vector<TunedRecord> whole;
    for (bool turn : {false, true}) {
        TuneRequest request = request_of(fastest_in(turn));
        request.show = [&](const std::string&, int64_t, int64_t, const std::string&) { ++steps; };
        const TunedDeclaration tuned = tune({y}, device, request);
        whole.push_back(tuned.result.record);
        EXPECT_EQ(whole.back().tiling, fastest_in(turn)) << tuned.text;
        EXPECT_EQ(whole.back().measured.size(), 5u);
    }
    const auto key = schedules::declaration_key({y}, "choose_schedule"),
               bucket = schedules::bucket_key({y}, "choose_schedule"),
               key_of_other = schedules::declaration_key({other}, "choose_schedule");
    tune({other}, device, request_of("rule"));
    const std::vector<TunedRecord> of_other = kept_records(key_of_other);
    ASSERT_EQ(of_other.size(), 1u);

    std::mt19937 random(20);
    bool both[2] = {false, false};
    for (int round = 0; round < 12; ++round) {
        const int at = 1 + static_cast<int>(random() % static_cast<unsigned>(2 * steps));
        const unsigned pause = random() % 4000;
        SCOPED_TRACE(fmt::format("round {}: killed {} us behind step {} of {} in two turns", round, pause, at, steps));
        {
            const Child child;
            ASSERT_TRUE(child.wait_for_steps(at));
            usleep(pause);
        }
        std::vector<TunedRecord> kept = kept_records(key), like = kept_records(bucket);
        ASSERT_EQ(kept.size(), 1u);
        ASSERT_EQ(like.size(), 1u);
        like[0].kernel = kept[0].kernel;
        EXPECT_THAT(kept[0], testing::AnyOf(whole[0], whole[1]));
        EXPECT_THAT(like[0], testing::AnyOf(whole[0], whole[1]));
        EXPECT_EQ(kept_records(key_of_other), of_other);
        both[kept[0] == whole[1]] = true;
        const std::string explained = schedules::choose_schedule({y}, target("sm_90a")).explain();
        EXPECT_THAT(explained, testing::HasSubstr("as tuned on " + device->name() + ": " + kept[0].tiling));
    }
    EXPECT_TRUE(both[0] && both[1]) << "no child kept anything";
    set_warning_sink(before);
    EXPECT_THAT(warnings, testing::IsEmpty());
}

}  // namespace
}  // namespace tw

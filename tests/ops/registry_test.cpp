// Which kernels a declaration gets, and why.
#include "ops/registry.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "ops/autograd.h"
#include "ops/backend.h"
#include "ops/check.h"
#include "ops/operator.h"
#include "runtime/compile/cubin_cache.h"
#include "runtime/driver/emulated_device.h"
#include "schedules/candidates.h"
#include "schedules/catalog.h"
#include "schedules/choose.h"
#include "schedules/plain_schedule.h"
#include "schedules/tuned_declarations.h"
#include "support/error.h"
#include "support/version.h"
#include "tests/support/cache_folder.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// y = 3 x + 1, of rows whose sums go out, too.
std::vector<Tensor> declared(int64_t rows = 37, const std::string& name = "y") {
    const Tensor x = input("x", f32, {rows, 70});
    const Axis k = reduce_axis("k", 70);
    const Tensor y = compute(name, {rows, 70}, [&](Expr i, Expr j) { return x(i, j) * 3.0 + 1.0; });
    return {y, compute("total", {rows}, [&](Expr i) { return sum(x(i, k), k); })};
}

const Target hopper = target("sm_90a");

CheckResult checked(const Selection& selection, const std::vector<Tensor>& outputs) {
    const auto device = open_device("emulated:sm_90a");
    Executable executable(selection.program, device);
    const Bindings bindings = random_bindings(outputs, 3);
    const std::vector<HostArray> got = run_on(executable, bindings);
    CheckResult all;
    all.ok = true;
    for (size_t k = 0; k < outputs.size() && all.ok; ++k)
        all = check_output(outputs[k], bindings, got[k], {.approximate = selection.program.approximate()});
    return all;
}

TEST(Registry, TakesTheRuleWhereNothingElseIsKnown) {
    const CacheFolder cache;
    const auto outputs = declared();
    const Selection selection = Registry().select(outputs, hopper);
    EXPECT_EQ(selection.origin, Provenance::Rule);
    EXPECT_EQ(selection.text(), "choose_schedule: by rule\n");
    EXPECT_EQ(selection.program.cuda(), build(schedules::choose_schedule(outputs, hopper)).cuda());
    EXPECT_TRUE(checked(selection, outputs).ok);
}

TEST(Registry, TakesPinsThenRulesTheLatestFirst) {
    Registry registry;
    const auto outputs = declared(), others = declared(38);
    auto plain = [](const std::vector<Tensor>& given, const Target& wanted) {
        return std::optional(schedules::plain_schedule(given, wanted));
    };
    registry.add("mine", plain);
    registry.add("picky", [](const auto&, const auto&) { return std::optional<Schedule>(); });
    registry.add("broken", [&](const auto& given, const Target& wanted) {
        Schedule s = *plain(given, wanted);
        s.split(s.loops<2>(given[0])[0], -3);
        return std::optional(s);
    });
    Selection selection = registry.select(outputs, hopper);
    EXPECT_EQ(selection.origin, Provenance::Added);
    EXPECT_EQ(selection.name, "mine");
    EXPECT_THAT(selection.passed_over,
                ElementsAre(HasSubstr("'broken': "), HasSubstr("'picky': it does not take this declaration")));
    EXPECT_TRUE(checked(selection, outputs).ok);

    registry.pin("old", outputs, schedules::plain_schedule(outputs, hopper));
    registry.pin("best", outputs, schedules::choose_schedule(outputs, hopper));
    registry.pin("elsewhere", outputs, schedules::plain_schedule(outputs, target("sm_80")));
    EXPECT_THAT(registry.names(), ElementsAre("elsewhere", "best", "old", "broken", "picky", "mine"));
    selection = registry.select(declared(), hopper);  // equal, though declared anew
    EXPECT_EQ(selection.origin, Provenance::Pinned);
    EXPECT_EQ(selection.name, "best");
    EXPECT_THAT(selection.passed_over, ElementsAre("'elsewhere': it is pinned for sm_80, this is sm_90a"));
    EXPECT_TRUE(checked(selection, outputs).ok);
    EXPECT_EQ(registry.select(others, hopper).name, "mine");
    EXPECT_EQ(registry.select(declared(37, "z"), hopper).name, "mine");
    EXPECT_EQ(registry.select(outputs, hopper, {.without = {"best"}}).name, "old");
    EXPECT_EQ(registry.select(outputs, hopper, {.pinned = false}).name, "mine");
    EXPECT_EQ(registry.select(outputs, hopper, {.pinned = false, .added = false}).origin, Provenance::Rule);
    selection = registry.select(outputs, hopper, {.pinned = false, .added = false, .rule = false});
    EXPECT_EQ(selection.origin, Provenance::Plain);
    EXPECT_TRUE(checked(selection, outputs).ok);
    registry.remove("best");
    EXPECT_EQ(registry.select(outputs, hopper).name, "old");
}

TEST(Registry, TakesWhatWasTuned) {
    const CacheFolder cache;
    const auto outputs = declared();
    const auto key = schedules::declaration_key(outputs, "choose_schedule");
    auto record = [&](const std::string& picks) {
        return schedules::TunedRecord{.kernel = key.name,
                                      .tiling = picks,
                                      .schedule = "",
                                      .device = "a GPU",
                                      .arch = "sm_90a",
                                      .version = TILEWRIGHT_VERSION,
                                      .milliseconds = 0.5};
    };
    schedules::keep_record(key, record(".schedule=plain"));
    const Selection tuned = Registry().select(outputs, hopper);
    EXPECT_EQ(tuned.origin, Provenance::Tuned);
    EXPECT_EQ(tuned.text(), "choose_schedule: as tuned on a GPU: .schedule=plain, 0.5000 ms\n");
    EXPECT_EQ(tuned.program.cuda(), build(schedules::plain_schedule(outputs, hopper)).cuda());
    EXPECT_EQ(Registry().select(outputs, hopper, {.tuned = false}).origin, Provenance::Rule);

    schedules::keep_record(key, record("nothing=1"));
    const Selection without = Registry().select(outputs, hopper);
    EXPECT_EQ(without.origin, Provenance::Rule);
    EXPECT_THAT(without.passed_over, ElementsAre(HasSubstr("there is no such choice of nothing")));
}

/// A record of a like declaration, and without one what the model of time expects.
TEST(Registry, TakesWhatWasTunedForItsBucketThenWhatTheModelExpects) {
    const CacheFolder cache;
    const auto outputs = declared(48), like = declared(64);
    const auto bucket = schedules::bucket_key(like, "choose_schedule");
    EXPECT_EQ(bucket.text, schedules::bucket_key(outputs, "choose_schedule").text);
    schedules::keep_record(bucket, {.kernel = bucket.name,
                                    .tiling = "y.threads=128",
                                    .schedule = "",
                                    .device = "a GPU",
                                    .arch = "sm_90a",
                                    .version = TILEWRIGHT_VERSION,
                                    .milliseconds = 0.5});
    Selection selection = Registry().select(outputs, hopper);
    EXPECT_EQ(name_of(selection.origin), "tuned for its bucket") << selection.text();
    EXPECT_THAT(selection.why, HasSubstr("as a declaration like it was tuned on a GPU: y.threads=128"));
    EXPECT_TRUE(checked(selection, outputs).ok);
    EXPECT_EQ(Registry().select(outputs, hopper, {.bucket = false}).origin, Provenance::Rule);

    const Tensor x = input("x", f32, {8, 64, 56, 56});
    const Axis d = reduce_axis("d", 5);
    const Tensor energy = compute("energy", {8, 64, 56, 56}, [&](Expr n, Expr c, Expr i, Expr j) {
        const Expr near = padded(x, 0.0)(n, c - 2 + d, i, j);
        return sum(near * near, d);
    });
    selection = Registry().select({energy}, hopper);
    EXPECT_EQ(name_of(selection.origin), "by the model") << selection.text();
    EXPECT_THAT(selection.why, HasSubstr("by the model of time, not as by rule: energy."));
    EXPECT_EQ(Registry().select({energy}, hopper, {.model = false}).origin, Provenance::Rule);
}

/// Once for each declaration: from then on there is a record.
TEST(Registry, TunesOnFirstUse) {
    const CacheFolder cache;
    const auto outputs = declared();
    int tuned = 0;
    Registry registry;
    registry.tune_by([&](const std::vector<Tensor>& given, const Target& wanted) {
        ++tuned;
        EXPECT_EQ(wanted.arch, "sm_90a");
        const auto key = schedules::declaration_key(given, "choose_schedule");
        schedules::keep_record(key, {.kernel = key.name,
                                     .tiling = "y.threads=128",
                                     .schedule = "",
                                     .device = "a GPU",
                                     .arch = wanted.arch,
                                     .version = TILEWRIGHT_VERSION});
    });
    EXPECT_EQ(registry.select(outputs, hopper, {.tuned = false}).origin, Provenance::Rule);
    EXPECT_EQ(tuned, 0);
    for (int time = 0; time < 2; ++time) {
        EXPECT_EQ(registry.select(declared(), hopper).origin, Provenance::Tuned);
        EXPECT_EQ(tuned, 1);
    }
    // A record with a choice that the rule has no more is none.
    const auto key = schedules::declaration_key(outputs, "choose_schedule");
    schedules::keep_record(key, {.kernel = key.name,
                                 .tiling = "nothing=1",
                                 .schedule = "",
                                 .device = "a GPU",
                                 .arch = "sm_90a",
                                 .version = TILEWRIGHT_VERSION});
    EXPECT_EQ(registry.select(outputs, hopper).origin, Provenance::Tuned);
    EXPECT_EQ(tuned, 2);
    registry.tune_by([](const auto&, const auto&) { throw_error(Error, "no clock"); });
    const Selection selection = registry.select(declared(38), hopper);
    EXPECT_EQ(selection.origin, Provenance::Rule);
    EXPECT_THAT(selection.passed_over, ElementsAre("'tuning': no clock"));
}

/// Whoever sets TW_TUNE is told where it has no effect.
TEST(Registry, SaysThatNothingTunes) {
    const CacheFolder cache;
    std::vector<std::string> warnings;
    const WarningSink before = set_warning_sink([&](const std::string& text) { warnings.push_back(text); });
    setenv("TW_TUNE", "off", 1);
    Registry().select(declared(), hopper);
    EXPECT_THAT(warnings, IsEmpty());
    setenv("TW_TUNE", "3", 1);
    schedules::choose_schedule(declared(), hopper);  // it asks no registry
    EXPECT_THAT(warnings, IsEmpty());
    Registry().select(declared(), hopper);
    unsetenv("TW_TUNE");
    set_warning_sink(before);
    EXPECT_THAT(warnings, ElementsAre(HasSubstr("TW_TUNE=3 tunes nothing here: the program has to call ")));
}

TEST(Registry, TakesKernelsThatWereEditedByHand) {
    const auto outputs = declared();
    const Program program = build(schedules::plain_schedule(outputs, hopper));
    const std::string name = program.kernels()[0].name;
    std::string text = program.kernels()[0].cuda;
    const std::string factor = "3.0f";
    ASSERT_NE(text.find(factor), std::string::npos) << text;
    text.replace(text.rfind(factor), factor.size(), "(2.0f + 1.0f)");
    Registry registry;
    registry.pin("edited", outputs, program.with_cuda(name, text));
    const Selection selection = registry.select(outputs, hopper);
    EXPECT_THAT(selection.program.cuda(), HasSubstr("(2.0f + 1.0f)"));
    EXPECT_THAT(selection.program.explain(), HasSubstr("is of a text that was given (registry_test.cpp:"));
    EXPECT_TRUE(checked(selection, outputs).ok);
    text.replace(text.find("(2.0f + 1.0f)"), 13, "4.0f");
    const Program wrong = program.with_cuda(name, text);
    EXPECT_FALSE(
        checked({.program = wrong, .origin = Provenance::Pinned, .name = "", .why = "", .passed_over = {}}, outputs)
            .ok);

    const Program launched = program.with_cuda(name, text, {.grid = {{5, 6, 7}}, .threads = 64, .shared_bytes = 128});
    const auto& kernel = launched.kernels()[0];
    EXPECT_EQ(to_string(kernel.grid[0]) + to_string(kernel.grid[1]) + to_string(kernel.grid[2]), "567");
    EXPECT_EQ(kernel.threads, 64);
    EXPECT_EQ(kernel.shared_bytes, 128);
    EXPECT_EQ(launched.line_notes(0).size(), static_cast<size_t>(std::ranges::count(text, '\n')));
    EXPECT_ERROR(program.with_cuda("none", text), "with_cuda: there is no kernel 'none'; there are [" + name);
    EXPECT_ERROR(program.with_cuda(name, "__global__ void other(int)"),
                 "with_cuda: the text has no __global__ function '" + name + "'");
    EXPECT_ERROR(program.with_cuda(name, text, {.threads = 0}), "give at least 1 block, 1 thread and 0 bytes");
}

/// A pinned program has to overwrite what is asked for, schedules get it; those that have it stay as they are.
TEST(Registry, OutputsOverwriteInputs) {
    const Tensor x = input("x", f32, {37}), total = input("total", f32, {});
    const Tensor y = compute("y", {37}, [&](Expr i) { return x(i) * total() + 1.0; });
    const schedules::Declared declared{{y}, {{y, x}}};
    const auto overwrites = [](const Selection& selection) {
        const auto& pairs = selection.program.tree().in_place;
        return pairs.size() == 1 && pairs[0].first->name == "y" && pairs[0].second->name == "x";
    };
    Registry registry;
    EXPECT_TRUE(overwrites(registry.select(declared, hopper)));
    EXPECT_TRUE(overwrites(registry.select(declared, hopper, {.rule = false})));
    registry.pin("apart", {y}, schedules::plain_schedule({y}, hopper));
    Selection selection = registry.select(declared, hopper);
    EXPECT_EQ(selection.origin, Provenance::Rule);
    EXPECT_THAT(selection.passed_over, ElementsAre(HasSubstr("its 'y' does not overwrite 'x'")));
    Schedule in_place = schedules::plain_schedule({y}, hopper);
    in_place.in_place(y, x);
    registry.pin("in place", {y}, in_place);
    EXPECT_EQ(registry.select(declared, hopper).name, "in place");
    registry.add("mine", [&](const auto&, const Target&) { return std::optional(in_place); });
    selection = registry.select(declared, hopper, {.pinned = false});
    EXPECT_TRUE(overwrites(selection));
    EXPECT_EQ(selection.name, "mine");
}

/// Whatever else is refused: numbers, too, which have no loops.
TEST(Registry, PlainSchedulesTakeNumbers) {
    const Tensor x = input("x", f32, {37});
    const Axis k = reduce_axis("k", 37);
    const Tensor total = compute("total", {}, [&](const std::vector<Expr>&) { return sum(x(k), k); }),
                 twice = compute("twice", {}, [&](const std::vector<Expr>&) { return total() * 2.0; });
    const Selection selection = Registry().select({total, twice}, hopper, {.rule = false});
    EXPECT_EQ(selection.origin, Provenance::Plain);
    EXPECT_TRUE(checked(selection, {total, twice}).ok);
}

TEST(Registry, RefusesWhatItCannotKeep) {
    Registry registry;
    const auto outputs = declared();
    const Schedule schedule = schedules::plain_schedule(outputs, hopper);
    auto none = [](const auto&, const auto&) { return std::optional<Schedule>(); };
    registry.add("mine", none);
    EXPECT_ERROR(registry.add("", none), "registry: the name is empty");
    EXPECT_ERROR(registry.add("mine", none), "registry: there is a 'mine' already");
    EXPECT_ERROR(registry.pin("mine", outputs, schedule), "registry: there is a 'mine' already");
    EXPECT_ERROR(registry.add("empty", Registry::Rule()), "the rule 'empty' is an empty function");
    EXPECT_ERROR(
        registry.pin("other", {outputs[0]}, schedule),
        "registry: 'other' cannot be pinned: it makes y f32 [37, 70], total f32 [37], but what is declared is");
    EXPECT_ERROR(registry.remove("none"), "registry: there is no 'none'; there are [mine]");
    registry.add("wrong", [&](const auto&, const Target& wanted) {
        return std::optional(schedules::plain_schedule(declared(5), wanted));
    });
    EXPECT_ERROR(registry.select(outputs, hopper), "registry: the rule 'wrong': it makes y f32 [5, 70]");
    registry.add("other", [&](const auto&, const auto&) -> std::optional<Schedule> { throw std::out_of_range("far"); });
    EXPECT_ERROR(registry.select(outputs, hopper), "registry: the rule 'other' ended with 'far'; it should return");
    EXPECT_NO_THROW(registry.select(outputs, hopper, {.without = {"other", "wrong"}}));
    EXPECT_ERROR(registry.select(outputs, hopper, {.without = {"others"}}),
                 "registry: there is no 'others' to select without; there are [other, wrong, mine]");
    const std::vector<Tensor> nothing;
    EXPECT_ERROR(registry.select(nothing, hopper), "registry: select() needs at least one output tensor");
    EXPECT_ERROR(schedules::choose_schedule(nothing, hopper), "choose_schedule: needs at least one output tensor");
    EXPECT_ERROR(schedules::candidates(nothing, hopper), "candidates: needs at least one output tensor");
}

TEST(Registry, IsAskedByOperatorsWithoutASchedule) {
    auto backend = std::make_shared<nn::Backend>(open_device("emulated:sm_90a"));
    int asked = 0;
    backend->registry().add("counted", [&](const std::vector<Tensor>& outputs, const Target& wanted) {
        ++asked;
        return std::optional(schedules::plain_schedule(outputs, wanted));
    });
    const nn::Operator doubled("doubled", [](const std::vector<Tensor>& x) {
        return compute("y", {x[0].shape()[0]}, [&](Expr i) { return x[0](i) * 2.0; });
    });
    HostArray host = host_array(f32, {5});
    for (int64_t i = 0; i < 5; ++i) host.set({i}, make_value(f32, double(i + 1)));
    const nn::Tensor x(backend, host, "x");
    const HostArray y = doubled({x}).to_host();
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(y.at({i}).real, 2 * double(i + 1));
    doubled({x});
    EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace tw

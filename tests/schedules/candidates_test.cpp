// Candidates: other schedules of what is declared, found by the choices that rules ask for; and records of them.
#include "schedules/candidates.h"
#include "schedules/choose_by_rule.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/runner.h"
#include "runtime/compile/cubin_cache.h"
#include "runtime/driver/emulated_device.h"
#include "schedules/declaration_text.h"
#include "schedules/elementwise.h"
#include "support/error.h"
#include "support/version.h"
#include "tests/support/cache_folder.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

struct Softmax {
    Tensor x, y;
};
Softmax softmax(int64_t rows, int64_t columns, const std::string& name = "y") {
    const Tensor x = input("x", f32, {rows, columns});
    const Axis k = reduce_axis("k", columns), l = reduce_axis("l", columns);
    const Tensor most = compute("most", {rows}, [&](Expr i) { return reduce_max(x(i, k), k); });
    const Tensor total = compute("total", {rows}, [&](Expr i) { return sum(exp(x(i, l) - most(i)), l); });
    return {x, compute(name, {rows, columns}, [&](Expr i, Expr j) { return exp(x(i, j) - most(i)) / total(i); })};
}

Tensor scaled(const std::string& name, int64_t rows, int64_t columns, float factor = 2.0f) {
    const Tensor x = input("x", f32, {rows, columns});
    return compute(name, {rows, columns}, [&](Expr i, Expr j) { return x(i, j) * factor; });
}

void expect_right(const Schedule& s) {
    Runner runner(s, open_device("emulated"));
    const CheckResult check = runner.set(random_bindings(s.outputs(), 3)).check();
    EXPECT_TRUE(check.ok) << check.text << "\n" << s.save();
}

std::set<std::string> texts_of(const std::vector<Candidate>& all) {
    std::set<std::string> texts;
    for (const Candidate& each : all) texts.insert(each.text);
    return texts;
}

/// A folder of records that no other test has.
class Records : public testing::Test {
protected:
    void SetUp() override {
        sink_ = set_warning_sink([this](const std::string& text) { warnings_.push_back(text); });
    }
    void TearDown() override { set_warning_sink(sink_); }
    static TunedRecord record_of(const DeclarationKey& key, const std::string& picks) {
        return {.kernel = key.name,
                .tiling = picks,
                .schedule = "",
                .device = "a device",
                .arch = "sm_90a",
                .version = TILEWRIGHT_VERSION,
                .milliseconds = 1,
                .spread = 0};
    }

    CacheFolder cache_;
    WarningSink sink_;
    std::vector<std::string> warnings_;
};

/// Each is another schedule, and right; the rule's comes first, and the plain one is there.
TEST(Candidates, OfRows) {
    const Softmax s = softmax(6, 96);
    const Target limits = target("sm_90a");
    const std::vector<Candidate> all = candidates({s.y}, limits, {.limit = 14});
    ASSERT_EQ(all.size(), 14u);
    EXPECT_TRUE(all[0].picks.empty());
    EXPECT_EQ(all[0].text, "by rule");
    EXPECT_EQ(all[0].schedule.save(), choose_schedule({s.y}, limits).save());
    std::set<std::string> different;
    for (const Candidate& each : all) {
        SCOPED_TRACE(each.text);
        EXPECT_TRUE(different.insert(each.schedule.save()).second);
        expect_right(each.schedule);
    }
    const std::set<std::string> texts = texts_of(all);
    EXPECT_THAT(texts, Contains("schedule plain (chosen by rule)"));
    EXPECT_THAT(texts, Contains("most: threads 16 (8 by rule)"));
    EXPECT_THAT(texts, Contains("most: way apart (kept by rule)"));
}

TEST(Candidates, OfElements) {
    const Tensor y = scaled("y", 64, 256);
    const std::vector<Candidate> all = candidates({y}, target("sm_90a"), {.limit = 12});
    for (const Candidate& each : all) expect_right(each.schedule);
    EXPECT_EQ(all.size(), 12u);
    EXPECT_THAT(texts_of(all), Contains(HasSubstr("y: vector ")));
}

/// Turned operands in other tiles, reductions by other numbers of threads, products of either kind.
TEST(Candidates, OfWhatElseIsDeclared) {
    const Tensor x = input("x", f32, {130, 260}), z = input("z", f32, {20, 300}), a = input("a", f32, {40, 24}),
                 b = input("b", f32, {24, 40}), c = input("c", bf16, {64, 64}), d = input("d", bf16, {64, 64});
    const Axis k = reduce_axis("k", 300), l = reduce_axis("l", 24), m = reduce_axis("m", 64), n = reduce_axis("n", 300);
    const Tensor turned = compute("turned", {260, 130}, [&](Expr i, Expr j) { return x(j, i) + 1.0f; });
    const Tensor sums = compute("sums", {20}, [&](Expr i) { return sum(z(i, k), k); });
    const Tensor product = compute("product", {40, 40}, [&](Expr i, Expr j) { return sum(a(i, l) * b(l, j), l); });
    const Tensor on_units = compute("on_units", {64, 64}, [&](Expr i, Expr j) {
        return cast(bf16, sum(cast(f32, c(i, m)) * cast(f32, d(m, j)), m));
    });
    const Tensor running =
        compute("running", {20, 300}, [&](Expr i, Expr j) { return sum(select(n <= j, z(i, n), 0.0f), n); });
    for (const auto& [y, text] : {std::pair(turned, "turned: "),
                                  {sums, "sums: "},
                                  {product, "product: tiles "},
                                  {on_units, "on_units: tiling "},
                                  {running, "by rule"}}) {
        SCOPED_TRACE(text);
        const std::vector<Candidate> all = candidates({y}, target("sm_90a"), {.limit = 4});
        EXPECT_THAT(texts_of(all), Contains(HasSubstr(text)));
        for (const Candidate& each : all) expect_right(each.schedule);
    }
}

/// The same at every call; a limit cuts the list.
TEST(Candidates, AreTheSameAtEachCall) {
    const Softmax s = softmax(5, 300);
    const Target limits = target("sm_90a");
    const std::vector<Candidate> more = candidates({s.y}, limits, {.limit = 12}),
                                 fewer = candidates({s.y}, limits, {.limit = 5});
    ASSERT_EQ(fewer.size(), 5u);
    for (size_t k = 0; k < fewer.size(); ++k) EXPECT_EQ(fewer[k].schedule.save(), more[k].schedule.save());
    for (const Candidate& each : more) {
        EXPECT_EQ(parse_picks(picks_text(each.picks)), each.picks);
        const Schedule again = schedule_with(each.picks, [&] { return choose_schedule({s.y}, limits); });
        EXPECT_EQ(again.save(), each.schedule.save());
    }
}

/// A rule of one's own has candidates by what it asks.
TEST(Candidates, OfARuleOfOnesOwn) {
    const ScheduleRule own = [](const std::vector<Tensor>& outputs, const Target& limits) {
        Schedule s(outputs, limits);
        schedule_each_element(s, outputs[0], pick("all elements", "threads", {32, 64, 2048}, 128));
        return s;
    };
    const Tensor y = scaled("y", 3, 50);
    const std::vector<Candidate> all = candidates({y}, target("sm_90a"), {.rule = own});
    ASSERT_EQ(all.size(), 3u);  // of so many threads as 2048 is no block
    EXPECT_EQ(all[1].text, "all elements: threads 32 (128 by rule)");
    EXPECT_EQ(picks_text(all[2].picks), "all%20elements.threads=64");
    EXPECT_EQ(pick("all elements", "threads", {32, 64}, 128), 128);  // where nobody searches
}

TEST(Candidates, RefuseChoicesThatAreNone) {
    const Tensor y = scaled("y", 3, 50);
    auto rule = [&] { return choose_schedule({y}, target("sm_90a")); };
    EXPECT_ERROR(schedule_with({{"y.threads", "7"}}, rule),
                 "y.threads=7: there is no such choice of y.threads; the rule offers 64, 128, 256, 512; pick what the "
                 "rule can make, as the picks of candidates() are, or leave y.threads out");
    EXPECT_ERROR(schedule_with({{"z.threads", "64"}}, rule),
                 "z.threads=64: there is no such choice of z.threads; the rule asks for .schedule, y.vector, y.steps");
    EXPECT_ERROR(parse_picks("y.threads"), "'y.threads' tells no choices, as y.threads=128 does: 'y.threads' is none");
    EXPECT_ERROR(parse_picks(""), "'' tells no choices");
}

Tensor scattered(Type type, int64_t terms, int64_t rows, int64_t width) {
    const Tensor ids = input("ids", i32, {terms}), dy = input("dy", type, {terms, width});
    const Axis p = reduce_axis("p", terms);
    return compute("d", {rows, width},
                   [&](Expr i, Expr j) { return sum(select(ids(p) == i, dy(p, j), constant(type, 0)), p); });
}

/// What another way is taken for is no schedule with these picks.
TEST(Candidates, RefuseWhatTheRuleCannotMake) {
    const Target limits = target("sm_90a");
    const Tensor d = scattered(f32, 100, 50, 8), y = scaled("y", 3, 50);
    EXPECT_ERROR(schedule_with({{"d.terms", "privatized"}}, [&] { return choose_schedule({d}, limits); }),
                 "d.terms=privatized: that cannot be made here, the rule takes sorted (it offers compared, sorted, "
                 "listed, searched, privatized, few_rows); pick what the rule can make");
    EXPECT_ERROR(schedule_with({{"y.elements", "beside"}}, [&] { return choose_schedule({y}, limits); }),
                 "y.elements=beside: that cannot be made here, the rule takes vectors");
    // How the second product's terms are shared is asked while the first one's tiles are tried.
    const Tensor a = input("a", f32, {64, 48}), b = input("b", f32, {48, 64});
    const Axis k = reduce_axis("k", 48), l = reduce_axis("l", 48);
    const Tensor first = compute("first", {64, 64}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); }),
                 second = compute("second", {64, 64}, [&](Expr i, Expr j) { return sum(a(j, l) * b(l, i), l); });
    EXPECT_ERROR(schedule_with({{"second.reduced", "by_one"}},
                               [&] {
                                   return choose_schedule({first, second}, limits);
                               }),
                 "second.reduced=by_one: that is asked on the way, but not of the schedule that is made");
}

/// Each pick is refused, or makes another schedule, unless the rule itself takes what is picked.
TEST(Candidates, HaveWhatIsPicked) {
    const Target limits = target("sm_90a");
    const Tensor x = input("x", f32, {64, 3000}), a = input("a", f32, {100, 64}), b = input("b", f32, {64, 100});
    const Axis k = reduce_axis("k", 3000), l = reduce_axis("l", 64);
    const Tensor squares = compute("squares", {64}, [&](Expr i) { return sum(x(i, k) * x(i, k), k); });
    const Tensor product = compute("product", {100, 100}, [&](Expr i, Expr j) { return sum(a(i, l) * b(l, j), l); });
    for (const Tensor& y : {scaled("y", 64, 256), squares, product, scattered(i32, 100, 50, 8)}) {
        const std::function<Schedule()> rule = [&] { return choose_schedule({y}, limits); };
        const Choices by_rule;
        const std::string text = rule().save();
        for (const Choice& choice : by_rule.asked())
            for (size_t option = 0; option < std::min<size_t>(choice.options.size(), 5); ++option) {
                const std::string& picked = choice.options[option];
                if (picked == choice.rule) continue;
                SCOPED_TRACE(choice.name + "=" + picked);
                try {
                    if (schedule_with({{choice.name, picked}}, rule).save() != text) continue;
                } catch (const Error&) {
                    continue;
                }
                EXPECT_ERROR(schedule_with({{choice.name, choice.rule}}, rule), "the rule takes " + picked + " (");
            }
    }
}

TEST(DeclarationText, TellsWhatDiffers) {
    const Tensor y = scaled("y", 3, 50);
    EXPECT_EQ(declaration_text({y}), declaration_text({scaled("y", 3, 50)}));
    const Tensor half = input("x", f16, {3, 50}), apart = input("x", f32, {3, 50}, {64, 1});
    auto over = [](const Tensor& x) {
        return compute("y", {3, 50}, [&](Expr i, Expr j) { return cast(f32, x(i, j)) * 2.0f; });
    };
    const Axis k = reduce_axis("k", 50);
    auto combined = [&](const CombineTerms& combine) {
        const Tensor x = input("x", f32, {3, 50});
        const Reducer reducer = make_reducer("own", {Expr(0.0)}, combine);
        return compute("y", {3}, [&](Expr i) { return reduce(reducer, {x(i, k)}, {k})[0]; });
    };
    std::set<std::string> different;
    for (const std::vector<Tensor>&outputs : std::vector<std::vector<Tensor>>{
             {y},
             {scaled("z", 3, 50)},
             {scaled("y", 3, 51)},
             {scaled("y", 3, 50, 2.0000002f)},
             {over(half)},
             {over(apart)},
             {y, scaled("z", 3, 50)},
             {combined([](const auto&a, const auto&b) { return std::vector<Expr>{a[0] + b[0]}; })},
             {combined([](const auto&a, const auto&b) { return std::vector<Expr>{a[0] + b[0] + 0.0f}; })}})
        EXPECT_TRUE(different.insert(declaration_text(outputs)).second) << declaration_text(outputs);
    EXPECT_THAT(declaration_name({y}, "text"), HasSubstr("y #"));
}

/// Shared nodes are told once: a text of a chain that doubles is not long.
TEST(DeclarationText, IsShort) {
    const Tensor x = input("x", f32, {8});
    const Tensor y = compute("y", {8}, [&](Expr i) {
        Expr value = x(i);
        for (int k = 0; k < 200; ++k) value = value + value;
        return value;
    });
    EXPECT_LT(declaration_text({y}).size(), 10000u);
}

TEST_F(Records, AreUsedByEqualDeclarations) {
    const Target limits = target("sm_90a");
    const Tensor y = scaled("y", 64, 256);
    const std::string by_rule = choose_schedule({y}, limits).save();
    const DeclarationKey key = declaration_key({y}, "choose_schedule");
    EXPECT_TRUE(kept_records(key).empty());
    keep_record(key, record_of(key, "y.threads=512 y.vector=1"));
    const Schedule tuned = choose_schedule({scaled("y", 64, 256)}, limits);
    EXPECT_NE(tuned.save(), by_rule);
    EXPECT_THAT(tuned.explain(), HasSubstr("as tuned on a device: y.threads=512 y.vector=1"));
    expect_right(tuned);
    EXPECT_EQ(choose_schedule({scaled("y", 64, 128)}, limits).explain().find("as tuned"), std::string::npos);
    // In the place of the device's; that of another device stands beside it.
    keep_record(key, record_of(key, "rule"));
    EXPECT_EQ(choose_schedule({y}, limits).save(), by_rule);
    TunedRecord other = record_of(key, "y.threads=512");
    other.device = "another";
    keep_record(key, other);
    EXPECT_EQ(kept_records(key).size(), 2u);
    // Those in use are asked first, and none where choices live.
    const RecordsInUse in_use({record_of(key, "y.threads=128")});
    EXPECT_THAT(choose_schedule({y}, limits).explain(), HasSubstr("as tuned on a device: y.threads=128"));
    const Choices rule_alone;
    EXPECT_EQ(choose_schedule({y}, limits).save(), by_rule);
    EXPECT_TRUE(warnings_.empty());
}

TEST_F(Records, AreLeftOutByName) {
    const Target limits = target("sm_90a");
    const Tensor y = scaled("y", 64, 256);
    const DeclarationKey key = declaration_key({y}, "choose_schedule");
    const std::string by_rule = choose_schedule({y}, limits).save();
    auto explained = [&](const TunedRecord& record) {
        keep_record(key, record);
        const Schedule s = choose_schedule({y}, limits);
        EXPECT_EQ(s.save(), by_rule);
        return s.explain();
    };
    TunedRecord record = record_of(key, "y.threads=512");
    record.version = "0.0.1";
    EXPECT_THAT(explained(record),
                HasSubstr("a record of '" + key.name + "' is left out: it is of version 0.0.1, this is"));
    record = record_of(key, "y.threads=512");
    record.arch = "sm_80";
    EXPECT_THAT(explained(record), HasSubstr("it was measured on a device (sm_80), this is sm_90a; tune it again"));
    EXPECT_THAT(explained(record_of(key, "y.threads=500")),
                HasSubstr("is left out: y.threads=500: there is no such choice of y.threads; the rule offers 64"));
    EXPECT_THAT(explained(record_of(key, "nonsense")), HasSubstr("'nonsense' tells no choices"));
}

/// Extents nearby, as divisible, whatever the real numbers; not others.
TEST(BucketText, IsThatOfLikeDeclarations) {
    const std::string text = bucket_text({scaled("y", 64, 256)});
    EXPECT_EQ(text, bucket_text({scaled("y", 80, 240)}));
    EXPECT_NE(text, bucket_text({scaled("z", 64, 256)}));
    for (const auto& [rows, columns] : {std::pair{64, 512}, {128, 256}, {64, 248}, {64, 255}, {65, 256}, {5, 256}})
        EXPECT_NE(text, bucket_text({scaled("y", rows, columns)})) << rows << " " << columns;
    EXPECT_NE(bucket_text({scaled("y", 5, 7)}), bucket_text({scaled("y", 6, 7)}));
}

TEST_F(Records, ServeDeclarationsOfTheirBucket) {
    const Target limits = target("sm_90a");
    const Tensor tuned = scaled("y", 64, 256), like = scaled("y", 80, 240);
    const DeclarationKey bucket = bucket_key({tuned}, "choose_schedule");
    keep_record(bucket, record_of(bucket, "y.threads=512"));
    const Schedule s = choose_schedule({like}, limits);
    EXPECT_THAT(s.explain(), HasSubstr("as a declaration like it was tuned on a device: y.threads=512"));
    expect_right(s);
    EXPECT_THAT(choose_schedule({scaled("y", 80, 241)}, limits).explain(), Not(HasSubstr("was tuned")));
    // One of exactly this declaration is asked before.
    const DeclarationKey own = declaration_key({like}, "choose_schedule");
    keep_record(own, record_of(own, "y.threads=128"));
    EXPECT_THAT(choose_schedule({like}, limits).explain(), HasSubstr("as tuned on a device: y.threads=128"));
    const TunedSchedule without = tuned_schedule({like}, limits, "choose_schedule", chosen_schedule,
                                                 {.records = false, .buckets = false, .model = false});
    EXPECT_EQ(without.source, ChoiceSource::Rule);
    EXPECT_EQ(without.why, "by rule");
}

/// A thread for each of few long rows is no way of others, whoever measured it.
TEST_F(Records, OfABucketYieldToTheModel) {
    const Target limits = target("sm_90a");
    auto sums = [](int64_t rows, int64_t columns) {
        const Tensor x = input("x", f32, {rows, columns});
        const Axis k = reduce_axis("k", columns);
        return compute("y", {rows}, [&](Expr i) { return sum(x(i, k), k); });
    };
    const DeclarationKey bucket = bucket_key({sums(512, 4096)}, "choose_schedule");
    keep_record(bucket, record_of(bucket, ".schedule=plain"));
    const Schedule s = choose_schedule({sums(528, 4112)}, limits);
    EXPECT_THAT(s.explain(), HasSubstr("a record of declarations like it, .schedule=plain, is left out: the model of "
                                       "time expects "));
    EXPECT_EQ(s.save(), chosen_schedule({sums(528, 4112)}, limits).save());
}

/// What was cut off is removed, with a warning; what is no record is left out, with one.
TEST_F(Records, ThatAreDamagedAreNone) {
    const Target limits = target("sm_90a");
    const Tensor y = scaled("y", 64, 256);
    const DeclarationKey key = declaration_key({y}, "choose_schedule");
    const std::string by_rule = choose_schedule({y}, limits).save();
    keep_record(key, record_of(key, "y.threads=512"));
    ASSERT_NE(choose_schedule({y}, limits).save(), by_rule);
    for (const auto& entry : std::filesystem::directory_iterator(cache_.path() / "tuned"))
        std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) - 5);
    EXPECT_EQ(choose_schedule({y}, limits).save(), by_rule);
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_THAT(warnings_[0], HasSubstr((cache_.path() / "tuned").string()));
    EXPECT_TRUE(std::filesystem::is_empty(cache_.path() / "tuned"));
    CubinCache(cache_.path() / "tuned").store(key.text, "{\"kernel\": 3}");
    EXPECT_EQ(choose_schedule({y}, limits).save(), by_rule);
    ASSERT_EQ(warnings_.size(), 2u);
    EXPECT_THAT(warnings_[1], HasSubstr("records of '" + key.name + "' are left out: "));
    keep_record(key, record_of(key, "y.threads=512"));
    EXPECT_NE(choose_schedule({y}, limits).save(), by_rule);
}

TEST_F(Records, SayWhereTheyCannotBeKept) {
    const DeclarationKey key = declaration_key({scaled("y", 64, 256)}, "choose_schedule");
    std::ofstream(cache_.path() / "tuned") << "no folder";
    EXPECT_ERROR(keep_record(key, record_of(key, "rule")), "cannot keep the record of '" + key.name + "' in ");
}

}  // namespace
}  // namespace tw::schedules

// Parts of a step with schedules of their own, and views that need no memory.
#include "dsl/own_schedule.h"

#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "ops/step/group_schedules.h"
#include "ops/step/interpret_step.h"
#include "ops/step/planned_step.h"
#include "schedules/views.h"
#include "tests/ops/step/small_steps.h"
#include "tests/support/expect_error.h"

namespace tw {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const Target& hopper = target("sm_90a");

/// Of rows: the largest element, and each element less that. Two results of two shapes.
std::vector<Tensor> lowered(const std::vector<Tensor>& in) {
    const Tensor& x = in[0];
    const Axis k = reduce_axis("k", x.shape()[1]);
    const Tensor top = compute("top", {x.shape()[0]}, [&](Expr i) { return reduce_max(cast(f32, x(i, k)), k); });
    const Tensor low =
        compute("low", {x.shape()[0], x.shape()[1]}, [&](Expr i, Expr j) { return cast(f32, x(i, j)) - top(i); });
    return {low, top};
}
/// A thread for each row, which no rule would choose.
Schedule schedule_lowered(const std::vector<Tensor>& in, const Target& target) {
    user_check(in[0].type() == f32, std::source_location::current(), "lowered: {} elements", name_of(in[0].type()));
    Schedule s(lowered(in), target);
    for (const Tensor& result : s.outputs()) s.bind(s.data_loops(result)[0], thread);
    if (!in[0].operation()->is_input()) s.inline_stage(in[0]);
    return s;
}
std::vector<Tensor> lowered_rows(const Tensor& x, const std::string& name = "lowered") {
    return with_schedule(name, {x}, lowered, schedule_lowered);
}

std::vector<std::string> origins(const StepPlan& plan) {
    std::vector<std::string> all;
    for (const StepGroup& group : plan.groups) all.push_back(name_of(group.selection->origin));
    return all;
}

void expect_as_declared(const schedules::Declared& step, const StepPlan& plan, uint64_t seed) {
    EXPECT_THAT(faults_of(plan), IsEmpty());
    const Bindings data = random_bindings(step.outputs, seed);
    const std::vector<HostArray> expected = interpret_plain(step.outputs, data), got = interpret_step(plan, data);
    for (size_t k = 0; k < expected.size(); ++k) {
        const auto differs = difference(step.outputs[k].name(), got[k], expected[k], near(32, 1e-5));
        EXPECT_FALSE(differs) << *differs;
    }
    const PlannedStep planned(plan, best_device().device);
    for (const auto& [name, array] : data.inputs) planned.set(name, array);
    planned.run();
    for (size_t k = 0; k < expected.size(); ++k) {
        const auto differs =
            difference(step.outputs[k].name(), planned.get(step.outputs[k].name()), expected[k], near(64, 1e-4));
        EXPECT_FALSE(differs) << *differs;
    }
}

TEST(OwnSchedules, StandInAStepAsTheirAuthorSays) {
    const Tensor x = input("x", f32, {24, 40});
    const Tensor before = compute("before", {24, 40}, [&](Expr i, Expr j) { return x(i, j) * 2.0; });
    const std::vector<Tensor> first = lowered_rows(before);
    const Tensor between =
        compute("between", {24, 40}, [&](Expr i, Expr j) { return tanh(first[0](i, j)) + first[1](i); });
    const std::vector<Tensor> second = lowered_rows(between);
    const Axis k = reduce_axis("k", 40);
    const Tensor y = compute("y", {24}, [&](Expr i) { return sum(exp(second[0](i, k)), k); });
    const schedules::Declared step{{y}};
    const StepPlan plan = plan_step(step, hopper);
    EXPECT_THAT(origins(plan), Contains("own").Times(2));
    EXPECT_THAT(plan.text(false), HasSubstr("group 1: lowered\n    kernels  top_kernel, low_kernel"));
    EXPECT_THAT(plan.text(false), HasSubstr("its own schedule"));
    // equal parts are one, and the second one's tops, which nobody reads, lie somewhere
    EXPECT_EQ(plan.groups[1].selection, plan.groups[3].selection);
    EXPECT_EQ(plan.groups[3].writes.size(), 2U);
    EXPECT_THAT(plan.apart, Contains(HasSubstr("'lowered' has a schedule of its own")));
    expect_as_declared(step, plan, 1);
}

TEST(OwnSchedules, AreToldApartByTheirNames) {
    const Tensor x = input("x", f32, {8, 16}), y = input("y", f32, {8, 16});
    const Tensor a = lowered_rows(x)[0], b = lowered_rows(y, "other")[0];
    const Tensor sums = compute("sums", {8, 16}, [&](Expr i, Expr j) { return a(i, j) + b(i, j); });
    EXPECT_EQ(plan_step({{sums}}, hopper).num_distinct(), 3U);
}

TEST(OwnSchedules, ReturnAndOverwrite) {
    const Tensor x = input("x", f32, {12, 20});
    const std::vector<Tensor> made = lowered_rows(x);
    const schedules::Declared step{{made[1], made[0]}, {{made[0], x}}};
    const StepPlan plan = plan_step(step, hopper);
    expect_as_declared(step, plan, 2);
    EXPECT_THAT(plan.text(false),
                HasSubstr("copy of low"));  // no schedule of one's own promises to read before it writes
}

TEST(OwnSchedules, ThatRefuseLeaveWhatTheyAreMadeOf) {
    const Tensor x = input("x", bf16, {8, 16});
    const Tensor y = lowered_rows(x)[0];
    const StepPlan plan = plan_step({{y}}, hopper);
    EXPECT_THAT(origins(plan), Not(Contains("own")));
    EXPECT_THAT(plan.text(false), HasSubstr("not by its own schedule: 'lowered': "));
    expect_as_declared({{y}}, plan, 3);
}

TEST(OwnSchedules, ReadViewsWhereTheyLie) {
    const Tensor x = input("x", f32, {6, 3, 4, 10}), w = input("w", f32, {1, 1});
    const Tensor twice =
        compute("twice", {6, 3, 4, 10}, [&](Expr i, Expr p, Expr j, Expr k) { return x(i, p, j, k) * w(0, 0); });
    const Tensor middle = schedules::slice("middle", twice, 1, 1, 2);
    const Tensor rows = schedules::reshape("rows", middle, {24, 10});
    const Tensor y = lowered_rows(rows)[0];
    const Tensor z = schedules::reshape("z", y, {6, 40});
    const Axis k = reduce_axis("k", 40);
    const Tensor sums = compute("sums", {6}, [&](Expr i) { return sum(exp(z(i, k)), k); });
    const StepPlan plan = plan_step({{sums}}, hopper);
    EXPECT_THAT(origins(plan), ElementsAre("by rule", "own", "by rule"));
    EXPECT_EQ(plan.num_kernels(), 4U) << plan.text();  // nothing is copied
    expect_as_declared({{sums}}, plan, 4);
}

TEST(OwnSchedules, SayWhatIsWrongWithThem) {
    const Tensor x = input("x", f32, {8, 16});
    EXPECT_ERROR(with_schedule("", {x}, lowered, schedule_lowered), "with_schedule: no name; give one");
    EXPECT_ERROR(with_schedule("a", {x}, {}, schedule_lowered), "what declares is no function; give one");
    EXPECT_ERROR(with_schedule("a", {x}, lowered, {}), "what schedules is no function; give one");
    EXPECT_ERROR(with_schedule("a", {Tensor()}, lowered, schedule_lowered), "an operand is an undefined tensor");
    auto declares = [](const std::vector<Tensor>& results) {
        return [results](const std::vector<Tensor>&) { return results; };
    };
    EXPECT_ERROR(with_schedule("a", {x}, declares({x}), schedule_lowered),
                 "with_schedule of 'a': result 0 is an input; declare each by compute()");
    EXPECT_ERROR(with_schedule("a", {x}, declares({Tensor()}), schedule_lowered), "result 0 is undefined");
    const Tensor y = lowered({x})[0];
    EXPECT_ERROR(with_schedule("a", {x}, declares({y, y}), schedule_lowered),
                 "'low' is two of its results; name it once");
    const Tensor both = compute_tuple("both", {"p", "q"}, {8}, [&](const std::vector<Expr>& i) {
        return std::vector{x(i[0], 0), x(i[0], 1)};
    })[0];
    EXPECT_ERROR(with_schedule("a", {x}, declares({both}), schedule_lowered), "result 0 is a component of a tuple");
    const Tensor other = input("other", f32, {8});
    auto declares_more = [&](const std::vector<Tensor>& in) {
        return std::vector{compute("sum", {8}, [&](Expr i) { return in[0](i, 0) + other(i); })};
    };
    EXPECT_ERROR(with_schedule("a", {x}, declares_more, schedule_lowered),
                 "with_schedule of 'a': its results read 'other', which is no operand; name it as one");
}

/// What is wrong with a schedule the plan tells, which does not take it.
TEST(OwnSchedules, AreOfWhatIsDeclared) {
    const Tensor x = input("x", f32, {8, 16});
    auto expect_refused = [&](const PartSchedule& schedule, const std::string& text) {
        const Tensor z = with_schedule("part", {x}, lowered, schedule)[0];
        EXPECT_ERROR(selection_of_part(declare_group(step_graph({{z}}), {0}), hopper), text);
        const StepPlan plan = plan_step({{z}}, hopper);
        EXPECT_THAT(plan.refused, ElementsAre(HasSubstr(text)));
        EXPECT_THAT(origins(plan), Not(Contains("own")));
        expect_as_declared({{z}}, plan, 6);
    };
    expect_refused(
        [](const std::vector<Tensor>& in, const Target& target) { return Schedule({lowered(in)[0]}, target); },
        "the schedule of 'part' is of low f32 [8, 16], where it declares low f32 [8, 16], top f32 [8]");
    expect_refused(
        [](const std::vector<Tensor>& in, const Target& target) {
            const Tensor low = compute("low", {8, 16}, [&](Expr i, Expr j) { return in[0](i, j) * 3.0; });
            return Schedule({low, lowered(in)[1]}, target);
        },
        "the schedule of 'part' is of another declaration than its own; schedule what it declares of these operands, "
        "or, "
        "if that is the same computation, say ScheduleOf::Equivalent");
    expect_refused(
        [&](const std::vector<Tensor>&, const Target& target) { return Schedule(lowered({x}), target); },  // captured
        "the schedule of 'part' reads 'x', which is none of the operands that it is given");
    const Tensor z = with_schedule(
        "part", {x}, lowered, [](const auto&, const auto&) -> Schedule { throw std::runtime_error("no time"); })[0];
    EXPECT_THAT(plan_step({{z}}, hopper).refused, ElementsAre(HasSubstr("'part': no time")));
    EXPECT_ERROR(plan_step({{z, z}}, hopper), "plan_step: the result 'low' is returned twice; return it once");
    // the author's word
    auto twice = [](const std::vector<Tensor>& in) {
        return std::vector{compute("twice", {8, 16}, [&](Expr i, Expr j) { return in[0](i, j) * 2.0; })};
    };
    auto added = [](const std::vector<Tensor>& in, const Target& target) {
        return Schedule({compute("twice", {8, 16}, [&](Expr i, Expr j) { return in[0](i, j) + in[0](i, j); })}, target);
    };
    const Tensor y = with_schedule("twice", {x}, twice, added, ScheduleOf::Equivalent)[0];
    const StepPlan plan = plan_step({{y}}, hopper);
    EXPECT_THAT(origins(plan), ElementsAre("own"));
    expect_as_declared({{y}}, plan, 7);
}

/// A product, and the largest of its rows, whose gradient asks which element that was.
TEST(OwnSchedules, HaveResultsThatGradientsReadWhereTheyLie) {
    auto scored = [](const std::vector<Tensor>& in) {
        const Axis k = reduce_axis("k", in[0].shape()[1]), j = reduce_axis("j", in[1].shape()[0]);
        const Tensor y = compute("y", {in[0].shape()[0], in[1].shape()[0]},
                                 [&](Expr i, Expr c) { return sum(in[0](i, k) * in[1](c, k), k); });
        return std::vector{y, compute("top", {y.shape()[0]}, [&](Expr i) { return reduce_max(y(i, j), j); })};
    };
    auto schedule = [=](const std::vector<Tensor>& in, const Target& target) {
        Schedule s(scored(in), target);
        for (const Tensor& result : s.outputs()) s.bind(s.data_loops(result)[0], thread);
        return s;
    };
    const Tensor x = input("x", f32, {32, 64}), w = input("w", f32, {16, 64}), d = input("d", f32, {32});
    const std::vector<Tensor> made = with_schedule("scored", {x, w}, scored, schedule);
    const Tensor low = compute("low", {32, 16}, [&](Expr i, Expr c) { return made[0](i, c) - made[1](i); });
    const schedules::Declared step{{low, gradients(made[1], d, {w})[0]}};
    const StepPlan plan = plan_step(step, hopper);
    expect_as_declared(step, plan, 8);
    for (const StepGroup& group : plan.groups)
        EXPECT_THAT(group.operations, Not(Contains("y"))) << "made again\n" << plan.text();
    const StepPlan of_one = plan_step({{gradients(made[1], d, {w})[0]}}, hopper);  // which needs y as well
    expect_as_declared({{gradients(made[1], d, {w})[0]}}, of_one, 9);
}

TEST(ViewsInSteps, LieWhereTheirTensorsDo) {
    const Tensor x = input("x", f32, {24, 64}), w = input("w", f32, {32, 16});
    const Tensor z = compute("z", {24, 64}, [&](Expr i, Expr j) { return exp(x(i, j)); });
    const Axis k = reduce_axis("k", 64), r = reduce_axis("r", 16);
    const Tensor sums = compute("sums", {24}, [&](Expr i) { return sum(z(i, k), k); });
    const Tensor rows = schedules::reshape("rows", z, {96, 16});
    const Tensor y = compute("y", {96, 32}, [&](Expr i, Expr j) { return sum(rows(i, r) * w(j, r), r); });
    const Tensor wide = schedules::reshape("wide", y, {24, 128});
    const Axis c = reduce_axis("c", 24);
    const Tensor columns = compute("columns", {128}, [&](Expr j) { return sum(wide(c, j) * sums(c), c); });
    const StepPlan plan = plan_step({{columns}}, hopper);
    for (const StepValue& value : plan.values) {
        EXPECT_NE(value.name, "rows");
        EXPECT_NE(value.name, "wide");
    }
    expect_as_declared({{columns}}, plan, 5);
}

}  // namespace
}  // namespace tw

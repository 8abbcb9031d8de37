// Outputs that are stored by the kernel of sums over them, or over what they are made of.
#include <gmock/gmock.h>

#include "ops/executable.h"
#include "schedules/choose.h"
#include "schedules/elements_beside_sums.h"
#include "schedules/long_reductions.h"
#include "schedules/sums_together.h"
#include "tests/ops/random_cases.h"
#include "tests/ops/whole_numbers.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

using testing::HasSubstr;
using testing::Not;

class ElementsBesideSums : public RandomCases {
protected:
    ElementsBesideSums() : RandomCases(91) {}
    Type any_float() { return std::array{f32, bf16, f16}[static_cast<size_t>(between(0, 2))]; }
};
TW_ON_EACH_DEVICE(ElementsBesideSums);

/// Elements and sums of two tensors, of whole numbers so small that all sums are exact.
struct Declaration {
    std::vector<int64_t> extents;  ///< columns last
    Tensor a, b, by_column, scalar;
    std::vector<Tensor> outputs;

    Declaration(std::vector<int64_t> all, Type of_a, Type of_b) : extents(std::move(all)) {
        a = input("a", of_a, shape()), b = input("b", of_b, shape());
        by_column = input("by_column", f32, {extents.back()});
        scalar = input("scalar", f32, {});
    }
    Shape shape() const { return {extents.begin(), extents.end()}; }
    int64_t columns() const { return extents.back(); }
    int64_t rows() const {
        int64_t rows = 1;
        for (size_t d = 0; d + 1 < extents.size(); ++d) rows *= extents[d];
        return rows;
    }
    std::vector<Axis> axes(const std::string& name, size_t count) const {
        std::vector<Axis> axes;
        for (size_t d = 0; d < count; ++d) axes.push_back(reduce_axis(fmt::format("{}{}", name, d), extents[d]));
        return axes;
    }
    static Expr difference(const Tensor& a, const Tensor& b, const std::vector<Operand>& at) {
        return cast(f32, a.read(at)) - cast(f32, b.read(at));
    }
    Tensor elements(const std::string& name, Type type, bool has_scalar) {
        outputs.push_back(compute(name, shape(), [&](const std::vector<Expr>& i) {
            const std::vector<Operand> at(i.begin(), i.end());
            const Expr value = cast(f32, a.read(at)) * cast(f32, b.read(at));
            return cast(type, has_scalar ? value + scalar() : value);
        }));
        return outputs.back();
    }
    void differences(const std::string& name, Type type) {
        outputs.push_back(compute(name, shape(), [&](const std::vector<Expr>& i) {
            return cast(type, difference(a, b, {i.begin(), i.end()}) * by_column(i.back()));
        }));
    }
    void column_sum(const std::string& name, const Tensor& of, bool is_weighted) {
        const std::vector<Axis> rows = axes("r", extents.size() - 1);
        outputs.push_back(compute(name, {columns()}, [&](const std::vector<Expr>& at) {
            std::vector<Operand> place(rows.begin(), rows.end());
            place.emplace_back(at[0]);
            const Expr element = cast(f32, of.read(place));
            return sum(is_weighted ? element * by_column(at[0]) : element, rows) + 1.0;
        }));
    }
    void full_sum(const std::string& name) {
        const std::vector<Axis> all = axes("q", extents.size());
        outputs.push_back(compute(name, {}, [&] {
            const Expr error = difference(a, b, {all.begin(), all.end()});
            return sum(error * error, all) * 0.5;
        }));
    }
};

/// Any of these, scheduled by hand with small tiles: as declared, bit for bit, and no kernel for the elements alone.
TEST_P(ElementsBesideSums, AreAsDeclared) {
    const SharingLimits small{.elements = 1, .rows = 1};
    int num_kept = 0;
    for (int round = 0; round < 48; ++round) {
        Declaration d({between(1, 40), between(8, 70)}, any_float(), any_float());
        const Tensor first = d.elements("first", any_float(), chance());
        const int which = between(1, 15);
        if (which & 1) d.column_sum("of_first", first, chance());
        if (which & 2) d.full_sum("loss");
        if (which & 4) d.differences("second", any_float());
        if (which & 8) d.column_sum("of_a", d.a, chance());
        const std::vector<Tensor> outputs = sums_together(share_elements(d.outputs, small).outputs).outputs;
        Schedule s(outputs, device_target());
        std::vector<std::pair<Tensor, ElementsBeside>> found;
        std::vector<int> made;
        for (const auto& operation : operations_of(outputs)) {
            const Tensor tensor(operation, 0);
            if (operation->is_input() || operation->axes.size() != 1 || !s.reduces(s[tensor])) continue;
            found.emplace_back(tensor, elements_beside_sums(tensor, outputs, small));
            for (const Tensor& each : found.back().second.made) made.push_back(s[each].id);
        }
        for (Stage stage : s.all_stages()) {
            const bool is_output = std::ranges::any_of(outputs, [&](const Tensor& t) { return s[t].id == stage.id; });
            if (!is_output && !s.reduces(stage) && std::ranges::find(made, stage.id) == made.end())
                s.inline_stage(stage);
        }
        bool is_refused = false;
        for (const auto& [sums, beside] : found) {
            const ColumnThreads threads{.lanes = between(1, 4),
                                        .rows = between(1, 3),
                                        .neighbours = std::array{1, 2, 4}[static_cast<size_t>(between(0, 2))],
                                        .chunk = between(1, 12),
                                        .steps = between(1, 2)};
            const ColumnTerms terms = schedule_column_reduction(s, sums, d.rows(), threads);
            if (d.rows() > threads.chunk && threads.chunk % (threads.rows * threads.steps) != 0 &&
                !beside.kept.empty()) {
                // A mask leaves out what another chunk makes.
                EXPECT_ERROR(keep_beside(s, beside, terms.innermost, terms.vector),
                             "would make elements several times");
                is_refused = true;
                break;
            }
            keep_beside(s, beside, terms.innermost, terms.vector);
            num_kept += static_cast<int>(beside.kept.size());
            for (const Tensor& kept : beside.kept)
                EXPECT_THAT(s.to_string(), Not(HasSubstr("kernel " + kept.name() + "\n")));
        }
        if (is_refused) continue;
        SCOPED_TRACE(s.trace_as_cpp());
        Executable executable(build(s), device_);
        expect_declared(executable, d.outputs, whole_numbers(d.outputs, static_cast<unsigned>(round)));
    }
    EXPECT_GE(num_kept, 24);
}

/// What choose_schedule makes of large ones: one pass over both operands.
TEST_P(ElementsBesideSums, AreFoundByChooseSchedule) {
    Declaration d({1024, 1028}, bf16, f32);
    const Tensor first = d.elements("first", bf16, true);
    d.column_sum("of_first", first, false);
    d.full_sum("loss");
    const Schedule s = choose_schedule(d.outputs, device_target());
    EXPECT_THAT(s.explain(), HasSubstr("'first': what it is made of is summed by 'of_first', 'loss'"));
    Executable executable(build(s), device_);
    EXPECT_EQ(executable.kernels().size(), 3u) << s.to_string();  // all; columns of parts; the loss of columns
    const std::vector<Tensor> outputs = d.outputs;
    expect_declared(executable, outputs, whole_numbers(outputs, 3));  // sums end below 2^24
}

/// Elements that others read again, that need the sums, or that are few, stay apart.
TEST(ElementsApart, AreLeft) {
    const auto is_shared = [](const std::vector<Tensor>& outputs) { return !share_elements(outputs).notes.empty(); };
    Declaration few({1024, 512}, f32, f32);
    few.column_sum("sums", few.elements("first", f32, false), false);
    EXPECT_FALSE(is_shared(few.outputs));
    EXPECT_TRUE(!share_elements(few.outputs, {.elements = 1024 * 512}).notes.empty());

    Declaration d({2048, 512}, f32, f32);
    d.column_sum("sums", d.a, false);
    const Tensor sums = d.outputs[0];
    const Tensor behind = compute("behind", d.shape(), [&](const std::vector<Expr>& at) {
        return d.a.read({at.begin(), at.end()}) - sums(at[1]);
    });
    EXPECT_FALSE(is_shared({sums, behind}));  // needs the sums

    Declaration turned({2048, 512}, f32, f32);
    const Tensor elements = turned.elements("first", f32, false);
    const Axis r = reduce_axis("r", 512);
    const Tensor by_row = compute("by_row", {2048}, [&](Expr i) { return sum(elements(i, r), r); });
    EXPECT_FALSE(is_shared({elements, by_row}));  // sums of rows are another kernel's
}

}  // namespace
}  // namespace tw::schedules

// Tutorial 23: a computation of yours, scheduled, tuned, inspected, and pinned.
//
// Whoever declares something need not schedule it: a registry answers with kernels and says where they are from. What
// it takes can be measured beside others, read as a trace, replaced by a schedule of one's own, and in the end pinned,
// as a schedule or as CUDA that somebody has edited.
#include "tutorials/lesson.h"

#include "ops/registry.h"
#include "schedules/choose.h"
#include "schedules/tensor_product.h"
#include "tuning/tune_declaration.h"
#include "tuning/tune_on_first_use.h"

using namespace tw;

namespace {

struct Layer {
    Tensor x, w, bias, y;
};
/// y = SiLU(x w' + bias), which no rule knows by name.
Layer layer(int64_t rows, int64_t columns, int64_t terms) {
    Layer l{input("x", bf16, {rows, terms}), input("w", bf16, {columns, terms}), input("bias", f32, {columns}), {}};
    Axis k = reduce_axis("k", terms);
    l.y = compute("y", {rows, columns}, [&](Expr i, Expr j) {
        Expr sum_of_products = sum(cast(f32, l.x(i, k)) * cast(f32, l.w(j, k)), k) + l.bias(j);
        return cast(bf16, sum_of_products * sigmoid(sum_of_products));
    });
    return l;
}

/// Tiles of 128 x 128 x 32, for the instructions that every GPU since Ampere has.
Schedule by_hand(const Layer& l, const Target& target) {
    Schedule s({l.y}, target);
    schedules::schedule_tensor_product(s, l.y, l.x, l.w,
                                       schedules::TensorTiles{.block_m = 128, .block_n = 128, .block_k = 32});
    return s;
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "23. Scheduled for you");
    const int64_t rows = lesson.size(136, 8192), columns = lesson.size(128, 8192), terms = lesson.size(64, 4096);
    const double flops = 2.0 * double(rows) * double(columns) * double(terms);
    const Target hopper = target("sm_90a");
    const Layer own = layer(rows, columns, terms);
    lesson.say("GEMM + bias + SiLU, declared:");
    lesson.show(own.y);

    lesson.say("Whoever asks for kernels is told where they are from:");
    Registry registry;
    tune_on_first_use(registry, lesson.device());  // with TW_TUNE=8, say: eight seconds for what has no record yet
    Selection found = registry.select({own.y}, hopper);
    fmt::print("{}{}", found.text(), found.program.explain());
    lesson.expect(found.name == "choose_schedule", "nobody has written these");

    lesson.say("Tuned: the rule's schedule and others of the same structure, side by side, the fastest proven:");
    TuneRequest request{.limit = 4, .seconds = 2, .keep = false};
    if (lesson.device()->kind() !=
        DeviceKind::Cuda)  // without a GPU there is nothing to measure: a clock that is made up
        request.clock = [](const std::string& picks) { return picks == "rule" ? 2e-6 : 1e-6; };
    const TunedDeclaration tuned = tune({own.y}, lesson.device(), request);
    fmt::print("{}", tuned.text);

    lesson.say("Inspected: what it is, as steps that one could have written:");
    fmt::print("{}\n", tuned.schedule.trace_as_cpp());

    lesson.say("Beside one by hand:");
    const Schedule mine = by_hand(own, hopper);
    lesson.compare("128x128x32 by hand", mine, "as found", tuned.schedule, flops);

    lesson.say("Pinned: from now on that one, for this declaration and no other:");
    registry.pin("mine", {own.y}, mine);
    found = registry.select({layer(rows, columns, terms).y}, hopper);  // declared anew, and equal
    fmt::print("{}", found.text());
    lesson.expect(found.origin == Provenance::Pinned, "the pin is taken");
    const Selection other = registry.select({layer(rows, columns, terms + 16).y}, hopper);
    lesson.expect(other.origin != Provenance::Pinned, "another shape is none of its business");

    lesson.say("Pinned as CUDA: the printed kernel, edited. What it computes is yours to prove:");
    const Program program = build(mine);
    const codegen::KernelText& kernel = program.kernels()[0];
    const std::string edited = "// Edited by hand: a comment here; instructions elsewhere.\n" + kernel.cuda;
    registry.pin("edited", {own.y}, program.with_cuda(kernel.name, edited));
    found = registry.select({own.y}, hopper);
    fmt::print("{}", found.text());
    lesson.expect(found.program.cuda().starts_with("// Edited by hand"), "the edited text is what runs");

    lesson.say("And a rule of one's own, which is asked before the library's:");
    registry.add("products of mine", [](const std::vector<Tensor>& outputs, const Target& wanted) {
        std::optional<Schedule> s;  // nothing: it takes no such declaration
        if (outputs.size() == 1 && outputs[0].rank() == 1) s.emplace(schedules::choose_schedule(outputs, wanted));
        return s;
    });
    found = registry.select({own.y}, hopper, {.pinned = false});
    fmt::print("{}", found.text());
    lesson.expect(found.passed_over.size() == 1, "it was asked, and passed over");
    return lesson.finish();
}

#include "schedules/deciding_lengths.h"

namespace tw::schedules {

std::vector<Tensor> deciding_lengths(const std::vector<Tensor>& outputs) {
    std::vector<Tensor> deciding;
    auto add_reads = [&](const Expr& extent) {
        visit(extent, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (read && !read->operation->is_input()) deciding.emplace_back(read->operation, read->output);
        });
    };
    auto add_axes = [&](const Expr& e) {
        const Reduce* reduce = e.as<Reduce>();
        for (const Expr& axis : reduce ? reduce->axes : std::vector<Expr>()) add_reads(axis.as<Variable>()->extent);
    };
    for (const auto& operation : operations_of(outputs))
        for (const auto& output : operation->outputs)
            if (!operation->is_input()) visit(output.body, add_axes);
    return deciding;
}

}  // namespace tw::schedules

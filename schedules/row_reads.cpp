#include "schedules/row_reads.h"

#include <set>
#include <utility>

#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

/// Sees each read once, of what is shared, too, but for those that several reductions hold.
class RowReadsWalk {
public:
    explicit RowReadsWalk(const std::function<void(const Read&, const Reduce*)>& see) : see_(see) {}

    void walk(const Expr& e, const Reduce* inside) {
        if (!seen_.emplace(&*e, inside).second) return;
        if (const Read* read = e.as<Read>()) see_(*read, inside);
        const Reduce* own = e.as<Reduce>();
        for (const Expr& child : children(e)) walk(child, own ? own : inside);
    }

private:
    const std::function<void(const Read&, const Reduce*)>& see_;
    std::set<std::pair<const ExprNode*, const Reduce*>> seen_;
};

}  // namespace

void visit_row_reads(const Operation& operation, const std::function<void(const Read&, const Reduce*)>& see) {
    RowReadsWalk reads(see);
    for (const Operation::Output& output : operation.outputs)
        if (output.body.defined()) reads.walk(output.body, nullptr);
}

bool has_reduction(const Operation& operation) {
    return std::ranges::any_of(operation.outputs,
                               [](const auto& output) { return output.body.defined() && reduces(output.body); });
}

}  // namespace tw::schedules

#include "schedules/window_terms.h"

#include <algorithm>

#include "dsl/simplify.h"

namespace tw::schedules {

bool reduces(const Expr& body) {
    bool found = false;
    visit(body, [&](const Expr& e) { found = found || e.as<Reduce>(); });
    return found;
}

Expr with_reduction(const Expr& body, const Expr& reduction) {
    return transform(body, [&](const Expr& e) { return e.as<Reduce>() ? reduction : Expr(); });
}

Expr guarded(Expr expr, std::vector<Expr>& conditions) {
    for (const Select* choice = expr.as<Select>(); choice && is_zero(choice->no); choice = expr.as<Select>()) {
        conditions.push_back(choice->condition);
        expr = choice->yes;
    }
    return expr;
}

namespace {

/// Whether a schedule inlines the element where it is read; narrow ones may be operands, which it stores.
bool is_inlined(const Read& read, const std::vector<Tensor>& outputs, bool inline_narrow) {
    const Operation& operation = *read.operation;
    if (operation.is_input() || operation.outputs.size() != 1 || reduces(operation.outputs[0].body)) return false;
    const bool is_output =
        std::ranges::any_of(outputs, [&](const Tensor& output) { return output.operation() == read.operation; });
    return !is_output && (inline_narrow || bytes_of(operation.outputs[0].type) > 2);
}

const Read* factor_of(const Expr& expr, std::vector<Expr>& conditions, bool& padded, Factors factors) {
    const Expr value = guarded(expr, conditions);
    if (factors == Factors::AnyFloats && value.type() == f32 && value.as<Read>()) return value.as<Read>();
    const Cast* cast = value.as<Cast>();
    if (!cast || value.type() != f32 || (cast->a.type() != bf16 && cast->a.type() != f16)) return nullptr;
    const size_t around = conditions.size();
    const Expr element = guarded(cast->a, conditions);
    padded = conditions.size() > around;
    return element.as<Read>();
}

/// What an enclosing choice does not evaluate anywhere it does not evaluate here.
Expr with_guarded_reads(const Expr& body) {
    return transform(body, [](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        if (!read || read->guarded) return {};
        Read guarded = *read;
        guarded.guarded = true;
        return make_expr(e.type(), std::move(guarded));
    });
}

}  // namespace

Expr with_elements(const Expr& expr, const std::vector<Tensor>& outputs, bool inline_narrow) {
    return transform(expr, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        if (!read || !is_inlined(*read, outputs, inline_narrow)) return {};
        Substitution indices;
        for (size_t d = 0; d < read->indices.size(); ++d)
            indices.emplace_back(read->operation->axes[d], read->indices[d]);
        const Expr body = with_elements(read->operation->outputs[0].body, outputs, inline_narrow);
        return substitute(read->guarded ? with_guarded_reads(body) : body, indices);
    });
}

std::optional<WindowTerm> term_of(const Reduce& sum, const std::vector<Tensor>& outputs, Factors factors) {
    WindowTerm term{with_elements(sum.values[0], outputs, false), {}, {}, {}};
    const Expr product = guarded(term.expr, term.conditions);
    const Binary* times = product.as<Binary>();
    if (!times || times->op != BinaryOp::Mul) return {};
    for (const Expr& factor : {times->a, times->b}) {
        bool padded = false;
        const Read* read = factor_of(factor, term.conditions, padded, factors);
        if (!read) return {};
        term.reads.push_back(read);
        term.padded.push_back(padded);
    }
    const Operation &a = *term.reads[0]->operation, &b = *term.reads[1]->operation;
    auto type_of = [](const Read& read) { return read.operation->outputs[static_cast<size_t>(read.output)].type; };
    if (&a == &b || type_of(*term.reads[0]) != type_of(*term.reads[1])) return {};
    return term;
}

ReadsOf reads_of(const Tensor& tensor, const Operation& operation, const Expr& body) {
    ReadsOf reads;
    visit(body, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read || read->operation != tensor.operation()) return;
        reads.any = true;
        reads.own = reads.own && std::ranges::equal(read->indices, operation.axes, equal);
    });
    return reads;
}

Tensor only_reader(const Tensor& tensor, const std::vector<Tensor>& outputs) {
    auto is_output = [&](const Tensor& each) {
        return std::ranges::any_of(outputs, [&](const Tensor& output) { return output.same(each); });
    };
    Tensor found;
    if (is_output(tensor)) return found;
    std::vector<Tensor> whole = outputs;
    whole.push_back(tensor);
    for (const auto& operation : operations_of(outputs))
        for (const Operation::Output& output : operation->outputs) {
            const Tensor reader(operation, 0);
            if (!output.body.defined() || (!is_output(reader) && !reduces(output.body))) continue;  // or it is inlined
            const ReadsOf reads = reads_of(tensor, *operation, with_elements(output.body, whole, true));
            if (!reads.any) continue;
            const bool leads = reads.own && !reduces(output.body) && operation->outputs.size() == 1 &&
                               std::ranges::equal(operation->shape, tensor.shape(), equal);
            if (found.defined() || !leads) return {};
            found = reader;
        }
    return found;
}

}  // namespace tw::schedules

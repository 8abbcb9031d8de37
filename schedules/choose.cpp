#include "schedules/choose.h"

#include <algorithm>
#include <optional>

#include "dsl/simplify.h"
#include "schedules/product.h"

namespace tw::schedules {
namespace {

constexpr int64_t Threads = 256, WarpThreads = 32;
constexpr int64_t FewResults = 4096;         // fewer threads than this leave most of a GPU idle
constexpr double MostComparisons = 1 << 30;  // of indices with elements; more take longer than the kernels that sort

/// The matrices of sum_k a * b, and k's extent.
struct Factors {
    Tensor a, b;
    int64_t k;
};

/// A matrix of the computation's memory, indexed by two different variables.
bool is_matrix(const Read* read) {
    return read && read->operation->is_input() && read->indices.size() == 2 && read->indices[0].as<Variable>() &&
           read->indices[1].as<Variable>() && !read->indices[0].same(read->indices[1]);
}

bool indexes(const Read& read, const Expr& axis) { return read.indices[0].same(axis) || read.indices[1].same(axis); }

std::optional<Factors> product_of(const Tensor& c) {
    if (c.rank() != 2 || c.operation()->outputs.size() != 1) return {};
    std::vector<const Reduce*> reductions;
    visit(c.operation()->outputs[0].body, [&](const Expr& expr) {
        if (const Reduce* reduce = expr.as<Reduce>()) reductions.push_back(reduce);
    });
    if (reductions.size() != 1 || reductions[0]->axes.size() != 1 || reductions[0]->values.size() != 1 ||
        reductions[0]->reducer->name != "sum")
        return {};
    const Binary* times = reductions[0]->values[0].as<Binary>();
    if (!times || times->op != BinaryOp::Mul) return {};
    const Read *a = times->a.as<Read>(), *b = times->b.as<Read>();
    const Expr &k = reductions[0]->axes[0], &i = c.operation()->axes[0], &j = c.operation()->axes[1];
    if (!is_matrix(a) || !is_matrix(b) || a->operation == b->operation) return {};
    if (!indexes(*a, i)) std::swap(a, b);
    if (!indexes(*a, i) || !indexes(*a, k) || !indexes(*b, k) || !indexes(*b, j)) return {};
    const Variable* along = k.as<Variable>();
    auto extent = along->extent.defined() ? as_constant(along->extent) : std::nullopt;
    if (!extent && along->max) extent = *along->max + 1;
    if (!extent) return {};
    return Factors{Tensor(a->operation, a->output), Tensor(b->operation, b->output), *extent};
}

/// Data loops fused, `results` of them a block, neighbours in neighbouring threads.
void spread_results(Schedule& s, Stage stage, int64_t results) {
    std::vector<Loop> loops = s.data_loops(stage);
    if (loops.empty()) return;
    auto [block, inside] = s.split(s.fuse(loops), results, Tail::Mask);
    s.bind(block, grid.x);
    s.bind(inside, thread);
}

int64_t results_of(const Schedule& s, Stage stage, const std::vector<Tensor>& outputs) {
    for (const Tensor& output : outputs) {
        if (s[output].id != stage.id) continue;
        int64_t results = 1;
        for (const Expr& extent : output.shape()) results *= as_constant(extent).value_or(FewResults + 1);
        return results;
    }
    return 1;  // an intermediate reduction: its readers have more elements than it
}

/// Sharing a reduction changes the order of its terms.
bool may_reorder(const std::vector<Tensor>& outputs) {
    bool commutative = true;
    for (const auto& operation : operations_of(outputs))
        for (const auto& output : operation->outputs) {
            if (operation->is_input()) continue;
            visit(output.body, [&](const Expr& expr) {
                if (const Reduce* reduce = expr.as<Reduce>()) commutative &= reduce->reducer->commutative;
            });
        }
    return commutative;
}

/// Whether each element would look at so many terms that it is faster to sort them.
bool wants_sorting(const Schedule& s, Stage stage) {
    double comparisons = 1;
    for (Loop loop : s.all_loops(stage)) comparisons *= static_cast<double>(as_constant(s.extent(loop)).value_or(4096));
    return s.scatters(stage) && comparisons > MostComparisons;
}

void share_reduction(Schedule& s, Stage stage) {
    auto [step, share] = s.split(s.reduce(stage), WarpThreads, Tail::Mask);
    spread_results(s, stage, Threads / WarpThreads);
    s.bind(share, thread);
}

}  // namespace

Schedule choose_schedule(const std::vector<Tensor>& outputs, const Target& target) {
    Schedule s(outputs, target);
    bool shareable = may_reorder(outputs);
    auto output_of = [&](Stage stage) -> const Tensor* {
        auto found = std::find_if(outputs.begin(), outputs.end(), [&](const Tensor& t) { return s[t].id == stage.id; });
        return found == outputs.end() ? nullptr : &*found;
    };
    for (Stage stage : s.all_stages())
        if (!s.reduces(stage) && !output_of(stage)) s.inline_stage(stage);
    for (Stage stage : s.all_stages()) {
        const Tensor* output = output_of(stage);
        auto factors = output ? product_of(*output) : std::nullopt;
        auto extent = [&](int d) { return as_constant(output->shape()[d]).value_or(4096); };
        if (wants_sorting(s, stage))
            spread_results(s, s.scatter(stage), Threads);
        else if (factors)
            schedule_product(s, *output, factors->a, factors->b, product_tiles(extent(0), extent(1), factors->k));
        else if (s.reduces(stage) && shareable && results_of(s, stage, outputs) <= FewResults)
            share_reduction(s, stage);
        else
            spread_results(s, stage, Threads);
    }
    return s;
}

}  // namespace tw::schedules

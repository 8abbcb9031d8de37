#include "schedules/repeated_elements.h"

#include <algorithm>
#include <map>

#include "dsl/simplify.h"

namespace tw::schedules {
namespace {

using OperationRef = std::shared_ptr<const Operation>;

constexpr int64_t most_reads = 16;  // of an element, through what is inlined: as fast as memory gives them
constexpr int64_t least_work = int64_t{1} << 22;  // reads in all, which take as long as a launch
constexpr int64_t unknown_extent = 4096;          // taken for that of a named size

bool reduces_nothing(const Operation& operation) {
    bool found = false;
    for (const Operation::Output& output : operation.outputs)
        if (output.body.defined()) visit(output.body, [&](const Expr& e) { found = found || e.as<Reduce>(); });
    return !found;
}

int64_t elements_of(const Operation& operation) {
    int64_t elements = 1;
    for (const Expr& extent : operation.shape) elements *= as_constant(extent).value_or(unknown_extent);
    return elements;
}

/// The different elements that one of the operation is made of.
std::vector<const Read*> different_reads(const Operation& operation) {
    std::vector<const Read*> reads;
    auto add = [&](const Expr& e) {
        const Read* read = e.as<Read>();
        auto is_it = [&](const Read* known) {
            return known->operation == read->operation && known->output == read->output &&
                   std::ranges::equal(known->indices, read->indices, equal);
        };
        if (read && std::ranges::none_of(reads, is_it)) reads.push_back(read);
    };
    for (const Operation::Output& output : operation.outputs) visit(output.body, add);
    return reads;
}

}  // namespace

std::vector<Tensor> repeated_elements(const std::vector<Tensor>& outputs) {
    std::vector<Tensor> stored;
    std::map<OperationRef, int64_t> reads_of;  // of an element, through what is inlined; 1 if it lies in memory
    for (const OperationRef& operation : operations_of(outputs)) {
        reads_of[operation] = 1;
        if (operation->is_input() || !reduces_nothing(*operation)) continue;
        const std::vector<const Read*> reads = different_reads(*operation);
        auto in_all = [&] {
            int64_t count = 0;
            for (const Read* read : reads) count += reads_of.at(read->operation);
            return count;
        };
        auto is_repeated = [&](const OperationRef& producer) {
            return reads_of.at(producer) > 1 &&
                   std::ranges::count(reads, producer, [](const Read* read) { return read->operation; }) > 1;
        };
        if (in_all() > most_reads && in_all() * elements_of(*operation) >= least_work)
            for (const Read* read : reads)
                if (is_repeated(read->operation)) {
                    reads_of[read->operation] = 1;
                    for (size_t k = 0; k < read->operation->outputs.size(); ++k)
                        stored.emplace_back(read->operation, static_cast<int>(k));
                }
        const bool lies = std::ranges::any_of(outputs, [&](const Tensor& t) { return t.operation() == operation; });
        if (!lies) reads_of[operation] = std::max<int64_t>(in_all(), 1);
    }
    return stored;
}

}  // namespace tw::schedules

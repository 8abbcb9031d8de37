#include "verify/mutate_streams.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"

namespace tw::fuzz {
namespace {

using namespace codegen;  // NOLINT: the thread IR is all that this file is about

constexpr const char *kBefore = "_before", *kSoFar = "_so_far";

void visit_stores(const ThreadStmt& root, const std::function<void(const ThreadStore&)>& see) {
    visit(root, [&](const ThreadStmt& stmt) {
        if (const auto* store = stmt.as<ThreadStore>()) see(*store);
    });
}

bool reads(const ThreadStmt& stmt, const codegen::Buffer& buffer) {
    bool found = false;
    for (const Expr& expr : expressions(stmt))
        visit(expr, [&](const Expr& node) {
            const Load* load = node.as<Load>();
            found = found || (load && load->buffer == buffer);
        });
    return found;
}

}  // namespace

std::vector<RunningValue> running_values(const ThreadKernel& kernel) {
    std::map<std::string, codegen::Buffer> named;
    std::vector<RunningValue> found;
    visit_stores(kernel.body, [&](const ThreadStore& store) { named.emplace(store.to.buffer->name, store.to.buffer); });
    visit_stores(kernel.body, [&](const ThreadStore& copy) {
        const codegen::Buffer& before = copy.to.buffer;
        const size_t at = before->name.rfind(kBefore);
        const bool known =
            std::ranges::any_of(found, [&](const RunningValue& value) { return value.before == before; });
        if (at == std::string::npos || known) return;
        std::string name = before->name;
        const auto so_far = named.find(name.replace(at, std::strlen(kBefore), kSoFar));
        const Load* running = copy.value.as<Load>();
        if (so_far != named.end())
            found.push_back({before, so_far->second});
        else if (running)  // it needs no guard, and has no name of its own
            found.push_back({before, running->buffer});
    });
    return found;
}

std::vector<AlteredStatement> altered_streams(const ThreadStmt& stmt, const std::vector<RunningValue>& values) {
    std::vector<AlteredStatement> found;
    auto exchange = [&](const codegen::Buffer& from, const codegen::Buffer& to) {
        if (!reads(stmt, from)) return;
        found.push_back({MutationKind::Stream, fmt::format("{}: {} -> {}", head_of(stmt), from->name, to->name),
                         map_expressions(stmt, [&](const Expr& expr) { return with_loads_of(expr, from, to); })});
    };
    for (const RunningValue& value : values) {
        exchange(value.before, value.now);
        exchange(value.now, value.before);
    }
    return found;
}

bool is_correction(const ThreadStore& store) {
    const Binary* product = store.value.as<Binary>();
    if (!product || product->op != BinaryOp::Mul) return false;
    return std::ranges::any_of(std::array{product->a, product->b}, [&](const Expr& factor) {
        const Load* load = factor.as<Load>();
        return load && load->buffer == store.to.buffer &&
               std::ranges::equal(load->indices, store.to.indices,
                                  [](const Expr& a, const Expr& b) { return equal(a, b); });
    });
}

bool is_guard_of_none(const Select& choice) {
    const Binary* asked = choice.condition.as<Binary>();
    if (!asked || asked->op != BinaryOp::Equal) return false;
    return std::ranges::any_of(std::array{asked->a, asked->b}, [](const Expr& side) {
        const FloatConstant* number = side.as<FloatConstant>();
        return number && std::isinf(number->value);
    });
}

}  // namespace tw::fuzz

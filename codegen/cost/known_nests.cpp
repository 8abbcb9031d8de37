#include "codegen/cost/known_nests.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "codegen/cost/nest_key.h"
#include "codegen/lower.h"
#include "dsl/deep.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

/// Of a nest: nothing if it computes nothing.
using Counted = std::optional<KernelWork>;

/// Of one target at a time, those that were asked for last: of two generations the older one is forgotten when the
/// younger one is full.
class KnownNests {
public:
    const Counted* find(const Target& target, const std::string& key) {
        if (!(target == target_)) {
            target_ = target;
            young_.clear(), old_.clear();
        }
        if (const auto known = young_.find(key); known != young_.end()) return &known->second;
        const auto known = old_.find(key);
        return known == old_.end() ? nullptr : &keep(key, Counted(known->second));
    }
    const Counted& keep(const std::string& key, Counted counted) {
        constexpr size_t most = 512;
        if (young_.size() == most) old_ = std::exchange(young_, {});
        return young_[key] = std::move(counted);
    }

private:
    Target target_;
    std::unordered_map<std::string, Counted> young_, old_;
};

KnownNests& known_nests() {
    thread_local KnownNests known;
    return known;
}

int depth_of(const Stmt& stmt) {
    int depth = 0;
    auto see = [&](const Expr& expr) {
        if (expr.defined()) depth = std::max(depth, tw::depth_of(expr));
    };
    if (const For* loop = stmt.as<For>()) return std::max(tw::depth_of(loop->extent), depth_of(loop->body));
    if (const Allocate* allocate = stmt.as<Allocate>()) return depth_of(allocate->body);
    if (const Sequence* block = stmt.as<Sequence>())
        for (const Stmt& each : block->stmts) depth = std::max(depth, depth_of(each));
    if (const Leaf* leaf = stmt.as<Leaf>()) {
        see(leaf->mask), see(leaf->readers_mask), see(leaf->iteration);
        for (const StoreTo& store : leaf->stores) {
            see(store.value);
            for (const Expr& index : store.indices) see(index);
        }
    }
    return depth;
}

std::string key_of(const Tree& tree, const Nest& nest) {
    return with_room_for(depth_of(nest.body), [&] { return nest_key(tree, nest); });
}

Counted counted(const Tree& tree, size_t n, const Target& target, const CiteStep& cite) {
    LowerOptions options;
    options.cite = cite;
    const LoweredNest lowered = lower_nest(tree, n, target, options);
    if (!lowered.kernel) return {};
    internal_check(lowered.kernel->name == tree.nests[n].name, "a kernel that is not named as its nest");
    return count_work(*lowered.kernel, target);
}

}  // namespace

std::vector<CountedKernel> counted_kernels(const Tree& tree, const Target& target, const CiteStep& cite) {
    std::vector<CountedKernel> kernels;
    for (size_t n = 0; n < tree.nests.size(); ++n) {
        const std::string key = key_of(tree, tree.nests[n]);
        const Counted* known = known_nests().find(target, key);
        if (!known) known = &known_nests().keep(key, counted(tree, n, target, cite));
        if (*known) kernels.push_back({tree.nests[n].name, **known});
    }
    return kernels;
}

bool is_known_to_lower(const Tree& tree, const Nest& nest, const Target& target) {
    return known_nests().find(target, key_of(tree, nest)) != nullptr;
}

}  // namespace tw::codegen

#include "schedules/take_steps.h"

#include <algorithm>
#include <set>

#include "codegen/cost/known_nests.h"
#include "codegen/lower.h"
#include "dsl/deep.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

void see_leaves(const Stmt& stmt, const std::function<void(const Leaf&)>& see) {
    if (const Leaf* leaf = stmt.as<Leaf>()) return see(*leaf);
    if (const For* loop = stmt.as<For>()) return see_leaves(loop->body, see);
    if (const Allocate* allocation = stmt.as<Allocate>()) return see_leaves(allocation->body, see);
    if (const Sequence* sequence = stmt.as<Sequence>())
        for (const Stmt& each : sequence->stmts) see_leaves(each, see);
}

/// Whether the nest computes one of the stages; and the levels of what it computes.
struct Contents {
    bool is_asked = false;
    int depth = 0;
};
Contents contents_of(const Nest& nest, const std::set<int>& stages) {
    Contents contents;
    see_leaves(nest.body, [&](const Leaf& leaf) {
        contents.is_asked = contents.is_asked || stages.contains(leaf.stage);
        for (const StoreTo& store : leaf.stores) contents.depth = std::max(contents.depth, depth_of(store.value));
    });
    return contents;
}

void lower_kernels_of(const Schedule& s, const std::set<int>& stages) {
    constexpr int of_places = 100;  // levels of what says where an element is
    const Tree& tree = s.tree();
    for (const Nest& nest : tree.nests) {
        const Contents contents = contents_of(nest, stages);
        if (!contents.is_asked || codegen::is_known_to_lower(tree, nest, s.target())) continue;
        std::vector<std::string> notes;
        with_room_for(contents.depth + of_places,
                      [&] { codegen::lower_to_threads(tree, nest, s.target(), {}, notes); });
    }
}

std::set<int> ids_of(const Schedule& s) {
    std::set<int> ids;
    for (const Stage& stage : s.all_stages()) ids.insert(stage.id);
    return ids;
}

}  // namespace

bool take_steps(Schedule& s, Stage stage, const std::function<void(Schedule&)>& steps) {
    const std::set<int> before = ids_of(s);
    Schedule trial = s;
    try {
        steps(trial);
        std::set<int> asked = ids_of(trial);
        std::erase_if(asked, [&](int id) { return before.contains(id); });
        asked.insert(stage.id);
        lower_kernels_of(trial, asked);
    } catch (const Error&) {
        return false;
    }
    s = std::move(trial);
    return true;
}

}  // namespace tw::schedules

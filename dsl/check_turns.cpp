#include "dsl/check_turns.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/ranges.h>

#include "support/error.h"

namespace tw {
namespace {

void visit_statements(const Stmt& stmt, const std::function<void(const Stmt&)>& see) {
    see(stmt);
    if (const For* loop = stmt.as<For>()) visit_statements(loop->body, see);
    if (const Allocate* allocate = stmt.as<Allocate>()) visit_statements(allocate->body, see);
    if (const Sequence* block = stmt.as<Sequence>())
        for (const Stmt& kid : block->stmts) visit_statements(kid, see);
}

/// Loops and leaves that run one after the other, without the lists and arrays around them.
std::vector<Stmt> in_order(const Stmt& stmt) {
    if (const Allocate* allocate = stmt.as<Allocate>()) return in_order(allocate->body);
    const Sequence* block = stmt.as<Sequence>();
    if (!block) return {stmt};
    std::vector<Stmt> all;
    for (const Stmt& kid : block->stmts)
        for (const Stmt& each : in_order(kid)) all.push_back(each);
    return all;
}

/// One section, where codegen has warpgroups take turns: codegen/async/exclusive_sections.cpp.
class SectionChecker {
public:
    SectionChecker(const ExclusiveSection& section, const Stmt& kernel, std::source_location where)
        : section_(section), where_(where) {
        visit_statements(kernel, [&](const Stmt& stmt) {
            const Leaf* leaf = stmt.as<Leaf>();
            if (leaf && is_among(*leaf) && leaf->atom && leaf->atom->unit == wgmma) products_.insert(leaf->stage);
        });
    }

    void check(const Stmt& stmt) const {
        if (!has_all(stmt)) return;
        if (const For* loop = stmt.as<For>()) return check(loop->body);
        const std::vector<Stmt> parts = in_order(stmt);
        bool goes_on = false;
        for (const Stmt& part : parts)
            if (part.as<For>() && has_all(part)) {
                goes_on = true;
                check(part);
            }
        if (!goes_on) check_turn(parts);
    }

private:
    bool is_among(const Leaf& leaf) const {
        return std::ranges::find(section_.stages, leaf.stage) != section_.stages.end();
    }

    /// A product of wgmma is where it is asked for, not where its sums begin and end.
    bool takes_turns(const Leaf& leaf) const {
        return is_among(leaf) && (!products_.contains(leaf.stage) || leaf.kind == Leaf::Kind::Update);
    }
    std::set<int> stages_in(const Stmt& stmt) const {
        std::set<int> stages;
        visit_statements(stmt, [&](const Stmt& each) {
            const Leaf* leaf = each.as<Leaf>();
            if (leaf && takes_turns(*leaf)) stages.insert(leaf->stage);
        });
        return stages;
    }
    bool has_all(const Stmt& stmt) const { return stages_in(stmt).size() == section_.stages.size(); }
    bool has_some(const Stmt& stmt) const { return !stages_in(stmt).empty(); }

    /// Of what an iteration runs, from the first part with a stage to the last one.
    void check_turn(const std::vector<Stmt>& parts) const {
        auto some = [&](const Stmt& part) { return has_some(part); };
        const auto first = std::ranges::find_if(parts, some),
                   behind = std::find_if(parts.rbegin(), parts.rend(), some).base();
        for (auto part = first; part < behind; ++part)
            visit_statements(*part, [&](const Stmt& stmt) {
                const For* loop = stmt.as<For>();
                if (loop && loop->pipeline_step >= 0) refuse(*loop, {first, behind});
            });
    }

    std::vector<std::string> names_in(const std::vector<Stmt>& parts) const {
        std::vector<std::string> names;
        for (const Stmt& part : parts)
            visit_statements(part, [&](const Stmt& stmt) {
                const Leaf* leaf = stmt.as<Leaf>();
                if (leaf && takes_turns(*leaf) && std::ranges::find(names, leaf->name) == names.end())
                    names.push_back(leaf->name);
            });
        return names;
    }

    void refuse(const For& loop, const std::vector<Stmt>& parts) const {
        const std::vector<std::string> inside = names_in({loop.body});
        const std::string instead =
            inside.empty() ? "name stages of one iteration of it, or leave out those on one side of it"
                           : fmt::format("name what stands in one iteration of it, exclusive({{{}}}), alone",
                                         fmt::join(inside, ", "));
        user_error(
            where_,
            "exclusive: turns at '{}' last for all iterations of the pipelined loop '{}', whose copies come when "
            "all warpgroups have read those before, so that one would wait in its turn for those that wait for "
            "theirs; {}",
            fmt::join(names_in(parts), "' and '"), loop.variable.as<Variable>()->name, instead);
    }

    const ExclusiveSection& section_;
    std::source_location where_;
    std::set<int> products_;
};

}  // namespace

void check_turns(const Nest& nest, std::source_location where) {
    for (const ExclusiveSection& section : nest.exclusive) SectionChecker(section, nest.body, where).check(nest.body);
}

}  // namespace tw

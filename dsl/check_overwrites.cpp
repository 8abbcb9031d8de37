// A kernel reads before it writes if both stand in the same iteration of all loops around them, in this order, and no
// other iteration reads what this one writes: of each of these loops, an index of what is written names the iteration,
// and the same index of what is read names the same one, whatever loops inside add to either.
#include "dsl/check_overwrites.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "dsl/simplify.h"

namespace tw {
namespace {

/// A place of the program that reads the input or writes the output.
struct Site {
    size_t nest = 0, order = 0;  // leaves are numbered as they stand
    const Leaf* leaf = nullptr;
    std::vector<const For*> loops;  // around it, outermost first
    std::vector<Expr> variables;    // of these loops, in the indices
    std::vector<Expr> indices;
};

class Sites {
public:
    Sites(const Tree& tree, const BufferNode* out, const BufferNode* in) : out_(out), in_(in) {
        for (nest_ = 0; nest_ < tree.nests.size(); ++nest_) walk(tree.nests[nest_].body);
    }

    std::vector<Site> loads, stores;
    std::vector<std::pair<size_t, std::string>> lengths;  ///< nests, and their loops whose lengths the input decides

    /// Whether the second leaf reads what the first one makes.
    static bool makes(const Site& first, const Site& second) {
        return std::ranges::any_of(first.leaf->stores,
                                   [&](const StoreTo& kept) { return reads(*second.leaf, kept.buffer.get()); });
    }

    /// Whether a leaf between, or the second one itself, reads what the first one keeps.
    bool uses(const Site& first, const Site& second) const {
        return std::ranges::any_of(leaves_, [&](const Site& each) {
            return each.order > first.order && each.order <= second.order && makes(first, each);
        });
    }

private:
    void walk(const Stmt& stmt) {
        if (const For* loop = stmt.as<For>()) {
            for_each_load(loop->extent, [&](const Load& load) {
                if (load.buffer.get() == in_) lengths.emplace_back(nest_, name_of(loop->variable));
            });
            loops_.push_back(loop);
            walk(loop->body);
            loops_.pop_back();
        } else if (const Allocate* allocate = stmt.as<Allocate>()) {
            walk(allocate->body);
        } else if (const Sequence* all = stmt.as<Sequence>()) {
            for (const Stmt& each : all->stmts) walk(each);
        } else if (const Leaf* leaf = stmt.as<Leaf>()) {
            see(*leaf);
        }
    }

    /// Indices by variables that know how many values they have; each loop has one.
    std::vector<Expr> bounded(const std::vector<Expr>& indices) {
        Substitution values;
        for (const For* loop : loops_) {
            Expr& variable = variables_[loop];
            if (!variable.defined()) variable = bounded_variable(*loop);
            values.emplace_back(loop->variable, variable);
        }
        std::vector<Expr> result;
        for (const Expr& index : indices) result.push_back(simplify(substitute(index, values)));
        return result;
    }
    static Expr bounded_variable(const For& loop) {
        if (is_constant(loop.extent, 1)) return integer(0);
        Variable variable{.name = name_of(loop.variable), .min = 0, .extent = loop.extent};
        if (const auto extent = as_constant(loop.extent)) variable.max = *extent - 1;
        return make_expr(loop.variable.type(), variable);
    }

    void see(const Leaf& leaf) {
        const Site site{nest_, leaves_.size(), &leaf, loops_, {}, {}};
        leaves_.push_back(site);
        for (const StoreTo& store : leaf.stores)
            if (store.buffer.get() == out_) add(stores, site, store.indices);
        for_each_load(leaf, [&](const Load& load) {
            if (load.buffer.get() == in_) add(loads, site, load.indices);
        });
    }
    void add(std::vector<Site>& sites, Site site, const std::vector<Expr>& indices) {
        site.indices = bounded(indices);
        for (const For* loop : loops_) site.variables.push_back(variables_.at(loop));
        sites.push_back(std::move(site));
    }

    template <class See>
    static void for_each_load(const Expr& expr, const See& see) {
        if (!expr.defined()) return;
        visit(expr, [&](const Expr& e) {
            if (const Load* load = e.as<Load>()) see(*load);
        });
    }
    template <class See>
    static void for_each_load(const Leaf& leaf, const See& see) {
        for (const StoreTo& store : leaf.stores) {
            for_each_load(store.value, see);
            for (const Expr& index : store.indices) for_each_load(index, see);
        }
        for (const Expr& expr : {leaf.mask, leaf.readers_mask, leaf.iteration}) for_each_load(expr, see);
    }
    static bool reads(const Leaf& leaf, const BufferNode* buffer) {
        bool found = false;
        for_each_load(leaf, [&](const Load& load) { found = found || load.buffer.get() == buffer; });
        return found;
    }

    const BufferNode *out_, *in_;
    size_t nest_ = 0;
    std::vector<const For*> loops_;
    std::map<const For*, Expr> variables_;
    std::vector<Site> leaves_;
};

/// An index without what is added to multiples of `step`.
Expr multiple_of(const Expr& index, int64_t step) { return simplify(index / step); }

/// Whether what the two sites touch along a dimension is, in each iteration of the loop, of that iteration alone.
bool names_iteration(const Expr& variable, const Expr& extent, const Expr& written, const Expr& read) {
    const auto step = as_constant(simplify(substitute(written, {{variable, variable + 1}}) - written));
    if (step.value_or(0) <= 0) return false;
    const Expr of_written = multiple_of(written, *step), of_read = multiple_of(read, *step);
    if (!equal(of_written, of_read)) return false;
    return equal(simplify(of_written % extent), variable) || equal(of_written, variable);
}

std::string why_not(const Sites& sites, const Site& load, const Site& store, const std::string& in, bool has_roles) {
    if (load.nest < store.nest) return {};
    const std::string& reader = load.leaf->name;
    if (load.nest > store.nest) return fmt::format("'{}' reads '{}' in a kernel behind", reader, in);
    if (load.leaf == store.leaf) {
        const bool own =
            load.leaf->kind != Leaf::Kind::Update && std::ranges::equal(load.indices, store.indices, equal);
        return own ? std::string()
                   : fmt::format("'{}' reads '{}' elsewhere than at the element that it overwrites", reader, in);
    }
    if (has_roles) return fmt::format("'{}' reads '{}' in a role of its own, which runs ahead", reader, in);
    size_t k = 0;
    for (; k < std::min(load.loops.size(), store.loops.size()); ++k) {
        const For* loop = store.loops[k];
        if (load.loops[k] != loop) break;
        if (is_constant(loop->extent, 0)) return {};  // neither is run
        if (is_constant(loop->extent, 1)) continue;
        bool named = false;
        for (size_t d = 0; d < store.indices.size(); ++d)
            named = named || names_iteration(store.variables[k], loop->extent, store.indices[d], load.indices[d]);
        if (!named)
            return fmt::format("'{}' may read elements of '{}' that another iteration of loop '{}' has overwritten",
                               reader, in, name_of(loop->variable));
    }
    for (const Site* site : {&load, &store})
        for (size_t own = k; own < site->loops.size(); ++own)
            if (is_grid(site->loops[own]->level) && !is_constant(site->loops[own]->extent, 1))
                return fmt::format("'{}' may read elements of '{}' that another block has overwritten",
                                   reader, in);
    if (store.leaf->via.copy == Copy::Tma && !Sites::makes(load, store))
        return fmt::format("'{}' reads '{}' beside what leaves as boxes, which do not wait for it", reader, in);
    if (load.order > store.order) return fmt::format("'{}' reads '{}' behind, in the same kernel", reader, in);
    if (load.leaf->kind == Leaf::Kind::Copy && !sites.uses(load, store))  // copies may be asynchronous
        return fmt::format("nothing in front of the result uses what '{}' reads of '{}', so that it may be late",
                           reader, in);
    return {};
}

}  // namespace

std::string why_not_overwritten(const Tree& tree, const BufferRef& out, const BufferRef& in) {
    if (!std::ranges::equal(out->shape, in->shape, equal))
        return "axes of one of them are joined; join those of both alike, or of none";
    const Sites sites(tree, out.get(), in.get());
    for (const Site& store : sites.stores) {
        for (const auto& [nest, loop] : sites.lengths)
            if (nest >= store.nest)
                return fmt::format("the length of loop '{}' is read from '{}', which blocks may have overwritten", loop,
                                   in->name);
        const bool has_roles = !tree.nests[store.nest].roles.empty();
        for (const Site& load : sites.loads)
            if (std::string why = why_not(sites, load, store, in->name, has_roles); !why.empty()) return why;
    }
    return {};
}

}  // namespace tw

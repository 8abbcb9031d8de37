#include "dsl/tree.h"

#include <algorithm>
#include <functional>

#include <fmt/ranges.h>

#include "dsl/walk.h"
#include "support/error.h"

namespace tw {

Stmt sequence(std::vector<Stmt> stmts) {
    if (stmts.size() == 1) return stmts[0];
    return make_stmt(Sequence{std::move(stmts)});
}

namespace {

Stmt stored_in(const Stmt& stmt, const Buffers& others) {
    if (const For* loop = stmt.as<For>()) {
        For copy = *loop;
        copy.body = stored_in(loop->body, others);
        return make_stmt(std::move(copy));
    }
    if (const Allocate* allocate = stmt.as<Allocate>())
        return make_stmt(Allocate{allocate->buffer, stored_in(allocate->body, others)});
    if (const Sequence* block = stmt.as<Sequence>()) {
        std::vector<Stmt> stmts;
        for (const Stmt& kid : block->stmts) stmts.push_back(stored_in(kid, others));
        return make_stmt(Sequence{std::move(stmts)});
    }
    Leaf leaf = *stmt.as<Leaf>();
    for (StoreTo& store : leaf.stores)
        if (auto found = others.find(store.buffer.get()); found != others.end()) store.buffer = found->second;
    return make_stmt(std::move(leaf));
}

}  // namespace

Stmt in_buffers(const Stmt& stmt, const Buffers& others) {
    Stmt loaded = map_exprs(stmt, [&](const Expr& root) {
        if (!root.defined()) return root;
        return transform(root, [&](const Expr& e) -> Expr {
            const Load* load = e.as<Load>();
            auto found = load ? others.find(load->buffer.get()) : others.end();
            return found == others.end() ? Expr() : make_expr(e.type(), Load{found->second, load->indices});
        });
    });
    return stored_in(loaded, others);
}

Stmt map_exprs(const Stmt& stmt, const std::function<Expr(const Expr&)>& rule) {
    if (const For* loop = stmt.as<For>()) {
        For copy = *loop;
        copy.extent = rule(loop->extent);
        copy.body = map_exprs(loop->body, rule);
        return make_stmt(std::move(copy));
    }
    if (const Allocate* allocate = stmt.as<Allocate>())
        return make_stmt(Allocate{allocate->buffer, map_exprs(allocate->body, rule)});
    if (const Sequence* block = stmt.as<Sequence>()) {
        std::vector<Stmt> stmts;
        for (const Stmt& kid : block->stmts) stmts.push_back(map_exprs(kid, rule));
        return make_stmt(Sequence{std::move(stmts)});
    }
    Leaf leaf = *stmt.as<Leaf>();
    leaf.mask = rule(leaf.mask);
    if (leaf.readers_mask.defined()) leaf.readers_mask = rule(leaf.readers_mask);
    if (leaf.iteration.defined()) leaf.iteration = rule(leaf.iteration);
    for (StoreTo& store : leaf.stores) {
        for (Expr& index : store.indices) index = rule(index);
        store.value = rule(store.value);
    }
    return make_stmt(std::move(leaf));
}

std::string to_string(Level level) {
    switch (level) {
        case Level::Serial: return "serial";
        case Level::Unroll: return "unrolled";
        case Level::Vector: return "vector";
        case Level::GridX: return "grid.x";
        case Level::GridY: return "grid.y";
        case Level::GridZ: return "grid.z";
        case Level::Cluster: return "cluster";
        case Level::Thread: return "thread";
        case Level::Warpgroup: return "warpgroup";
        case Level::Warp: return "warp";
        case Level::Lane: return "lane";
    }
    return "?";
}

std::string to_string(Copy copy) {
    switch (copy) {
        case Copy::Automatic: return "automatic";
        case Copy::Vector: return "vector";
        case Copy::Async: return "async";
        case Copy::Tma: return "tma";
    }
    return "?";
}

std::string to_string(Memory memory) {
    switch (memory) {
        case Memory::Auto: return "auto";
        case Memory::Global: return "global";
        case Memory::Shared: return "shared";
        case Memory::Registers: return "registers";
    }
    return "?";
}

namespace {

struct TreePrinter {
    std::string text;
    int depth = 0;
    std::vector<std::string> around = {};  ///< names of the loops around
    Substitution renamed = {};             ///< loops in others of the same name

    /// "i", in a loop of that name "i_2".
    std::string name_inside(const std::string& name) const {
        std::string free = name;
        for (int number = 2; std::find(around.begin(), around.end(), free) != around.end(); ++number)
            free = fmt::format("{}_{}", name, number);
        return free;
    }
    std::string shown(const Expr& expr) const { return to_string(renamed.empty() ? expr : substitute(expr, renamed)); }
    std::string bracketed(const std::vector<Expr>& exprs) const {
        std::vector<std::string> texts;
        for (const Expr& e : exprs) texts.push_back(shown(e));
        return fmt::format("[{}]", fmt::join(texts, ", "));
    }

    void line(const std::string& content) { text += std::string(depth * 2, ' ') + content + "\n"; }

    void print(const Stmt& stmt) {
        std::visit([&](const auto& node) { (*this)(node); }, (*stmt).kind);
    }
    void operator()(const For& loop) {
        std::string level = loop.level == Level::Serial ? "" : fmt::format("  ({})", to_string(loop.level));
        if (loop.stages > 1) level += fmt::format("  ({} stages)", loop.stages);
        if (loop.in_flight > 0) level += fmt::format("  ({} in flight)", loop.in_flight);
        const std::string own = to_string(loop.variable), name = name_inside(own);
        line(fmt::format("for {} in 0..{}{}", name, shown(loop.extent), level));
        if (name != own) renamed.emplace_back(loop.variable, index_variable(name));
        around.push_back(name);
        ++depth;
        print(loop.body);
        --depth;
        around.pop_back();
        if (name != own) renamed.pop_back();
    }
    void operator()(const Sequence& block) {
        for (const Stmt& stmt : block.stmts) print(stmt);
    }
    void operator()(const Allocate& allocate) {
        const BufferNode& b = *allocate.buffer;
        line(fmt::format("{}: {} {} in {}", b.name, name_of(b.type), bracketed(b.shape), to_string(b.memory)));
        print(allocate.body);
    }
    void operator()(const Leaf& leaf) {
        if (leaf.kind == Leaf::Kind::Combine) return combine(leaf);
        std::string mask;
        if (!is_constant(leaf.mask, 1)) mask = fmt::format("if {}: ", shown(leaf.mask));
        if (is_simultaneous(leaf)) {
            std::vector<std::string> elements, values;
            for (const StoreTo& store : leaf.stores) {
                elements.push_back(store.buffer->name + bracketed(store.indices));
                values.push_back(shown(store.value));
            }
            return line(fmt::format("{}({}) = ({})", mask, fmt::join(elements, ", "), fmt::join(values, ", ")));
        }
        for (const StoreTo& store : leaf.stores)
            line(mask + store_text(store.buffer->name + bracketed(store.indices), shown(store.value), store.atomic));
    }
    void combine(const Leaf& leaf) {
        const size_t totals = leaf.across.left.size();
        auto elements = [&](size_t from, size_t to) {
            std::vector<std::string> each;
            for (size_t s = from; s < to; ++s)
                each.push_back(leaf.stores[s].buffer->name + bracketed(leaf.stores[s].indices));
            const std::string all = fmt::format("{}", fmt::join(each, ", "));
            return each.size() > 1 ? "(" + all + ")" : all;
        };
        std::string before;
        if (leaf.stores.size() > totals) before = ", before each " + elements(totals, leaf.stores.size());
        line(fmt::format("combine {} over {} in 0..{}{}", elements(0, totals), to_string(leaf.across.variable),
                         leaf.across.extent, before));
    }

    /// Whether a value reads what another store of the leaf writes, and means what was there before.
    static bool is_simultaneous(const Leaf& leaf) {
        if (leaf.kind != Leaf::Kind::Update || leaf.stores.size() < 2) return false;
        return std::any_of(leaf.stores.begin(), leaf.stores.end(), [&](const StoreTo& store) {
            bool reads_another = false;
            visit(store.value, [&](const Expr& node) {
                auto* load = node.as<Load>();
                if (!load || load->buffer == store.buffer) return;
                for (const StoreTo& other : leaf.stores) reads_another |= other.buffer == load->buffer;
            });
            return reads_another;
        });
    }
};

}  // namespace

std::string store_text(const std::string& element, const std::string& value, std::optional<BinaryOp> atomic) {
    if (!atomic) return fmt::format("{} = {}", element, value);
    return fmt::format("atomic {} {}= {}", element,
                       *atomic == BinaryOp::Add   ? "+"
                       : *atomic == BinaryOp::Min ? "min"
                                                  : "max",
                       value);
}

namespace {

/// "  role math: 8 warps of 232 registers, ping-pong of 2"
std::string role_text(const RoleSpec& role) {
    std::string text = fmt::format("  role {}: {} warp{}", role.name, role.warps, role.warps == 1 ? "" : "s");
    if (role.registers > 0) text += fmt::format(" of {} registers", role.registers);
    if (role.ping_pong > 1) text += fmt::format(", ping-pong of {}", role.ping_pong);
    return text;
}

void visit_leaves(const Stmt& stmt, const std::function<void(const Leaf&)>& see) {
    if (const For* loop = stmt.as<For>()) return visit_leaves(loop->body, see);
    if (const Allocate* allocate = stmt.as<Allocate>()) return visit_leaves(allocate->body, see);
    if (const Sequence* block = stmt.as<Sequence>()) {
        for (const Stmt& kid : block->stmts) visit_leaves(kid, see);
        return;
    }
    if (const Leaf* leaf = stmt.as<Leaf>()) see(*leaf);
}

/// Each once, in the order in which they stand.
std::vector<std::string> names_of(const ExclusiveSection& section, const Stmt& body) {
    std::vector<std::string> names;
    visit_leaves(body, [&](const Leaf& leaf) {
        if (std::ranges::find(section.stages, leaf.stage) == section.stages.end()) return;
        if (std::ranges::find(names, leaf.name) == names.end()) names.push_back(leaf.name);
    });
    return names;
}

}  // namespace

std::string to_string(const Tree& tree) {
    TreePrinter printer;
    for (const Nest& nest : tree.nests) {
        std::string order = nest.longest_first ? ", longest_first" : "";
        if (nest.tickets) order += ", dynamic";
        if (nest.persistent_stages > 1) order += fmt::format(", {} stages", nest.persistent_stages);
        std::string blocks =
            nest.persistent_blocks ? fmt::format("  ({} blocks{})", nest.persistent_blocks, order) : "";
        if (nest.occupancy.blocks > 1) blocks += fmt::format("  ({} blocks a multiprocessor)", nest.occupancy.blocks);
        printer.line(fmt::format("kernel {}{}", nest.name, blocks));
        for (const RoleSpec& role : nest.roles) printer.line(role_text(role));
        for (const ExclusiveSection& section : nest.exclusive)
            printer.line(fmt::format("  exclusive: {}", fmt::join(names_of(section, nest.body), ", ")));
        ++printer.depth;
        printer.print(nest.body);
        --printer.depth;
    }
    return printer.text;
}

}  // namespace tw

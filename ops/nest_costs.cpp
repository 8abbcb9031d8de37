#include "ops/nest_costs.h"

#include <map>

#include "dsl/simplify.h"

namespace tw {
namespace {

Cost operator+(const Cost& a, const Cost& b) {
    return {a.global_bytes + b.global_bytes, a.shared_bytes + b.shared_bytes, a.flops + b.flops};
}
Cost operator*(double times, const Cost& c) {
    return {times * c.global_bytes, times * c.shared_bytes, times * c.flops};
}

Cost access_cost(const BufferNode& buffer) {
    double bytes = static_cast<double>(bytes_of(buffer.type));
    return {.global_bytes = buffer.memory == Memory::Global ? bytes : 0,
            .shared_bytes = buffer.memory == Memory::Shared ? bytes : 0};
}

Cost node_cost(const Expr& e) {
    if (const Load* load = e.as<Load>()) return access_cost(*load->buffer);
    if (e.as<Fma>()) return {.flops = 2};
    bool arithmetic = (e.as<Binary>() || e.as<Unary>()) && is_float(e.type());
    return {.flops = arithmetic ? 1.0 : 0.0};
}

/// What a statement costs, by how often it really runs: the tree repeats a fill of shared memory in every thread, the
/// kernel does it once a block.
struct Parts {
    Cost thread, block;
    std::map<const BufferNode*, Cost> fills;  ///< of shared buffers that live outside of the statement

    Cost total() const {
        Cost sum = thread + block;
        for (const auto& [buffer, cost] : fills) sum = sum + cost;
        return sum;
    }
};

Parts operator+(Parts a, const Parts& b) {
    a.thread = a.thread + b.thread;
    a.block = a.block + b.block;
    for (const auto& [buffer, cost] : b.fills) a.fills[buffer] = a.fills[buffer] + cost;
    return a;
}

/// Thread loops around the memory of a fill share it; those inside are the fill's own.
Parts repeated(double times, Parts parts, bool by_threads) {
    parts.thread = times * parts.thread;
    if (!by_threads) parts.block = times * parts.block;
    for (auto& [buffer, cost] : parts.fills) cost = times * cost;
    return parts;
}

/// One walk over the tree: the cost of a statement is that of its parts, times the iterations for a loop.
class Walk {
public:
    explicit Walk(const Tree& tree) {
        for (const Nest& nest : tree.nests) find_fills(nest.body);
    }

    void add(const Nest& nest) {
        size_t row = add_row({.name = nest.name, .level = "", .depth = 0, .iterations = 1, .cost = {}});
        rows[row].cost = parts(nest.body, 1).total();
    }

    std::vector<LoopCost> rows;

private:
    /// All leaves of a stage that writes shared memory are the fill.
    void find_fills(const Stmt& stmt) {
        if (const For* loop = stmt.as<For>()) find_fills(loop->body);
        if (const Allocate* allocate = stmt.as<Allocate>()) find_fills(allocate->body);
        if (const Sequence* block = stmt.as<Sequence>())
            for (const Stmt& kid : block->stmts) find_fills(kid);
        if (const Leaf* leaf = stmt.as<Leaf>())
            for (const StoreTo& store : leaf->stores)
                if (store.buffer->memory == Memory::Shared) filled_by_[leaf->stage] = store.buffer.get();
    }

    Parts parts(const Stmt& stmt, int depth) {
        return std::visit([&](const auto& node) { return parts(node, depth); }, (*stmt).kind);
    }
    Parts parts(const For& loop, int depth) {
        double iterations = static_cast<double>(bounds_of(loop.extent).max.value_or(1));
        std::string level = loop.level == Level::Serial ? "" : to_string(loop.level);
        size_t row = add_row(
            {.name = to_string(loop.variable), .level = level, .depth = depth, .iterations = iterations, .cost = {}});
        Parts all = repeated(iterations, parts(loop.body, depth + 1), is_thread(loop.level));
        rows[row].cost = all.total();
        return all;
    }
    Parts parts(const Sequence& block, int depth) {
        Parts sum;
        for (const Stmt& stmt : block.stmts) sum = sum + parts(stmt, depth);
        return sum;
    }
    Parts parts(const Allocate& allocate, int depth) {
        Parts all = parts(allocate.body, depth);
        if (auto fill = all.fills.extract(allocate.buffer.get())) all.block = all.block + fill.mapped();
        return all;
    }
    Parts parts(const Leaf& leaf, int) {
        Cost sum;
        for (const StoreTo& store : leaf.stores) {
            sum = sum + access_cost(*store.buffer);
            visit(store.value, [&](const Expr& e) { sum = sum + node_cost(e); });
        }
        Parts all;
        auto fill = filled_by_.find(leaf.stage);
        (fill == filled_by_.end() ? all.thread : all.fills[fill->second]) = sum;
        return all;
    }

    size_t add_row(LoopCost row) {
        rows.push_back(std::move(row));
        return rows.size() - 1;
    }

    std::map<int, const BufferNode*> filled_by_;  ///< of a stage: the shared buffer that it writes
};

}  // namespace

std::vector<LoopCost> nest_costs(const Tree& tree) {
    Walk walk(tree);
    for (const Nest& nest : tree.nests) walk.add(nest);
    return walk.rows;
}

}  // namespace tw

#include "codegen/tile_passes/simulate_banks.h"

#include <algorithm>

#include "dsl/integers.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int simulated_warps = 2;
/// What an instruction costs beside its wavefronts, in wavefronts; measured: 1.03, 1.29 and 2.23 cycles for 4, 8, 16
/// bytes on an H200.
constexpr double issue_cost = 0.25;
/// Results and operands that a thread holds beside addresses and what is on its way.
constexpr int64_t most_held = 80;

}  // namespace

std::optional<int64_t> evaluate_index(const Expr& expr, const std::vector<VariableValue>& values) {
    if (auto value = as_constant(expr)) return value;
    if (expr.as<Variable>()) {
        for (const VariableValue& known : values)
            if (known.variable == expr.id()) return known.value;
        return {};
    }
    if (const Cast* cast = expr.as<Cast>()) return evaluate_index(cast->a, values);
    const Binary* node = expr.as<Binary>();
    if (!node) return {};
    auto a = evaluate_index(node->a, values), b = evaluate_index(node->b, values);
    return a && b ? apply_to_integers(node->op, *a, *b) : std::nullopt;
}

namespace {

/// Lanes begin..end-1 at once: the bank that is asked for most different words decides.
int conflicts(const std::vector<int64_t>& starts, int64_t bytes, size_t begin, size_t end, const Target& target) {
    std::vector<int64_t> words;
    for (size_t lane = begin; lane < std::min(end, starts.size()); ++lane)
        for (int64_t word = starts[lane] / 4; word <= (starts[lane] + bytes - 1) / 4; ++word) words.push_back(word);
    std::ranges::sort(words);
    words.erase(std::unique(words.begin(), words.end()), words.end());
    const int64_t banks = target.shared_banks;
    std::vector<int> in_bank(static_cast<size_t>(banks));
    for (const int64_t word : words) ++in_bank[static_cast<size_t>((word % banks + banks) % banks)];
    return *std::ranges::max_element(in_bank);
}

/// Each lane of begin..end-1 reads what its neighbour reads, or the one after that.
bool pairs_agree(const std::vector<int64_t>& starts, size_t begin, size_t end, size_t distance) {
    for (size_t lane = begin; lane < std::min(end, starts.size()); ++lane)
        if ((lane ^ distance) < starts.size() && starts[lane] != starts[lane ^ distance]) return false;
    return true;
}

}  // namespace

int wavefronts(const std::vector<int64_t>& starts, int64_t bytes, const Target& target) {
    size_t warp = target.warp_size;
    if (bytes <= 4) return conflicts(starts, bytes, 0, warp, target);
    size_t lanes = bytes > 8 ? warp / 2 : warp;  // that may be served together
    int total = 0;
    for (size_t begin = 0; begin < starts.size(); begin += lanes) {
        size_t end = begin + lanes, middle = begin + lanes / 2;
        if (pairs_agree(starts, begin, end, 1) || pairs_agree(starts, begin, end, 2))
            total += conflicts(starts, bytes, begin, end, target);
        else
            total += conflicts(starts, bytes, begin, middle, target) + conflicts(starts, bytes, middle, end, target);
    }
    return total;
}

namespace {

struct AccessFinder {
    const TileKernel& kernel;
    const Buffer& buffer;
    const Target& target;
    std::vector<SharedAccess> found;

    void walk(const TileStmt& stmt, double times) {
        if (const TileOp* op = stmt.as<TileOp>()) return see(*op, times);
        if (const TileLoop* loop = stmt.as<TileLoop>())
            times *= static_cast<double>(as_constant(loop->extent).value_or(1));
        for (const TileStmt& kid : children(stmt)) walk(kid, times);
    }

    void see(const TileOp& op, double times) {
        std::vector<std::vector<Expr>> seen;
        auto add = [&](const Buffer& used, const std::vector<Expr>& indices) {
            auto same = [&](const std::vector<Expr>& other) {
                return std::equal(indices.begin(), indices.end(), other.begin(), other.end(), equal);
            };
            if (used != buffer || std::any_of(seen.begin(), seen.end(), same)) return;
            seen.push_back(indices);
            add_access(op, indices, times);
        };
        for (const StoreTo& store : op.stores) add(store.buffer, store.indices);
        seen.clear();
        visit_exprs(op, [&](const Expr& root) {
            visit(root, [&](const Expr& e) {
                if (const Load* load = e.as<Load>()) add(load->buffer, load->indices);
            });
        });
    }

    void add_access(const TileOp& op, const std::vector<Expr>& indices, double times) {
        SharedAccess access{.indices = indices, .unrolled = {}, .times = times, .warps = {}};
        for (const OpLoop& loop : op.loops) {
            auto is_in = [&](const Expr& index) { return contains(index, loop.variable); };
            const bool used = std::ranges::any_of(indices, is_in), unrolled = loop.execution != Execution::Serial,
                       fills = std::ranges::any_of(
                           op.stores, [&](const StoreTo&store) { return std::ranges::any_of(store.indices, is_in); });
            if (unrolled && fills) access.results *= as_constant(loop.extent).value_or(1);
            // What an unrolled loop does not change is read once, into registers.
            if (used || !unrolled) access.times *= static_cast<double>(as_constant(loop.extent).value_or(1));
            if (used && unrolled && as_constant(loop.extent)) access.unrolled.push_back(loop);
        }
        for (int warp = 0; warp < simulated_warps; ++warp) add_warp(op, access, warp);
        if (!access.warps.empty()) found.push_back(std::move(access));
    }

    void add_warp(const TileOp& op, SharedAccess& access, int warp) const {
        std::vector<std::vector<int64_t>> lanes;
        for (int lane = 0; lane < target.warp_size; ++lane) {
            int64_t thread = int64_t{warp} * target.warp_size + lane;
            if (thread >= kernel.threads) break;
            std::vector<VariableValue> values = values_of(op, thread);
            if (evaluate_index(op.active, values) == 0) continue;
            std::vector<int64_t> point;
            for (const Expr& index : access.indices) {
                auto value = evaluate_index(index, values);
                if (!value || *value < 0) return;  // data-dependent, or outside: cannot be simulated
                point.push_back(*value);
            }
            lanes.push_back(std::move(point));
        }
        if (!lanes.empty()) access.warps.push_back(std::move(lanes));
    }

    /// All loops at 0.
    std::vector<VariableValue> values_of(const TileOp& op, int64_t thread) const {
        std::vector<VariableValue> values{{kernel.thread.id(), thread}};
        for (const ThreadCoordinate& digit : kernel.thread_coordinates)
            values.push_back({digit.variable.id(), thread / digit.stride % digit.extent});
        for (const OpLoop& loop : op.loops) values.push_back({loop.variable.id(), 0});
        for (const Expr& index : indices_of(op))
            visit(index, [&](const Expr& e) {
                if (e.as<Variable>()) values.push_back({e.id(), 0});  // outer loops and blocks; after the others
            });
        return values;
    }

    static std::vector<Expr> indices_of(const TileOp& op) {
        std::vector<Expr> result{op.active};
        for (const StoreTo& store : op.stores) result.insert(result.end(), store.indices.begin(), store.indices.end());
        visit_exprs(op, [&](const Expr& root) {
            visit(root, [&](const Expr& e) {
                if (const Load* load = e.as<Load>())
                    result.insert(result.end(), load->indices.begin(), load->indices.end());
            });
        });
        return result;
    }
};

}  // namespace

std::vector<SharedAccess> shared_accesses(const TileKernel& kernel, const Buffer& buffer, const Target& target) {
    AccessFinder finder{kernel, buffer, target, {}};
    finder.walk(kernel.body, 1);
    return finder.found;
}

namespace {

/// Registers that hold what wide accesses along the unrolled loop bring before it is asked for.
int64_t registers_waiting(const SharedAccess& access, size_t along, int64_t width, int64_t bytes) {
    int64_t of_iteration = 1;
    for (size_t l = along + 1; l < access.unrolled.size(); ++l)
        of_iteration *= require_constant(access.unrolled[l].extent);
    return of_iteration > 1 ? (width - 1) * of_iteration * bytes / 4 : 0;
}

}  // namespace

double cost_of(const SharedAccess& access, const Buffer& buffer, const Layout& layout, const Target& target) {
    BufferNode node = *buffer;
    node.shape = layout.physical_shape();
    Access physical{std::make_shared<const BufferNode>(node), layout.physical(access.indices)};
    const int64_t bytes = bytes_of(buffer->type);
    int64_t width = 1, waiting = 0;
    for (size_t l = 0; l < access.unrolled.size(); ++l) {
        const OpLoop& loop = access.unrolled[l];
        const int64_t own = wide_elements(physical, loop.variable, require_constant(loop.extent));
        if (own <= width) continue;
        width = own;
        waiting = registers_waiting(access, l, own, bytes);
    }
    double total = 0;
    for (const auto& warp : access.warps) {
        std::vector<int64_t> starts;
        for (const auto& point : warp) starts.push_back(layout.address(point) * bytes);
        total += wavefronts(starts, width * bytes, target) + issue_cost;
    }
    const double crowded = waiting > 0 && access.results + waiting > most_held ? 1.5 : 1;
    return crowded * access.times / static_cast<double>(width) * total / static_cast<double>(access.warps.size());
}

}  // namespace tw::codegen

#include "codegen/async/shared_lives.h"

#include <algorithm>
#include <limits>

#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int end_of_kernel = std::numeric_limits<int>::max();

struct LoopRange {
    Expr variable;
    int first, last;
};
struct Use {
    int order;
    std::vector<size_t> loops;  // around it, outermost first
};

/// Numbers the ops and gathers the uses of each array.
class Uses {
public:
    explicit Uses(const TileKernel& kernel) {
        for (const SharedBuffer& shared : kernel.shared) lives[shared.buffer.get()];
        walk(kernel.body);
        for (const Reading& reading : under_way_) uses[reading.buffer].push_back({end_of_kernel, {}});
    }

    std::map<const BufferNode*, SharedLife> lives;  // without first and last
    std::map<const BufferNode*, std::vector<Use>> uses;
    std::vector<LoopRange> loops;

private:
    /// A product that nobody has waited for.
    struct Reading {
        const BufferNode* buffer;
        std::vector<size_t> loops;
    };

    void walk(const TileStmt& stmt) {
        if (const TileOp* op = stmt.as<TileOp>()) return see(*op);
        const TileLoop* loop = stmt.as<TileLoop>();
        if (!loop || !repeats(*loop)) {
            for (const TileStmt& kid : children(stmt)) walk(kid);
            return;
        }
        const size_t number = loops.size();
        loops.push_back({loop->variable, order_ + 1, 0});
        inside_.push_back(number);
        walk(loop->body);
        inside_.pop_back();
        loops[number].last = order_;
    }

    void see(const TileOp& op) {
        ++order_;
        auto use = [&](const Buffer& buffer) {
            auto life = lives.find(buffer.get());
            if (life == lives.end()) return;
            life->second.by_others = life->second.by_others || op.role > 0;
            uses[buffer.get()].push_back({order_, inside_});
        };
        for (const Buffer& buffer : loads_of(op)) use(buffer);
        visit_places(op, use);
        if (const CallOp* call = op.as<CallOp>())
            for (const Instruction& instruction : call->instructions) see(instruction, op);
    }

    void see(const Instruction& instruction, const TileOp& op) {
        if (auto load = std::get_if<TmaLoad>(&instruction)) lives[load->to.place.buffer.get()].by_others = true;
        // Nothing tells when boxes have left that are asked for last.
        if (auto store = std::get_if<TmaStore>(&instruction))
            uses[store->from.place.buffer.get()].push_back({end_of_kernel, {}});
        if (auto product = std::get_if<Wgmma>(&instruction)) begin_readings(*product);
        const WgmmaWait* wait = std::get_if<WgmmaWait>(&instruction);
        if (wait && wait->pending == 0 && op.loops.empty() && is_constant(op.active, 1)) end_readings();
    }

    void begin_readings(const Wgmma& product) {
        const std::vector<const MatrixOperand*> matrices = product.matrices();
        for (const MatrixOperand* matrix : matrices) {
            lives[matrix->place.buffer.get()].as_matrix = true;
            under_way_.push_back({matrix->place.buffer.get(), inside_});
        }
    }

    /// Of those in front of the wait that it stands behind whenever they run.
    void end_readings() {
        std::erase_if(under_way_, [&](const Reading& reading) {
            const bool certain = inside_.size() <= reading.loops.size() &&
                                 std::equal(inside_.begin(), inside_.end(), reading.loops.begin());
            if (certain) uses[reading.buffer].push_back({order_, inside_});
            return certain;
        });
    }

    int order_ = 0;
    std::vector<size_t> inside_;
    std::vector<Reading> under_way_;
};

/// Loops whose iterations each begin with an array without values, and end with nobody in need of it: those that the
/// schedule says, as long as all accesses have stayed inside.
std::set<const ExprNode*> renewed_in(const SharedBuffer& shared, const SharedLife& life, const std::vector<Use>& uses,
                                     const std::vector<LoopRange>& loops) {
    std::set<const ExprNode*> result;
    if (life.by_others || uses.empty()) return result;
    for (size_t loop : uses.front().loops) {
        const Expr& variable = loops[loop].variable;
        auto is_it = [&](const Expr& other) { return other.same(variable); };
        auto is_inside = [&](const Use& use) { return std::ranges::find(use.loops, loop) != use.loops.end(); };
        if (std::ranges::any_of(shared.around, is_it) && std::ranges::all_of(uses, is_inside))
            result.insert(variable.id());
    }
    return result;
}

}  // namespace

bool repeats(const TileLoop& loop) { return bounds_of(loop.extent).max.value_or(2) > 1; }

SharedLives::SharedLives(const TileKernel& kernel) {
    Uses found(kernel);
    lives_ = std::move(found.lives);
    for (const SharedBuffer& shared : kernel.shared) {
        SharedLife& life = lives_.at(shared.buffer.get());
        const std::vector<Use>& uses = found.uses[shared.buffer.get()];
        life.renewed_in = renewed_in(shared, life, uses, found.loops);
        life.first = end_of_kernel;
        auto extend = [&](int first, int last) {
            life.first = std::min(life.first, first);
            life.last = std::max(life.last, last);
        };
        for (const Use& use : uses) {
            extend(use.order, use.order);
            for (size_t loop : use.loops)
                if (!life.renewed_in.count(found.loops[loop].variable.id()))
                    extend(found.loops[loop].first, found.loops[loop].last);
        }
    }
}

bool SharedLives::are_apart(const Buffer& a, const Buffer& b) const {
    const SharedLife &one = of(a), &other = of(b);
    return (one.last < other.first && !other.by_others) || (other.last < one.first && !one.by_others);
}

bool SharedLives::begins_behind(const Buffer& buffer, const Buffer& other) const {
    const SharedLife &own = of(buffer), &before = of(other);
    return before.last < own.first || std::ranges::any_of(own.renewed_in, [&](const ExprNode* variable) {
               return before.renewed_in.count(variable) > 0;
           });
}

}  // namespace tw::codegen

#include <algorithm>

#include "codegen/access/access.h"
#include "codegen/async/async_passes.h"
#include "dsl/simplify.h"

namespace tw::codegen {
namespace {

constexpr int64_t ring_stages = 2;

class TicketTaker {
public:
    explicit TicketTaker(const TileKernel& kernel) : result_(kernel), persistent_(*result_.persistent) {
        visit_ops(kernel.body, [&](const TileOp& op) {
            if (std::ranges::find(roles_, op.role) == roles_.end()) roles_.push_back(op.role);
        });
        std::ranges::sort(roles_);
        taker_ = roles_.size() > 1 ? roles_[1] : 0;
        taken_ = register_array("taken", Type::I32, {});
    }

    TileKernel run() {
        make_shared();
        TileBlock all;
        for (int role : roles_) all.stmts.push_back(set_next(role, cast_unchecked(Type::I32, result_.block[0])));
        all.stmts.push_back(with_tickets(result_.body));
        result_.body = make_tile(TileAllocate{persistent_.next, make_tile(std::move(all))});
        return std::move(result_);
    }

private:
    bool has_roles() const { return taker_ > 0; }

    void make_shared() {
        const int64_t stages = has_roles() ? ring_stages : 1;
        handed_ = shared("tickets", Type::I32, stages, false);
        if (!has_roles()) return;
        const auto other_takers = static_cast<int64_t>(roles_.size()) - 2;  // a thread each
        full_ = shared("ticket_full", Type::I64, stages, true);
        empty_ = shared("ticket_empty", Type::I64, stages, true);
        result_.barriers.push_back({full_, 1});
        result_.barriers.push_back({empty_, result_.threads + other_takers});
    }

    Buffer shared(const std::string& name, Type type, int64_t count, bool is_barrier) {
        BufferNode node{.name = name, .type = type, .memory = Memory::Shared, .shape = {integer(count)}, .strides = {}};
        node.is_barrier = is_barrier;
        Buffer buffer = std::make_shared<const BufferNode>(std::move(node));
        result_.shared.push_back({buffer, row_major({count}), is_barrier});
        return buffer;
    }

    TileStmt with_tickets(const TileStmt& stmt) {
        const TileLoop* loop = stmt.as<TileLoop>();
        if (!loop || !loop->variable.same(persistent_.round))
            return map_children(stmt, [&](const TileStmt& kid) { return with_tickets(kid); });
        TileBlock round{{take(), loop->body}};
        hand_on(round);
        for (int role : roles_)
            if (role != taker_ || !has_roles()) receive(round, role);
        TileLoop result = *loop;
        result.body = make_tile(TileAllocate{taken_, make_tile(std::move(round))});
        return make_tile(std::move(result));
    }

    /// Roles that copy have one thread that works.
    Expr one_thread() const { return has_roles() ? all_of({}) : simplify(result_.thread == 0); }

    TileStmt take() const {
        TakeTicket ticket{{{taken_, {}}}, {{persistent_.tickets, {integer(0)}}}, persistent_.tiles, result_.grid[0]};
        return make_tile(call_op({std::move(ticket)}, one_thread(), taker_));
    }

    void hand_on(TileBlock& round) const {
        const Expr taken = load(taken_, {});
        if (has_roles()) round.stmts.push_back(make_tile(call_op({wait(empty_, 1)}, all_of({}), taker_)));
        TileOp store = stored(handed_, {stage()}, taken, taker_);
        store.active = one_thread();
        round.stmts.push_back(make_tile(std::move(store)));
        if (!has_roles()) return;
        round.stmts.push_back(make_tile(call_op({MbarrierArrive{at(full_)}}, all_of({}), taker_)));
        round.stmts.push_back(set_next(taker_, taken));
    }

    void receive(TileBlock& round, int role) const {
        if (has_roles()) round.stmts.push_back(make_tile(call_op({wait(full_, 0)}, all_of({}), role)));
        round.stmts.push_back(set_next(role, load(handed_, {stage()})));
        if (has_roles()) round.stmts.push_back(make_tile(call_op({MbarrierArrive{at(empty_)}}, all_of({}), role)));
    }

    Expr stage() const { return has_roles() ? simplify(persistent_.round % ring_stages) : integer(0); }
    ReadOperand at(const Buffer& barriers) const { return {{barriers, {stage()}}}; }
    /// Until the phase of the round's stage has ended, or the one `before`.
    MbarrierWait wait(const Buffer& barriers, int before) const {
        return {at(barriers), simplify((persistent_.round / ring_stages + before) % 2)};
    }

    TileStmt set_next(int role, const Expr& ticket) const {
        return make_tile(stored(persistent_.next, {}, ticket, role));
    }
    static TileOp stored(const Buffer& to, const std::vector<Expr>& indices, const Expr& value, int role) {
        TileOp op{MapOp{}};
        op.role = role;
        op.stores = {{to, indices, value}};
        return op;
    }
    static Expr load(const Buffer& from, const std::vector<Expr>& indices) {
        return make_expr(from->type, Load{from, indices});
    }

    TileKernel result_;
    const Persistence& persistent_;  // of result_
    std::vector<int> roles_;         // that do something
    int taker_ = 0;
    Buffer taken_, handed_, full_, empty_;
};

}  // namespace

TileKernel take_tickets(const TileKernel& kernel) {
    if (!kernel.persistent || !kernel.persistent->tickets) return kernel;
    return TicketTaker(kernel).run();
}

}  // namespace tw::codegen

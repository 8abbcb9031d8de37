#include "codegen/to_threads/lower_async_copy.h"

#include "codegen/access/access.h"
#include "codegen/async/async_copy.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

class AsyncCopy {
public:
    AsyncCopy(const TileOp& op, const AsyncRequest& request) : op_(op), request_(request) {}

    ThreadStmt run() const {
        ThreadStmt body = one();
        std::vector<Expr> conditions = request_.active;
        if (!op_.otherwise.defined()) conditions.insert(conditions.end(), request_.there.begin(), request_.there.end());
        auto guarded = [&](const Expr* variable) {
            std::vector<Expr> here, elsewhere;
            for (const Expr& condition : conditions)
                (!variable || contains(condition, *variable) ? here : elsewhere).push_back(condition);
            conditions = elsewhere;
            if (!here.empty()) body = make_thread(ThreadIf{all_of(here), body}, op_.step);
        };
        for (size_t l = request_.loops.size(); l-- > 0;) {
            guarded(&request_.loops[l].variable);
            bool unroll = request_.loops[l].execution != Execution::Serial && as_constant(request_.loops[l].extent);
            body =
                make_thread(ThreadLoop{request_.loops[l].variable, request_.loops[l].extent, unroll, body}, op_.step);
        }
        guarded(nullptr);
        if (op_.is<AwaitedOp>()) return body;
        return make_thread(
            ThreadBlock{{make_thread(ThreadComment{op_.name + ": copy asynchronously", op_.name}, op_.step), body}});
    }

private:
    ThreadStmt one() const {
        int width = static_cast<int>(request_.width);
        if (op_.is<AwaitedOp>()) return make_thread(ThreadAccess{request_.to, width, true}, op_.step);
        Expr there = all_of(request_.there);
        CpAsync copy{request_.width, {request_.to, width}, {checked_where(there), width}};
        if (op_.otherwise.defined() && !is_constant(there, 1)) copy.there = there;
        return make_thread(Instruction(std::move(copy)), op_.step);
    }

    /// The address is computed where nothing is copied, too.
    Access checked_where(const Expr& there) const {
        std::vector<Expr> conditions = request_.active;
        conditions.insert(conditions.end(), request_.there.begin(), request_.there.end());
        std::vector<IndexCheck> checks = checks_of(without_implied_checks(request_.from, conditions));
        bool guarded = !op_.otherwise.defined() || is_constant(there, 1);
        for (IndexCheck& check : checks)
            if (!guarded) check.index = select_unchecked(there, check.index, integer(0));
        Access from = request_.from;
        // What data tell of it is there only where something is.
        auto told = [&](const Expr& e) {
            return e.as<Load>() ? select_unchecked(there, e, constant(e.type(), int64_t{0})) : Expr();
        };
        if (!guarded)
            for (Expr& index : from.indices) index = transform(index, told);
        return with_checks(place_of(from), checks);
    }

    const TileOp& op_;
    const AsyncRequest& request_;
};

}  // namespace

ThreadStmt lower_async_copy(const TileOp& op, const Placement& placement) {
    AsyncRequest request = async_request(op, placement);
    internal_check(request.reason.empty(), "an asynchronous copy of {}: {}", op.name, request.reason);
    return AsyncCopy(op, request).run();
}

}  // namespace tw::codegen

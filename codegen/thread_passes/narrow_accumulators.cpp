// Places of the largest elements, and other whole numbers that reductions choose among, in 32 bits: half of the
// comparisons, selections and exchanges.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "dsl/plain_arithmetic.h"

namespace tw::codegen {
namespace {

constexpr int64_t none = std::numeric_limits<int64_t>::max(), narrow_none = std::numeric_limits<int32_t>::max();

/// What a whole number is chosen from: elements of arrays, and numbers that have 32 bits, of which the largest stands
/// for the largest one of 64.
struct Choice {
    std::set<const BufferNode*> arrays;
    bool is_narrow = true, has_none = false;  ///< but for arrays

    void add(const Choice& other) {
        arrays.insert(other.arrays.begin(), other.arrays.end());
        is_narrow = is_narrow && other.is_narrow;
        has_none = has_none || other.has_none;
    }
};

class Narrower {
public:
    explicit Narrower(const ThreadKernel& kernel) : kernel_(kernel), bounds_(kernel) {
        for (const Buffer& array : kernel.shared) add(array);
        visit(kernel.body, [&](const ThreadStmt& stmt) {
            if (const ThreadDeclare* declare = stmt.as<ThreadDeclare>()) add(declare->buffer);
        });
    }

    ThreadKernel run() {
        if (narrow_.empty()) return kernel_;
        see(kernel_.body);
        for (bool found = true; found;) found = drop_wide();
        if (narrow_.empty()) return kernel_;
        for (bool found = true; found;) found = spread_none();
        ThreadKernel result = kernel_;
        for (Buffer& array : result.shared) array = in_place_of(array);
        for (SharedUnion& shared : result.unions)
            for (std::vector<Buffer>& alternative : shared.alternatives)
                for (Buffer& array : alternative) array = in_place_of(array);
        bounds_ = KnownBounds(kernel_);
        result.body = rewritten(kernel_.body);
        return result;
    }

private:
    void add(const Buffer& array) {
        if (array->type != Type::I64 || array->is_barrier) return;
        BufferNode other = *array;
        other.type = Type::I32;
        narrow_[array.get()] = std::make_shared<const BufferNode>(std::move(other));
    }
    Buffer in_place_of(const Buffer& array) const {
        const auto found = narrow_.find(array.get());
        return found == narrow_.end() ? array : found->second;
    }
    bool is_candidate(const Buffer& array) const { return narrow_.contains(array.get()); }

    // ---- what arrays hold

    Choice choice_of(const Expr& value) const {
        Choice choice;
        if (const Select* select = value.as<Select>()) {
            choice.add(choice_of(select->yes));
            choice.add(choice_of(select->no));
            return choice;
        }
        if (const Exchange* exchange = value.as<Exchange>()) return choice_of(exchange->a);
        if (const Load* load = value.as<Load>(); load && is_candidate(load->buffer)) {
            choice.arrays.insert(load->buffer.get());
            return choice;
        }
        if (const auto named = named_.find(value.id()); named != named_.end() && !named->second.arrays.empty())
            return named->second;
        const IntConstant* constant = value.as<IntConstant>();
        const Interval bounds = bounds_.of(value);
        choice.has_none = constant && constant->value == none;
        choice.is_narrow = choice.has_none || (fits_i32(bounds) && *bounds.max < narrow_none);
        return choice;
    }

    void see(const ThreadStmt& stmt) {
        const KnownBounds outside = bounds_;
        if (const ThreadLoop* loop = stmt.as<ThreadLoop>()) bounds_.enter_loop(*loop);
        if (const ThreadStore* store = stmt.as<ThreadStore>(); store && is_candidate(store->to.buffer)) {
            Choice& held = held_[store->to.buffer.get()];
            held.add(choice_of(store->value));
            held.is_narrow = held.is_narrow && !store->atomic;
        }
        if (const ThreadWide* wide = stmt.as<ThreadWide>()) {
            held_together(wide->to.buffer, wide->from.buffer);
            held_together(wide->from.buffer, wide->to.buffer);
        }
        if (const Instruction* instruction = stmt.as<Instruction>())
            visit_places(*instruction, [&](const Access& place) { held_[place.buffer.get()].is_narrow = false; });
        for (const ThreadStmt& kid : children(stmt)) {
            see(kid);
            if (const ThreadLet* let = kid.as<ThreadLet>()) {
                if (let->value.type() == Type::I64) named_[let->variable.id()] = choice_of(let->value);
                bounds_.define(*let);
            }
        }
        bounds_ = outside;
    }
    void held_together(const Buffer& array, const Buffer& other) {
        if (!is_candidate(array)) return;
        held_[array.get()].arrays.insert(other.get());
    }

    /// Whether an array was found to hold what has more than 32 bits.
    bool drop_wide() {
        const auto is_wide = [&](const auto& each) {
            const Choice& held = held_[each.first];
            return !held.is_narrow ||
                   std::ranges::any_of(held.arrays, [&](const BufferNode* from) { return !narrow_.contains(from); });
        };
        return std::erase_if(narrow_, is_wide) > 0;
    }

    /// Whether an array was found to hold none, as one that it takes elements of does.
    bool spread_none() {
        bool found = false;
        for (auto& [array, held] : held_) {
            if (held.has_none || !may_be_none(held)) continue;
            held.has_none = found = true;
        }
        return found;
    }
    bool may_be_none(const Choice& choice) const {
        return choice.has_none || std::ranges::any_of(choice.arrays, [&](const BufferNode* from) {
                   const auto held = held_.find(from);
                   return held != held_.end() && held->second.has_none;
               });
    }

    // ---- the kernel with them

    /// Whether it is chosen from elements of narrow arrays, and all else has 32 bits as well.
    bool is_kept(const Expr& value, bool may_be_other = false) const {
        if (value.type() != Type::I64) return false;
        const Choice choice = choice_of(value);
        return choice.is_narrow && (may_be_other || !choice.arrays.empty()) &&
               std::ranges::all_of(choice.arrays, [&](const BufferNode* from) { return narrow_.contains(from); });
    }

    ThreadStmt rewritten(const ThreadStmt& stmt) {
        const KnownBounds outside = bounds_;
        if (const ThreadLoop* loop = stmt.as<ThreadLoop>()) bounds_.enter_loop(*loop);
        ThreadStmt result = with_narrow(stmt);
        std::vector<ThreadStmt> kids;
        for (const ThreadStmt& kid : children(stmt)) {
            kids.push_back(rewritten(kid));
            if (const ThreadLet* let = kid.as<ThreadLet>()) bounds_.define(*let);
        }
        bounds_ = outside;
        return with_children(result, kids);
    }

    ThreadStmt with_narrow(const ThreadStmt& stmt) {
        auto place = [&](const Access& access) {
            Access result{in_place_of(access.buffer), {}};
            for (const Expr& index : access.indices) result.indices.push_back(wide(index));
            return result;
        };
        if (const ThreadDeclare* declare = stmt.as<ThreadDeclare>())
            return make_thread(ThreadDeclare{in_place_of(declare->buffer)}, stmt.step());
        if (const ThreadStore* store = stmt.as<ThreadStore>(); store && is_candidate(store->to.buffer))
            return make_thread(ThreadStore{place(store->to), narrow(store->value), store->atomic}, stmt.step());
        if (const ThreadWide* copy = stmt.as<ThreadWide>()) {
            ThreadWide result = *copy;
            result.to = place(copy->to);
            result.from = place(copy->from);
            if (copy->where.defined()) result.where = wide(copy->where);
            return make_thread(result, stmt.step());
        }
        if (const ThreadLet* let = stmt.as<ThreadLet>(); let && let->value.type() == Type::I64) {
            named_[let->variable.id()] = choice_of(let->value);
            renamed_.erase(let->variable.id());
        }
        if (const ThreadLet* let = stmt.as<ThreadLet>(); let && is_kept(let->value)) {
            const Expr name = make_expr(Type::I32, *let->variable.as<Variable>());
            renamed_[let->variable.id()] = name;
            return make_thread(ThreadLet{name, narrow(let->value)}, stmt.step());
        }
        return map_expressions(stmt, [&](const Expr& expr) { return wide(expr); });
    }

    /// As it is, made of narrow elements.
    Expr wide(const Expr& expr) const {
        if (is_kept(expr)) {
            const Expr value = narrow(expr);
            if (!may_be_none(choice_of(expr))) return cast_unchecked(Type::I64, value);
            return make_expr(Type::I64, Select{binary(BinaryOp::Equal, value, constant(Type::I32, narrow_none)),
                                               constant(Type::I64, none), cast_unchecked(Type::I64, value)});
        }
        if (const Binary* operation = expr.as<Binary>(); operation && compares(*operation))
            return binary(operation->op, narrow(operation->a), narrow(operation->b));
        std::vector<Expr> kids = children(expr);
        for (Expr& kid : kids) kid = wide(kid);
        return with_children(expr, kids);
    }
    bool compares(const Binary& operation) const {
        return is_comparison(operation.op) && is_kept(operation.a, true) && is_kept(operation.b, true) &&
               (is_kept(operation.a) || is_kept(operation.b));
    }

    /// In 32 bits what is_kept, or has no more.
    Expr narrow(const Expr& value) const {
        if (const Select* select = value.as<Select>())
            return make_expr(Type::I32, Select{wide(select->condition), narrow(select->yes), narrow(select->no)});
        if (const Exchange* exchange = value.as<Exchange>())
            return make_expr(Type::I32, Exchange{narrow(exchange->a), exchange->lane_bits});
        if (const Load* load = value.as<Load>(); load && is_candidate(load->buffer)) {
            Load result{in_place_of(load->buffer), {}};
            for (const Expr& index : load->indices) result.indices.push_back(wide(index));
            return make_expr(Type::I32, std::move(result));
        }
        if (const auto name = renamed_.find(value.id()); name != renamed_.end()) return name->second;
        const IntConstant* number = value.as<IntConstant>();
        if (number) return constant(Type::I32, std::min(number->value, narrow_none));
        return cast_unchecked(Type::I32, wide(value));
    }

    const ThreadKernel& kernel_;
    KnownBounds bounds_;
    std::map<const BufferNode*, Buffer> narrow_;  // what may stand in an array's place
    std::map<const BufferNode*, Choice> held_;    // what is stored to it
    std::map<const ExprNode*, Choice> named_;     // what lets name
    std::map<const ExprNode*, Expr> renamed_;     // variables of lets, now of 32 bits
};

}  // namespace

ThreadKernel narrow_accumulators(const ThreadKernel& kernel) { return Narrower(kernel).run(); }

}  // namespace tw::codegen

// Compilation of expressions into register code.
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "dsl/deep.h"
#include "dsl/register_code.h"
#include "dsl/walk.h"

namespace tw {
namespace {

using Op = CompiledExpr::Op;

}  // namespace

/// Registers are assigned once, but for the results of branches. A node that occurs twice is computed once: where it
/// first occurs, or, if that lies in a branch, by a part of the code that is called where the node is needed and does
/// nothing the second time.
class ExprCompiler {
public:
    ExprCompiler(CompiledExpr& out, SlotMap& slots, const Resolve& resolve)
        : out_(out), slots_(slots), resolve_(resolve) {
        new_register();  // number_of_run
    }

    void compile(const Expr& expr) {
        visit(expr, [&](const Expr& node) { for_each_child(*node, [&](const Expr& kid) { ++uses_[kid.id()]; }); });
        int32_t result = with_room_for(expr, [&] { return value(expr); });
        emit(Op::Return, -1, result);
    }

private:
    int32_t new_register() {
        out_.registers_.emplace_back();
        return static_cast<int32_t>(out_.registers_.size()) - 1;
    }
    int32_t constant_register(Register content) {
        int32_t result = new_register();
        out_.registers_[static_cast<size_t>(result)] = content;
        return result;
    }
    size_t emit(Op op, int32_t result, int32_t a = 0, int32_t b = 0, int32_t c = 0, Type type = Type::I64) {
        out_.code_.push_back({op, type, result, a, b, c});
        return out_.code_.size() - 1;
    }
    int32_t compute(Op op, int32_t a, int32_t b = 0, int32_t c = 0, Type type = Type::I64) {
        int32_t result = new_register();
        emit(op, result, a, b, c, type);
        return result;
    }
    void land(size_t jump) { out_.code_[jump].c = static_cast<int32_t>(out_.code_.size()); }

    Home home(Type type) const { return home_of(type, out_.precision_); }
    /// The operation for the type; the S and D forms stand in one order.
    Op float_op(Op single, Type type) const {
        int distance = static_cast<int>(Op::AddD) - static_cast<int>(Op::AddS);
        return home(type) == Home::Single ? single : static_cast<Op>(static_cast<int>(single) + distance);
    }

    int32_t value(const Expr& expr) {
        for (const Known* known : {&here_, &everywhere_})
            if (auto found = known->find(expr.id()); found != known->end()) return found->second;
        auto parts = parts_.find(expr.id());
        if (parts != parts_.end()) return call(parts->second);
        bool is_shared = uses_[expr.id()] > 1;
        if (is_shared && branches_ > 0 && !is_safe(expr)) return called_part(expr);
        int32_t result = new_value(expr);
        bool is_set = expr.as<Variable>() || expr.as<IntConstant>() || expr.as<FloatConstant>();
        if (is_shared || is_set) (is_set || branches_ == 0 ? everywhere_ : here_).emplace(expr.id(), result);
        return result;
    }

    int32_t new_value(const Expr& expr) {
        return std::visit([&](const auto& node) { return node_value(node, expr, expr.type()); }, (*expr).kind);
    }

    int32_t node_value(const IntConstant& n, const Expr&, Type type) {
        return constant_register(to_register(value_of(n, type)));
    }
    int32_t node_value(const FloatConstant& n, const Expr&, Type type) {
        double real = out_.precision_ == Precision::Float64 ? n.value : round_to_type(type, n.value);
        return constant_register(to_register({type, real, 0}, out_.precision_));
    }
    int32_t node_value(const Variable&, const Expr& expr, Type) {
        int32_t result = new_register();
        out_.arguments_.push_back({slots_.slot(expr), result});
        return result;
    }

    int32_t wrapped(int32_t content, Type type) {
        return type == Type::I64 || type == Type::Bool ? content : compute(Op::WrapI, content, 0, 0, type);
    }

    int32_t node_value(const Unary& n, const Expr&, Type type) {
        int32_t a = value(n.a);
        if (home(type) == Home::Integer) {
            switch (n.op) {
                case UnaryOp::Not: return compute(Op::NotI, a);
                case UnaryOp::Negate: return wrapped(compute(Op::NegateI, a), type);
                case UnaryOp::Abs: return wrapped(compute(Op::AbsI, a), type);
                default: internal_check(false, "a float function of {}", name_of(type));
            }
        }
        switch (n.op) {
            case UnaryOp::Negate: return compute(float_op(Op::NegateS, type), a);
            case UnaryOp::Abs: return compute(float_op(Op::AbsS, type), a);
            case UnaryOp::Floor: return compute(float_op(Op::FloorS, type), a);
            case UnaryOp::Ceil: return compute(float_op(Op::CeilS, type), a);
            case UnaryOp::Round: return compute(float_op(Op::RoundS, type), a);
            case UnaryOp::TruncateTf32: return compute(float_op(Op::TruncateS, type), a);
            case UnaryOp::Sqrt: return compute(float_op(Op::SqrtS, type), a);
            case UnaryOp::Rsqrt: return compute(float_op(Op::RsqrtS, type), a);
            case UnaryOp::Exp: return transcendental(Op::ExpD, a, type);
            case UnaryOp::Exp2: {
                int32_t power = transcendental(Op::Exp2D, a, type);
                return home(type) == Home::Double ? power : compute(Op::FlushS, power);
            }
            case UnaryOp::ExpNonpositive: return compute(Op::FlushS, transcendental(Op::ExpD, a, type));
            case UnaryOp::Log: return transcendental(Op::LogD, a, type);
            case UnaryOp::Log2: return transcendental(Op::Log2D, a, type);
            case UnaryOp::Tanh:
            case UnaryOp::TanhApprox: return transcendental(Op::TanhD, a, type);
            case UnaryOp::Erf:
            case UnaryOp::ErfUnbranched: return transcendental(Op::ErfD, a, type);
            case UnaryOp::NormalCdf: return transcendental(Op::NormalCdfD, a, type);
            case UnaryOp::Sigmoid: return transcendental(Op::SigmoidD, a, type);
            case UnaryOp::Logistic2: return transcendental(Op::Logistic2D, a, type);
            case UnaryOp::Not: break;
        }
        internal_check(false, "! of {}", name_of(type));
        return 0;
    }

    /// Computed in f64 and rounded once: the f32 result is right but for rare near-ties.
    int32_t transcendental(Op op, int32_t a, Type type) {
        if (home(type) == Home::Double) return compute(op, a);
        return compute(Op::DtoS, compute(op, compute(Op::StoD, a)));
    }

    int32_t node_value(const Binary& n, const Expr& expr, Type type) {
        if ((n.op == BinaryOp::And || n.op == BinaryOp::Or) && !is_safe(n.b)) return short_circuit(n);
        int32_t a = value(n.a), b = value(n.b);
        Type operands = n.a.type();
        if (home(operands) != Home::Integer) return compute(float_op(single_op(n.op), operands), a, b);
        int32_t result = compute(integer_op(n.op), a, b);
        return expr.type() == Type::Bool || is_of_bits(n.op) ? result : wrapped(result, type);
    }

    static Op integer_op(BinaryOp op) {
        switch (op) {
            case BinaryOp::Add: return Op::AddI;
            case BinaryOp::Sub: return Op::SubI;
            case BinaryOp::Mul: return Op::MulI;
            case BinaryOp::Div: return Op::DivI;
            case BinaryOp::Mod: return Op::ModI;
            case BinaryOp::Min: return Op::MinI;
            case BinaryOp::Max: return Op::MaxI;
            case BinaryOp::Less: return Op::LessI;
            case BinaryOp::LessEqual: return Op::LessEqualI;
            case BinaryOp::Equal: return Op::EqualI;
            case BinaryOp::NotEqual: return Op::NotEqualI;
            case BinaryOp::And:
            case BinaryOp::BitAnd: return Op::AndI;
            case BinaryOp::Or:
            case BinaryOp::BitOr: return Op::OrI;
            case BinaryOp::BitXor: return Op::XorI;
            case BinaryOp::ShiftLeft: return Op::ShiftLeftI;
            case BinaryOp::ShiftRight: return Op::ShiftRightI;
            case BinaryOp::MulHigh: return Op::MulHighI;
            case BinaryOp::DivShared: break;  // of floats
        }
        return Op::Return;
    }

    static Op single_op(BinaryOp op) {
        switch (op) {
            case BinaryOp::Add: return Op::AddS;
            case BinaryOp::Sub: return Op::SubS;
            case BinaryOp::Mul: return Op::MulS;
            case BinaryOp::Div:
            case BinaryOp::DivShared: return Op::DivS;
            case BinaryOp::Min: return Op::MinS;
            case BinaryOp::Max: return Op::MaxS;
            case BinaryOp::Less: return Op::LessS;
            case BinaryOp::LessEqual: return Op::LessEqualS;
            case BinaryOp::Equal: return Op::EqualS;
            case BinaryOp::NotEqual: return Op::NotEqualS;
            default: internal_check(false, "an integer operation on floats");
        }
        return Op::Return;
    }

    int32_t node_value(const Fma& n, const Expr&, Type type) {
        int32_t a = value(n.a), b = value(n.b), c = value(n.c);
        if (home(type) != Home::Integer) return compute(float_op(Op::FmaS, type), a, b, c);
        return wrapped(compute(Op::AddI, compute(Op::MulI, a, b), c), type);
    }

    // Branches.

    /// No read, no division that may fail, and cheap enough to be computed for nothing.
    static bool is_safe(const Expr& expr) {
        int budget = 8;
        return is_safe(expr, budget);
    }
    static bool is_safe(const Expr& expr, int& budget) {
        if (--budget < 0 || expr.as<Read>() || expr.as<Load>()) return false;
        if (auto* unary = expr.as<Unary>(); unary && unary->op >= UnaryOp::Rsqrt) return false;
        auto* node = expr.as<Binary>();
        bool divides = node && (node->op == BinaryOp::Div || node->op == BinaryOp::Mod) && !is_float(expr.type());
        if (divides && as_constant(node->b).value_or(0) == 0) return false;
        bool safe = true;
        for_each_child(*expr, [&](const Expr& kid) { safe = safe && is_safe(kid, budget); });
        return safe;
    }

    /// Code that may be jumped over: what it computes is unknown afterwards.
    int32_t branch_value(const Expr& expr) {
        Known outside = here_;
        ++branches_;
        int32_t result = value(expr);
        --branches_;
        here_ = std::move(outside);
        return result;
    }

    /// Code for the node, which this place and later ones call. Only what is known everywhere is known in it.
    int32_t called_part(const Expr& expr) {
        Part part{new_register(), new_register(), 0};
        size_t call = emit(Op::CallOnce, -1, part.flag), over = emit(Op::Jump, -1);
        land(call);
        part.start = static_cast<int32_t>(out_.code_.size());
        Known outside = std::exchange(here_, {});
        emit(Op::Move, part.result, new_value(expr));
        here_ = std::move(outside);
        emit(Op::EndOfCall, -1, part.flag);
        land(over);
        parts_.emplace(expr.id(), part);
        return part.result;
    }

    struct Part {
        int32_t flag, result;  // the flag holds the number of the run that computed it
        int32_t start;
    };
    int32_t call(const Part& part) {
        emit(Op::CallOnce, -1, part.flag, 0, part.start);
        return part.result;
    }

    int32_t short_circuit(const Binary& n) {
        int32_t result = new_register();
        emit(Op::Move, result, value(n.a));
        size_t skip = emit(n.op == BinaryOp::And ? Op::JumpIfFalse : Op::JumpIfTrue, -1, result);
        emit(Op::Move, result, branch_value(n.b));
        land(skip);
        return result;
    }

    int32_t node_value(const Select& n, const Expr&, Type) {
        int32_t condition = value(n.condition);
        if (is_safe(n.yes) && is_safe(n.no)) {
            int32_t yes = value(n.yes), no = value(n.no);
            return compute(Op::Choose, condition, yes, no);
        }
        int32_t result = new_register();
        size_t to_no = emit(Op::JumpIfFalse, -1, condition);
        emit(Op::Move, result, branch_value(n.yes));
        size_t to_end = emit(Op::Jump, -1);
        land(to_no);
        emit(Op::Move, result, branch_value(n.no));
        land(to_end);
        return result;
    }

    // Conversions.

    int32_t node_value(const Cast& n, const Expr&, Type to) {
        int32_t a = value(n.a);
        Type from = n.a.type();
        if (home(from) == Home::Integer) return from_integer(a, from, to);
        if (home(to) == Home::Integer) return compute(home(from) == Home::Single ? Op::StoI : Op::DtoI, a, 0, 0, to);
        if (out_.precision_ == Precision::Float64) return a;
        return from_float(a, from, to);
    }

    int32_t from_integer(int32_t a, Type from, Type to) {
        if (home(to) == Home::Double) return compute(Op::ItoD, a);
        if (to == Type::F32) return compute(Op::ItoS, a);
        if (home(to) == Home::Single) return compute(Op::ItoNarrow, a, 0, 0, to);
        return to == Type::I64 || from == to ? a : compute(Op::WrapI, a, 0, 0, to);
    }

    int32_t from_float(int32_t a, Type from, Type to) {
        if (to == Type::F64) return compute(Op::StoD, a);
        if (from == Type::F64) return to == Type::F32 ? compute(Op::DtoS, a) : compute(Op::RoundTypeD, a, 0, 0, to);
        return to == Type::F32 ? a : compute(Op::RoundTypeS, a, 0, 0, to);
    }

    int32_t node_value(const Bitcast& n, const Expr&, Type to) {
        return compute(Op::Bits, value(n.a), static_cast<int32_t>(n.a.type()), 0, to);
    }

    // Elements.

    int32_t node_value(const Read& n, const Expr& expr, Type type) { return element(n.indices, expr, type); }
    int32_t node_value(const Load& n, const Expr& expr, Type type) { return element(n.indices, expr, type); }

    int32_t element(const std::vector<Expr>& indices, const Expr& expr, Type type) {
        const MemoryView* memory = resolve_(*expr);
        internal_check(memory, "nothing is known of the memory behind {}", to_string(expr));
        internal_check(memory->shape.size() == indices.size() && memory->strides.size() == indices.size(),
                       "{}: the memory has {} dimensions", to_string(expr), memory->shape.size());
        internal_check(is_float(memory->type) == is_float(type), "{}: the memory holds {}", to_string(expr),
                       name_of(memory->type));
        CompiledExpr::ElementRead read{memory, {}};
        for (const Expr& index : indices) read.indices.push_back(value(index));
        out_.reads_.push_back(std::move(read));
        int32_t which = static_cast<int32_t>(out_.reads_.size()) - 1;
        bool single = home(type) == Home::Single;
        if (single && memory->type == Type::F32) return compute(Op::ReadS, which);
        if (single && memory->type == Type::BF16) return compute(Op::ReadBF16, which);
        return compute(Op::ReadElement, which, 0, 0, type);
    }

    int32_t node_value(const Reduce&, const Expr& expr, Type) {
        internal_check(false, "a reduction inside an expression cannot be evaluated: {}", to_string(expr));
        return 0;
    }
    int32_t node_value(const Exchange&, const Expr& expr, Type) {
        internal_check(false, "another thread's value cannot be evaluated: {}", to_string(expr));
        return 0;
    }

    CompiledExpr& out_;
    SlotMap& slots_;
    const Resolve& resolve_;
    using Known = std::unordered_map<const ExprNode*, int32_t>;  // registers
    Known here_, everywhere_;
    std::unordered_map<const ExprNode*, Part> parts_;
    std::unordered_map<const ExprNode*, int> uses_;
    int branches_ = 0;
};

CompiledExpr::CompiledExpr(const Expr& expr, SlotMap& slots, const Resolve& resolve, Precision precision)
    : type_(expr.type()), precision_(precision) {
    ExprCompiler(*this, slots, resolve).compile(expr);
    order_by_arguments();
}

// Order: what depends on few arguments comes first, and is left out by runs in which those have not changed. Slots of
// outer loops are less than those of inner ones, so that an inner loop computes little more than what it changes.

namespace {

constexpr int32_t EachRun = std::numeric_limits<int32_t>::max();

int num_operands(Op op) {
    auto is_within = [op](Op first, Op last) { return first <= op && op <= last; };
    if (op == Op::Choose || op == Op::FmaS || op == Op::FmaD) return 3;
    bool is_binary =
        is_within(Op::AddI, Op::OrI) || is_within(Op::AddS, Op::NotEqualS) || is_within(Op::AddD, Op::NotEqualD);
    return is_binary ? 2 : 1;
}

/// Branches, what branches assign, and memory, which may change between runs.
bool is_of_each_run(Op op) { return op <= Op::EndOfCall && op != Op::Choose ? true : op >= Op::ReadElement; }

bool is_jump(Op op) { return op == Op::Jump || op == Op::JumpIfFalse || op == Op::JumpIfTrue || op == Op::CallOnce; }

}  // namespace

void CompiledExpr::order_by_arguments() {
    std::sort(arguments_.begin(), arguments_.end(), [](auto& a, auto& b) { return a.slot < b.slot; });

    // How many of the first arguments the value of each register depends on. Constants are never assigned.
    std::vector<int32_t> needs(registers_.size(), 0);
    needs[number_of_run] = EachRun;
    for (const Instruction& step : code_)
        if (step.result >= 0) needs[step.result] = EachRun;
    for (size_t i = 0; i < arguments_.size(); ++i) needs[arguments_[i].result] = static_cast<int32_t>(i) + 1;

    std::vector<int32_t> order;  // of each instruction
    for (const Instruction& step : code_) {
        int32_t most = 0, operands[] = {step.a, step.b, step.c};
        for (int k = 0; k < num_operands(step.op); ++k) most = std::max(most, needs[operands[k]]);
        bool may_fail =
            (step.op == Op::DivI || step.op == Op::ModI) && (needs[step.b] != 0 || registers_[step.b].integer == 0);
        order.push_back(is_of_each_run(step.op) || may_fail ? EachRun : most);
        if (order.back() != EachRun) needs[step.result] = order.back();
    }

    std::vector<int32_t> from(code_.size());  // where the instructions of the new order stood
    std::iota(from.begin(), from.end(), 0);
    std::stable_sort(from.begin(), from.end(), [&](int32_t a, int32_t b) { return order[a] < order[b]; });
    auto first_with = [&](int32_t least) {
        return static_cast<int32_t>(
            std::partition_point(from.begin(), from.end(), [&](int32_t i) { return order[i] < least; }) - from.begin());
    };
    for (size_t kept = 0; kept < arguments_.size(); ++kept)
        starts_.push_back(first_with(static_cast<int32_t>(kept) + 1));
    starts_.push_back(first_with(EachRun));

    std::vector<int32_t> target(code_.size() + 1, starts_.back());  // of jumps: the first behind that is still there
    for (size_t i = 0; i < code_.size(); ++i) target[i + 1] = target[i] + (order[i] == EachRun);
    std::vector<Instruction> ordered;
    for (int32_t i : from) {
        ordered.push_back(code_[i]);
        if (is_jump(code_[i].op)) ordered.back().c = target[code_[i].c];
    }
    code_ = std::move(ordered);
}

}  // namespace tw

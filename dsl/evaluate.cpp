#include "dsl/evaluate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "dsl/deep.h"
#include "dsl/integers.h"
#include "dsl/walk.h"

namespace tw {

/// I: integers and bool; S: f32 and what f32 holds; D: f64.
enum class CompiledExpr::Op : uint8_t {
    // clang-format off
    Return, Move, Jump, JumpIfFalse, JumpIfTrue, Choose, CallOnce, EndOfCall,
    AddI, SubI, MulI, DivI, ModI, MinI, MaxI, LessI, LessEqualI, EqualI, NotEqualI,
    AndI, OrI, NegateI, NotI, AbsI, WrapI,
    AddS, SubS, MulS, DivS, MinS, MaxS, LessS, LessEqualS, EqualS, NotEqualS,
    NegateS, AbsS, FloorS, CeilS, RoundS, TruncateS, SqrtS, RsqrtS, FmaS,
    AddD, SubD, MulD, DivD, MinD, MaxD, LessD, LessEqualD, EqualD, NotEqualD,
    NegateD, AbsD, FloorD, CeilD, RoundD, TruncateD, SqrtD, RsqrtD, FmaD,
    ExpD, Exp2D, LogD, Log2D, TanhD, ErfD, SigmoidD,
    StoD, DtoS, ItoS, ItoD, StoI, DtoI, RoundTypeS, RoundTypeD, ItoNarrow,
    ReadElement, ReadS, ReadBF16,
    // clang-format on
};

namespace {

using Op = CompiledExpr::Op;
using Instruction = CompiledExpr::Instruction;

constexpr int32_t number_of_run = 0;  // the register that counts runs

/// Where a type lives in a register.
enum class Home { Integer, Single, Double };
Home home_of(Type type, Precision precision) {
    if (!is_float(type)) return Home::Integer;
    return type == Type::F64 || precision == Precision::Float64 ? Home::Double : Home::Single;
}

}  // namespace

Register to_register(const Value& value, Precision precision) {
    Register content;
    switch (home_of(value.type, precision)) {
        case Home::Integer: content.integer = value.integer; break;
        case Home::Single: content.single = static_cast<float>(value.real); break;
        case Home::Double: content.real = value.real; break;
    }
    return content;
}

Value to_value(Type type, Register content, Precision precision) {
    switch (home_of(type, precision)) {
        case Home::Integer: return {type, 0, content.integer};
        case Home::Single: return {type, content.single, 0};
        case Home::Double: return {type, content.real, 0};
    }
    return {};
}

int SlotMap::slot(const Expr& variable) {
    auto [found, is_new] = slots_.try_emplace(variable.id(), size());
    if (is_new) variables_.push_back(variable);
    return found->second;
}

namespace {

std::string list(std::span<const int64_t> numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

[[noreturn]] void fail_outside(const MemoryView& memory, std::span<const int64_t> indices) {
    throw_error(EvaluationError, "{}{} is outside of its shape {}; guard the read, or correct the index", memory.name,
                list(indices), list(memory.shape));
}

[[noreturn]] void fail_uninitialised(const MemoryView& memory, std::span<const int64_t> indices) {
    throw_error(EvaluationError, "{}{} (shape {}) is read before anything wrote it", memory.name, list(indices),
                list(memory.shape));
}

[[noreturn]] void fail_division() { throw_error(EvaluationError, "an integer is divided by zero"); }

}  // namespace

int64_t locate(const MemoryView& memory, std::span<const int64_t> indices) {
    int64_t offset = 0;
    for (size_t d = 0; d < indices.size(); ++d) {
        if (static_cast<uint64_t>(indices[d]) >= static_cast<uint64_t>(memory.shape[d])) fail_outside(memory, indices);
        offset += indices[d] * memory.strides[d];
    }
    return offset;
}

// Compilation.

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
            case UnaryOp::Exp2: return transcendental(Op::Exp2D, a, type);
            case UnaryOp::Log: return transcendental(Op::LogD, a, type);
            case UnaryOp::Log2: return transcendental(Op::Log2D, a, type);
            case UnaryOp::Tanh: return transcendental(Op::TanhD, a, type);
            case UnaryOp::Erf: return transcendental(Op::ErfD, a, type);
            case UnaryOp::Sigmoid: return transcendental(Op::SigmoidD, a, type);
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
        return expr.type() == Type::Bool ? result : wrapped(result, type);
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
            case BinaryOp::And: return Op::AndI;
            case BinaryOp::Or: return Op::OrI;
        }
        return Op::Return;
    }

    static Op single_op(BinaryOp op) {
        switch (op) {
            case BinaryOp::Add: return Op::AddS;
            case BinaryOp::Sub: return Op::SubS;
            case BinaryOp::Mul: return Op::MulS;
            case BinaryOp::Div: return Op::DivS;
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
}

// Execution.

namespace {

int64_t wrapping(uint64_t value) { return static_cast<int64_t>(value); }

int64_t divide(int64_t a, int64_t b) {
    if (b == 0) fail_division();
    return floor_div(a, b);
}
int64_t remainder(int64_t a, int64_t b) {
    if (b == 0) fail_division();
    return floor_mod(a, b);
}

/// The number if the other is NaN; -0 is below 0, as PTX has it.
template <class T>
T minimum(T a, T b) {
    if (a == b) return std::signbit(a) ? a : b;
    return a < b || b != b ? a : b;
}
template <class T>
T maximum(T a, T b) {
    if (a == b) return std::signbit(a) ? b : a;
    return a > b || b != b ? a : b;
}

float round_single(Type type, float value) {
    if (type != Type::BF16 || value != value) return static_cast<float>(round_to_type(type, value));
    uint32_t bits = std::bit_cast<uint32_t>(value);
    bits += 0x7fff + ((bits >> 16) & 1);  // to nearest even; a carry out of the largest number gives infinity
    return std::bit_cast<float>(bits & 0xffff0000u);
}

int64_t offset_of(const CompiledExpr::ElementRead& read, const Register* registers) {
    const MemoryView& memory = *read.memory;
    auto fail = [&](auto&& failure) {
        std::vector<int64_t> indices;
        for (int32_t index : read.indices) indices.push_back(registers[index].integer);
        failure(memory, indices);
    };
    int64_t offset = 0;
    const size_t rank = read.indices.size();
    for (size_t d = 0; d < rank; ++d) {
        int64_t index = registers[read.indices[d]].integer;
        if (static_cast<uint64_t>(index) >= static_cast<uint64_t>(memory.shape[d])) fail(fail_outside);
        offset += index * memory.strides[d];
    }
    if (memory.initialised && !memory.initialised[offset]) fail(fail_uninitialised);
    return offset;
}

template <class T>
T element(const CompiledExpr::ElementRead& read, const Register* registers) {
    T value;
    std::memcpy(&value, read.memory->data + offset_of(read, registers) * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
}

Register generic_element(const CompiledExpr::ElementRead& read, const Register* registers, Type type, Precision p) {
    Type stored = read.memory->type;
    Value value = load_element(stored, read.memory->data + offset_of(read, registers) * bytes_of(stored));
    value.type = type;  // of the same class; under Float64 a memory of f64 stands in for any float type
    return to_register(value, p);
}

}  // namespace

Register CompiledExpr::run_register(const std::vector<Register>& slots) const {
    Register* r = registers_.data();
    for (const Argument& argument : arguments_) r[argument.result] = slots[static_cast<size_t>(argument.slot)];
    const Instruction* code = code_.data();
    ++r[number_of_run].integer;
    std::vector<const Instruction*> returns;  // where code goes on behind calls
    for (const Instruction* at = code;; ++at) {
        const auto& [op, type, result, a, b, c] = *at;
        auto I = [r](int32_t k) -> int64_t& { return r[k].integer; };
        auto S = [r](int32_t k) -> float& { return r[k].single; };
        auto D = [r](int32_t k) -> double& { return r[k].real; };
        // clang-format off
        switch (op) {
            case Op::Return: return r[a];
            case Op::Move: r[result] = r[a]; break;
            case Op::Jump: at = code + c - 1; break;
            case Op::JumpIfFalse: if (!I(a)) at = code + c - 1; break;
            case Op::JumpIfTrue: if (I(a)) at = code + c - 1; break;
            case Op::CallOnce:
                if (I(a) == I(number_of_run)) break;
                returns.push_back(at);
                at = code + c - 1;
                break;
            case Op::EndOfCall:
                I(a) = I(number_of_run);
                at = returns.back();
                returns.pop_back();
                break;
            case Op::Choose: r[result] = I(a) ? r[b] : r[c]; break;

            case Op::AddI: I(result) = wrapping(uint64_t(I(a)) + uint64_t(I(b))); break;
            case Op::SubI: I(result) = wrapping(uint64_t(I(a)) - uint64_t(I(b))); break;
            case Op::MulI: I(result) = wrapping(uint64_t(I(a)) * uint64_t(I(b))); break;
            case Op::DivI: I(result) = divide(I(a), I(b)); break;
            case Op::ModI: I(result) = remainder(I(a), I(b)); break;
            case Op::MinI: I(result) = std::min(I(a), I(b)); break;
            case Op::MaxI: I(result) = std::max(I(a), I(b)); break;
            case Op::LessI: I(result) = I(a) < I(b); break;
            case Op::LessEqualI: I(result) = I(a) <= I(b); break;
            case Op::EqualI: I(result) = I(a) == I(b); break;
            case Op::NotEqualI: I(result) = I(a) != I(b); break;
            case Op::AndI: I(result) = I(a) & I(b); break;
            case Op::OrI: I(result) = I(a) | I(b); break;
            case Op::NegateI: I(result) = wrapping(-uint64_t(I(a))); break;
            case Op::NotI: I(result) = !I(a); break;
            case Op::AbsI: I(result) = I(a) < 0 ? wrapping(-uint64_t(I(a))) : I(a); break;
            case Op::WrapI: I(result) = wrap_to_type(type, I(a)); break;

            case Op::AddS: S(result) = S(a) + S(b); break;
            case Op::SubS: S(result) = S(a) - S(b); break;
            case Op::MulS: S(result) = S(a) * S(b); break;
            case Op::DivS: S(result) = S(a) / S(b); break;
            case Op::MinS: S(result) = minimum(S(a), S(b)); break;
            case Op::MaxS: S(result) = maximum(S(a), S(b)); break;
            case Op::LessS: I(result) = S(a) < S(b); break;
            case Op::LessEqualS: I(result) = S(a) <= S(b); break;
            case Op::EqualS: I(result) = S(a) == S(b); break;
            case Op::NotEqualS: I(result) = S(a) != S(b); break;
            case Op::NegateS: S(result) = -S(a); break;
            case Op::AbsS: S(result) = std::fabs(S(a)); break;
            case Op::FloorS: S(result) = std::floor(S(a)); break;
            case Op::CeilS: S(result) = std::ceil(S(a)); break;
            case Op::RoundS: S(result) = std::rint(S(a)); break;
            case Op::TruncateS: S(result) = truncate_tf32(S(a)); break;
            case Op::SqrtS: S(result) = std::sqrt(S(a)); break;
            case Op::RsqrtS: S(result) = 1 / std::sqrt(S(a)); break;
            case Op::FmaS: S(result) = std::fma(S(a), S(b), S(c)); break;

            case Op::AddD: D(result) = D(a) + D(b); break;
            case Op::SubD: D(result) = D(a) - D(b); break;
            case Op::MulD: D(result) = D(a) * D(b); break;
            case Op::DivD: D(result) = D(a) / D(b); break;
            case Op::MinD: D(result) = minimum(D(a), D(b)); break;
            case Op::MaxD: D(result) = maximum(D(a), D(b)); break;
            case Op::LessD: I(result) = D(a) < D(b); break;
            case Op::LessEqualD: I(result) = D(a) <= D(b); break;
            case Op::EqualD: I(result) = D(a) == D(b); break;
            case Op::NotEqualD: I(result) = D(a) != D(b); break;
            case Op::NegateD: D(result) = -D(a); break;
            case Op::AbsD: D(result) = std::fabs(D(a)); break;
            case Op::FloorD: D(result) = std::floor(D(a)); break;
            case Op::CeilD: D(result) = std::ceil(D(a)); break;
            case Op::RoundD: D(result) = std::rint(D(a)); break;
            case Op::TruncateD: D(result) = truncate_tf32(static_cast<float>(D(a))); break;
            case Op::SqrtD: D(result) = std::sqrt(D(a)); break;
            case Op::FmaD: D(result) = std::fma(D(a), D(b), D(c)); break;

            case Op::RsqrtD: D(result) = 1 / std::sqrt(D(a)); break;
            case Op::ExpD: D(result) = std::exp(D(a)); break;
            case Op::Exp2D: D(result) = std::exp2(D(a)); break;
            case Op::LogD: D(result) = std::log(D(a)); break;
            case Op::Log2D: D(result) = std::log2(D(a)); break;
            case Op::TanhD: D(result) = std::tanh(D(a)); break;
            case Op::ErfD: D(result) = std::erf(D(a)); break;
            case Op::SigmoidD: D(result) = 1 / (1 + std::exp(-D(a))); break;

            case Op::StoD: D(result) = S(a); break;
            case Op::DtoS: S(result) = static_cast<float>(D(a)); break;
            case Op::ItoS: S(result) = static_cast<float>(I(a)); break;
            case Op::ItoD: D(result) = static_cast<double>(I(a)); break;
            case Op::StoI: I(result) = convert(type, {Type::F32, S(a), 0}).integer; break;
            case Op::DtoI: I(result) = convert(type, {Type::F64, D(a), 0}).integer; break;
            case Op::RoundTypeS: S(result) = round_single(type, S(a)); break;
            case Op::RoundTypeD: S(result) = static_cast<float>(round_to_type(type, D(a))); break;
            case Op::ItoNarrow: S(result) = static_cast<float>(convert(type, {Type::I64, 0, I(a)}).real); break;

            case Op::ReadS: S(result) = element<float>(reads_[static_cast<size_t>(a)], r); break;
            case Op::ReadBF16: {
                uint16_t bits = element<uint16_t>(reads_[static_cast<size_t>(a)], r);
                S(result) = std::bit_cast<float>(uint32_t{bits} << 16);
                break;
            }
            case Op::ReadElement:
                r[result] = generic_element(reads_[static_cast<size_t>(a)], r, type, precision_);
                break;
        }
        // clang-format on
    }
}

}  // namespace tw

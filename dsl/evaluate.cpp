#include "dsl/evaluate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <utility>

#include "dsl/integers.h"
#include "dsl/register_code.h"

namespace tw {

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

namespace {

using Op = CompiledExpr::Op;

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

/// Of a register that holds `from`; of an f64 in the place of a narrower float, rounded to that.
Register bits_of_register(Type to, Type from, Register given, Precision p) {
    Value value{from, 0, 0};
    switch (home_of(from, p)) {
        case Home::Integer: value.integer = given.integer; break;
        case Home::Single: value.real = static_cast<double>(given.single); break;
        case Home::Double: value.real = from == Type::F64 ? given.real : round_to_type(from, given.real); break;
    }
    return to_register(bits_as(to, value), p);
}

}  // namespace

Register CompiledExpr::run_register(const std::vector<Register>& slots) const {
    Register* r = registers_.data();
    size_t num_kept = arguments_.size();  // arguments that are as in the last run, up to the first that is not
    for (size_t i = arguments_.size(); i-- > 0;) {
        Register value = slots[static_cast<size_t>(arguments_[i].slot)];
        if (value.integer != r[arguments_[i].result].integer) num_kept = i;
        r[arguments_[i].result] = value;
    }
    const bool is_first_run = r[number_of_run].integer++ == 0;
    const Instruction* code = code_.data();
    std::vector<const Instruction*> returns;  // where code goes on behind calls
    for (const Instruction* at = is_first_run ? code : code + starts_[num_kept];; ++at) {
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
            case Op::XorI: I(result) = I(a) ^ I(b); break;
            case Op::ShiftLeftI: I(result) = shifted_left(I(a), I(b)); break;
            case Op::ShiftRightI: I(result) = shifted_right(I(a), I(b)); break;
            case Op::MulHighI: I(result) = high_product(I(a), I(b)); break;
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
            case Op::NormalCdfD: D(result) = 0.5 * std::erfc(D(a) * -std::numbers::sqrt2 / 2); break;
            case Op::SigmoidD: D(result) = 1 / (1 + std::exp(-D(a))); break;
            case Op::Logistic2D: D(result) = 1 / (1 + std::exp2(D(a))); break;

            case Op::StoD: D(result) = S(a); break;
            case Op::DtoS: S(result) = static_cast<float>(D(a)); break;
            case Op::FlushS: S(result) = std::fabs(S(a)) < std::numeric_limits<float>::min() ? 0 : S(a); break;
            case Op::ItoS: S(result) = static_cast<float>(I(a)); break;
            case Op::ItoD: D(result) = static_cast<double>(I(a)); break;
            case Op::StoI: I(result) = convert(type, {Type::F32, S(a), 0}).integer; break;
            case Op::DtoI: I(result) = convert(type, {Type::F64, D(a), 0}).integer; break;
            case Op::RoundTypeS: S(result) = round_single(type, S(a)); break;
            case Op::RoundTypeD: S(result) = static_cast<float>(round_to_type(type, D(a))); break;
            case Op::ItoNarrow: S(result) = static_cast<float>(convert(type, {Type::I64, 0, I(a)}).real); break;

            case Op::Bits: r[result] = bits_of_register(type, static_cast<Type>(b), r[a], precision_); break;

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

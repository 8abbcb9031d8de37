// Evaluation of expressions: compiled once into flat register code, run many times.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "dsl/expr.h"
#include "support/error.h"

namespace tw {

/// What floats are computed in.
enum class Precision {
    Declared,  ///< every operation is rounded to its type
    Float64,   ///< all float types are kept as f64: the reference
};

/// A value without its type: `integer` for integers and bool, `real` for f64 (and all floats under Float64), `single`
/// for the other float types, all of which f32 holds.
union Register {
    int64_t integer = 0;
    double real;
    float single;
};
Register to_register(const Value& value, Precision precision = Precision::Declared);
Value to_value(Type type, Register content, Precision precision = Precision::Declared);

/// A place for the value of each variable. Slots are numbered 0, 1, ... as they are asked for.
class SlotMap {
public:
    int slot(const Expr& variable);
    int size() const { return static_cast<int>(variables_.size()); }

private:
    std::unordered_map<const ExprNode*, int> slots_;
    std::vector<Expr> variables_;  // keeps the keys alive
};

/// Elements that expressions read. Shape and strides are in elements; they, `data` and `initialised` may change between
/// runs, `type` may not.
struct MemoryView {
    Type type = Type::F32;
    std::vector<int64_t> strides, shape;
    unsigned char* data = nullptr;
    uint8_t* initialised = nullptr;  ///< one flag an element, at the element's offset; may be null
    std::string name;
};

/// A read outside of a memory's shape, or of an element that nobody wrote; a division of integers by zero.
class EvaluationError : public Error {
public:
    using Error::Error;
};

/// The element's offset, in elements. Throws EvaluationError if an index lies outside.
int64_t locate(const MemoryView& memory, std::span<const int64_t> indices);

/// The memory behind a Read or a Load, asked at compilation. The view must live as long as the compiled expression.
using Resolve = std::function<const MemoryView*(const ExprNode& read_or_load)>;

/// Not for several threads at once: a run uses the object's registers. A copy is independent.
class CompiledExpr {
public:
    CompiledExpr(const Expr& expr, SlotMap& slots, const Resolve& resolve, Precision precision = Precision::Declared);

    /// `slots` holds a register for each slot that the SlotMap gave to the expression's variables.
    Value run(const std::vector<Register>& slots) const { return to_value(type_, run_register(slots), precision_); }
    Register run_register(const std::vector<Register>& slots) const;
    int64_t run_integer(const std::vector<Register>& slots) const { return run_register(slots).integer; }

    Type type() const { return type_; }
    size_t num_instructions() const { return code_.size(); }

    enum class Op : uint8_t;
    struct Instruction {
        Op op;
        Type type;  // of conversions
        int32_t result, a, b, c;
    };
    struct Argument {
        int32_t slot, result;
    };
    struct ElementRead {
        const MemoryView* memory;
        std::vector<int32_t> indices;
    };

private:
    friend class ExprCompiler;

    void order_by_arguments();

    Type type_;
    Precision precision_;
    std::vector<Instruction> code_;
    std::vector<Argument> arguments_;  // by slots
    std::vector<int32_t> starts_;      // in the code: behind what depends on the first 0, 1, ... arguments alone
    std::vector<ElementRead> reads_;
    mutable std::vector<Register> registers_;
};

}  // namespace tw

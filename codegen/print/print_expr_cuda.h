// Expressions as CUDA text.
#pragma once
#include <set>
#include <string>

#include "codegen/access/access.h"
#include "codegen/print/names.h"
#include "codegen/thread_ir/thread_walk.h"

namespace tw::codegen {

/// Prints expressions with as few parentheses and casts as C++ allows, and notes the primitives of device/ that they
/// use.
class ExprPrinter {
public:
    ExprPrinter(const Names& names, const KnownBounds& bounds, std::set<std::string>& vocabulary)
        : names_(names), bounds_(bounds), vocabulary_(vocabulary) {}

    std::string print(const Expr& expr) { return text_of(expr).text; }
    /// As the right side of a comparison.
    std::string print_compared(const Expr& expr);
    /// "shared.a[i][j]"
    std::string element(const Access& access);
    /// "&shared.a[i][j]"; "a_values" for its first element.
    std::string address(const Access& access);
    /// "tw::load<4>(a_values, &a[offset]);"
    std::string call_wide(const std::string& primitive, const ThreadWide& wide);
    /// "tw::cp_async<4>(&shared.a[i][0], &a[offset]);"; `last`: the text of its last argument, if given.
    std::string call_instruction(const Instruction& instruction, const std::string& last = "");
    /// "tw::barrier_sync(1, 128);"
    std::string call_barrier(const Expr& id, int threads);
    /// "tw::atomic_add(&total[i], x);" for an element's text
    std::string call_atomic(BinaryOp op, const std::string& element, const Expr& value);
    /// "tw::shuffle_from(threadIdx.x / 128, 0)", where a warp's lanes have the same value: only so does the compiler know,
    /// and keeps what follows from it in uniform registers, where descriptors and barriers must be.
    std::string call_broadcast(const std::string& value);
    /// "tw::always()", a condition that holds, of which the compiler does not know
    std::string call_always();
    /// "tw::to_bf16_alone(sum[0])" for a cast from f32
    std::string call_rounded_alone(const Expr& cast);
    /// "float", "tw::bf16", "long long"
    std::string type(Type type);

private:
    struct Text {
        std::string text;
        int precedence;     // of the outermost operator; larger binds tighter
        bool wide = false;  // C++ computes it in 64 bits
    };
    std::string print(const Operand& operand);
    std::string behind_checks(const std::string& index);
    Text call_check(const IndexCheck& check);
    /// The place of an access' column in its row.
    std::string swizzled(const Access& access);
    Text text_of(const Expr& expr);
    Text plain_text_of(const Expr& expr);
    Text integer(const IntConstant& constant, Type type) const;
    Text real(double value, Type type);
    Text variable(const Expr& expr) const;
    Text unary(const Expr& expr, const Unary& operation);
    Text binary(const Expr& expr, const Binary& operation);
    const char* wrapping_function(const Expr& expr, BinaryOp op) const;
    const char* word_function(const Binary& operation) const;
    Text select(const Select& select);
    Text cast(Type to, const Expr& operand);
    Text before_rounding(const Expr& expr, const Text& operand);
    Text float_to_integer(Type to, Type from, const Text& operand);
    /// `entry` is the primitive's name in the vocabulary, if it is not the function's.
    Text call(const std::string& function, const std::vector<Text>& arguments, const std::string& entry = "");
    Text c_cast(Type to, const Text& operand);
    void widen_one(Text& left, Text& right);
    void widen_both(Text& left, Text& right);

    const Names& names_;
    const KnownBounds& bounds_;
    std::set<std::string>& vocabulary_;
    std::vector<IndexCheck> checks_ = {};  // of the access whose indices are being printed, as far as they are left
    std::string checked_tensor_ = {};
};

}  // namespace tw::codegen

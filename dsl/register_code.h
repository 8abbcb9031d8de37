// What expressions are compiled to: by compile_expr.cpp, for evaluate.cpp to run.
#pragma once
#include "dsl/evaluate.h"

namespace tw {

/// I: integers and bool; S: f32 and what f32 holds; D: f64.
enum class CompiledExpr::Op : uint8_t {
    // clang-format off
    Return, Move, Jump, JumpIfFalse, JumpIfTrue, Choose, CallOnce, EndOfCall,
    AddI, SubI, MulI, DivI, ModI, MinI, MaxI, LessI, LessEqualI, EqualI, NotEqualI,
    XorI, ShiftLeftI, ShiftRightI, MulHighI, AndI, OrI, NegateI, NotI, AbsI, WrapI,
    AddS, SubS, MulS, DivS, MinS, MaxS, LessS, LessEqualS, EqualS, NotEqualS,
    NegateS, AbsS, FloorS, CeilS, RoundS, TruncateS, SqrtS, RsqrtS, FmaS,
    AddD, SubD, MulD, DivD, MinD, MaxD, LessD, LessEqualD, EqualD, NotEqualD,
    NegateD, AbsD, FloorD, CeilD, RoundD, TruncateD, SqrtD, RsqrtD, FmaD,
    ExpD, Exp2D, LogD, Log2D, TanhD, ErfD, NormalCdfD, SigmoidD, Logistic2D,
    StoD, DtoS, FlushS, ItoS, ItoD, StoI, DtoI, RoundTypeS, RoundTypeD, ItoNarrow, Bits,
    ReadElement, ReadS, ReadBF16,
    // clang-format on
};

constexpr int32_t number_of_run = 0;  // the register that counts runs

/// Where a type lives in a register.
enum class Home { Integer, Single, Double };
inline Home home_of(Type type, Precision precision) {
    if (!is_float(type)) return Home::Integer;
    return type == Type::F64 || precision == Precision::Float64 ? Home::Double : Home::Single;
}

}  // namespace tw

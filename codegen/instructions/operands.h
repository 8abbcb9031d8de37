// What instructions do with their operands. A number is an expression; a place says how it is used.
#pragma once
#include <functional>
#include <variant>
#include <vector>

#include "codegen/access/access.h"

namespace tw::codegen {

/// An element and the `elements` - 1 behind it in its last dimension, which the instruction reads.
struct ReadOperand {
    Access place;
    int elements = 1;
};
/// The same, which it writes, or reads and writes.
struct WriteOperand {
    Access place;
    int elements = 1;
};
/// A matrix in shared memory from here on, as a descriptor. Accesses of the thread say what is read of it.
struct MatrixOperand {
    Access place;
    int stride_bytes = 0, leading_bytes = 0;  ///< see matrix_descriptor of device/matrix.cuh
    Expr further = {};                        ///< it begins so many bytes further, if defined
};
/// An address in shared memory, of what is moved later. Accesses of the thread say what is read or written there.
struct AddressOperand {
    Access place;
};
/// The name of a tensor map.
struct MapOperand {
    Buffer map;
};

using Operand = std::variant<Expr, ReadOperand, WriteOperand, MatrixOperand, AddressOperand, MapOperand>;

/// The operand's place, nullptr for numbers and maps.
const Access* operand_place(const Operand& operand);
/// Expressions of the operand, in order: a number, or the bytes that a matrix begins further, then indices.
void visit_exprs(const Operand& operand, const std::function<void(const Expr&)>& see);
Operand map_exprs(Operand operand, const std::function<Expr(const Expr&)>& rule);
/// Another place for it, if it has one.
Operand map_place(Operand operand, const std::function<Access(const Access&)>& rule);

}  // namespace tw::codegen

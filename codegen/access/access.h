// Elements of buffers, and the checks of indices that data decide: whether these stay inside of their dimension is
// known when the kernel runs. The emulator looks at each of them where the element is used.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "dsl/tree.h"

namespace tw::codegen {

using Buffer = BufferRef;

/// An element. Behind the indices that say where it lies stand, in threes, the checks of those that data decide.
struct Access {
    Buffer buffer;
    std::vector<Expr> indices;
};

/// 0 <= index < extent must hold in a dimension of a tensor.
struct IndexCheck {
    Expr index, extent;
    int dimension;
};

/// How many of an access's indices say where the element lies: one of a global buffer, one a dimension of others. What
/// stands behind them is checks.
size_t rank_of(const BufferNode& buffer);
/// The access without its checks.
Access place_of(const Access& access);
std::vector<IndexCheck> checks_of(const Access& access);
Access with_checks(Access place, const std::vector<IndexCheck>& checks);

/// The expression, which is evaluated only where all of the conditions hold, without checks that they imply.
Expr without_implied_checks(const Expr& expr, const std::vector<Expr>& conditions);
Access without_implied_checks(const Access& access, const std::vector<Expr>& conditions);

/// "a[i][j]"
std::string to_string(const Access& access);
/// The access where `variable` is 0.
Access at_start(const Access& access, const Expr& variable);
/// An array of a thread's registers.
Buffer register_array(const std::string& name, Type type, const std::vector<int64_t>& shape);

}  // namespace tw::codegen

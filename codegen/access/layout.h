// Where the elements of a shared buffer are.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/access/access.h"

namespace tw::codegen {

/// index[dimension] / divisor % extent
struct LayoutDigit {
    int dimension;
    int64_t divisor, extent;
    bool operator==(const LayoutDigit&) const = default;
};

/// The digits of an element's indices, slowest first, are its address; the last `row_digits` form a row, and rows are
/// `pitch` elements apart.
struct Layout {
    std::vector<LayoutDigit> digits;
    int row_digits = 1;
    int64_t pitch = 0;
    int swizzle = 0;  ///< bytes of a row, if its 16-byte pieces are exchanged as TMA and wgmma do: see BufferNode
    bool operator==(const Layout&) const = default;

    int64_t elements() const;
    /// Where the element at the given indices stands, in elements, exchanged pieces included.
    int64_t address(const std::vector<int64_t>& indices) const;
    /// The physical indices: a digit each for the rows, then the position in the row.
    std::vector<Expr> physical(const std::vector<Expr>& indices) const;
    std::vector<Expr> physical_shape() const;
    /// Whether rows are not along the last dimension.
    bool is_transposed() const;
    /// "[dim 1: 64] rows of [dim 0: 128] pitch 132"
    std::string to_string() const;

private:
    /// The digit with its dimension's largest divisor: what is left of the index needs no modulus.
    bool is_slowest(size_t d) const;
};

/// The shape of a buffer whose extents are constants.
std::vector<int64_t> constant_shape(const Buffer& buffer);

/// The dimensions in the given order, dense except for `padding` elements after each row.
Layout permuted(const std::vector<int64_t>& shape, const std::vector<int>& order, int64_t padding = 0);
Layout row_major(const std::vector<int64_t>& shape);
/// As TMA and wgmma take matrices: lines of up to 128 bytes along dimension `fast`, all `slow` ones of a line's width,
/// slowest dimension first, before the next line's worth; swizzled if lines have 32 bytes or more. No layout (no
/// digits) if no line of 16 bytes or more divides a row, or lines are not whole groups of eight.
Layout in_lines(const std::vector<int64_t>& shape, int fast, const std::vector<int>& slow, int64_t bytes);

/// A global buffer's access as one flat element offset, by its strides (dense row-major if it has none).
Access flat_access(const Buffer& buffer, const std::vector<Expr>& indices);

/// What divides a place. In a sum, x % m is x less a multiple of m: i * 50257 - i % 8 is a multiple of 8.
int64_t divisor_of_place(const Expr& place);

/// The largest width w, a power of two with w * bytes <= max_bytes and w dividing `extent`, such that while `variable`
/// runs over w values from a multiple of w on, the access runs over w neighbours in the last dimension that start at a
/// multiple of w. 1 if there is none.
int64_t wide_elements(const Access& physical, const Expr& variable, int64_t extent, int64_t max_bytes = 16);

}  // namespace tw::codegen

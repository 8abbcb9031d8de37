#include "codegen/access/layout.h"
#include "codegen/access/access.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include <fmt/format.h>

#include "dsl/simplify.h"

namespace tw::codegen {

int64_t Layout::elements() const {
    int64_t rows = 1;
    for (size_t d = 0; d + row_digits < digits.size(); ++d) rows *= digits[d].extent;
    return rows * pitch;
}

int64_t Layout::address(const std::vector<int64_t>& indices) const {
    int64_t rows = 0, in_row = 0;
    for (size_t d = 0; d < digits.size(); ++d) {
        const LayoutDigit& digit = digits[d];
        int64_t value = indices[digit.dimension] / digit.divisor % digit.extent;
        int64_t& part = d + row_digits < digits.size() ? rows : in_row;
        part = part * digit.extent + value;
    }
    if (swizzle) {
        const int64_t pieces = swizzle / 16;
        in_row ^= rows / (128 / swizzle) % pieces * (pitch / pieces);
    }
    return rows * pitch + in_row;
}

bool Layout::is_slowest(size_t d) const {
    return std::none_of(digits.begin(), digits.end(), [&](const LayoutDigit& other) {
        return other.dimension == digits[d].dimension && other.divisor > digits[d].divisor;
    });
}

std::vector<Expr> Layout::physical(const std::vector<Expr>& indices) const {
    std::vector<Expr> result;
    Expr row = constant(Type::I64, int64_t{0});
    for (size_t d = 0; d < digits.size(); ++d) {
        Expr value = indices[digits[d].dimension] / digits[d].divisor;
        if (!is_slowest(d)) value = value % digits[d].extent;
        if (d + row_digits < digits.size())
            result.push_back(simplify(value));
        else
            row = row * digits[d].extent + value;
    }
    result.push_back(simplify(row));
    return result;
}

std::vector<Expr> Layout::physical_shape() const {
    std::vector<Expr> shape;
    for (size_t d = 0; d + row_digits < digits.size(); ++d) shape.push_back(constant(Type::I64, digits[d].extent));
    shape.push_back(constant(Type::I64, pitch));
    return shape;
}

bool Layout::is_transposed() const {
    return std::ranges::any_of(digits, [&](const LayoutDigit& digit) {
        return digit.extent > 1 && digit.dimension > digits.back().dimension;
    });
}

std::string Layout::to_string() const {
    std::string text;
    for (size_t d = 0; d < digits.size(); ++d) {
        if (d + row_digits == digits.size()) text += " rows of ";
        text += fmt::format("[dim {}", digits[d].dimension);
        if (digits[d].divisor != 1) text += fmt::format(" / {}", digits[d].divisor);
        text += fmt::format(": {}]", digits[d].extent);
    }
    if (swizzle) text += fmt::format(" swizzled by {} bytes", swizzle);
    return text + fmt::format(" pitch {}", pitch);
}

std::vector<int64_t> constant_shape(const Buffer& buffer) {
    std::vector<int64_t> shape;
    for (const Expr& extent : buffer->shape) shape.push_back(require_constant(extent));
    return shape;
}

Layout permuted(const std::vector<int64_t>& shape, const std::vector<int>& order, int64_t padding) {
    Layout layout;
    for (int dimension : order) layout.digits.push_back({dimension, 1, shape[dimension]});
    layout.row_digits = order.empty() ? 0 : 1;
    layout.pitch = order.empty() ? 1 : shape[order.back()] + padding;
    return layout;
}

Layout row_major(const std::vector<int64_t>& shape) {
    std::vector<int> order;
    for (size_t d = 0; d < shape.size(); ++d) order.push_back(static_cast<int>(d));
    return permuted(shape, order);
}

Layout in_lines(const std::vector<int64_t>& shape, int fast, const std::vector<int>& slow, int64_t bytes) {
    int64_t width = shape[fast], rows = 1, line = 128 / bytes;
    for (int dimension : slow) rows *= shape[dimension];
    while (line * bytes > 16 && width % line != 0) line /= 2;
    Layout layout;
    if (width % line != 0 || rows % 8 != 0) return layout;
    for (int d = 0; d < static_cast<int>(shape.size()); ++d)
        if (d != fast && std::ranges::find(slow, d) == slow.end()) layout.digits.push_back({d, 1, shape[d]});
    if (width > line) layout.digits.push_back({fast, line, width / line});
    for (int dimension : slow) layout.digits.push_back({dimension, 1, shape[dimension]});
    layout.digits.push_back({fast, 1, line});
    layout.pitch = line;
    layout.swizzle = line * bytes >= 32 ? static_cast<int>(line * bytes) : 0;
    return layout;
}

Access flat_access(const Buffer& buffer, const std::vector<Expr>& indices) {
    Expr offset = constant(Type::I64, int64_t{0}), stride = constant(Type::I64, int64_t{1});
    for (size_t d = indices.size(); d-- > 0;) {
        if (!buffer->strides.empty()) stride = buffer->strides[d];
        offset = offset + cast_unchecked(Type::I64, indices[d]) * cast_unchecked(Type::I64, stride);
        if (buffer->strides.empty()) stride = stride * cast_unchecked(Type::I64, buffer->shape[d]);
    }
    return {buffer, {simplify(offset)}};
}

int64_t divisor_of_place(const Expr& place) {
    int64_t best = divisor_of(place);
    for (const auto& [atom, factor] : affine_of(place).terms) {
        const Binary* remainder = atom.as<Binary>();
        const auto modulus = remainder && remainder->op == BinaryOp::Mod ? as_constant(remainder->b) : std::nullopt;
        if (!modulus || *modulus <= 0) continue;
        const Expr whole = simplify(place + (remainder->a - atom) * factor);
        best = std::max(best, std::gcd(divisor_of(whole), *modulus * factor));
    }
    return best;
}

namespace {

bool moves_as_vector(const Access& access, const Expr& variable, int64_t extent, int64_t width) {
    Expr group = index_variable("g", 0, extent / width - 1), lane = index_variable("q", 0, width - 1);
    auto split = [&](const Expr& e) { return simplify(substitute(e, {{variable, group * width + lane}})); };
    for (size_t d = 0; d + 1 < access.indices.size(); ++d)
        if (contains(split(access.indices[d]), lane)) return false;
    Expr last = split(access.indices.back());
    auto step = coefficient(affine_of(last), lane);
    if (!step || *step != 1) return false;
    Expr start = simplify(substitute(last, {{lane, constant(Type::I64, int64_t{0})}}));
    return divisor_of_place(start) % width == 0;
}

}  // namespace

int64_t wide_elements(const Access& checked, const Expr& variable, int64_t extent, int64_t max_bytes) {
    Access access = place_of(checked);
    if (access.indices.empty() || !contains(access.indices.back(), variable)) return 1;
    int64_t width =
        static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(max_bytes / bytes_of(access.buffer->type))));
    bool has_rows = access.buffer->memory != Memory::Global && access.indices.size() > 1;
    int64_t pitch = has_rows ? require_constant(access.buffer->shape.back()) : 0;
    for (; width > 1; width /= 2)
        if (extent % width == 0 && pitch % width == 0 && moves_as_vector(access, variable, extent, width)) return width;
    return 1;
}

}  // namespace tw::codegen

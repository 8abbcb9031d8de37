#include "dsl/four_bits.h"

#include "dsl/simplify.h"
#include "support/error.h"

namespace tw {
namespace {

constexpr int64_t bits = 4, a_byte = 2;  // numbers

Expr number_at(const char* name, const Tensor& bytes, const std::vector<Operand>& indices,
               const std::source_location& where) {
    user_check(bytes.defined(), where, "{}: the tensor is undefined", name);
    user_check(bytes.type() == u8, where, "{}: '{}' is {}; numbers of 4 bits lie two in an element of u8", name,
               bytes.name(), name_of(bytes.type()));
    user_check(!indices.empty() && std::ssize(indices) == bytes.rank(), where, "{}: '{}' has {} dimensions, not {}",
               name, bytes.name(), bytes.rank(), indices.size());
    std::vector<Operand> places = indices;
    const Expr last = indices.back().expr;
    places.back() = Operand(simplify(last / a_byte), indices.back().where);
    const Expr byte = cast(u32, bytes.read(places, where));
    return (byte >> cast(u32, simplify(last % a_byte) * bits)) & 15;
}

}  // namespace

Expr u4(const Tensor& bytes, const std::vector<Operand>& indices, std::source_location where) {
    return cast(i32, number_at("u4", bytes, indices, where));
}

Expr i4(const Tensor& bytes, const std::vector<Operand>& indices, std::source_location where) {
    constexpr int sign = 8;
    return cast(i32, number_at("i4", bytes, indices, where) ^ sign) - sign;
}

Tensor pack_4_bits(const std::string& name, const Shape& shape,
                   const std::function<Expr(const std::vector<Expr>&)>& body, std::source_location where) {
    user_check(!shape.empty(), where, "pack_4_bits('{}'): give at least one dimension", name);
    const auto length = as_constant(shape.back().expr);
    user_check(length, where, "pack_4_bits('{}'): its last extent is {}; two numbers share a byte, so it is a constant",
               name, to_string(shape.back().expr));
    Shape halves = shape;
    halves.back() = Extent(integer((*length + a_byte - 1) / a_byte));
    auto number = [&](std::vector<Expr> at, const Expr& last) {
        at.back() = last;
        const Expr value = body(at);
        user_check(is_integer(value.type(where)), where,
                   "pack_4_bits('{}'): its numbers are {}; round and cast them to i32", name, name_of(value.type()));
        return cast(u32, value) & 15;
    };
    return compute(
        name, halves,
        [&](const std::vector<Expr>& at) {
            const Expr even = at.back() * a_byte, odd = even + 1;
            Expr upper = number(at, odd);
            if (*length % a_byte != 0)
                upper = select(odd < *length, number(at, min(odd, *length - 1)), constant(u32, 0));
            return cast(u8, number(at, even) | upper << int(bits));
        },
        where);
}

}  // namespace tw

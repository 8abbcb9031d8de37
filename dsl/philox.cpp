#include "dsl/philox.h"

#include <algorithm>
#include <cmath>

#include "support/error.h"

namespace tw {
namespace {

Expr word(const Expr& x, std::source_location where) {
    Expr result = x.as<IntConstant>() ? cast(u32, x) : x;
    user_check(result.type(where) == Type::U32, where, "philox: counters and keys are u32, not {}; use cast(u32, x)",
               name_of(x.type()));
    return result;
}

void check_probability(const char* name, double probability, std::source_location where) {
    user_check(probability >= 0 && probability < 1, where,
               "{}: a probability of {} leaves nothing to scale; give 0 <= probability < 1", name, probability);
}

}  // namespace

std::array<Expr, 4> philox(const std::array<Expr, 4>& counter, const std::array<Expr, 2>& key,
                           std::source_location where) {
    constexpr uint32_t factors[] = {0xd2511f53, 0xcd9e8d57}, steps[] = {0x9e3779b9, 0xbb67ae85};  // of the key
    constexpr uint32_t rounds = 10;
    std::array<Expr, 4> c;
    for (size_t n = 0; n < 4; ++n) c[n] = word(counter[n], where);
    const std::array<Expr, 2> k = {word(key[0], where), word(key[1], where)};
    for (uint32_t round = 0; round < rounds; ++round)
        c = {mul_high(c[2], factors[1]) ^ c[1] ^ (k[0] + constant(u32, int64_t{round * steps[0]})), c[2] * factors[1],
             mul_high(c[0], factors[0]) ^ c[3] ^ (k[1] + constant(u32, int64_t{round * steps[1]})), c[0] * factors[0]};
    return c;
}

Expr is_kept(double probability, const Operand& seed, const Operand& index) {
    check_probability("is_kept", probability, index.where);
    const Type type = index.expr.type();
    user_check(type == Type::I64 || type == Type::I32, index.where,
               "is_kept: the index is a place, i64, not {}; use cast(i64, x)", name_of(type));
    const Expr call = index.expr / 4, place = index.expr % 4;
    const std::array<Expr, 4> words =
        philox({cast(u32, call), cast(u32, cast(i64, call) / (int64_t{1} << 32)), 0, 0}, {seed.expr, 0}, seed.where);
    const Expr drawn =
        select(place < 2, select(place == 0, words[0], words[1]), select(place == 2, words[2], words[3]));
    const double steps = std::min(std::round(std::ldexp(probability, 32)), std::ldexp(1, 32) - 1);
    return drawn >= constant(u32, static_cast<int64_t>(steps));
}

Expr dropout(const Operand& x, double probability, const Operand& seed, const Operand& index) {
    const Type type = x.expr.type();
    user_check(type == Type::F32 || type == Type::F64, x.where, "dropout: {} is scaled as f32 or f64; use cast(f32, x)",
               name_of(type));
    check_probability("dropout", probability, x.where);
    // A factor instead of a select around x, whose reads would be under a condition, one by one.
    return x.expr *
           select(is_kept(probability, seed, index), constant(type, 1 / (1 - probability)), constant(type, 0.0));
}

}  // namespace tw

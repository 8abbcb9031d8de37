// Illegal declarations: indices without a value, extents of what is no size, handles of nothing.
#include "dsl/declare_scatter.h"
#include "dsl/differentiate.h"
#include "verify/illegal_kinds.h"

namespace tw::fuzz::illegal {
namespace {

/// What a declaration can be made of.
struct Parts {
    explicit Parts(Attempt& t) : random(t.random), n(t.extent()) {}

    /// A number of type f32 in which the index stands somewhere: random expressions around it.
    Expr number_with(const Expr& index) {
        Expr number = element_at(index);
        for (int64_t more = random.below(3); more > 0; --more) {
            Axis around = reduce_axis("around", n);
            switch (random.below(7)) {
                case 0: number = number * 2.0 + x(random.below(n)); break;
                case 1: number = select(x(0) < 1.0, 0.0, number); break;
                case 2: number = exp(min(number, 0.0)); break;
                case 3: number = sum(number * x(around), around); break;
                case 4: number = argmax(number + x(around), around)[0]; break;
                case 5: number = round_to(bf16, number); break;
                default: number = max(x(random.below(n)), number); break;
            }
        }
        return number;
    }

    Expr element_at(const Expr& index) {
        Axis around = reduce_axis("around", n), shorter = reduce_axis("shorter", index + 1);
        switch (random.below(9)) {
            case 0: return x(index);
            case 1: return w(random.below(n), index);
            case 2: return cast(f32, index);
            case 3: return select(index < random.below(n), 1.0, 0.0);
            case 4: return padded(x, 0.0)(index - random.below(3));
            case 5: return padded(x, x(index))(random.below(n));
            case 6: return x(ids(index));
            case 7: return sum(x(shorter), shorter);
            default: return sum(select(around <= index, x(around), 0.0), around);
        }
    }

    Random& random;
    int64_t n;
    Tensor x = input("x", f32, {n}), w = input("w", f32, {n, n}), ids = input("ids", i32, {n});
    Axis r = reduce_axis("r", n);
};

/// An index that was another tensor's.
Expr leaked_from(Parts& p) {
    Expr leaked;
    compute("other", {p.n, p.n}, [&](Expr i, Expr j) {
        leaked = p.random.chance(0.5) ? i : j;
        return p.x(i) + p.x(j);
    });
    return leaked;
}

/// An extent that is not the same for all elements, or no size.
Expr wild_extent(Parts& p) {
    switch (p.random.below(5)) {
        case 0: return leaked_from(p) + 1;
        case 1: return Expr(p.r) + p.random.between(1, 3);
        case 2: return max(cast(i64, p.ids(0)), 0);
        case 3: return max(scalar("count", i64), 1) * size("m", {.min = 1, .max = 4});
        default: return min(leaked_from(p), p.n);
    }
}

// clang-format off
const Kind kKinds[] = {
{"a_reduce_axis_outside_of_a_reduction", "index 'r' has no value here", [](Attempt& t) {
    Parts p(t);
    Expr bad = p.number_with(p.r);
    t.declare([&] { compute("y", {p.n}, [&](Expr) { return bad; }); });
}},
{"a_reduce_axis_beside_its_reduction", "index 'r' has no value here", [](Attempt& t) {
    Parts p(t);
    Expr inside = sum(p.number_with(p.r), p.r), outside = p.number_with(p.r);
    auto body = [&](Expr i) { return p.random.chance(0.5) ? inside + outside : outside - inside * p.x(i); };
    t.declare([&] { compute("y", {p.n}, body); });
}},
{"an_index_of_another_tensor", "has no value here: it is none of the axes [", [](Attempt& t) {
    Parts p(t);
    Expr bad = p.number_with(leaked_from(p));
    t.declare([&] { compute("y", {p.n, p.n}, [&](Expr i, Expr j) { return p.w(i, j) + bad; }); });
}},
{"a_leak_in_one_of_a_tuple", "has no value here", [](Attempt& t) {
    Parts p(t);
    Expr bad = p.number_with(p.random.chance(0.5) ? leaked_from(p) : Expr(p.r));
    bool first = t.random.chance(0.5);
    auto body = [&](const std::vector<Expr>& i) {
        return first ? std::vector<Expr>{bad, p.x(i[0])} : std::vector<Expr>{p.x(i[0]), bad};
    };
    t.declare([&] { compute_tuple("y", {p.n}, body); });
}},
{"a_leak_in_a_scatter", "has no value here", [](Attempt& t) {
    Parts p(t);
    Axis q = reduce_axis("q", p.n);
    Expr bad = p.number_with(p.r);
    t.declare([&] { scatter("d", {p.n}, sum, {p.ids(q)}, bad * p.x(q), {q}); });
}},
{"an_operand_of_a_reducer_outside", "is an operand of a reducer", [](Attempt& t) {
    Parts p(t);
    Expr leaked;
    make_reducer("keeps", {constant(f32, 0.0)}, [&](const std::vector<Expr>& a, const std::vector<Expr>& b) {
        leaked = t.random.chance(0.5) ? a[0] : b[0];
        return std::vector<Expr>{a[0] + b[0]};
    });
    t.declare([&] { compute("y", {p.n}, [&](Expr i) { return p.x(i) * leaked; }); });
}},
{"a_reducer_that_reads", "it is made of its operands, scalars and named sizes alone", [](Attempt& t) {
    Parts p(t);
    Expr bad = p.number_with(p.random.chance(0.5) ? Expr(p.random.below(p.n)) : Expr(p.r)) + p.x(0);
    auto combine = [&](const std::vector<Expr>& a, const std::vector<Expr>& b) {
        return std::vector<Expr>{a[0] + b[0] * bad};
    };
    t.declare([&] { make_reducer("reads", {constant(f32, 0.0)}, combine); });
}},
{"a_wild_extent", "is no size; extents are made of integers and tw::size(...)", [](Attempt& t) {
    Parts p(t);
    Expr wild = wild_extent(p);
    auto body = [](Expr i) { return cast(f32, i); };
    t.declare([&] { t.random.chance(0.5) ? input("v", f32, {p.n, wild}) : compute("v", {wild}, body); });
}},
{"a_wild_stride", "is no size; strides are made of integers and tw::size(...)", [](Attempt& t) {
    Parts p(t);
    Expr wild = wild_extent(p);
    t.declare([&] { input("v", f32, {p.n, p.n}, {wild, 1}); });
}},
{"a_negative_stride", "may be negative; strides start at 0", [](Attempt& t) {
    int64_t n = t.extent();
    Expr stride = t.random.chance(0.5) ? Expr(-n) : size("m", {.min = 0, .max = 9}) - t.random.between(1, 9);
    t.declare([&] { input("v", f32, {n, n}, {stride, 1}); });
}},
{"an_undefined_operand", "an operand is undefined", [](Attempt& t) {
    Parts p(t);
    Expr none;
    int64_t which = t.random.below(6);
    if (which < 3) t.declare([&] { which == 0 ? sum(none, p.r) : which == 1 ? p.x(none) : p.x(0) + none; });
    else t.declare([&] { which == 3 ? select(none, 1.0, 2.0) : which == 4 ? exp(none) : padded(p.x, none)(0); });
}},
{"an_undefined_tensor", "an undefined tensor", [](Attempt& t) {
    Parts p(t);
    Tensor none;
    int64_t which = t.random.below(4);
    if (which < 2) t.declare([&] { which == 0 ? none(0) : padded(none, 0.0)(0); });
    else t.declare([&] { which == 2 ? einsum("y", "i,i->i", {p.x, none}) : stop_gradient(none); });
}},
};
// clang-format on

}  // namespace

std::span<const Kind> kinds_of_declarations() { return kKinds; }

}  // namespace tw::fuzz::illegal

// The computations that are fuzzed. On their exact data every legal schedule gives the same result: sums are of small
// integers (exp2 of small integers is a power of two), and what rounds is a function of exact values only.
#include <algorithm>

#include "support/error.h"
#include "verify/problem_data.h"

namespace tw::fuzz {
namespace {

using Indices = std::vector<Expr>;

Problem matrix_product(Random& random) {
    auto e = random_extents(random, 3);
    ProblemBuilder p(random);
    Tensor a = p.input("a", f32, {e[0], e[2]}), b = p.input("b", f32, {e[2], e[1]}),
           d = p.input("d", f32, {e[0], e[1]});
    Expr alpha = p.scalar("alpha"), beta = p.scalar("beta");
    Axis k = reduce_axis("k", e[2]);
    Tensor c =
        compute("c", {e[0], e[1]}, [&](Expr i, Expr j) { return alpha * sum(a(i, k) * b(k, j), k) + beta * d(i, j); });
    return p.problem({c});
}

Problem strided_product(Random& random) {
    auto e = random_extents(random, 3);
    ProblemBuilder p(random);
    Tensor a = p.strided_input("a", f32, {e[2], e[0]}), b = p.strided_input("b", f32, {e[1], e[2]});
    Axis k = reduce_axis("k", e[2]);
    Tensor c = compute("c", {e[0], e[1]}, [&](Expr i, Expr j) { return sum(a(k, i) * b(j, k), k); });
    return p.problem({c});
}

Problem symbolic_product(Random& random) {
    auto e = random_extents(random, 3, 1500);
    ProblemBuilder p(random);
    Expr m = p.size("m", {std::max<int64_t>(e[0], 1), random_extent(random, 12)});
    Tensor a = p.input("a", f32, {m, e[2]}), b = p.input("b", f32, {e[2], e[1]}), bias = p.input("bias", f32, {e[1]});
    Axis k = reduce_axis("k", e[2]);
    Tensor c = compute("c", {m, e[1]}, [&](Expr i, Expr j) { return sum(a(i, k) * b(k, j), k); });
    Tensor y = compute("y", {m, e[1]}, [&](Expr i, Expr j) { return max(c(i, j) + bias(j), 0.0); });
    return p.problem({y});
}

/// Symbolic in a reduction: a mean over rows of unknown number.
Problem symbolic_sum(Random& random) {
    auto e = random_extents(random, 2, 1000);
    ProblemBuilder p(random);
    Expr n = p.size("n", {random_extent(random, 24), e[0]});
    Tensor x = p.input("x", f32, {n, e[1]});
    Axis r = reduce_axis("r", n);
    Tensor total = compute("total", {e[1]}, [&](Expr j) { return sum(x(r, j), r); });
    Tensor y = compute("y", {n, e[1]}, [&](Expr i, Expr j) { return x(i, j) * 2.0 - total(j); });
    return p.problem(random.chance(0.5) ? std::vector<Tensor>{y} : std::vector<Tensor>{y, total});
}

Problem broadcast_chain(Random& random) {
    auto e = random_extents(random, 2);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {e[0], e[1]}), row = p.input("row", f32, {e[1]}),
           column = p.input("column", f32, {e[0]});
    Tensor y = compute("y", {e[0], e[1]}, [&](Expr i, Expr j) { return x(i, j) + row(j); });
    Tensor z = compute("z", {e[0], e[1]}, [&](Expr i, Expr j) { return max(y(i, j), 0.0) * column(i); });
    Tensor w = compute("w", {e[0], e[1]}, [&](Expr i, Expr j) { return z(i, j) - y(i, j) / 2.0; });
    return p.problem(random.chance(0.3) ? std::vector<Tensor>{w, z} : std::vector<Tensor>{w});
}

Problem row_softmax(Random& random) {
    auto e = random_extents(random, 2, 1500);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {e[0], e[1]}, -3, 3);
    Axis k = reduce_axis("k", e[1]), l = reduce_axis("l", e[1]);
    Tensor m = compute("m", {e[0]}, [&](Expr i) { return reduce_max(x(i, k), k); });
    Tensor ex = compute("ex", {e[0], e[1]}, [&](Expr i, Expr j) { return exp2(x(i, j) - m(i)); });
    Tensor total = compute("total", {e[0]}, [&](Expr i) { return sum(ex(i, l), l); });
    Tensor y = compute("y", {e[0], e[1]}, [&](Expr i, Expr j) { return ex(i, j) / total(i); });
    Problem problem = p.problem({y});
    problem.approximates = true;
    return problem;
}

Problem row_and_column_sums(Random& random) {
    auto e = random_extents(random, 2);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {e[0], e[1]});
    Axis r = reduce_axis("r", e[0]), k = reduce_axis("k", e[1]);
    Tensor rows = compute("rows", {e[0]}, [&](Expr i) { return sum(x(i, k), k); });
    Tensor columns = compute("columns", {e[1]}, [&](Expr j) { return sum(x(r, j), r) + 1.0; });
    return p.problem({rows, columns});
}

Problem arg_max(Random& random) {
    auto e = random_extents(random, 2);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {e[0], e[1]});
    Axis k = reduce_axis("k", e[1]);
    auto best = compute_tuple("best", {e[0]}, [&](const Indices& i) { return argmax(x(i[0], k), k); });
    if (random.chance(0.6)) return p.problem({best[0], best[1]});
    if (random.chance(0.5)) return p.problem({best[1]});
    Tensor gap = compute("gap", {e[0], e[1]},
                         [&](Expr i, Expr j) { return select(best[1](i) == j, 0.0, best[0](i) - x(i, j)); });
    return p.problem({gap});
}

Problem mean_and_variance(Random& random) {
    auto e = random_extents(random, 2);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {e[0], e[1]});
    Axis k = reduce_axis("k", e[1]);
    auto stats = compute_tuple("stats", {e[0]}, [&](const Indices& i) {
        auto parts = welford(x(i[0], k), {k});
        return std::vector<Expr>{parts[0], parts[1] / max(parts[2], 1.0)};
    });
    Tensor y = compute("y", {e[0], e[1]}, [&](Expr i, Expr j) { return (x(i, j) - stats[0](i)) * stats[1](i); });
    Problem problem = random.chance(0.5) ? p.problem({y}) : p.problem({stats[0], stats[1]});
    problem.match = near(0, 2e-4);  // the means of parts are rounded: their order shows
    return problem;
}

Problem stencil(Random& random) {
    int64_t n = random_extent(random, 64), taps = random.pick<int64_t>({1, 2, 3, 5}), left = random.below(taps + 1);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {n}), w = p.input("w", f32, {taps});
    Axis t = reduce_axis("t", taps);
    Tensor y = compute("y", {n}, [&](Expr i) { return sum(w(t) * padded(x, 0)(i + t - left), t); });
    Tensor z = compute("z", {n}, [&](Expr i) { return padded(y, 1.0)(i - 1) + padded(y, 0)(i + 1) - y(i); });
    return p.problem(random.chance(0.5) ? std::vector<Tensor>{z} : std::vector<Tensor>{y});
}

Problem blur(Random& random) {
    auto e = random_extents(random, 2, 1500);
    int64_t rows = e[0] + 2, columns = e[1] + 2;
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {rows, columns});
    Tensor bx = compute("bx", {rows, e[1]}, [&](Expr i, Expr j) { return x(i, j) + x(i, j + 1) + x(i, j + 2); });
    Tensor by = compute("by", {e[0], e[1]}, [&](Expr i, Expr j) { return bx(i, j) + bx(i + 1, j) + bx(i + 2, j); });
    return p.problem({by});
}

Problem convolution(Random& random) {
    auto e = random_extents(random, 5, 150);  // images, rows, columns, channels, filters
    int64_t taps = random.between(1, 3), stride = random.between(1, 2), pad = random.below(taps);
    auto extent_out = [&](int64_t extent) { return std::max<int64_t>(0, (extent + 2 * pad - taps) / stride + 1); };
    int64_t rows = extent_out(e[1]), columns = extent_out(e[2]);
    ProblemBuilder p(random);
    Tensor x = p.input("x", bf16, {e[0], e[1], e[2], e[3]}), w = p.input("w", bf16, {e[4], taps, taps, e[3]});
    Axis r = reduce_axis("r", taps), t = reduce_axis("t", taps), c = reduce_axis("c", e[3]);
    Tensor y = compute("y", {e[0], rows, columns, e[4]}, [&](Expr n, Expr i, Expr j, Expr f) {
        Expr image = padded(x, 0)(n, i * stride + r - pad, j * stride + t - pad, c);
        return sum(cast(f32, image) * cast(f32, w(f, r, t, c)), {r, t, c});
    });
    if (random.chance(0.5)) return p.problem({y});
    Tensor z = compute("z", {e[0], rows, columns, e[4]},
                       [&](Expr n, Expr i, Expr j, Expr f) { return cast(bf16, relu(y(n, i, j, f))); });
    return p.problem({z});
}

Problem gather(Random& random) {
    auto e = random_extents(random, 3, 2000);  // rows of the table, columns, positions
    int64_t rows = std::max<int64_t>(e[0], 1);
    Type index_type = random.chance(0.5) ? i32 : i64;
    ProblemBuilder p(random);
    Tensor table = p.input("table", f32, {rows, e[1]}), at = p.input("at", index_type, {e[2]}, 0, rows - 1);
    Tensor position = p.input("position", f32, {e[2], e[1]});
    Tensor y = compute("y", {e[2], e[1]}, [&](Expr i, Expr j) { return table(at(i), j) * 2.0 + position(i, j); });
    Axis k = reduce_axis("k", e[1]);
    Tensor norm = compute("norm", {e[2]}, [&](Expr i) { return sum(abs(y(i, k)), k); });
    return p.problem(random.chance(0.5) ? std::vector<Tensor>{y} : std::vector<Tensor>{norm});
}

Problem integers_and_flags(Random& random) {
    auto e = random_extents(random, 2);
    ProblemBuilder p(random);
    Tensor x = p.input("x", i32, {e[0], e[1]}, -1000, 1000), flag = p.input("flag", boolean, {e[1]}, 0, 1);
    Tensor y = compute("y", {e[0], e[1]}, [&](Expr i, Expr j) { return x(i, j) * 7919 + x(i, j) / 3 - x(i, j) % 5; });
    Tensor keep = compute("keep", {e[0], e[1]}, [&](Expr i, Expr j) { return flag(j) && y(i, j) % 2 == 0; });
    Axis k = reduce_axis("k", e[1]);
    Tensor count =
        compute("count", {e[0]}, [&](Expr i) { return sum(select(keep(i, k), y(i, k), cast(i32, Expr(k) - i)), k); });
    return p.problem(random.chance(0.5) ? std::vector<Tensor>{count} : std::vector<Tensor>{count, keep});
}

Problem batched_product(Random& random) {
    auto e = random_extents(random, 4, 2500);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {e[0], e[1], e[3]}), y = p.input("y", f32, {e[0], e[3], e[2]});
    return p.problem({einsum("z", "bik,bkj->bij", {x, y})});
}

Problem narrow_product(Random& random) {
    auto e = random_extents(random, 3);
    ProblemBuilder p(random);
    Type narrow = random.pick<Type>({bf16, f16, bf16, e4m3});
    Tensor a = p.input("a", narrow, {e[0], e[2]}), b = p.input("b", narrow, {e[1], e[2]}),
           bias = p.input("bias", f32, {e[1]});
    Tensor c = einsum("c", "ik,jk->ij", {a, b});
    Tensor y = compute("y", {e[0], e[1]}, [&](Expr i, Expr j) { return cast(bf16, relu(c(i, j) + bias(j))); });
    return p.problem({y});
}

Problem root_mean_square(Random& random) {
    auto e = random_extents(random, 2, 2000);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {e[0], e[1]}), gain = p.input("gain", f32, {e[1]});
    Axis k = reduce_axis("k", e[1]);
    Tensor y = compute("y", {e[0], e[1]}, [&](Expr i, Expr j) {  // the sum becomes a stage of its own
        return select(i < 3, sum(x(i, k) * x(i, k), k), x(i, j) * rsqrt(1.0 + sum(x(i, k) * x(i, k), k)) * gain(j));
    });
    Problem problem = p.problem({y});
    problem.approximates = true;
    return problem;
}

Problem attention(Random& random) {
    auto e = random_extents(random, 3, 400);  // heads, positions, channels
    e[2] = std::min<int64_t>(e[2], 4);        // keeps the scores within -4..4, their exp2 exact
    ProblemBuilder p(random);
    Tensor q = p.input("q", bf16, {e[0], e[1], e[2]}, -1, 1), k = p.input("k", bf16, {e[0], e[1], e[2]}, -1, 1);
    Tensor v = p.input("v", bf16, {e[0], e[1], e[2]}, -2, 2);
    Axis d = reduce_axis("d", e[2]), j1 = reduce_axis("j1", e[1]), j2 = reduce_axis("j2", e[1]),
         j3 = reduce_axis("j3", e[1]);
    Tensor s = compute("s", {e[0], e[1], e[1]}, [&](Expr h, Expr i, Expr j) {
        return select(j <= i, sum(cast(f32, q(h, i, d)) * cast(f32, k(h, j, d)), d), -infinity);
    });
    Tensor m = compute("m", {e[0], e[1]}, [&](Expr h, Expr i) { return reduce_max(s(h, i, j1), j1); });
    Tensor pr = compute("pr", {e[0], e[1], e[1]}, [&](Expr h, Expr i, Expr j) { return exp2(s(h, i, j) - m(h, i)); });
    Tensor l = compute("l", {e[0], e[1]}, [&](Expr h, Expr i) { return sum(pr(h, i, j2), j2); });
    Tensor o = compute("o", {e[0], e[1], e[2]}, [&](Expr h, Expr i, Expr c) {
        return sum(pr(h, i, j3) * cast(f32, v(h, j3, c)), j3) / l(h, i);
    });
    Problem problem = p.problem(random.chance(0.7) ? std::vector<Tensor>{o} : std::vector<Tensor>{o, l});
    problem.approximates = true;
    return problem;
}

/// Reads that are not the identity: mirrored, strided, repeated, rotated, a diagonal.
Problem resample(Random& random) {
    int64_t n = std::max<int64_t>(random_extent(random, 40), 1);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {n}), t = p.input("t", f32, {n, n});
    Tensor y = compute("y", {n}, [&](Expr i) { return x(n - 1 - i) + t(i, n - 1 - i); });
    Tensor wide = compute("wide", {2 * n}, [&](Expr i) { return y(i / 2) + cast(f32, i % 3); });
    Tensor even = compute("even", {n}, [&](Expr i) { return wide(2 * i) - y((i + 1) % n); });
    Axis k = reduce_axis("k", n);
    Tensor turned = compute("turned", {n}, [&](Expr i) { return sum(even((i + k) % n) * x(k), k); });
    return p.problem(random.chance(0.5) ? std::vector<Tensor>{turned} : std::vector<Tensor>{even});
}

/// Affine maps modulo 2^32 under composition: associative, not commutative.
Problem composition(Random& random) {
    auto e = random_extents(random, 2, 2000);
    ProblemBuilder p(random);
    Tensor x = p.input("x", u32, {e[0], e[1]}, 0, 9);
    Axis k = reduce_axis("k", e[1]);
    Reducer compose = make_reducer(
        "compose", {constant(u32, 1), constant(u32, 0)},
        [](const Indices& a, const Indices& b) {
            return std::vector<Expr>{a[0] * b[0], a[1] * b[0] + b[1]};
        },
        false);
    auto map = compute_tuple("map", {e[0]}, [&](const Indices& i) {
        return reduce(compose, {x(i[0], k) + 2, cast(u32, Expr(k))}, {k});
    });
    return p.problem(random.chance(0.5) ? std::vector<Tensor>{map[1]} : map);
}

/// A sum over two axes, one of them from a condition, and a scalar result.
Problem triangle(Random& random) {
    auto e = random_extents(random, 2, 500);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {e[0], e[1]});
    Axis r = reduce_axis("r", e[0]), k = reduce_axis("k", e[1]), q = reduce_axis("q", e[1]);
    Tensor prefix =
        compute("prefix", {e[0], e[1]}, [&](Expr i, Expr j) { return sum(select(Expr(q) <= j, x(i, q), 0.0), q); });
    Tensor total = compute("total", {}, [&](const Indices&) { return sum(prefix(r, k) * x(r, k), {r, k}); });
    if (random.chance(0.5)) return p.problem({total});
    return p.problem({prefix, total});
}

/// An update as optimisers make it: the output may overwrite the input.
Problem in_place_update(Random& random) {
    auto e = random_extents(random, 2, 2000);
    ProblemBuilder p(random);
    Tensor w = p.input("w", f32, {e[0], e[1]}), g = p.input("g", f32, {e[0], e[1]});
    Expr rate = p.scalar("rate");
    Tensor step = compute("step", {e[0], e[1]}, [&](Expr i, Expr j) { return rate * g(i, j); });
    Tensor out = compute("out", {e[0], e[1]}, [&](Expr i, Expr j) { return w(i, j) - step(i, j); });
    return p.problem({out});
}

/// Sums over blocks of rows, and what takes them back to the rows: either can be made with the tile that it looks at.
Problem block_sums(Random& random) {
    auto e = random_extents(random, 2, 1000);  // blocks, columns
    int64_t block = int64_t{1} << random.between(1, 3);
    ProblemBuilder p(random);
    Tensor x = p.input("x", f32, {e[0] * block, e[1]});
    Tensor y = compute("y", {e[0] * block, e[1]}, [&](Expr i, Expr j) { return max(x(i, j), -1.0); });
    Axis t = reduce_axis("t", block), q = reduce_axis("q", e[0]);
    Tensor sums = compute("sums", {e[0], e[1]}, [&](Expr b, Expr j) { return sum(y(b * block + t, j), t); });
    Tensor further = random.chance(0.5) ? compute("total", {e[1]}, [&](Expr j) { return sum(sums(q, j), q); })
                                        : compute("less", {e[0] * block, e[1]},
                                                  [&](Expr i, Expr j) { return y(i, j) - sums(i / block, j); });
    return p.problem(random.chance(0.5) ? std::vector<Tensor>{y, further} : std::vector<Tensor>{y, sums, further});
}

/// Rows as long as data say, as in a sparse matrix: entries offsets[i] to offsets[i + 1], in columns of their own.
Problem sparse_product(Random& random) {
    auto e = random_extents(random, 3, 1000);  // rows, entries, columns
    ProblemBuilder p(random);
    int64_t height = random.between(1, 20);
    Tensor offsets = p.input("offsets", i32, {e[0] + 1}, 0, e[1]), values = p.input("values", f32, {e[1]});
    Tensor place = p.input("place", i32, {e[1]}, 0, height - 1), x = p.input("x", f32, {height, e[2]});
    Tensor y = compute("y", {e[0], e[2]}, [&](Expr i, Expr j) {
        Axis r = reduce_axis("r", offsets(i + 1) - offsets(i));  // falling offsets are an empty row
        Expr entry = offsets(i) + r;
        return sum(values(entry) * x(place(entry), j), r);
    });
    Axis k = reduce_axis("k", e[2]);
    Tensor z = compute("z", {e[0]}, [&](Expr i) {  // a reduction inside of another's expression
        Axis r = reduce_axis("r", offsets(i + 1) - offsets(i));
        return sum(y(i, k), k) + max(reduce_max(values(offsets(i) + r), r), -9.0);
    });
    return p.problem(random.chance(0.6) ? std::vector<Tensor>{y} : std::vector<Tensor>{z});
}

/// Sums of matrices that a table of one to three dimensions names, as many as the element's place or data say. Rows of
/// the matrices are multiples of 16 bytes: boxes can bring them.
Problem placed_matrices(Random& random) {
    int64_t groups = random.between(1, 3), most = random.between(1, 3);
    int64_t rows = random.chance(0.3) ? random_extent(random, 24) : 8 * random.between(1, 3);
    Type type = random.pick<Type>({u8, i8, bf16, f32});
    int64_t columns = random.between(1, 4) * 16 / bytes_of(type), matrices = random.between(1, 5);
    const int64_t rank = random.between(1, 3);
    ProblemBuilder p(random);
    const std::vector<int64_t> table_shape = {groups, most, 2};
    Tensor table = p.input("table", random.chance(0.5) ? i32 : i64,
                           Shape(table_shape.begin(), table_shape.begin() + rank), 0, matrices - 1);
    Tensor counts = p.input("counts", i32, {groups}, 0, most);
    bool of_rows = random.chance(0.25);  // the table names rows, not matrices
    Tensor x =
        of_rows ? p.input("x", type, {matrices, columns}, 0, 3) : p.input("x", type, {matrices, rows, columns}, 0, 3);
    int64_t length = random.below(4);
    Tensor y = compute("y", {groups, rows}, [&](Expr g, Expr i) {
        Expr count = cast(i64, counts(g));
        const std::vector<Expr> lengths = {constant(i64, most), min(g + 1, most), min(count, most), count};
        Axis q = reduce_axis("q", lengths[length]);
        Axis k = reduce_axis("k", columns);
        Indices at = {g, q, (g + q) % 2};
        Expr place = table.read({at.begin(), at.begin() + rank});
        Expr term = cast(f32, of_rows ? x(place, k) : x(place, i, k));
        return sum(of_rows ? term * cast(f32, i + 1) : term, {q, k});
    });
    return p.problem({y});
}

/// Rows that sum as many terms as their place says, blocks of them alike.
Problem triangular_product(Random& random) {
    auto e = random_extents(random, 2, 300);  // rows, columns
    ProblemBuilder p(random);
    int64_t block = random.between(1, 4);
    Tensor a = p.input("a", f32, {e[0], e[0]}), b = p.input("b", f32, {e[0], e[1]});
    bool later = random.chance(0.5);  // or earlier ones
    Tensor y = compute("y", {e[0], e[1]}, [&](Expr i, Expr j) {
        Expr first = i / block * block;
        Axis k = reduce_axis("k", later ? e[0] - first : min(first + block, e[0]));
        Expr term = later ? first + k : Expr(k);
        return sum(a(i, term) * b(term, j), k);
    });
    return p.problem({y});
}

/// Terms that each count for one element: the gradient of a gather, with indices outside and a condition of their own.
Problem scatter(Random& random) {
    auto e = random_extents(random, 3, 1500);  // rows, indices, columns
    ProblemBuilder p(random);
    Type type = random.pick<Type>({f32, i32, i64});
    Tensor ids = p.input("ids", i32, {e[1]}, -1, std::max<int64_t>(e[0], 1)), x = p.input("x", type, {e[1], e[2]});
    bool conditional = random.chance(0.3);
    Axis r = reduce_axis("r", e[1]), k = reduce_axis("k", e[2]), q = reduce_axis("q", e[2]);
    Expr zero = cast(type, 0);
    Tensor d = compute("d", {e[0], e[2]}, [&](Expr i, Expr j) {
        Expr own = ids(r) == i;
        return sum(select(conditional ? own && x(r, j) > zero : own, x(r, j), zero), r);
    });
    Tensor rows = compute("rows", {e[0]}, [&](Expr i) { return sum(select(ids(r) == i, x(r, k), zero), {r, k}); });
    Tensor total = compute("total", {e[0]}, [&](Expr i) { return sum(d(i, q), q) + rows(i); });
    return p.problem(random.pick<std::vector<Tensor>>({{d}, {rows}, {total}, {d, total}}));
}

/// Bits of words, of which rows are folded.
Problem words(Random& random) {
    auto e = random_extents(random, 2, 1000);
    ProblemBuilder p(random);
    Tensor x = p.input("x", u32, {e[0], e[1]}, 0, 40);
    Axis k = reduce_axis("k", e[1]);
    Tensor mixed = compute("mixed", {e[0], e[1]}, [&](Expr i, Expr j) {
        Expr word = x(i, j) * 0x9e3779b9u;
        return (word ^ (word >> x(i, j))) + (mul_high(word, cast(u32, i) | 5) << (cast(u32, j) & 7));
    });
    Tensor folded = compute("folded", {e[0]}, [&](Expr i) { return sum(mixed(i, k) & 0xffff, k); });
    return p.problem(random.pick<std::vector<Tensor>>({{folded}, {mixed, folded}}));
}

}  // namespace

const std::vector<Computation>& computations() {
    static const std::vector<Computation> all = {
        {"matrix_product", matrix_product},
        {"strided_product", strided_product},
        {"symbolic_product", symbolic_product},
        {"symbolic_sum", symbolic_sum},
        {"broadcast_chain", broadcast_chain},
        {"row_softmax", row_softmax},
        {"row_and_column_sums", row_and_column_sums},
        {"arg_max", arg_max},
        {"mean_and_variance", mean_and_variance},
        {"stencil", stencil},
        {"blur", blur},
        {"convolution", convolution},
        {"gather", gather},
        {"integers_and_flags", integers_and_flags},
        {"batched_product", batched_product},
        {"narrow_product", narrow_product},
        {"root_mean_square", root_mean_square},
        {"attention", attention},
        {"resample", resample},
        {"composition", composition},
        {"triangle", triangle},
        {"in_place_update", in_place_update},
        {"block_sums", block_sums},
        {"triangular_product", triangular_product},
        {"scatter", scatter},
        {"sparse_product", sparse_product},
        {"placed_matrices", placed_matrices},
        {"words", words},
    };
    return all;
}

const Computation& computation(const std::string& name) {
    std::vector<std::string> names;
    for (const Computation& known : computations()) {
        if (known.name == name) return known;
        names.push_back(known.name);
    }
    throw_error(Error, "no computation is named '{}'; choose one of {}", name, fmt::join(names, ", "));
}

}  // namespace tw::fuzz

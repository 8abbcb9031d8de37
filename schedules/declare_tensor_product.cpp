// What a product on tensor cores is: operands as they are stored, sums, and what is made of them.
#include <algorithm>
#include <functional>

#include "schedules/product_cycles.h"
#include "schedules/tensor_product.h"
#include "schedules/whole_tiles.h"

namespace tw::schedules {

namespace {

/// The extents of the operands as they are stored: rows, then what lies side by side.
struct Stored {
    int64_t a[2], b[2];
};
Stored stored(const TensorProductShape& s) {
    Stored result{{s.m, s.k}, {s.k, s.n}};
    if (s.transpose_a) std::swap(result.a[0], result.a[1]);
    if (s.transpose_b) std::swap(result.b[0], result.b[1]);
    return result;
}

bool takes_any_side(Type operand) { return bytes_of(operand) == 2; }

/// Shape from the last two dimensions.
Shape with_batch(int64_t batch, const int64_t (&extents)[2]) {
    Shape shape(extents, extents + 2);
    if (batch) shape.insert(shape.begin(), batch);
    return shape;
}

/// Blocks of rows, each with a matrix of its own, are a batch.
TensorProductShape by_blocks_of_rows(TensorProductShape s) {
    if (!s.experts) return s;
    s.batch = s.m / rows_of_block;
    s.m = rows_of_block;
    return s;
}

Tensor copy_of(const Tensor& matrix, const Shape& shape, bool turns) {
    return compute(matrix.name() + (turns ? "_turned" : "_padded"), shape, [&](const std::vector<Expr>& axes) {
        std::vector<Operand> indices(axes.begin(), axes.end());
        if (turns) std::swap(indices[indices.size() - 2], indices.back());
        return padded(matrix, 0).read(indices);
    });
}

using Declared = std::function<Expr(const std::vector<Expr>&)>;

/// How many terms the row sums.
Expr terms_of_row(const TensorProduct& p, const TensorProductShape& shape, const std::vector<Expr>& axes, int64_t all) {
    Expr block = axes[axes.size() - 2] / rows_of_block;
    if (shape.row_terms == RowTerms::Lower) return min((block + 1) * rows_of_block, all);
    return select(block * rows_of_block < p.rows(axes[0]), Expr(all), Expr(0));
}

/// Elements of the sums of products, with the bias; the axes are batches, a row and a column.
Declared sums_of(const TensorProduct& p, const TensorProductShape& shape, const TensorProductShape& read) {
    const int64_t terms = read.k;
    Axis all = reduce_axis("k", terms);
    return [=](const std::vector<Expr>& axes) {
        const Expr &i = axes[axes.size() - 2], &j = axes.back();
        Axis k = shape.row_terms == RowTerms::All ? all : reduce_axis("k", terms_of_row(p, shape, axes, terms));
        auto element = [&](const Tensor& matrix, bool transposed, Expr row, Expr column) {
            std::vector<Operand> indices(axes.begin(), axes.end() - 2);
            if (shape.experts && matrix.same(p.right)) indices = {p.expert(axes[0])};
            if (transposed) std::swap(row, column);
            indices.insert(indices.end(), {row, column});
            Expr value = matrix.read(indices);
            return shape.operand == tf32 ? truncate_tf32(value) : cast(shape.operand == i8 ? i32 : f32, value);
        };
        Expr value = sum(element(p.left, read.transpose_a, i, k) * element(p.right, read.transpose_b, k, j), k);
        return shape.add_bias ? cast(f32, value) + cast(f32, p.bias(j)) : value;
    };
}

/// Sums of 128 terms, scaled and added.
void declare_scaled(TensorProduct& p, const TensorProductShape& shape) {
    int64_t blocks = shape.k / block_of_scale;
    Tensor scale_a = input("scale_a", f32, {blocks, shape.m}),
           scale_b = input("scale_b", f32, {divided(shape.n, block_of_scale), blocks});
    p.scales = {scale_a, scale_b};
    Axis inside = reduce_axis("inside", block_of_scale), part = reduce_axis("part", blocks);
    p.product = compute("product", {blocks, shape.m, shape.n}, [&](Expr q, Expr i, Expr j) {
        Expr term = q * block_of_scale + inside;
        return sum(cast(f32, p.left(i, term)) * cast(f32, p.right(j, term)), inside);
    });
    p.c = compute("c", {shape.m, shape.n}, [&](Expr i, Expr j) {
        Expr scale = scale_a(part, i) * scale_b(j / block_of_scale, part);
        return cast(shape.result, sum(p.product(part, i, j) * scale, part));
    });
}

void declare_gated(TensorProduct& p, const TensorProductShape& shape, const Declared& sums) {
    p.product = compute("product", with_batch(shape.batch, {shape.m, shape.n}), sums);
    p.c = compute("c", with_batch(shape.batch, {shape.m, shape.n / 2}), [&](std::vector<Expr> axes) {
        Expr j = axes.back();
        auto at = [&](int64_t half) {
            axes.back() = j / gated_columns * (2 * gated_columns) + j % gated_columns + half * gated_columns;
            return p.product.read({axes.begin(), axes.end()});
        };
        return cast(shape.result, silu(cast(f32, at(0))) * cast(f32, at(1)));
    });
}

Expr activated(Activation activation, const Expr& sum) {
    switch (activation) {
        case Activation::Gelu: return gelu(cast(f32, sum));
        case Activation::GeluTanh: return gelu_tanh(cast(f32, sum));
        case Activation::None:
        case Activation::SwiGlu: break;
    }
    return sum;
}

}  // namespace

double instructions_behind(const TensorProductShape& shape) {
    switch (shape.activation) {
        case Activation::Gelu: return shape.made + 13;
        case Activation::GeluTanh: return shape.made + 7.5;
        case Activation::SwiGlu: return shape.made + 3.8;
        case Activation::None: break;
    }
    return shape.made;
}

TensorProductShape with_read_transposes(TensorProductShape shape) {
    if (shape.copy_operands && !takes_any_side(shape.operand)) shape.transpose_a = false, shape.transpose_b = true;
    return shape;
}

namespace {

/// The product as it reads its operands: where extents are the length of copied rows, whole pieces, and whole sectors
/// where all are copies, of which boxes are loaded faster.
TensorProductShape as_read(const TensorProductShape& shape) {
    TensorProductShape s = with_read_transposes(shape);
    if (!s.copy_operands) return s;
    const int64_t piece = piece_bytes / bytes_of(s.operand), sector = sector_bytes / bytes_of(s.operand);
    auto pad = [&](int64_t& extent, bool all_turn) {
        extent = rounded_up(extent, all_turn || extent % piece != 0 ? sector : piece);
    };
    const bool turns_a = s.transpose_a != shape.transpose_a, turns_b = s.transpose_b != shape.transpose_b;
    if (s.transpose_a) pad(s.m, turns_a);
    if (!s.transpose_b) pad(s.n, turns_b);
    if (!s.transpose_a || s.transpose_b) pad(s.k, (s.transpose_a || turns_a) && (!s.transpose_b || turns_b));
    // Parts of a sum that end with whole tiles have no masks, which tell where the other operand's rows end: a copy it
    // would be, too.
    constexpr int64_t least_tile = 32, tile = 128, few_tiles = 66;  // half a large GPU's multiprocessors
    const bool one_has_rows_of_terms = s.transpose_a == s.transpose_b,
               has_parts = divided(s.m, tile) * divided(s.n, tile) <= few_tiles;
    if (one_has_rows_of_terms && has_parts && s.k != shape.k && s.k % least_tile == 0) s.k += sector;
    return s;
}

}  // namespace

bool takes_warpgroups(const TensorProductShape& shape, const Target& target) {
    if (!target.has_wgmma || shape.k == 0 || shape.m == 0 || shape.n == 0) return false;
    int64_t bytes = bytes_of(shape.operand);
    const TensorProductShape read = as_read(shape);
    Stored rows = stored(read);
    if (shape.row_terms != RowTerms::All && exact_terms(shape) > 0) return false;  // parts have a fixed number of terms
    bool whole = rows.a[1] * bytes % piece_bytes == 0 && rows.b[1] * bytes % piece_bytes == 0;
    return whole && (takes_any_side(shape.operand) || (!read.transpose_a && read.transpose_b));
}

bool may_split_k(const TensorProductShape& shape) { return shape.row_terms == RowTerms::All; }

TensorProductShape shape_of_parts(TensorProductShape shape) {
    if (shape.activation == Activation::SwiGlu) shape.activation = Activation::None, shape.result = f32;
    return shape;
}

double gating_cycles(const TensorProductShape& shape) {
    constexpr double launch = 2740, bytes_a_cycle = 2600;
    if (shape.activation != Activation::SwiGlu) return 0;
    const double sums = as_double(shape.m * shape.n * std::max<int64_t>(shape.batch, 1));
    return launch + sums * (bytes_of(f32) + 0.5 * bytes_of(shape.result)) / bytes_a_cycle;
}

bool keeps_together(const WarpgroupTiles& tiles, const TensorProductShape& shape) {
    bool gated = shape.activation == Activation::SwiGlu;
    if (gated && (tiles.swap || tiles.block_n % (2 * gated_columns) != 0)) return false;
    // Sums in registers are of rows that are there: each warpgroup has some.
    if (gated && shape.m * tiles.warpgroups <= tiles.block_m * (tiles.warpgroups - 1)) return false;
    if (tiles.cluster > 1 && (shape.experts || shape.row_terms != RowTerms::All)) return false;
    if (shape.experts) return !tiles.swap && tiles.block_m == rows_of_block;
    return shape.row_terms == RowTerms::All || rows_of_block % tiles.block_m == 0;
}

double copy_cycles(const TensorProductShape& shape) {
    if (!shape.copy_operands) return 0;
    const TensorProductShape read = with_read_transposes(shape);
    const Stored own = stored(shape);
    const int64_t bytes = bytes_of(shape.operand), batch = std::max<int64_t>(shape.batch, 1);
    // Whole rows are read where they lie, with zeros below the last one.
    auto of = [&](const int64_t(&extents)[2], bool turns) {
        if (!turns && extents[1] * bytes % piece_bytes == 0) return 0.0;
        return copied_cycles(as_double(batch * extents[0] * extents[1] * bytes));
    };
    return of(own.a, read.transpose_a != shape.transpose_a) + of(own.b, read.transpose_b != shape.transpose_b);
}

TensorProduct declare_tensor_product(const TensorProductShape& whole) {
    TensorProductShape shape = by_blocks_of_rows(whole);
    TensorProductShape read = as_read(shape);
    Stored own = stored(shape), copied = stored(read);
    TensorProduct p;
    Type type = shape.operand == tf32 ? f32 : shape.operand;
    p.left = p.a = input("a", type, with_batch(shape.batch, own.a));
    p.right = p.b = input("b", type, with_batch(shape.experts ? shape.experts : shape.batch, own.b));
    if (shape.experts) p.expert = input("expert", i32, {shape.batch});
    p.growing = shape.row_terms == RowTerms::Lower && shape.batch == 0;
    if (shape.row_terms == RowTerms::Masked) p.rows = input("rows", i32, {shape.batch});
    p.turns_a = read.transpose_a != shape.transpose_a;
    p.turns_b = read.transpose_b != shape.transpose_b;
    auto of = [&](const Tensor& matrix, const int64_t(&stored)[2], const int64_t(&wanted)[2], bool turns) {
        if (!turns && std::ranges::equal(stored, wanted)) return matrix;
        return copy_of(matrix, with_batch(shape.batch, wanted), turns);
    };
    p.left = of(p.a, own.a, copied.a, p.turns_a);
    p.right = of(p.b, own.b, copied.b, p.turns_b);
    if (shape.add_bias) p.bias = input("bias", shape.result, {shape.n});
    Declared sums = sums_of(p, shape, read);
    if (shape.block_scales)
        declare_scaled(p, shape);
    else if (shape.activation == Activation::SwiGlu)
        declare_gated(p, shape, sums);
    else
        p.c = compute("c", with_batch(shape.batch, {shape.m, shape.n}), [&](const std::vector<Expr>& axes) {
            return cast(shape.result, activated(shape.activation, sums(axes)));
        });
    return p;
}

}  // namespace tw::schedules

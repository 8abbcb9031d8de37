#include "schedules/thin_product.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "schedules/product_cycles.h"
#include "schedules/product_tiles.h"
#include "schedules/require_sizes.h"
#include "schedules/sum_of_parts.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// Whether the matrix, the operand that runs along the long side, has neighbouring terms side by side.
bool terms_lie_together(const TensorProductShape& shape) {
    return shape.m >= shape.n ? !shape.transpose_a : shape.transpose_b;
}

/// Elements that lie together at multiples of their bytes in each row of the matrix, 16 bytes at most; of rows that
/// loops are aligned to as many.
int64_t neighbours_of_matrix(const TensorProductShape& shape, bool align = false) {
    const int64_t row = terms_lie_together(shape) ? shape.k : std::max(shape.m, shape.n),
                  piece = piece_bytes / bytes_of(shape.operand);
    return align ? piece : std::gcd(piece, row);
}

/// From one row of the matrix to the next, a constant number of elements.
int64_t apart_of_rows(const Tensor& matrix) {
    const auto& strides = matrix.operation()->strides;
    return require_constant(strides.empty() ? matrix.shape().back() : strides[strides.size() - 2]);
}

/// Elements of the matrix that lie together in each row.
int64_t neighbours_of_rows(const Tensor& matrix, bool align) {
    const int64_t piece = piece_bytes / bytes_of(matrix.type()), row = require_constant(matrix.shape().back());
    return align ? piece : std::gcd(piece, std::gcd(row, apart_of_rows(matrix)));
}

/// Whether the vectors have elements of one term side by side.
bool vectors_lie_across(const TensorProductShape& shape) {
    return std::min(shape.m, shape.n) > 1 && (shape.m >= shape.n ? !shape.transpose_b : shape.transpose_a);
}

/// Of so many that the matrix has together: lanes that read vectors far apart, a line each, wait for the first cache.
int64_t terms_of_lane(int64_t together, bool across, int64_t bytes_of_vectors) {
    constexpr int64_t most_apart = 32;
    while (across && together > 1 && together * bytes_of_vectors > most_apart) together /= 2;
    return together;
}
int64_t terms_of_lane(const TensorProductShape& shape, bool align) {
    return terms_of_lane(neighbours_of_matrix(shape, align), vectors_lie_across(shape),
                         std::min(shape.m, shape.n) * bytes_of(shape.operand));
}

/// fp8 takes many registers until it is f32.
bool converts_pairs(const TensorProductShape& shape) { return bytes_of(shape.operand) == 1 && is_float(shape.operand); }

constexpr int64_t bytes_wanted = 64;  // of the matrix, on their way to a thread
constexpr int64_t most_sums = 48;     // of a thread: more leave no registers for elements under way

/// Of a thread whose terms lie together: enough for 64 bytes under way, more where each reads the vectors element by
/// element, and no more than registers hold sums of.
int64_t rows_of_thread(const TensorProductShape& shape, bool align) {
    constexpr int64_t most_rows = 8;
    const int64_t vectors = std::min(shape.m, shape.n), bytes = neighbours_of_matrix(shape) * bytes_of(shape.operand);
    const bool one_by_one = align || vectors_lie_across(shape);
    int64_t rows = one_by_one ? most_rows : std::clamp<int64_t>(bytes_wanted / bytes, 1, most_rows);
    while (rows > 1 && rows * vectors > most_sums) rows /= 2;
    return rows;
}

constexpr int64_t threads_wanted = 512;  // of a multiprocessor
constexpr int64_t most_threads = 256;    // of a block

int64_t blocks_of(const ThinTiles& t, const TensorProductShape& shape) {
    return divided(std::max(shape.m, shape.n), t.threads_long * t.results) * std::max<int64_t>(shape.batch, 1) *
           t.split_k;
}

/// Fewer sums for each thread, more threads for each sum, and at last parts, until there are threads enough; then
/// more terms for each, until enough bytes are under way.
void spread_thin(ThinTiles& t, const TensorProductShape& shape, const Target& target, const ThinTiles& least) {
    const int64_t bytes = bytes_of(shape.operand), vectors = std::min(shape.m, shape.n);
    const int64_t most_read = converts_pairs(shape) ? 16 : 64;  // elements of vectors
    auto threads = [&] { return blocks_of(t, shape) * t.threads_long * t.threads_terms / target.multiprocessors; };
    auto few = [&] { return threads() < threads_wanted; };
    auto steps = [&] { return divided(shape.k, t.threads_terms * t.terms * t.split_k); };
    while (few() && t.results > least.results) t.results /= 2;
    while (few() && t.threads_terms * least.threads_long < most_threads && steps() >= 8) {
        t.threads_terms *= 2;
        if (t.threads_long * t.threads_terms > most_threads) t.threads_long /= 2;
    }
    while (few() && steps() >= 16 && may_split_k(shape)) t.split_k *= 2;
    while (t.results * t.terms * bytes < bytes_wanted && steps() >= 2 && t.terms * vectors < most_read) t.terms *= 2;
}

/// Whether elements of the matrix lie side by side along c's dimension so many from the last.
bool lies_along(const Tensor& c, size_t from_last, const Tensor& matrix) {
    const auto& axes = c.operation()->axes;
    bool found = false;
    visit(c.operation()->outputs[0].body, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        found = found || (read && read->operation == matrix.operation() &&
                          contains(read->indices.back(), axes[axes.size() - from_last]));
    });
    return found;
}

/// Of a matrix whose terms lie together.
ThinTiles tiles_of_rows(const TensorProductShape& shape, const Target& target, bool align) {
    const int64_t vectors = std::min(shape.m, shape.n), together = neighbours_of_matrix(shape, align);
    ThinTiles t{.threads_long = 4,
                .threads_terms = 32,
                .results = rows_of_thread(shape, align),
                .terms = together,
                .align = align};
    // Of the first and the last step of a row elements are read one by one.
    constexpr int64_t least_steps = 32;
    if (align) t.threads_long = 8;
    while (align && t.threads_long > 1 && least_steps * 2 * t.threads_terms * together <= shape.k)
        t.threads_terms *= 2, t.threads_long /= 2;
    // A lane has 16 bytes of a row at least: more lanes than needed idle while one of them makes the result.
    const int64_t own = std::max(t.terms, piece_bytes / bytes_of(shape.operand));
    while (t.threads_terms > 1 && t.threads_terms / 2 * own >= shape.k) t.threads_terms /= 2, t.threads_long *= 2;
    while (t.terms > 1 && converts_pairs(shape) && t.terms * vectors > 64) t.terms /= 2;
    // Fewer rows share what is read of vectors.
    const int64_t least = align ? t.results : vectors_lie_across(shape) ? std::min<int64_t>(t.results, 4) : 1;
    spread_thin(t, shape, target, {.threads_long = 1, .results = least});
    return t;
}

/// Of one whose neighbours belong to different sums.
ThinTiles tiles_of_columns(const TensorProductShape& shape, const Target& target) {
    const int64_t extent = std::max(shape.m, shape.n), vectors = std::min(shape.m, shape.n);
    int64_t results = neighbours_of_matrix(shape);
    const int64_t most = converts_pairs(shape) ? most_sums / 2 : most_sums;
    while (results > 1 && results * vectors > most) results /= 2;
    ThinTiles t{.threads_long = 128,
                .threads_terms = 1,
                .results = results,
                .terms = converts_pairs(shape) && vectors > 4 ? 2 : 4};
    while (t.terms > 1 && t.terms / 2 >= shape.k) t.terms /= 2;
    while (t.threads_long > 8 && t.threads_long / 2 * t.results >= extent) t.threads_long /= 2;
    const int64_t of_row = std::clamp<int64_t>(bytes_wanted / (results * bytes_of(shape.operand)), 8, 32);
    spread_thin(t, shape, target, {.threads_long = std::min(t.threads_long, of_row), .results = results});
    return t;
}

/// Whether elements lie alone in all rows, and these are so long that their ends, and so few vectors that reading these
/// one by one, matter little. Measured: of 2 bytes 15445x1x31657 0.230 ms (0.316 element by element), 20000x1x4097
/// 0.048 (0.052), 5000x4x9001 0.046 (0.043), 20000x1x1001 0.019 (0.016); pairs, 9002x2x9002, 0.062
/// (0.045); of one byte 31133x1x24641 0.415 (0.398).
bool rows_want_alignment(const TensorProductShape& shape) {
    constexpr int64_t least_vectors = 256, most_beside = 3;
    const int64_t batch_begins = shape.batch > 1 ? std::max(shape.m, shape.n) * shape.k : 0;
    return bytes_of(shape.operand) > 1 && neighbours_of_matrix(shape) == 1 &&
           std::min(shape.m, shape.n) <= most_beside && shape.k >= least_vectors * neighbours_of_matrix(shape, true) &&
           batch_begins % neighbours_of_matrix(shape, true) == 0;
}

}  // namespace

bool is_thin(const TensorProductShape& shape) {
    const int64_t vectors = std::min(shape.m, shape.n);
    return vectors > 0 && vectors <= most_vectors && shape.k > 0 && shape.activation != Activation::SwiGlu &&
           !shape.block_scales && !shape.experts && shape.row_terms == RowTerms::All && !shape.copy_operands;
}

std::vector<ThinTiles> thin_choices(const TensorProductShape& shape, const Target& target) {
    if (!terms_lie_together(shape)) return {tiles_of_columns(shape, target)};
    std::vector<ThinTiles> some{tiles_of_rows(shape, target, false)};
    // Fewer lanes combine fewer parts.
    for (ThinTiles t = some[0]; t.threads_terms > 4 && t.threads_terms <= 32;) {
        t.threads_terms /= 2, t.threads_long *= 2;
        some.push_back(t);
    }
    if (rows_want_alignment(shape)) some.push_back(tiles_of_rows(shape, target, true));
    return some;
}

ThinTiles thin_tiles(const TensorProductShape& shape, const Target& target) {
    const std::vector<ThinTiles> some = thin_choices(shape, target);
    return *std::ranges::min_element(some, {}, [&](const ThinTiles& t) { return predicted_cycles(t, shape, target); });
}

namespace {

/// Instructions of an element of the matrix: it is converted, and multiplied with one of each vector, which is loaded
/// and converted for all results of a thread. Bytes are taken out of words; fp8 is converted in pairs, by way of f16.
double instructions_of_element(const ThinTiles& t, const TensorProductShape& shape) {
    const double vectors = as_double(std::min(shape.m, shape.n)), multiply = shape.operand == i8 ? 2 : 1,
                 converted = converts_pairs(shape)         ? 2.5
                             : bytes_of(shape.operand) < 4 ? 1.5
                                                           : 1;
    return vectors * multiply + converted + vectors * (converted + 0.5) / as_double(t.results);
}

/// Lines of 128 bytes, one a cycle, that loads of a warp take from the first cache for an element of each lane.
double lines_of_element(const ThinTiles& t, const TensorProductShape& shape) {
    constexpr double lanes = 32, line = 128;
    const double bytes = bytes_of(shape.operand), vectors = as_double(std::min(shape.m, shape.n)),
                 results = as_double(t.results);
    const int64_t row_of_vectors = std::min(shape.m, shape.n) * bytes_of(shape.operand);  // of one term
    const double loads_of_vectors = as_double(row_of_vectors / std::gcd(piece_bytes, row_of_vectors));
    auto lines = [&](double bytes_apart) { return std::clamp(lanes * bytes_apart / line, 1.0, lanes); };
    const bool across = vectors_lie_across(shape);
    if (!terms_lie_together(shape)) {
        const double rows = std::max(1.0, lanes / as_double(t.threads_long));  // that a warp reads
        const double terms = as_double(std::gcd(t.terms, std::gcd(shape.k, piece_bytes / bytes_of(shape.operand))));
        return (lines(results * bytes) + rows * (across ? loads_of_vectors : vectors / terms)) / results;
    }
    const double together = as_double(std::gcd(t.terms, terms_of_lane(shape, t.align)));
    const double rows = lanes / std::min(lanes, as_double(t.threads_terms)),  // that a load of a warp touches
        of_row = lines(together * bytes),
                 of_vectors = across    ? together * loads_of_vectors * lines(together * vectors * bytes)
                              : t.align ? together * vectors * of_row  // which begin elsewhere: one by one
                                        : vectors * of_row;
    return (std::max(of_row, rows) * results + of_vectors) / (results * together);
}

/// Of lanes that share a sum, for each: a shuffle, of which a multiprocessor begins one a cycle, and an addition.
double cycles_of_combining(const ThinTiles& t, const TensorProductShape& shape) {
    constexpr double shuffle = 1.25, lanes = 32;
    double steps = 0;
    for (int64_t others = std::min<int64_t>(t.threads_terms, 32); others > 1; others /= 2) ++steps;
    const double threads = as_double(blocks_of(t, shape) * t.threads_long * t.threads_terms);
    return threads / lanes * as_double(t.results * std::min(shape.m, shape.n)) * steps * shuffle;
}

/// Times as long as in vectors: what a warp asks for at once are few sectors, not all of which it needs.
double times_of_narrow(const ThinTiles& t, const TensorProductShape& shape) {
    const bool is_alone = terms_lie_together(shape) && neighbours_of_matrix(shape, t.align) == 1;
    return !is_alone ? 1 : bytes_of(shape.operand) < 4 ? 1.3 : 1.1;
}

}  // namespace

/// A multiprocessor issues some 90 instructions of threads a cycle beside those that load, all of them read 2000 bytes
/// together. Some 512 threads of it wait for what they have asked for, about 800 cycles, before they ask for more; each
/// issues an instruction in 3 cycles at most. The multiprocessor with the most blocks decides.
double predicted_cycles(const ThinTiles& t, const TensorProductShape& shape, const Target& target) {
    constexpr double lanes = 32, instructions_a_cycle = 90, latency = 800;
    const double vectors = as_double(std::min(shape.m, shape.n)), batch = as_double(std::max<int64_t>(shape.batch, 1)),
                 extent = as_double(std::max(shape.m, shape.n)), elements = extent * as_double(shape.k) * batch,
                 multiprocessors = std::max(target.multiprocessors, 1);
    // Of more than eight vectors that lie across took 9 a third longer, 12 and 16 three and four times as long; 12 of a
    // matrix whose rows are read element by element three and a half times.
    const bool is_alone = terms_lie_together(shape) && neighbours_of_matrix(shape, t.align) == 1;
    const bool waits = vectors > 8 && (vectors_lie_across(shape) || is_alone) && bytes_of(shape.operand) == 2;
    const double blocks = as_double(blocks_of(t, shape)), most_blocks = std::ceil(blocks / multiprocessors),
                 issued = std::min(instructions_a_cycle, most_blocks * as_double(t.threads_long * t.threads_terms) / 3);
    const double busy =
        elements * most_blocks / blocks * (waits ? 1 + (vectors - 8) / 3 : 1) *
            std::max(instructions_of_element(t, shape) / issued, lines_of_element(t, shape) / lanes) +
        cycles_of_combining(t, shape) * most_blocks / blocks;
    const int64_t steps = divided(shape.k, t.threads_terms * t.terms * t.split_k),
                  at_once = std::max<int64_t>(threads_wanted / (t.threads_long * t.threads_terms), 1),
                  rounds = divided(blocks_of(t, shape), at_once * std::max(target.multiprocessors, 1));
    const double moved = elements * bytes_of(shape.operand) * times_of_narrow(t, shape) +
                         extent * vectors * batch * bytes_of(shape.result);
    const double cycles = 2500 + std::max({busy, moved / 2000, as_double(rounds * steps) * latency});
    if (t.split_k == 1) return cycles;
    return cycles + 4000 + added_cycles(extent * vectors * batch * as_double(t.split_k));
}

namespace {

/// How many times the model's time of an H200 a product of f32 takes, beside that of one in tiles of threads
/// (product_tiles.h): lanes of many sums wait for vectors, and tiles that turn a matrix of few rows for their copies.
double likely_times(const TensorProductShape& shape) {
    constexpr int64_t few = 3, many = 8;
    constexpr double turns = 1.35;
    const int64_t vectors = std::min(shape.m, shape.n);
    if (terms_lie_together(shape)) return (vectors > many ? 1.4 : 1) / turns;
    return vectors > many ? 1.6 : vectors > few ? 1.25 : 1;
}

}  // namespace

std::optional<ThinTiles> thin_tiles(const ProductShape& shape, const Target& target) {
    const TensorProductShape same{.m = shape.m,
                                  .n = shape.n,
                                  .k = shape.k,
                                  .operand = tf32,
                                  .result = f32,
                                  .transpose_a = shape.transpose_a,
                                  .transpose_b = shape.transpose_b};
    if (!is_thin(same)) return {};
    const ThinTiles thin = thin_tiles(same, target);
    constexpr double clock_rate = 1.755e9;  // Hz, of the model's cycles
    const double seconds = likely_times(same) * predicted_cycles(thin, same, target) / clock_rate;
    if (shape.batch > 1 || seconds <= seconds_of(product_tiles(shape, target), shape, target)) return thin;
    return {};
}

namespace {

/// The long side, among blocks and threads.
struct OwnRows {
    Loop block;
    std::optional<Loop> part;  ///< of a block's rows, by a block of its own
    Loop own;                  ///< of a block's threads
    Loop element;              ///< of a thread
};

/// Of rows that begin alike every `period` rows a thread has only such, which meet its vectors' elements at one place.
OwnRows split_rows(Schedule& s, const Loop& along, const ThinTiles& tiles, int64_t period) {
    const int64_t apart = std::lcm(period, tiles.threads_long);
    auto [block, inside] = s.split(along, apart * tiles.results, Tail::Mask, {"block", "in_block"});
    if (period == 1) {
        auto [own, element] = s.split(inside, tiles.results, {"own", "result"});
        return {block, {}, own, element};
    }
    auto [element, every] = s.split(inside, apart, {"result", "every"});
    if (apart == tiles.threads_long) return {block, {}, every, element};
    auto [part, own] = s.split(every, tiles.threads_long, {"part", "own"});
    return {block, part, own, element};
}

}  // namespace

void schedule_tensor_product(Schedule& s, const TensorProduct& p, const ThinTiles& tiles, std::source_location where) {
    CalledFrom caller(where);
    require_sizes("tiles of few vectors",
                  {{"threads_long", tiles.threads_long},
                   {"threads_terms", tiles.threads_terms},
                   {"results", tiles.results},
                   {"terms", tiles.terms},
                   {"split_k", tiles.split_k}},
                  where);
    Stage result = s[p.c];
    const int64_t of_step = tiles.threads_terms * tiles.terms, of_sum = require_constant(s.extent(s.reduce(result)));
    int64_t of_part = of_sum;
    if (tiles.split_k > 1) {
        of_part = std::max(divided(divided(of_sum, of_step), tiles.split_k) * of_step, of_step);
        result = split_sum(s, p.c, of_part);
    }
    std::vector<Loop> data = s.data_loops(result), blocks(data.begin(), data.end() - 2);
    const int64_t m = require_constant(s.extent(data[data.size() - 2])), n = require_constant(s.extent(data.back()));
    Loop along = m >= n ? data[data.size() - 2] : data.back(), vector = m >= n ? data.back() : data[data.size() - 2];
    const Tensor &matrix = m >= n ? p.left : p.right, &vectors = m >= n ? p.right : p.left;
    const bool terms_together = !lies_along(p.c, m >= n ? 2 : 1, matrix);
    const bool across = std::min(m, n) > 1 && lies_along(p.c, m >= n ? 1 : 2, vectors);
    const int64_t together = terms_together
                                 ? std::gcd(tiles.terms, terms_of_lane(neighbours_of_rows(matrix, tiles.align), across,
                                                                       std::min(m, n) * bytes_of(vectors.type())))
                                 : tiles.terms;
    const bool aligns = tiles.align && terms_together;
    const Loop terms = aligns ? s.align(s.reduce(result), matrix, together) : s.reduce(result);
    const OwnRows rows = split_rows(s, along, tiles, aligns ? together / std::gcd(together, apart_of_rows(matrix)) : 1);
    auto [step, in_step] = s.split(terms, of_step, Tail::Mask, {"step", "in_step"});
    auto [turn, in_turn] = s.split(in_step, tiles.threads_terms * together, {"turn", "in_turn"});
    auto [share, term] = s.split(in_turn, together, {"share", "term"});
    blocks.push_back(rows.block);
    // Neighbouring threads read what lies side by side; the last bound is the fastest.
    const std::array threads = terms_together ? std::array{rows.own, share} : std::array{share, rows.own};
    std::vector<Loop> order = blocks;
    if (rows.part) order.push_back(*rows.part);
    order.insert(order.end(), threads.begin(), threads.end());
    // Rows that begin alike lie apart: a copy has one of them.
    const std::array inside = aligns ? std::array{rows.element, vector} : std::array{vector, rows.element};
    order.insert(order.end(), {step, turn, inside[0], inside[1], term});
    s.order(order);
    const Loop all_blocks = blocks.size() > 1 ? s.fuse(blocks, "blocks") : blocks[0];
    s.bind(all_blocks, grid.x);
    if (rows.part) s.bind(*rows.part, grid.y);
    for (Loop loop : threads) s.bind(loop, thread);
    // Where all terms are there, nobody asks for them, and loads of all turns are under way.
    const bool is_partial = aligns || of_sum % (tiles.split_k > 1 ? of_part : of_step) != 0;
    if (of_part > of_step && is_partial) s.cut(step, where_partial(result));
    s.stage(result, matrix, Memory::Registers, aligns ? rows.element : turn);
    s.stage(result, vectors, Memory::Registers, turn);
    for (Loop loop : {turn, vector, rows.element, term}) s.unroll(loop);
    // Threads that hold columns of several rows would store elements apart.
    if (!terms_together && m >= n && n > 1) s.stage(result, Memory::Shared, all_blocks);
}

void schedule_tensor_product(Schedule& s, const Tensor& c, const Tensor& a, const Tensor& b, const ThinTiles& tiles,
                             std::source_location where) {
    CalledFrom caller(where);
    schedule_tensor_product(s, {.a = a, .b = b, .bias = {}, .c = c, .left = a, .right = b}, tiles);
}

}  // namespace tw::schedules

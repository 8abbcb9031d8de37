// Where barriers stand, and that each of them is needed: a brute-force race detector finds a race without it.
#include <random>

#include <gtest/gtest.h>

#include "codegen/barriers/hitting_set.h"
#include "codegen/barriers/insert_barriers.h"
#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "races.h"
#include "support/error.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

/// A kernel of 64 threads with shared arrays s and r of 64 elements and an output.
struct Small {
    ThreadKernel kernel = empty_kernel("small", 64);
    Buffer s = make_buffer("s", f32, Memory::Shared, {64}), r = make_buffer("r", f32, Memory::Shared, {64});
    Buffer x = make_buffer("x", f32, Memory::Registers, {}), out = make_buffer("out", f32, Memory::Global, {4096});
    Expr t = kernel.thread, i = index_variable("i", 0, 7), j = index_variable("j", 0, 7);
    Expr one = constant(f32, 1.0);

    Small() {
        kernel.shared = {s, r};
        add_argument(kernel, out, true);
    }

    /// The bodies of the kernel after the pass, one letter a statement: w(rite of s), v (write of r), r(ead of either),
    /// b(eginning of one), | barrier, ( ) loop, [ ] condition.
    std::string places(std::vector<ThreadStmt> body) {
        body.insert(body.begin(), declare(x));
        kernel.body = in_order(body);
        ThreadKernel placed = insert_barriers(kernel);
        verify_thread_ir(placed);
        EXPECT_EQ(find_race(placed), "") << to_string(placed);
        for (int n = 0; n < count_barriers(placed); ++n)
            EXPECT_NE(find_race(without_barrier(placed, n)), "") << "barrier " << n << "\n" << to_string(placed);
        EXPECT_EQ(to_string(insert_barriers(placed)), to_string(placed));  // a second run changes nothing
        return letters(placed.body);
    }

    std::string letters(const ThreadStmt& stmt) const {
        if (stmt.as<ThreadBarrier>()) return "|";
        if (instruction_of<BeginArray>(stmt)) return "b";
        if (auto loop = stmt.as<ThreadLoop>()) return "(" + letters(loop->body) + ")";
        if (auto branch = stmt.as<ThreadIf>()) return "[" + letters(branch->body) + "]";
        if (auto store = stmt.as<ThreadStore>()) return store->to.buffer == s ? "w" : store->to.buffer == r ? "v" : "r";
        std::string all;
        for (const ThreadStmt& kid : children(stmt)) all += letters(kid);
        return all;
    }

    ThreadStmt write(const Expr& index) { return store(s, {index}, one); }
    ThreadStmt write_r(const Expr& index) { return store(r, {index}, one); }
    ThreadStmt read(const Expr& index) { return store(x, {}, load(s, {index})); }
    ThreadStmt read_r(const Expr& index) { return store(x, {}, load(r, {index})); }
    static ThreadStmt begin(const Buffer& array) {
        return make_thread(Instruction(BeginArray{{{array, {integer(0)}}}, integer(256)}));
    }
    Expr next() const { return (t + 1) % 64; }
};

TEST(InsertBarriers, BetweenAWriteAndAReadOfAnother) {
    Small k;
    EXPECT_EQ(k.places({k.write(k.t), k.read(k.next())}), "w|r");
    EXPECT_EQ(k.places({k.read(k.next()), k.write(k.t)}), "r|w");
    EXPECT_EQ(k.places({k.write(k.next()), k.write(k.t)}), "w|w");
}

TEST(InsertBarriers, NoneWhereEachThreadKeepsToItself) {
    Small k;
    EXPECT_EQ(k.places({k.write(k.t), k.read(k.t), k.write(k.t)}), "wrw");
    EXPECT_EQ(k.places({k.write(63 - k.t), k.read(63 - k.t)}), "wr");
    EXPECT_EQ(k.places({k.write(k.t / 8 * 8 + k.t % 8), k.read(k.t)}), "wr");
    EXPECT_EQ(k.places({k.write(k.t), k.read_r(k.next())}), "wr");
    EXPECT_EQ(k.places({loop(k.i, 8, {k.write(k.t), k.read(k.t)})}), "(wr)");
}

TEST(InsertBarriers, NoneForOneThread) {
    Small k;
    k.kernel.threads = 1;
    k.kernel.thread = k.t = index_variable("thread", 0, 0);
    EXPECT_EQ(k.places({k.write(0), k.read(0)}), "wr");
}

TEST(InsertBarriers, NoneBetweenDisjointElements) {
    Small k;
    EXPECT_EQ(k.places({only_if(k.t < 32, {k.write(k.t)}), only_if(k.t < 31, {k.read(k.t + 33)})}), "[w][r]");
    EXPECT_EQ(k.places({only_if(k.t == 0, {k.write(5)}), only_if(k.t == 0, {k.read(5)})}), "[w][r]");
    EXPECT_EQ(k.places({only_if(k.t == 0, {k.write(5)}), only_if(k.t == 1, {k.read(5)})}), "[w]|[r]");
}

TEST(InsertBarriers, OneServesSeveralWrites) {
    Small k;
    EXPECT_EQ(k.places({k.write(k.t), k.write_r(k.t), k.read(k.next()), k.read_r(k.next())}), "wv|rr");
    EXPECT_EQ(k.places({k.write(k.t), k.read(k.next()), k.write_r(k.t), k.read_r(k.next())}), "w|rv|r");
}

TEST(InsertBarriers, WhereArraysTakeTurnsAtTheSameBytes) {
    Small k;
    const std::vector<ThreadStmt> both = {k.write(k.t), k.read(k.next()), k.begin(k.r), k.write_r(k.t),
                                          k.read_r(k.next())};
    std::vector<ThreadStmt> in_turn = both;
    in_turn.insert(in_turn.begin(), k.begin(k.s));
    EXPECT_EQ(k.places(both), "w|rbv|r") << "arrays of their own";
    k.kernel.unions = {{{{k.s}, {k.r}}}};
    EXPECT_EQ(k.places(both), "w|r|bv|r");
    EXPECT_EQ(k.places({loop(k.i, 8, in_turn)}), "(bw|r|bv|r|)");
    // A barrier that is there anyway serves for it.
    const Buffer q = make_buffer("q", f32, Memory::Shared, {64});
    k.kernel.shared.push_back(q);
    EXPECT_EQ(k.places({k.write(k.t), k.read(k.next()), store(q, {k.t}, k.one), store(k.x, {}, load(q, {k.next()})),
                        k.begin(k.r), k.write_r(k.t)}),
              "w|rr|rbv");
}

TEST(InsertBarriers, AroundALoopThatFillsAndReads) {
    Small k;
    EXPECT_EQ(k.places({loop(k.i, 8, {k.write(k.t), k.write_r(k.t), k.read(k.next()), k.read_r(k.next())})}),
              "(wv|rr|)");
    EXPECT_EQ(k.places({loop(k.i, 1, {k.write(k.t), k.read(k.next())})}), "(w|r)");
    // the one at the end of the body serves what follows too
    EXPECT_EQ(k.places({loop(k.i, 8, {k.write(k.t), k.read(k.next())}), k.write(k.next())}), "(w|r|)w");
    EXPECT_EQ(k.places({k.write(k.next()), loop(k.i, 8, {k.write(k.t), k.read(k.next())})}), "w(|w|r)");
}

TEST(InsertBarriers, OutsideOfLoopsWherePossible) {
    Small k;
    EXPECT_EQ(k.places({k.write(k.t), loop(k.i, 8, {k.read((k.t + k.i) % 64)})}), "w|(r)");
    EXPECT_EQ(k.places({loop(k.i, 8, {k.write(k.i * 8 + k.t % 8)}), loop(k.j, 8, {k.read((k.t + k.j) % 64)})}),
              "(w)|(r)")
        << "threads that are 8 apart store one value";
}

TEST(InsertBarriers, InnerLoopsInsideOfOuterOnes) {
    Small k;
    EXPECT_EQ(k.places({loop(k.i, 8, {loop(k.j, 8, {k.write(k.t), k.read(k.next())})})}), "((w|r|))");
    EXPECT_EQ(k.places({loop(k.i, 8, {k.write(k.t), loop(k.j, 8, {k.read((k.t + k.j) % 64)})})}), "(w|(r)|)");
}

TEST(InsertBarriers, TwoStagesNeedOneBarrierAnIteration) {
    Small k;
    Buffer ring = make_buffer("ring", f32, Memory::Shared, {2, 64});
    k.kernel.shared.push_back(ring);
    ThreadStmt fill = store(ring, {(k.i + 1) % 2, k.t}, k.one), use = store(k.x, {}, load(ring, {k.i % 2, k.next()}));
    std::string places = k.places({store(ring, {0, k.t}, k.one), loop(k.i, 8, {fill, use})});
    EXPECT_EQ(places.substr(0, 2), "r(");
    EXPECT_EQ(std::count(places.begin(), places.end(), '|'), 1) << places;
}

TEST(InsertBarriers, NeverUnderAConditionOfTheThread) {
    Small k;
    EXPECT_EQ(k.places({k.write(k.t), only_if(k.t < 8, {k.read(k.next())})}), "w|[r]");
    EXPECT_EQ(k.places({only_if(k.t < 8, {k.write(k.t)}), k.read(k.next())}), "[w]|r");
    // both inside: the condition is written twice
    EXPECT_EQ(k.places({only_if(k.t < 8, {k.write(k.t), k.read((k.t + 1) % 8)})}), "[w]|[r]");
    Expr half = index_variable("half");
    EXPECT_EQ(k.places({let(half, k.t / 2), only_if(half < 8, {loop(k.i, 2, {k.write(k.t)}), k.read(k.next())})}),
              "[(w)]|[r]");
}

TEST(InsertBarriers, MovesConditionsOfTheThreadIntoLoops) {
    Small k;
    EXPECT_EQ(k.places({only_if(k.t < 8, {loop(k.i, 8, {k.write(k.t), k.read((k.t + 1) % 8)})})}), "([w]|[r]|)");
    EXPECT_EQ(k.places({only_if(k.t < 8, {only_if(k.t > 2, {k.write(k.t), k.read(k.next())})})}), "[[w]]|[[r]]");
    Expr least = index_variable("least");
    EXPECT_EQ(k.places({only_if(
                  k.t < 8,
                  {loop(k.i, 8, {let(least, k.t / 4), only_if(k.t > least, {k.write(k.t)}), k.read((k.t + 1) % 8)})})}),
              "([[w]]|[r]|)");
}

TEST(InsertBarriers, NoneWhereOneThreadIsLeft) {
    Small k;
    Expr many = index_variable("many", 0, 4095);
    EXPECT_EQ(k.places({only_if(k.t == 0, {loop(many, 4096, {store(k.out, {many % 64 * 64 + many / 64}, k.one)})})}),
              "[(r)]");
    EXPECT_EQ(k.places({only_if(k.t < 1, {k.write(3)}), only_if(k.t == 0, {k.read(3)})}), "[w][r]");
    EXPECT_EQ(k.places({only_if(k.t == 0, {k.write(3)}), only_if(k.t == 1, {k.read(3)})}), "[w]|[r]");
    // Whatever data say about the place.
    Buffer count = make_buffer("count", i32, Memory::Registers, {});
    Expr place = (cast(i64, load(count, {})) + k.i) % 64;
    k.kernel.body = in_order({declare(k.x), declare(count), store(count, {}, constant(Type::I32, int64_t{5})),
                              loop(k.i, 8, {only_if(k.t == 0, {k.write(place)}), only_if(k.t < 1, {k.read(place)})})});
    EXPECT_EQ(count_barriers(insert_barriers(k.kernel)), 0);
}

TEST(InsertBarriers, AnOutputInThePlaceOfAnInput) {
    Small k;
    Buffer in = make_buffer("in", f32, Memory::Global, {4096});
    add_argument(k.kernel, in, false);
    ThreadStmt read_next = store(k.x, {}, load(in, {k.next()})), write = store(k.out, {k.t}, k.one);
    EXPECT_EQ(k.places({read_next, write}), "rr") << "two arrays";
    k.kernel.aliases = {{k.out, in}};
    EXPECT_EQ(k.places({read_next, write}), "r|r");
    EXPECT_EQ(k.places({store(k.out, {k.t}, load(in, {k.t}))}), "r");
}

TEST(InsertBarriers, UnderAConditionOfTheBlock) {
    Small k;
    k.kernel.grid[0] = 4;
    EXPECT_EQ(k.places({only_if(k.kernel.block[0] < 2, {k.write(k.t), k.read(k.next())})}), "[w|r]");
    // a write that may not happen: the barrier may stand on either side, the later one is outside
    EXPECT_EQ(k.places({only_if(k.kernel.block[0] < 2, {k.write(k.t)}), k.read(k.next())}), "[w]|r");
}

TEST(InsertBarriers, WideAccesses) {
    Small k;
    Buffer four = make_buffer("four", f32, Memory::Registers, {4});
    auto wide_write = only_if(k.t < 16, {wide(4, {k.s, {k.t * 4}}, {four, {0}})});
    EXPECT_EQ(k.places({declare(four), wide_write, k.read(k.t)}), "[]|r");
    EXPECT_EQ(k.places({declare(four), wide_write, only_if(k.t < 16, {k.read(k.t * 4 + 3)})}), "[][r]");
}

TEST(InsertBarriers, GlobalMemoryWithinABlock) {
    Small k;
    Expr block = k.kernel.block[0];
    auto write = store(k.out, {block * 64 + k.t}, k.one);
    auto read_own = store(k.x, {}, load(k.out, {block * 64 + k.t}));
    auto read_next = store(k.x, {}, load(k.out, {block * 64 + k.next()}));
    k.kernel.grid[0] = 64;
    EXPECT_EQ(k.places({write, read_own}), "rr");
    EXPECT_EQ(k.places({write, read_next}), "r|r");
}

TEST(InsertBarriers, ProvesLargeDomainsByDigits) {
    Small k;
    k.kernel.grid[0] = int64_t{1} << 20;
    Expr many = index_variable("many", 0, (1 << 20) - 1);
    Expr offset = k.kernel.block[0] * (int64_t{64} << 20) + many * 64 + k.t;
    k.kernel.body =
        in_order({declare(k.x), loop(many, 1 << 20, {store(k.out, {offset}, load(k.out, {offset}) + k.one)})});
    EXPECT_EQ(count_barriers(insert_barriers(k.kernel)), 0);
}

/// Rows of which each thread stores two, eight apart: too many columns to try them all.
TEST(InsertBarriers, ProvesRowsThatAreApart) {
    for (const int64_t apart : {8, 7}) {
        Small k;
        const int64_t length = int64_t{8} << 20;
        Expr many = index_variable("many", 0, (1 << 20) - 1), row = k.t / 8, column = many * 8 + k.t % 8;
        k.kernel.body = in_order({loop(
            many, 1 << 20,
            {store(k.out, {row * length + column}, k.one), store(k.out, {(row + apart) * length + column}, k.one)})});
        EXPECT_EQ(count_barriers(insert_barriers(k.kernel)) > 0, apart == 7);
    }
}

/// Pixels of a raster of 9 x 7 places, of which 8 x 5 are stored: digits below their places tell pixels apart.
TEST(InsertBarriers, ProvesDigitsThatMasksKeepInTheirPlaces) {
    for (const int64_t columns : {5, 6}) {
        Small k;
        k.kernel.grid[0] = int64_t{1} << 16;
        Expr place = k.kernel.block[0] * 512 + k.i * 64 + k.t, column = place % 7, row = place / 7 % 9;
        Expr pixel = place / 63 * 40 + row * 5 + column;
        auto masked = make_thread(ThreadIf{column < columns && row < 8, store(k.out, {pixel}, k.one)});
        k.kernel.body = in_order({loop(k.i, 8, {masked})});
        // A column behind the last one is the first of the next row.
        EXPECT_EQ(count_barriers(insert_barriers(k.kernel)), columns == 5 ? 0 : 1) << columns;
    }
}

/// Rows of 192 places, which tiles of 64 cut, of which fewer are stored; one thread of 32 walks a tile. The mask is of
/// a digit and what is below it together, and a place behind the loop's last one is no later one.
TEST(InsertBarriers, ProvesMasksOfSeveralDigits) {
    for (const int64_t columns : {191, 130, 192, 193}) {
        Small k;
        k.kernel.grid[0] = int64_t{1} << 16;
        Expr row = index_variable("row", 0, 63), tile = k.kernel.block[0] * 2 + k.t / 32, place = tile % 3 * 64 + row;
        Expr pixel = tile / 3 * std::min<int64_t>(columns, 191) + place;
        auto masked = make_thread(ThreadIf{k.t % 32 == 0 && place < columns, store(k.out, {pixel}, k.one)});
        k.kernel.body = in_order({loop(row, 64, {masked})});
        EXPECT_EQ(count_barriers(insert_barriers(k.kernel)), columns == 191 || columns == 130 ? 0 : 1) << columns;
    }
}

/// Tiles of 4 x 5 pixels, of 16 channels, two of which go beyond rows of nine: too many to try them all.
TEST(InsertBarriers, ProvesDimensionsThatMasksKeepApart) {
    for (const int64_t columns : {9, 10}) {
        Small k;
        const int64_t tiles = int64_t{1} << 20;
        Expr tile = index_variable("tile", 0, tiles - 1), inside = index_variable("inside", 0, 4);
        Expr row = tile / 2 * 4 + k.t / 16, column = tile % 2 * 5 + inside;
        auto masked =
            make_thread(ThreadIf{column < columns, store(k.out, {(row * 9 + column) * 16 + k.t % 16}, k.one)});
        k.kernel.body = in_order({loop(tile, tiles, {loop(inside, 5, {masked})})});
        // A column behind the last one is the first of the next row, and another thread's.
        EXPECT_EQ(count_barriers(insert_barriers(k.kernel)), columns == 9 ? 0 : 1) << columns;
    }
}

/// The same of any sizes, small enough to try: what is proved is true, element by element.
TEST(InsertBarriers, ProvesNothingThatIsWrongOfDimensions) {
    std::mt19937 random(23);
    auto between = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
    int without = 0, with = 0;
    for (int round = 0; round < 300; ++round) {
        Small k;
        const int64_t channels = int64_t{1} << between(0, 4), along = between(1, 3), each = between(1, 4);
        Expr tile = index_variable("tile", 0, along * 3 - 1), inside = index_variable("inside", 0, each - 1);
        const int64_t extent = along * each - between(0, each), before = between(0, 1);
        Expr row = tile / along * (64 / channels) + k.t / channels, column = tile % along * each + inside - before;
        Expr mask = column < extent + between(0, 1);
        if (before > 0 && between(0, 3) > 0) mask = mask && column >= 0;
        auto masked = make_thread(ThreadIf{
            simplify(mask),
            store(k.out, {64 + (row * std::max<int64_t>(extent, 1) + column) * channels + k.t % channels}, k.one)});
        k.kernel.body = in_order({loop(tile, along * 3, {loop(inside, each, {masked})})});
        ThreadKernel placed;
        try {
            placed = insert_barriers(k.kernel);
        } catch (const std::exception&) {
            continue;  // a store of its own
        }
        ++(count_barriers(placed) > 0 ? with : without);
        ASSERT_EQ(find_race(placed), "") << to_string(placed);
    }
    EXPECT_GT(without, 30);
    EXPECT_GT(with, 30);
}

/// Numbers of blocks, threads and loops, taken apart into digits and put together anew, with masks: what is proved is
/// true, element by element.
TEST(InsertBarriers, ProvesNothingThatIsWrong) {
    std::mt19937 random(17);
    auto between = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
    int without = 0, with = 0;
    for (int round = 0; round < 800; ++round) {
        Small k;
        k.kernel.grid[0] = 4;
        const int64_t lane = int64_t{1} << between(0, 5), rows = between(1, 5);
        Expr row = index_variable("row", 0, rows - 1);
        const Expr tile = k.kernel.block[0] * (64 / lane) + k.t / lane;
        const int64_t low = between(1, 7), high = between(1, 7), step = between(1, 3);
        auto stores = [&] {
            const Expr number = between(0, 1) ? tile * rows + row : tile * (rows * step) + row * step;
            const Expr digit = number % low, middle = number / low % high, top = number / (low * high);
            const int64_t next = between(1, low + 1), last = next * between(1, high + 1);
            Expr place = simplify(top * last + middle * next + digit + between(0, 2) * between(0, last));
            if (between(0, 1)) place = simplify(place * lane + k.t % lane);
            Expr mask = digit < between(1, low) && middle < between(1, high);
            if (between(0, 1)) mask = mask && k.t % lane == 0;
            return make_thread(ThreadIf{simplify(mask), store(k.out, {place}, k.one)});
        };
        k.kernel.body = loop(row, rows, {stores(), stores()});
        ThreadKernel placed;
        try {
            placed = insert_barriers(k.kernel);
        } catch (const std::exception&) {
            continue;  // a store of its own
        }
        ++(count_barriers(placed) > 0 ? with : without);
        for (int64_t block = 0; block < 4; ++block)
            ASSERT_EQ(find_race(placed, {block, 0, 0}), "") << to_string(placed);
    }
    EXPECT_GT(without, 50);
    EXPECT_GT(with, 50);
}

TEST(InsertBarriers, AssumesTheWorstOfWhatItCannotProve) {
    Small k;
    Buffer index = make_buffer("index", i32, Memory::Global, {64});
    add_argument(k.kernel, index, false);
    k.kernel.body = in_order({declare(k.x), k.write(k.t), store(k.x, {}, load(k.s, {cast(i64, load(index, {k.t}))}))});
    EXPECT_EQ(count_barriers(insert_barriers(k.kernel)), 1);
}

TEST(InsertBarriers, RefusesARaceWithinAStatement) {
    Small k;
    k.kernel.body = in_order({store(k.s, {k.t}, load(k.s, {k.next()}))});
    EXPECT_THROW(insert_barriers(k.kernel), InternalError);
}

TEST(InsertBarriers, KeepsCommentsWithWhatTheyAreAbout) {
    Small k;
    k.kernel.body = in_order({declare(k.x), k.write(k.t), comment("read"), k.read(k.next())});
    EXPECT_NE(to_string(insert_barriers(k.kernel)).find("barrier\n  # read"), std::string::npos);
}

TEST(InsertBarriers, WholeKernels) {
    for (const ThreadKernel& kernel : {copy_kernel(1000), transpose_kernel(), sgemm_kernel(), softmax_kernel()}) {
        ThreadKernel placed = insert_barriers(kernel);
        EXPECT_EQ(find_race(placed), "") << to_string(placed);
        for (int n = 0; n < count_barriers(placed); ++n)
            EXPECT_NE(find_race(without_barrier(placed, n)), "") << to_string(placed);
    }
    EXPECT_EQ(count_barriers(insert_barriers(copy_kernel(1000))), 0);
    EXPECT_EQ(count_barriers(insert_barriers(transpose_kernel())), 1);
    EXPECT_EQ(count_barriers(insert_barriers(sgemm_kernel())), 2);
    EXPECT_EQ(count_barriers(insert_barriers(softmax_kernel())), 3);
}

TEST(HittingSet, Cheapest) {
    EXPECT_EQ(cheapest_hitting_set({}, {1, 1}), std::vector<int>{});
    EXPECT_EQ(cheapest_hitting_set({{0, 1}, {1, 2}}, {1, 1, 1}), std::vector<int>{1});
    EXPECT_EQ(cheapest_hitting_set({{0, 1}, {1, 2}}, {1, 3, 1}), (std::vector<int>{0, 2}));
    EXPECT_EQ(cheapest_hitting_set({{0, 1}}, {1, 1}), std::vector<int>{1}) << "the later one";
    EXPECT_EQ(cheapest_hitting_set({{0, 1, 2}, {1}}, {1, 9, 1}), std::vector<int>{1});
}

}  // namespace
}  // namespace tw::codegen

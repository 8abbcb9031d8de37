// Reads of neighbours become wide ones, of random records behind random masks: results stay, accesses get fewer, and
// nothing is read that the kernel does not read, or has no part in a group with it.
#include <cmath>
#include <random>

#include <gmock/gmock.h>

#include "codegen/thread_ir/thread_walk.h"
#include "codegen/thread_passes/thread_passes.h"
#include "tests/codegen/run_threads.h"
#include "thread_kernels.h"

namespace tw::codegen {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int threads = 4;

/// y[thread * results + ..] of records of x and w.
struct Records {
    ThreadKernel kernel = empty_kernel("records", threads);
    Buffer x, y;
    Expr thread() const { return kernel.thread; }
    Expr at(const Expr& index) const { return cast_unchecked(f32, load(x, {index})); }

    explicit Records(int64_t elements, int64_t results = 1, Type type = f32, bool written = false) {
        x = make_buffer("x", type, Memory::Global, {elements});
        y = make_buffer("y", f32, Memory::Global, {threads * results});
        add_argument(kernel, x, written);
        add_argument(kernel, y, true);
    }
    std::string joined(std::vector<ThreadStmt> body) {
        kernel.body = in_order(std::move(body));
        verify_thread_ir(kernel);
        const ThreadKernel changed = join_reads(kernel);
        verify_thread_ir(changed);
        return to_string(changed.body);
    }
    std::string joined(const Expr& value) { return joined({store(y, {thread()}, value)}); }
};

TEST(JoinReads, OfARecord) {
    Records r(threads * 4);
    const Expr first = r.thread() * 4;
    EXPECT_EQ(r.joined(r.at(first) * r.at(first + 3) + r.at(first + 1)),
              "declare f32 x_values[4]\n"
              "x_values[0] = x[thread * 4], 4 wide\n"
              "y[thread] = x_values[0] * x_values[3] + x_values[1]\n");
}

TEST(JoinReads, AsWideAsPlacesAllow) {
    for (const auto& [type, record, width] : {std::tuple<Type, int, int>{f32, 2, 2},
                                              {f32, 6, 2},
                                              {f32, 8, 4},
                                              {bf16, 8, 8},
                                              {bf16, 4, 4},
                                              {bf16, 12, 4},
                                              {f32, 3, 1},
                                              {e4m3, 16, 16}}) {
        Records r(threads * record, 1, type);
        Expr all = r.at(r.thread() * record);
        for (int n = 1; n < record; ++n) all = all + r.at(r.thread() * record + n);
        const std::string text = r.joined(all), wide = std::to_string(width) + " wide";
        if (width > 1)
            EXPECT_THAT(text, HasSubstr(wide)) << record;
        else
            EXPECT_THAT(text, Not(HasSubstr("wide"))) << record;
    }
}

/// Half of a group at least, and no more of it than there is.
TEST(JoinReads, NothingThatIsNotWantedOrNotThere) {
    Records r(threads * 8);
    const Expr first = r.thread() * 8;
    EXPECT_THAT(r.joined(r.at(first) + r.at(first + 4)), Not(HasSubstr("wide")));
    EXPECT_THAT(r.joined(r.at(first) + r.at(first + 2)), HasSubstr("4 wide"));
    Records ragged(threads * 8 - 1);
    const Expr there = ragged.thread() * 8;
    EXPECT_THAT(ragged.joined(ragged.at(there) + ragged.at(there + 2)), Not(HasSubstr("wide")));
    EXPECT_THAT(ragged.joined(ragged.at(there) + ragged.at(there + 1)), HasSubstr("2 wide"));
}

TEST(JoinReads, OfPointsByTheIterationsOfALoop) {
    Records r(threads * 12, 4);
    const Expr i = index_variable("i", 0, 3), first = r.thread() * 12 + i * 3;
    EXPECT_EQ(
        r.joined({unrolled(i, 4, {store(r.y, {r.thread() * 4 + i}, r.at(first) * r.at(first + 1) + r.at(first + 2))})}),
        "declare f32 x_values[12]\n"
        "unroll vector < 3\n"
        "  x_values[vector * 4] = x[thread * 12 + vector * 4], 4 wide\n"
        "unroll i < 4\n"
        "  y[thread * 4 + i] = x_values[i * 3] * x_values[i * 3 + 1] + x_values[i * 3 + 2]\n");
}

/// Of records in a loop, each iteration reads its own.
TEST(JoinReads, InsideOfLoopsWhereThatTakesNoMore) {
    Records r(threads * 16, 4);
    const Expr i = index_variable("i", 0, 3), first = r.thread() * 16 + i * 4;
    EXPECT_EQ(r.joined({unrolled(i, 4, {store(r.y, {r.thread() * 4 + i}, r.at(first) + r.at(first + 3))})}),
              "unroll i < 4\n"
              "  declare f32 x_values[4]\n"
              "  x_values[0] = x[thread * 16 + i * 4], 4 wide\n"
              "  y[thread * 4 + i] = x_values[0] + x_values[3]\n");
}

/// Neighbours of neighbours: what stands beside whole groups is read alone.
TEST(JoinReads, OfWindows) {
    Records r(threads * 4 + 2, 4);
    const Expr i = index_variable("i", 0, 3), first = r.thread() * 4 + i;
    EXPECT_EQ(r.joined({unrolled(i, 4, {store(r.y, {r.thread() * 4 + i}, r.at(first) + r.at(first + 2))})}),
              "declare f32 x_values[6]\n"
              "x_values[0] = x[thread * 4], 4 wide\n"
              "x_values[4] = x[thread * 4 + 4], 2 wide\n"
              "unroll i < 4\n"
              "  y[thread * 4 + i] = x_values[i] + x_values[i + 2]\n");
}

// ---- conditions -----------------------------------------------------------------------------------------------------

TEST(JoinReads, BehindTheSameCondition) {
    Records r(threads * 2);
    const Expr seen = r.thread() < 3, first = r.thread() * 2;
    EXPECT_EQ(r.joined(select(seen, r.at(first), 1.0) * select(seen, r.at(first + 1), 2.0)),
              "declare f32 x_values[2]\n"
              "if thread < 3\n"
              "  x_values[0] = x[thread * 2], 2 wide\n"
              "y[thread] = select(thread < 3, x_values[0], 1.0) * select(thread < 3, x_values[1], 2.0)\n");
}

TEST(JoinReads, NotBehindAnotherCondition) {
    Records r(threads * 2);
    const Expr first = r.thread() * 2;
    EXPECT_THAT(r.joined(select(r.thread() < 3, r.at(first), 1.0) * select(r.thread() < 2, r.at(first + 1), 2.0)),
                Not(HasSubstr("wide")));
    EXPECT_THAT(r.joined(select(r.thread() < 3, r.at(first), 1.0) * r.at(first + 1)), Not(HasSubstr("wide")));
}

TEST(JoinReads, OfBothOutcomes) {
    Records r(threads * 2);
    const Expr first = r.thread() * 2, a = r.at(first), b = r.at(first + 1);
    EXPECT_THAT(r.joined(select(r.thread() < 3, a - b, r.at(first + 1) * r.at(first))), HasSubstr("2 wide"));
}

/// A complex number: which outcome an iteration has is known.
TEST(JoinReads, WhereIterationsDecide) {
    Records r(threads * 2, 2);
    const Expr d = index_variable("d", 0, 1), first = r.thread() * 2;
    EXPECT_EQ(r.joined({unrolled(d, 2, {store(r.y, {first + d}, select(d == 0, -r.at(first + 1), r.at(first)))})}),
              "declare f32 x_values[2]\n"
              "x_values[0] = x[thread * 2], 2 wide\n"
              "unroll d < 2\n"
              "  y[thread * 2 + d] = select(d == 0, -x_values[1], x_values[0])\n");
}

// ---- what must stay -------------------------------------------------------------------------------------------------

TEST(JoinReads, NotOfWhatIsWritten) {
    Records r(threads * 2, 1, f32, true);
    EXPECT_THAT(r.joined(r.at(r.thread() * 2) + r.at(r.thread() * 2 + 1)), Not(HasSubstr("wide")));
}

TEST(JoinReads, NotWherePlacesChange) {
    Records r(threads * 2);
    const Buffer place = make_buffer("place", i32, Memory::Registers, {1});
    auto element = [&](int n) { return r.at(cast(Type::I64, load(place, {integer(0)})) * 2 + n); };
    auto moved = [&](int by) { return store(place, {integer(0)}, cast(i32, r.thread() % (4 - by))); };
    EXPECT_THAT(r.joined({declare(place), moved(0), store(r.y, {r.thread()}, element(0) + element(1))}),
                HasSubstr("2 wide"));
    EXPECT_THAT(r.joined({declare(place), moved(0), store(r.y, {r.thread()}, element(0)), moved(1),
                          store(r.y, {r.thread()}, element(1))}),
                Not(HasSubstr("wide")));
}

// ---- random kernels -------------------------------------------------------------------------------------------------

/// Accesses of memory that each thread makes where all conditions hold.
int64_t accesses_of(const ThreadStmt& stmt) {
    int64_t own = 0;
    for (const MemoryAccess& access : memory_accesses(stmt))
        own += !access.writes && access.place.buffer->memory != Memory::Registers;
    for (const ThreadStmt& kid : children(stmt)) own += accesses_of(kid);
    const ThreadLoop* loop = stmt.as<ThreadLoop>();
    return loop ? own * require_constant(loop->extent) : own;
}

class RandomRecords {
public:
    explicit RandomRecords(unsigned seed) : random_(seed) {}

    /// Whether the pass has found something.
    bool check() {
        const int64_t record = between(1, 9), copies = between(1, 4), count = between(1, 3);
        const Type type = std::vector<Type>{f32, bf16, f16, e4m3}[between(0, 3)];
        elements_ = threads * record * copies + between(0, 3);
        Records r(elements_, copies * count, type);
        const Expr i = index_variable("i", 0, copies - 1);
        std::vector<ThreadStmt> body;
        for (int64_t n = 0; n < count; ++n)
            body.push_back(store(r.y, {(r.thread() * copies + i) * count + n}, value(r, i, record, copies)));
        r.kernel.body = unrolled(i, copies, std::move(body));
        if (chance(3)) r.kernel.body = loop(i, copies, {statements(r.kernel.body.as<ThreadLoop>()->body)});
        const ThreadKernel changed = join_reads(r.kernel);
        verify_thread_ir(changed);
        Machine before = machine(r), after = before;
        run_threads(r.kernel, before);
        run_threads(changed, after);
        EXPECT_EQ(before.memory["y"], after.memory["y"]) << to_string(r.kernel) << to_string(changed);
        const int64_t was = accesses_of(r.kernel.body), is = accesses_of(changed.body);
        EXPECT_LE(is, was) << to_string(changed);
        return is < was;
    }

private:
    int64_t between(int64_t least, int64_t most) {
        return std::uniform_int_distribution<int64_t>(least, most)(random_);
    }
    bool chance(int one_in) { return between(1, one_in) == 1; }

    Machine machine(const Records& r) {
        Machine machine;
        for (int64_t n = 0; n < elements_; ++n) machine.memory["x"].push_back(static_cast<double>(between(-9, 9)));
        machine.memory["y"].assign(static_cast<size_t>(require_constant(r.y->shape[0])), std::nan(""));
        return machine;
    }

    Expr condition(const Records& r, const Expr& i) {
        if (chance(2)) return r.thread() < between(1, threads);
        return chance(2) ? i < between(0, 3) : r.thread() + i < between(1, 6);
    }

    /// A sum of few elements of the record, each perhaps behind a condition.
    Expr value(const Records& r, const Expr& i, int64_t record, int64_t copies) {
        const Expr first = (r.thread() * copies + i) * record, one = condition(r, i);
        Expr sum = constant(f32, 0.0);
        for (int64_t n = between(1, 6); n > 0; --n) {
            const Expr element = r.at(simplify(first + between(0, record - 1))), none = constant(f32, 1.0);
            if (chance(3))
                sum = sum + select(chance(2) ? one : condition(r, i), element, none);
            else if (chance(5))
                sum = select(condition(r, i), sum + element, sum - element);
            else
                sum = sum + element;
        }
        return sum;
    }

    std::mt19937 random_;
    int64_t elements_ = 0;
};

TEST(JoinReads, RandomRecords) {
    int found = 0;
    for (unsigned seed = 0; seed < 400 && !testing::Test::HasFailure(); ++seed) found += RandomRecords(seed).check();
    EXPECT_GT(found, 100);
}

}  // namespace
}  // namespace tw::codegen

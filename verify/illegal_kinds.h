// Illegal steps by kind: what a try of one is, and the random schedules that they are tried on.
#pragma once
#include <filesystem>
#include <memory>
#include <source_location>
#include <span>

#include "dsl/schedule.h"
#include "support/error.h"
#include "verify/random.h"

namespace tw::fuzz::illegal {

/// One try of a kind: runs the step and keeps what it threw.
class Attempt {
public:
    explicit Attempt(Random& random) : random(random) {}

    /// The step must stand on the line of this call, or on the two below.
    template <class Action>
    void step(Schedule& schedule, Action action, std::source_location where = std::source_location::current()) {
        std::string tree = schedule.to_string(), trace = schedule.save();
        declare(action, where);
        unchanged = schedule.to_string() == tree && schedule.save() == trace;
    }
    /// A declaration, likewise: there is no schedule yet.
    template <class Action>
    void declare(Action action, std::source_location where = std::source_location::current()) {
        file = std::filesystem::path(where.file_name()).filename();
        first_line = where.line();
        unchanged = true;
        try {
            action();
        } catch (const Error& error) {
            refused = true;
            message = error.what();
            site = error.site();
        } catch (const std::exception& error) {
            message = fmt::format("not a tw::Error: {}", error.what());
        }
    }

    /// 4 or more, with a divisor.
    int64_t extent() { return random.pick<int64_t>({4, 6, 8, 9, 10, 12, 14, 15, 16}); }
    int64_t stranger(int64_t extent) {  // no divisor of the extent
        int64_t size;
        do size = random.between(2, 2 * extent);
        while (extent % size == 0);
        return size;
    }
    Level parallel() {
        return random.pick<Level>({Level::GridX, Level::GridY, Level::GridZ, Level::Thread, Level::Warp});
    }
    Level threads() { return random.pick<Level>({Level::Thread, Level::Warp}); }

    Random& random;
    bool refused = false, unchanged = false;
    std::string message;
    const CheckSite* site = nullptr;
    std::string file;
    unsigned first_line = 0;
};

struct Product {
    explicit Product(Attempt& t) : m(t.extent()), n(t.extent()), depth(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{c}, target("sm_90a"));
        std::tie(i, j) = std::pair(s->loops<2>(c)[0], s->loops<2>(c)[1]);
        k = s->reduce(c);
    }
    int64_t m, n, depth;
    Tensor a = input("a", f32, {m, depth}), b = input("b", f32, {depth, n});
    Axis axis = reduce_axis("k", depth);
    Tensor c = compute("c", {m, n}, [&](Expr i, Expr j) { return sum(a(i, axis) * b(axis, j), axis); });
    std::unique_ptr<Schedule> s;
    Loop i, j, k;
};

/// x -> y -> z, elementwise; w also reads y.
struct Chain {
    explicit Chain(Attempt& t, bool two_readers = false) : m(t.extent()), n(t.extent()) {
        std::vector<Tensor> outputs = {z};
        if (two_readers) outputs.push_back(w);
        s = std::make_unique<Schedule>(outputs, target("sm_90a"));
        std::tie(i, j) = std::pair(s->loops<2>(z)[0], s->loops<2>(z)[1]);
        std::tie(yi, yj) = std::pair(s->loops<2>(y)[0], s->loops<2>(y)[1]);
    }
    int64_t m, n;
    Tensor x = input("x", f32, {m, n});
    Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Tensor z = compute("z", {m, n}, [&](Expr i, Expr j) { return y(i, j) * 2.0; });
    Tensor w = compute("w", {m, n}, [&](Expr i, Expr j) { return y(i, j) * 3.0; });
    std::unique_ptr<Schedule> s;
    Loop i, j, yi, yj;
};

/// A row sum and what is made of it.
struct Rows {
    explicit Rows(Attempt& t) : m(t.extent()), n(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{y}, target("sm_90a"));
    }
    int64_t m, n;
    Tensor x = input("x", f32, {m, n});
    Axis k = reduce_axis("k", n);
    Tensor total = compute("total", {m}, [&](Expr i) { return sum(x(i, k), k); });
    Tensor y = compute("y", {m, n}, [&](Expr i, Expr j) { return x(i, j) / total(i); });
    std::unique_ptr<Schedule> s;
};

/// A named size n.
struct Symbolic {
    explicit Symbolic(Attempt& t) : columns(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{total}, target("sm_90a"));
    }
    int64_t columns;
    Expr n = size("n", {.min = 1, .max = 100});
    Axis r = reduce_axis("r", n), q = reduce_axis("q", columns);
    Tensor x = input("x", f32, {n, columns});
    Tensor y = compute("y", {n, columns}, [&](Expr i, Expr j) { return x(i, j) + 1.0; });
    Tensor total = compute("total", {columns}, [&](Expr j) { return sum(y(r, j), r); });
    Tensor rows = compute("rows", {n}, [&](Expr i) { return sum(x(i, q), q); });
    std::unique_ptr<Schedule> s;
};

/// d[ids[r], j] += x[r, j]
struct Scattered {
    explicit Scattered(Attempt& t) : rows(t.extent()), terms(t.extent()), columns(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{d}, target("sm_90a"));
    }
    int64_t rows, terms, columns;
    Tensor ids = input("ids", i32, {terms}), x = input("x", f32, {terms, columns});
    Axis r = reduce_axis("r", terms);
    Tensor d = compute("d", {rows, columns}, [&](Expr i, Expr j) { return sum(select(ids(r) == i, x(r, j), 0.0), r); });
    std::unique_ptr<Schedule> s;
};

/// A maximum of floats.
struct Wide {
    explicit Wide(Attempt& t) : n(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{most}, target("sm_90a"));
    }
    int64_t n;
    Tensor x = input("x", f32, {n, n});
    Axis k = reduce_axis("k", n);
    Tensor most = compute("most", {n}, [&](Expr i) { return reduce_max(cast(f64, x(i, k)), k); });
    std::unique_ptr<Schedule> s;
};

/// A reducer that does not commute, its loop split.
struct LastOfEachRow {
    explicit LastOfEachRow(Attempt& t) : m(t.extent()), n(t.extent()) {
        s = std::make_unique<Schedule>(std::vector<Tensor>{y}, target("sm_90a"));
        auto parts = s->split(s->reduce(y), 2, Tail::Mask);
        ko = parts[0];
        ki = parts[1];
    }
    int64_t m, n;
    Tensor x = input("x", i32, {m, n});
    Axis k = reduce_axis("k", n);
    Reducer last = make_reducer(
        "last", {constant(i32, 0)}, [](const std::vector<Expr>&, const std::vector<Expr>& b) { return b; }, false);
    Tensor y = compute("y", {m}, [&](Expr i) { return reduce(last, {x(i, k)}, {k})[0]; });
    std::unique_ptr<Schedule> s;
    Loop ko, ki;
};

/// Builds a random context and performs one step that must be refused.
struct Kind {
    const char* name;
    const char* expected;  ///< part of the message
    void (*make)(Attempt&);
};

std::span<const Kind> kinds_of_declarations();
std::span<const Kind> kinds_of_loops();
std::span<const Kind> kinds_of_stages();
std::span<const Kind> kinds_of_reductions();

}  // namespace tw::fuzz::illegal

// Stages that reduce nothing, as choose_schedule deals out their elements: each gives what it declares, by accesses as
// wide as elements that lie side by side allow, and as few of them as schedules by hand make.
#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>

#include "codegen/cost/predict_time.h"
#include "ops/check.h"
#include "runtime/driver/emulated_device.h"
#include "schedules/catalog.h"
#include "schedules/choose.h"
#include "schedules/long_reductions.h"
#include "tests/ops/random_cases.h"
#include "tests/schedules/integers_for.h"

namespace tw::schedules {
namespace {

/// Of few multiprocessors, so that small arrays have work for all of them.
Target small_target(int multiprocessors = 2) {
    Target few = target("sm_90a");
    few.multiprocessors = multiprocessors;
    return few;
}

/// What the emulator counts.
struct Counted {
    emulator::Statistics all;
    std::vector<emulator::Statistics::Site> sites;

    /// Bytes of the widest access to the buffer in one of its kernels, and the narrowest; 0 without.
    std::pair<int, int> widths(const std::string& buffer) const {
        std::pair<int, int> found{0, 0};
        for (const auto& site : sites)
            if (site.memory.find(buffer) != std::string::npos && !site.shared)
                found = {std::max(found.first, site.bytes),
                         found.second == 0 ? site.bytes : std::min(found.second, site.bytes)};
        return found;
    }
};
Counted counted(const Schedule& s, const Bindings& bindings) {
    const auto device = open_device("emulated:sm_90a");
    as_emulated(*device).set_options({.statistics = true});
    Executable executable(build(s), device);
    run_on(executable, bindings);
    return {as_emulated(*device).statistics(), as_emulated(*device).last_report().statistics.sites};
}

/// Random elementwise computations.
class Maker {
public:
    /// `turned`: of rather many elements, whose axes other operands have in other orders.
    explicit Maker(std::mt19937& random, bool turned = false) : random_(random), turned_(turned) {}

    std::vector<Tensor> make() {
        const int rank = between(turned_ ? 2 : 1, 4);
        std::vector<int64_t> extents;
        int64_t left = turned_ ? 50000 : between(1, 3) == 1 ? 40000 : 4000;
        for (int d = rank; d-- > 0;) {
            const int64_t most = std::max<int64_t>(d == 0 ? left : left / 4, 1);
            int64_t extent = chance() ? 8 * between(1, 16) : between(1, 90);
            if (turned_ && d == 0) extent = most;
            extent = std::min(extent, most);
            extents.insert(extents.begin(), extent);
            left = std::max<int64_t>(left / extent, 1);
        }
        extents_ = extents;
        const int outputs = between(1, 3) == 1 ? 2 : 1;
        const Shape shape(extents.begin(), extents.end());
        if (outputs == 2)
            return compute_tuple("pair", shape, [&](const std::vector<Expr>& i) {
                const Expr a = value(i), b = value(i);
                return std::vector<Expr>{stored(a + b), stored(a - b)};
            });
        std::vector<Tensor> found{compute("y", shape, [&](const std::vector<Expr>& i) { return stored(value(i)); })};
        if (chance())  // beside it, of the same elements, or of what it makes
            found.push_back(compute("z", shape, [&](const std::vector<Expr>& i) {
                const std::vector<Operand> own(i.begin(), i.end());
                return stored(chance() ? value(i) : cast(f32, found[0].read(own)) * 2.0 + value(i));
            }));
        return found;
    }

private:
    int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
    bool chance() { return between(0, 1) == 1; }
    Type some_type() { return std::array{f32, bf16, f16, i8, f32}[static_cast<size_t>(between(0, 4))]; }
    std::string name(const char* what) { return fmt::format("{}{}", what, names_++); }
    Expr stored(const Expr& value) { return cast(some_type(), min(max(value, -100.0), 100.0)); }

    Expr value(const std::vector<Expr>& i) {
        Expr all = term(i);
        for (int more = between(0, 2); more > 0; --more) {
            const Expr other = term(i);
            switch (between(0, 4)) {
                case 0: all = all + other; break;
                case 1: all = max(all, other); break;
                case 2: all = select(i.back() < extents_.back() / 2, all, other); break;  // one beside the other
                case 3: all = select(all < other, all * 2.0, other); break;
                default: all = all - other; break;
            }
        }
        return all;
    }

    /// An element that lies somewhere: at the place itself, without some axes, with others in their place, shifted,
    /// strided, reversed, in a row that data name.
    Expr term(const std::vector<Expr>& i) {
        std::vector<size_t> axes(i.size());
        std::iota(axes.begin(), axes.end(), 0);
        const int kind = turned_ ? between(0, 5) : between(0, 9);
        if (kind == 1 || kind == 2) std::erase_if(axes, [&](size_t) { return chance(); });
        if (kind >= 3 && kind <= 5) std::shuffle(axes.begin(), axes.end(), random_);
        std::vector<int64_t> shape;
        std::vector<Operand> at;
        for (size_t d : axes) {
            shape.push_back(extents_[d]);
            at.emplace_back(i[d]);
        }
        if (!axes.empty() && kind == 6) {  // a slice
            const int64_t first = chance() ? 8 : between(1, 5);
            shape.back() += first + (chance() ? 0 : 3);
            at.back() = Operand(at.back().expr + first);
        }
        if (!axes.empty() && kind == 7) {
            shape.back() *= 2;
            at.back() = Operand(at.back().expr * 2);
        }
        if (!axes.empty() && kind == 8) at.back() = Operand(shape.back() - 1 - at.back().expr);
        if (axes.size() > 1 && kind == 9) {  // a row that data name
            const Tensor ids = input(name("ids"), i32, {shape[0]});
            shape[0] = between(1, 20);
            at[0] = Operand(cast(i64, ids(at[0].expr)));
        }
        const Tensor x = input(name("x"), some_type(), Shape(shape.begin(), shape.end()));
        if (!axes.empty() && between(0, 7) == 0) {
            at.back() = Operand(at.back().expr - 1);
            return cast(f32, padded(x, 0).read(at));
        }
        return cast(f32, x.read(at));
    }

    std::mt19937& random_;
    bool turned_;
    std::vector<int64_t> extents_;
    int names_ = 0;
};

/// Whole numbers, and indices within what they are for.
Bindings data_for(const std::vector<Tensor>& outputs) {
    Bindings bindings = random_bindings(outputs, 5);
    uint64_t seed = 1;
    for (auto& [name, array] : bindings.inputs)
        if (array.type != i32) fill_integers(array, -4, 4, seed++);
    return bindings;
}

class ChosenElements : public RandomCases {
protected:
    ChosenElements() : RandomCases(91), random_(2024) {}

    /// The steps of a random computation's schedule, which gives what is declared.
    std::string checked_steps(bool turned, int multiprocessors) {
        const std::vector<Tensor> outputs = Maker(random_, turned).make();
        Target few = device_target();
        few.multiprocessors = multiprocessors;
        const Schedule s = choose_schedule(outputs, few);
        const std::string steps = s.trace_as_cpp();
        SCOPED_TRACE(fmt::format("{}\n{}", to_string(*outputs.back().operation()), steps));
        expect_declared(s, data_for(outputs));
        return steps;
    }

private:
    std::mt19937 random_;
};
TW_ON_EACH_DEVICE(ChosenElements);

TEST_P(ChosenElements, GiveWhatIsDeclared) {
    int wide = 0;
    for (int round = 0; round < 50 && !HasFailure(); ++round)
        wide += checked_steps(false, round % 4 == 0 ? 132 : 2).find("vector)") != std::string::npos;
    EXPECT_GT(wide, 14);
}

TEST_P(ChosenElements, GiveWhatIsDeclaredInTiles) {
    int tiled = 0;
    for (int round = 0; round < 18 && !HasFailure(); ++round)
        tiled += checked_steps(true, 2).find("Memory::Shared") != std::string::npos;
    EXPECT_GT(tiled, 5);
}

/// The elements that lie side by side in memory move 16 bytes at a time, of the widest type.
TEST(ChosenVectors, AreAsWideAsElementsAllow) {
    constexpr int64_t N = 6, P = 10, C = 96;
    const Tensor x = input("x", bf16, {N, P, P, C}), scale = input("scale", f32, {C}),
                 r = input("r", bf16, {N, P, P, C});
    const Tensor wide = input("wide", f32, {N, P, P, C}), table = input("table", bf16, {50, C});
    const Tensor ids = input("ids", i32, {N, P, P}), odd = input("odd", f32, {3, 2000 - 3});
    auto images = [&](Type type, const std::function<Expr(Expr, Expr, Expr, Expr)>& body) {
        return compute("y", {N, P, P, C}, [&](Expr n, Expr p, Expr q, Expr c) { return cast(type, body(n, p, q, c)); });
    };
    struct Case {
        Tensor y;
        std::vector<std::pair<const char*, int>> widths;
    };
    for (const auto& [y, widths] : {
             Case{images(bf16, [&](auto n, auto p, auto q,
                                   auto c) { return cast(f32, x(n, p, q, c)) + cast(f32, r(n, p, q, c)); }),
                  {{"x", 16}, {"r", 16}, {"y", 16}}},
             Case{images(f32, [&](auto n, auto p, auto q, auto c) { return cast(f32, x(n, p, q, c)) * scale(c); }),
                  {{"x", 8}, {"scale", 16}, {"y", 16}}},
             Case{images(bf16, [&](auto n, auto p, auto q, auto c) { return wide(n, p, q, c) * scale(c); }),
                  {{"wide", 16}, {"scale", 16}, {"y", 8}}},
             Case{images(bf16, [&](auto n, auto p, auto q, auto c) { return table(cast(i64, ids(n, p, q)), c); }),
                  {{"table", 16}, {"y", 16}}},
             Case{images(bf16, [&](auto n, auto p, auto q, auto c) { return x(n, p, P - 1 - q, c); }),
                  {{"x", 16}, {"y", 16}}},
             Case{compute("y", {3, 2000 - 3}, [&](Expr i, Expr j) { return odd(i, j) * 2.0; }),
                  {{"odd", 16}, {"y", 16}}},
         }) {
        const Schedule s = choose_schedule({y}, small_target());
        SCOPED_TRACE(s.trace_as_cpp());
        const Counted count = counted(s, data_for({y}));
        for (const auto& [buffer, bytes] : widths) EXPECT_EQ(count.widths(buffer).first, bytes) << buffer;
    }
}

/// Points, in vectors of several, boxes, complex numbers, boxes that data choose: the elements of each by one access.
TEST(ChosenRecords, AreReadWhole) {
    constexpr int64_t N = 300;
    const Tensor a = input("a", f32, {N, 4}), b = input("b", f32, {N, 4}), z = input("z", f32, {N, 2}),
                 w = input("w", bf16, {N, 2}), ids = input("ids", i32, {N});
    const Tensor common = compute("common", {N, N}, [&](Expr i, Expr j) {
        auto along = [&](int d) { return max(min(a(i, d + 2), b(j, d + 2)) - max(a(i, d), b(j, d)), 0.0); };
        return along(0) * along(1);
    });
    const Tensor product = compute("product", {N, 2}, [&](Expr n, Expr d) {
        const Expr re = cast(f32, w(n, 0)), im = cast(f32, w(n, 1));
        return select(d == 0, z(n, 0) * re - z(n, 1) * im, z(n, 0) * im + z(n, 1) * re);
    });
    const Tensor chosen = compute("chosen", {N}, [&](Expr i) {
        auto at = [&](int d) { return a(cast(i64, ids(i)), d); };
        return at(0) * at(1) + at(2) * at(3);
    });
    struct Case {
        Tensor y;
        std::vector<std::pair<const char*, int>> widths;
    };
    for (const auto& [y, widths] :
         {Case{common, {{"a", 16}, {"b", 16}}}, Case{product, {{"z", 8}, {"w", 4}}}, Case{chosen, {{"a", 16}}}}) {
        const Schedule s = choose_schedule({y}, small_target());
        const Bindings data = data_for({y});
        SCOPED_TRACE(build(s).cuda());
        const Counted count = counted(s, data);
        for (const auto& [buffer, bytes] : widths) EXPECT_EQ(count.widths(buffer), std::pair(bytes, bytes)) << buffer;
        Executable executable(build(s), open_device("emulated:sm_90a"));
        const auto differs = difference(y.name(), run_on(executable, data)[0], interpret_plain({y}, data)[0]);
        EXPECT_FALSE(differs) << *differs;
    }
}

/// Of large records a thread has one: more of them outgrow the first cache before their pieces are read whole.
TEST(ChosenRecords, OfManyElementsAreOneAThread) {
    const Tensor a = input("a", f32, {1 << 22, 3, 3});
    const Tensor sums = compute("sums", {1 << 22}, [&](Expr n) {
        Expr sum = a(n, 0, 0);
        for (int k = 1; k < 9; ++k) sum = sum + a(n, k / 3, k % 3);
        return sum;
    });
    EXPECT_THAT(choose_schedule({sums}, target("sm_90a")).trace_as_cpp(), testing::Not(testing::HasSubstr("vector)")));
}

/// Gradients of a product, and the like: what both read is read by the same threads, also where one overwrites an
/// input.
TEST(ChosenOutputs, OfTheSameElementsAreOneKernel) {
    constexpr int64_t M = 33, N = 512;
    const Tensor a = input("a", bf16, {M, N}), b = input("b", bf16, {M, N}), dy = input("dy", bf16, {M, N}),
                 old = input("old", bf16, {M, N});
    const Axis all = reduce_axis("all", M);
    auto of = [&](const char* name, const std::function<Expr(Expr, Expr)>& body) {
        return compute(name, {M, N}, [&](Expr i, Expr k) { return cast(bf16, body(i, k)); });
    };
    const Tensor da = of("da", [&](Expr i, Expr k) { return cast(f32, dy(i, k)) * cast(f32, b(i, k)); }),
                 db = of("db", [&](Expr i, Expr k) { return cast(f32, dy(i, k)) * cast(f32, a(i, k)); }),
                 next = of("next", [&](Expr i, Expr k) { return cast(f32, old(i, k)) + cast(f32, da(i, k)); });
    const Tensor largest = compute("largest", {N}, [&](Expr k) { return reduce_max(abs(cast(f32, da(all, k))), all); });
    const Tensor scaled = of("scaled", [&](Expr i, Expr k) { return cast(f32, da(i, k)) - largest((k + 1) % N); });
    for (const auto& [outputs, kernels] :
         {std::pair{std::vector<Tensor>{da, db, next}, size_t{1}}, {std::vector<Tensor>{da, scaled, db}, size_t{3}}}) {
        Schedule s = choose_schedule(outputs, small_target());
        if (kernels == 1) s.in_place(next, old);
        SCOPED_TRACE(s.trace_as_cpp());
        const Program program = build(s);
        EXPECT_EQ(program.kernels().size(), kernels) << program.cuda();
        const Bindings data = data_for(outputs);
        const Counted count = counted(s, data);
        if (kernels == 1) {
            EXPECT_EQ(count.widths("da"), std::pair(16, 16));
            EXPECT_EQ(count.widths("old"), std::pair(16, 16));
            EXPECT_THAT(program.explain(), testing::HasSubstr("with those of 'db', 'next' beside them"));
        }
        Executable executable(program, open_device("emulated:sm_90a"));
        const std::vector<HostArray> got = run_on(executable, data), expected = interpret_plain(outputs, data);
        for (size_t k = 0; k < got.size(); ++k) {
            const auto differs = difference(outputs[k].name(), got[k], expected[k]);
            EXPECT_FALSE(differs) << *differs;
        }
    }
}

/// Rows that are shorter than a block's vectors, several a block: of any width, and faster than two kernels.
TEST(ChosenOutputs, OfShortRowsAreOneKernel) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{70, 256}, {9, 7, 64}, {301, 20}, {5, 41, 30}, {203, 7}, {65, 4}}) {
        auto at = [](const std::vector<Expr>& i) { return std::vector<Operand>(i.begin(), i.end()); };
        const Shape extents(shape.begin(), shape.end());
        const Tensor x = input("x", f32, extents), bias = input("bias", f32, {shape.back()});
        const Tensor y = compute("y", extents, [&](const auto& i) { return x.read(at(i)) + bias(i.back()); });
        const Tensor z = compute("z", extents, [&](const auto& i) { return y.read(at(i)) * x.read(at(i)); });
        const Schedule s = choose_schedule({y, z}, small_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(s.tree().nests.size(), 1u);
        Executable executable(build(s), open_device("emulated:sm_90a"));
        const Bindings data = data_for({y, z});
        const std::vector<HostArray> got = run_on(executable, data), expected = interpret_plain({y, z}, data);
        for (size_t k = 0; k < got.size(); ++k) EXPECT_FALSE(difference(k == 0 ? "y" : "z", got[k], expected[k]));
    }
    const Tensor x = input("x", f32, {1 << 16, 256});
    const Tensor y = compute("y", {1 << 16, 256}, [&](Expr i, Expr j) { return exp(x(i, j)); });
    const Tensor z = compute("z", {1 << 16, 256}, [&](Expr i, Expr j) { return y(i, j) + x(i, j); });
    auto seconds = [](const std::vector<Tensor>& outputs) {
        const Schedule s = choose_schedule(outputs, target("sm_90a"));
        return codegen::predict_time(s.tree(), s.target()).seconds;
    };
    EXPECT_LT(seconds({y, z}), 1.6 * seconds({y}));
}

/// Sums along columns and of everything, that threads share: none goes through all terms, and warps read lines.
TEST(ChosenReductions, ShareTermsOfFewResults) {
    const Tensor x = input("x", bf16, {512, 1024}), images = input("images", f32, {3, 9, 20, 40}),
                 v = input("v", f32, {70, 90}), odd = input("odd", bf16, {100, 203});
    const Axis r = reduce_axis("r", 512), p = reduce_axis("p", 9), q = reduce_axis("q", 20), i = reduce_axis("i", 70),
               j = reduce_axis("j", 90), o = reduce_axis("o", 100);
    struct Case {
        std::vector<Tensor> outputs;
        double lines;  // requests and sectors of a warp's loads, in bytes of what is read: at most
        const char* step;
    };
    for (const auto& [outputs, lines, step] :
         {Case{{compute("y", {1024}, [&](Expr c) { return sum(cast(f32, x(r, c)), r); })}, 1.1, "{\"step\", \"row\"}"},
          Case{{compute("y", {3, 40},
                        [&](Expr n, Expr c) {
                            return sum(images(n, p, q, c), {p, q});
                        })},
               1.1,
               "{\"step\", \"row\"}"},
          Case{{compute("y", {203}, [&](Expr c) { return reduce_max(cast(f32, odd(o, c)), o); })},
               2.2,
               "{\"piece\", \"column\"}"},
          Case{{compute("y", {},
                        [&] {
                            return sum(v(i, j) * v(i, j), std::vector<Axis>{i, j});
                        })},
               1.1,
               "{\"share\", \"element\"}"}}) {
        const Schedule s = choose_schedule(outputs, target("sm_90a"));
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_THAT(s.trace_as_cpp(), testing::HasSubstr(step));
        const Bindings data = data_for(outputs);
        const Counted count = counted(s, data);
        double bytes = 0;
        for (const auto& [name, array] : data.inputs) bytes += static_cast<double>(array.bytes.size());
        EXPECT_LT(static_cast<double>(count.all.global_sectors) * 32, lines * bytes + 8192);
        Executable executable(build(s), open_device("emulated:sm_90a"));
        const auto differs = difference("y", run_on(executable, data)[0], interpret_plain(outputs, data)[0]);
        EXPECT_FALSE(differs) << *differs;
    }
}

int count_of(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
}

/// Forces, weighted sums of vectors, gradients of few parameters: a thread has all results of a term, and what these
/// have in common is made once, as is said by the one maximum in the text.
TEST(ChosenReductions, MakeWhatResultsHaveInCommonOnce) {
    constexpr int64_t N = 150, Many = 5000;
    const Tensor p = input("p", f32, {N, 3}), x = input("x", f32, {N}), z = input("z", f32, {N}),
                 v = input("v", f32, {N, 5}), rows = input("rows", f32, {Many, 4}), w = input("w", f32, {4});
    const Axis j = reduce_axis("j", N), r = reduce_axis("r", Many);
    const Tensor forces = compute("forces", {N, 3}, [&](Expr i, Expr d) {
        Expr distance = abs(p(j, 0) - p(i, 0)) + abs(p(j, 1) - p(i, 1)) + abs(p(j, 2) - p(i, 2));
        return sum((p(j, d) - p(i, d)) * max(9.0 - distance, 0.0), j);
    });
    const Tensor weighted = compute("weighted", {N, 5}, [&](Expr i, Expr d) {
        return sum(max(3.0 - (x(i) - z(j)) * (x(i) - z(j)), 0.0) * v(j, d), j);
    });
    const Tensor gradient = compute("gradient", {4}, [&](Expr d) {
        const Expr y = rows(r, 0) * w(0) + rows(r, 1) * w(1) + rows(r, 2) * w(2) + rows(r, 3) * w(3);
        return sum(max(y, 0.0) * rows(r, d), r);
    });
    for (const auto& [y, kernels] : {std::pair{forces, 1}, {weighted, 1}, {gradient, 2}}) {
        const Schedule s = choose_schedule({y}, target("sm_90a"));
        const Program program = build(s);
        SCOPED_TRACE(program.cuda());
        EXPECT_EQ(program.kernels().size(), kernels);
        const std::string text = program.kernels()[0].cuda;
        EXPECT_EQ(count_of(text.substr(text.find("extern \"C\"")), "tw::max("), 1);
        EXPECT_THAT(text, testing::HasSubstr("const float common_1 ="));
        const Bindings data = data_for({y});
        Executable executable(program, open_device("emulated:sm_90a"));
        const auto differs = difference(y.name(), run_on(executable, data)[0], interpret_plain({y}, data)[0]);
        EXPECT_FALSE(differs) << *differs;
    }
}

/// By hand and by rule: bytes alike, requests and passes through shared memory within a tenth.
TEST(ChosenSchedules, MoveWhatThoseByHandMove) {
    for (const char* name :
         {"gelu_bias_128x512_bf16", "gelu_bias_100x256_f32", "transpose_256x320_bf16", "transpose_256x192_f32",
          "transpose_250x332_f32", "adamw_40000_f32", "dropout_64x512_bf16", "embedding_300x100x256_bf16",
          "column_sum_2048x256_bf16", "column_sum_1500x303_f32", "full_sum_300000_bf16", "dot_100000_f32"}) {
        const Schedule by_hand = find_kernel(name)->make(small_target());
        const Schedule chosen = choose_schedule(by_hand.outputs(), small_target());
        SCOPED_TRACE(fmt::format("{}\n{}", name, chosen.trace_as_cpp()));
        const Bindings bindings = random_bindings(by_hand.outputs(), 3);
        const emulator::Statistics a = counted(by_hand, bindings).all, b = counted(chosen, bindings).all;
        auto expect_at_most = [&](const char* what, uint64_t own, uint64_t other) {
            EXPECT_LE(static_cast<double>(own), 1.1 * static_cast<double>(other) + 16) << what;
        };
        expect_at_most("bytes", b.global_bytes, a.global_bytes);
        expect_at_most("sectors", b.global_sectors, a.global_sectors);
        expect_at_most("requests", b.global_requests, a.global_requests);
        expect_at_most("wavefronts", b.shared_wavefronts, a.shared_wavefronts);
    }
}

}  // namespace
}  // namespace tw::schedules

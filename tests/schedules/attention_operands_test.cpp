// Attention of a user's own q, k and v: parts of one tensor, with strides, several in one graph; and what is refused.
#include <gmock/gmock.h>

#include "dsl/differentiate.h"
#include "ops/check.h"
#include "ops/program.h"
#include "schedules/attention_backward.h"
#include "schedules/attention_decode.h"
#include "schedules/choose.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

class AttentionOperandKernels : public RandomCases {
protected:
    AttentionOperandKernels() : RandomCases(177) {}

    AttentionShape random_shape() {
        AttentionShape shape{.batch = between(1, 2),
                             .heads = between(1, 2),
                             .rows = between(1, 150),
                             .keys = 0,
                             .depth = 8 * between(1, 9),
                             .width = 0,
                             .causal = chance()};
        shape.keys = shape.rows, shape.width = shape.depth;
        shape.heads_first = chance();
        if (chance()) shape.type = f16;
        return shape;
    }
};
TW_ON_EACH_DEVICE(AttentionOperandKernels);

/// q, k and v of the same tokens side by side, [batch, rows, 3, heads, depth], or with heads in front of rows.
struct Packed {
    Tensor all;
    AttentionOperands parts;
};
Packed packed(const AttentionShape& shape, const std::string& name = "qkv", const std::string& suffix = "") {
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    Packed p{input(name, type, heads_first ? Shape{B, 3, H, S, D} : Shape{B, S, 3, H, D}), {}};
    auto part = [&](const char* of, int64_t n) {
        const Tensor& all = p.all;
        return compute(of + suffix, shape.of_tokens(S, H, D), [&](Expr b, Expr x, Expr y, Expr d) {
            return shape.heads_first ? all(b, n, x, y, d) : all(b, x, n, y, d);
        });
    };
    p.parts = {.q = part("q", 0), .k = part("k", 1), .v = part("v", 2), .suffix = suffix};
    return p;
}

TEST_P(AttentionOperandKernels, ArePartsOfOneTensor) {
    for (unsigned round = 0; round < 5; ++round) {
        const AttentionShape shape = random_shape();
        const Attention a = declare_attention(shape, {}, false, {}, {}, packed(shape).parts);
        const Schedule s = attention_schedule(a, shape, attention_tiles(a, shape, device_target()), device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        const Program program = build(s);
        EXPECT_EQ(program.kernels().size(), 1U);  // nothing is copied first
        expect_declared(s, random_bindings(s.outputs(), round), near(64, 2e-2));
        expect_compiles(program);
    }
}

/// A view of decoding's keys and values, which lie with those of others: [batch, keys, 2, heads, depth].
TEST_P(AttentionOperandKernels, AreKeysAndValuesOfDecoding) {
    for (unsigned round = 0; round < 3; ++round) {
        const AttentionShape shape{.batch = between(1, 2),
                                   .heads = 4,
                                   .rows = 1,
                                   .keys = between(1, 300),
                                   .depth = 8 * between(1, 9),
                                   .width = 64,
                                   .group = 2};
        AttentionShape same = shape;
        same.width = same.depth;
        const Tensor kv = input("kv", bf16, {same.batch, same.keys, 2, 2, same.depth});
        auto part = [&](const char* name, int64_t n) {
            return compute(name, {same.batch, same.keys, 2, same.depth},
                           [&](Expr b, Expr j, Expr h, Expr d) { return kv(b, j, n, h, d); });
        };
        const AttentionOperands operands{.k = part("k", 0), .v = part("v", 1)};
        const DecodeTiles tiles{.keys = 64, .stages = 2, .parts = 2};
        const AttentionInParts parts = declare_attention_in_parts(same, 64 * between(1, 4), {}, operands);
        const Schedule s = decode_schedule(parts, same, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(build(s).kernels().size(), 2U);
        const Attention plain = declare_attention(same, {}, false, {}, {}, operands);
        Executable executable(build(s), device_);
        const std::vector<Tensor> outputs{plain.o, plain.lse};
        expect_declared(executable, outputs, random_bindings(outputs, round), near(64, 2e-2));
    }
}

/// Rows that lie further apart than they are long, as slices of a wider tensor.
TEST_P(AttentionOperandKernels, HaveStrides) {
    for (unsigned round = 0; round < 3; ++round) {
        AttentionShape shape = random_shape();
        shape.heads_first = false;
        const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
        const int64_t row = H * D + 8 * between(0, 3);
        auto strided = [&](const char* name) { return input(name, type, {B, S, H, D}, {S * row, row, D, 1}); };
        const Attention a =
            declare_attention(shape, {}, false, {}, {}, {.q = strided("q"), .k = strided("k"), .v = strided("v")});
        const Schedule s = attention_schedule(a, shape, attention_tiles(a, shape, device_target()), device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        expect_declared(s, random_bindings(s.outputs(), round), near(64, 2e-2));
    }
}

/// The gradient of what q, k and v are parts of is theirs, side by side: by gradients(), of a schedule that nobody
/// wrote.
TEST_P(AttentionOperandKernels, HaveGradientsSideBySide) {
    for (const bool causal : {false, true}) {
        AttentionShape shape{
            .batch = 1, .heads = 2, .rows = 20, .keys = 20, .depth = 8, .width = 8, .causal = causal, .type = f16};
        const Packed p = packed(shape);
        const Attention a = declare_attention(shape, soft_cap(5), false, {}, {}, p.parts);
        const Tensor o = with_attention_gradients(a, shape), g = input("g", f16, {1, 20, 2, 8});
        const std::vector<Tensor> made = gradients(o, g, {p.all}), wanted = gradients(a.o, g, {p.all});
        const Bindings bindings = random_bindings(made, 4);
        const HostArray expected = interpret_plain(wanted, bindings, Precision::Float64)[0];
        const Schedule s = choose_schedule(made, device_target());
        EXPECT_EQ(s.explain().find("not in one pass"), std::string::npos) << s.explain();
        Executable executable(build(s), device_);
        auto differs = difference("d_qkv", run_on(executable, bindings)[0], expected, near(0, 1e-2));
        EXPECT_FALSE(differs) << *differs;
    }
}

/// The schedule of gradients reads parts where they lie, too.
TEST_P(AttentionOperandKernels, AreReadByGradients) {
    for (unsigned round = 0; round < 3; ++round) {
        const AttentionShape shape = random_shape();
        const AttentionOperands parts = packed(shape).parts;
        const GradientTiles tiles = gradient_tiles(shape, device_target());
        const AttentionGradients a = declare_attention_gradients(shape, tiles.passes, {}, false, {}, {},
                                                                 {.q = parts.q, .k = parts.k, .v = parts.v});
        const AttentionGradients plain = declare_attention_gradients(shape, tiles.passes);
        const Schedule s = attention_gradients_schedule(a, shape, tiles, device_target());
        SCOPED_TRACE(s.trace_as_cpp());
        EXPECT_EQ(build(s).kernels().size(),
                  build(attention_gradients_schedule(plain, shape, tiles, device_target())).kernels().size());
        Bindings bindings = random_bindings(s.outputs(), round);
        fill_uniform(bindings.inputs.at("lse"), 6, 8, 5);
        expect_declared(s, bindings, near(64, 5e-3));
    }
}

/// Two in one graph, the second of what the first gives, and their gradients, as declared.
TEST_P(AttentionOperandKernels, StandInOneGraph) {
    const AttentionShape shape{.batch = 1, .heads = 2, .rows = 12, .keys = 12, .depth = 8, .width = 8, .type = f16};
    const Attention first = declare_attention(shape);
    const Tensor o = with_attention_gradients(first, shape);
    const Attention second = declare_attention(shape, {}, false, {}, {}, {.q = o, .suffix = "_2"});
    const Tensor result = with_attention_gradients(second, shape), g = input("dy", f16, {1, 12, 2, 8});
    std::vector<Tensor> made = gradients(result, g, {first.q, first.v, second.v});
    const std::vector<Tensor> wanted = gradients(
        declare_attention(shape, {}, false, {}, {}, {.q = first.o, .k = second.k, .v = second.v, .suffix = "_3"}).o, g,
        {first.q, first.v, second.v});
    const Bindings bindings = random_bindings(made, 6);
    const std::vector<HostArray> expected = interpret_plain(wanted, bindings, Precision::Float64);
    made.push_back(result);
    Executable executable(build(choose_schedule(made, device_target())), device_);
    const std::vector<HostArray> got = run_on(executable, bindings);
    for (size_t k = 0; k < expected.size(); ++k) {
        auto differs = difference(made[k].name(), got[k], expected[k], near(0, 1e-2));
        EXPECT_FALSE(differs) << *differs;
    }
}

TEST(AttentionErrors, SayWhatToGive) {
    const AttentionShape good{.batch = 1, .heads = 2, .rows = 4, .keys = 4, .depth = 8, .width = 8};
    auto expect_refused = [&](void (*change)(AttentionShape&), const std::string& text) {
        AttentionShape shape = good;
        change(shape);
        EXPECT_ERROR(declare_attention(shape), text);
        EXPECT_ERROR(declare_attention_gradients(shape), text);
    };
    auto expect_no_units = [&](void (*change)(AttentionShape&), const std::string& text) {
        AttentionShape shape = good;
        change(shape);
        const Target gpu = target("sm_90a");
        EXPECT_ERROR(attention_schedule(shape, {.rows = 64, .keys = 64}, gpu), text);
        EXPECT_ERROR(attention_gradients_schedule(shape, {}, gpu), text);
    };
    expect_no_units([](AttentionShape& of) { of.type = f32; },
                    "attention: operands of f32; tensor cores multiply bf16 or f16 here, so cast them");
    expect_no_units([](AttentionShape& of) { of.depth = 12; },
                    "attention: depth 12; heads have a multiple of 8 elements, 16 bytes, up to 256: fill them up with "
                    "zeros");
    expect_no_units([](AttentionShape& of) { of.width = 264; }, "attention: width 264; heads have a multiple of 8");
    expect_refused([](AttentionShape& of) { of.type = i8; }, "attention: operands of i8; cast them to a float type");
    expect_refused([](AttentionShape& of) { of.keys_before = 3; },
                   "attention: keys_before = 3 of rows that see all keys; set causal, or leave keys_before out");
    expect_refused([](AttentionShape& of) { of.group = 3; }, "attention: 2 heads are no multiple of a group of 3");
    expect_refused([](AttentionShape& of) { of.rows = 0; }, "attention: rows = 0; give at least 1");
    auto expect_rule_refused = [&](const ScoreRule& rule, const std::string& text) {
        EXPECT_ERROR(declare_attention(good, rule), text);
        EXPECT_ERROR(declare_attention_gradients(good, {}, rule), text);
    };
    expect_rule_refused([](const Expr&, const ScorePlace& at) { return at.key <= at.row; },
                        "attention: the rule for scores returns a condition; to leave out keys where it does not hold, "
                        "return select(condition, score, -infinity)");
    expect_rule_refused([](const Expr& score, const ScorePlace&) { return cast(f64, score); },
                        "attention: the rule for scores returns f64, scores are f32; cast(f32, ..) what it makes");
    expect_rule_refused([](const Expr&, const ScorePlace&) { return Expr(); },
                        "attention: the rule for scores returns nothing; return a score, f32");
    EXPECT_ERROR(declare_attention(good, {}, false, [](const Expr& w, const ScorePlace&) { return w > 0.0; }),
                 "attention: the rule for weights returns bool, weights are f32; return one, such as "
                 "select(condition, weight, 0.0)");
    EXPECT_ERROR(declare_attention(good, {}, false, {}, {}, {.k = input("keys", f16, {1, 4, 2, 8})}),
                 "attention: 'keys' is f16 [1, 4, 2, 8], where the shape says bf16 [1, 4, 2, 8] for 'k'; give that, "
                 "such as a computed view");
    EXPECT_ERROR(declare_attention(good, {}, false, {}, {}, {.q = input("q", bf16, {1, 2, 4, 8})}),
                 "attention: 'q' is bf16 [1, 2, 4, 8], where the shape says bf16 [1, 4, 2, 8] for 'q'");
}

}  // namespace
}  // namespace tw::schedules

// Attention of operands of 8 bits: what names ask for, and as exact as the formula whose exponentials are rounded.
#include "schedules/attention_fp8.h"

#include <cmath>

#include <gmock/gmock.h>

#include "ops/check.h"
#include "ops/program.h"
#include "schedules/catalog.h"
#include "tests/ops/random_cases.h"
#include "tests/support/expect_error.h"

namespace tw::schedules {
namespace {

TEST(Fp8AttentionNames, GiveShapeAndTiles) {
    const auto named = parse_fp8_attention("attention_e4m3_2x12x300x64_keys500_width96_group3_tile64x96s3");
    ASSERT_TRUE(named);
    const AttentionShape& shape = named->shape;
    EXPECT_EQ((std::array{shape.batch, shape.heads, shape.rows, shape.keys, shape.depth, shape.width, shape.group}),
              (std::array<int64_t, 7>{2, 12, 300, 500, 64, 96, 3}));
    EXPECT_EQ((std::array{named->tiles->rows, named->tiles->keys}), (std::array<int64_t, 2>{64, 96}));
    EXPECT_EQ(named->tiles->stages, 3);
    EXPECT_TRUE(parse_fp8_attention("attention_e4m3_1x2x300x64_causal")->shape.causal);
    EXPECT_FALSE(parse_fp8_attention("attention_e4m3_1x2x300x64")->tiles);
    const CatalogEntry* entry = find_kernel("attention_e4m3_1x4x300x64_group4");
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->flops, 4.0 * 4 * 300 * 300 * 64);
    EXPECT_EQ(entry->bytes, (4 + 1 + 1 + 2 * 4) * 300 * 64 + 4 * 4 * 300);
    for (const char* name : {"attention_e4m3_1x2x300x40", "attention_e4m3_1x2x300x64_softcap30",
                             "attention_e4m3_1x2x300x64_tile100x64s2", "attention_e4m3_1x2x300x64_tile64x40s2",
                             "attention_e4m3_1x2x300x64_tile256x64s2", "attention_e4m3_1x2x300x288"})
        EXPECT_FALSE(parse_fp8_attention(name)) << name;
}

TEST(Fp8Attention, OfWhichHeads) {
    AttentionShape shape{.batch = 1, .heads = 5, .rows = 8, .keys = 8, .depth = 32, .width = 32, .group = 2};
    EXPECT_ERROR(declare_fp8_attention(shape, {}), "fp8 attention: 5 heads are no multiple of a group of 2");
    shape.group = 1, shape.heads_first = true;
    EXPECT_ERROR(declare_fp8_attention(shape, {}),
                 "fp8 attention: heads in front of rows; give [batch, rows, heads, depth]");
    shape.heads_first = false;
    shape.group = 1, shape.width = 48;
    EXPECT_ERROR(declare_fp8_attention(shape, {}),
                 "fp8 attention: heads of 48 elements; give a multiple of 32 up to 256");
}

/// Keys that fill the last tile up count nothing, also where causal rows reach beyond the last key.
TEST(Fp8Attention, SeesNoKeysBeyondTheLast) {
    const AttentionShape shape{
        .batch = 1, .heads = 1, .rows = 60, .keys = 32, .depth = 32, .width = 32, .causal = true};
    auto declared = [&](int64_t keys) {
        Fp8Tiles tiles;
        tiles.rows = 64, tiles.keys = keys;
        const Fp8Attention a = declare_fp8_attention(shape, tiles);
        return std::vector<Tensor>{a.o, a.lse};
    };
    const std::vector<Tensor> whole = declared(32), filled = declared(64);
    const Bindings launch = random_bindings(whole, 5);
    const std::vector<HostArray> wanted = interpret_plain(whole, launch), got = interpret_plain(filled, launch);
    for (size_t k = 0; k < wanted.size(); ++k) {
        auto differs = difference(whole[k].name(), got[k], wanted[k], near(0, 1e-5));
        EXPECT_FALSE(differs) << *differs;
    }
}

/// Tiles that the catalog gives to shapes that people have fit into shared memory and registers.
TEST(Fp8Attention, IsBuiltForUsualShapes) {
    for (const char* name : {"attention_e4m3_1x16x4096x128", "attention_e4m3_1x16x4096x64_causal",
                             "attention_e4m3_1x16x4096x256_causal", "attention_e4m3_2x32x1000x128_group8"})
        EXPECT_NO_THROW(build(find_kernel(name)->make(target("sm_90a")))) << name;
}

/// Results in double precision, and how much those of exponentials err that are rounded as ours are, and of a result in
/// bf16.
struct Expected {
    std::vector<double> o, lse;
    double error = 0;  ///< the Frobenius norm
};

class Formula {
public:
    Formula(const AttentionShape& shape, const Bindings& given) : c_(shape), given_(given.inputs) {}

    Expected run() {
        result_.o.assign(static_cast<size_t>(c_.batch * c_.rows * c_.heads * c_.width), 0);
        for (int64_t b = 0; b < c_.batch; ++b)
            for (int64_t h = 0; h < c_.heads; ++h)
                for (int64_t i = 0; i < c_.rows; ++i) row(b, h, i);
        result_.error = std::sqrt(squares_);
        return result_;
    }

private:
    double at(const char* name, const std::vector<int64_t>& place) const { return given_.at(name).at(place).real; }

    void row(int64_t b, int64_t h, int64_t i) {
        const int64_t g = h / c_.group, seen = c_.causal ? i + 1 : c_.keys;
        std::vector<double> p;
        for (int64_t j = 0; j < seen; ++j) {
            double score = 0;
            for (int64_t d = 0; d < c_.depth; ++d) score += at("q", {b, i, h, d}) * at("k", {b, j, g, d});
            p.push_back(score * at("scale_q", {b, h}) * at("scale_k", {b, g}) * std::log2(std::exp(1.0)) /
                        std::sqrt(static_cast<double>(c_.depth)));
        }
        const double top = *std::max_element(p.begin(), p.end());
        double total = 0;
        for (double& each : p) total += each = std::exp2(each - top);
        result_.lse.push_back(top + std::log2(total));
        for (int64_t e = 0; e < c_.width; ++e) {
            double exact = 0, rounded = 0;
            for (int64_t j = 0; j < seen; ++j) {
                const double value = at("v", {b, j, g, e}), weight = p[static_cast<size_t>(j)];
                exact += weight * value;
                rounded += round_to_type(e4m3, weight * 256) / 256 * value;
            }
            const double factor = at("scale_v", {b, g}) / total;
            result_.o[static_cast<size_t>(((b * c_.rows + i) * c_.heads + h) * c_.width + e)] = exact * factor;
            squares_ += std::pow(round_to_type(bf16, rounded * factor) - exact * factor, 2);
        }
    }

    const AttentionShape& c_;
    const std::map<std::string, HostArray>& given_;
    Expected result_;
    double squares_ = 0;
};

class Fp8AttentionKernels : public RandomCases {
protected:
    Fp8AttentionKernels() : RandomCases(149) {}

    Bindings data(const Schedule& s, uint64_t seed) {
        Bindings bindings;
        for (const BufferRef& input : s.tree().inputs) {
            std::vector<int64_t> shape;
            for (const Expr& extent : input->shape) shape.push_back(*as_constant(extent));
            HostArray array = host_array(input->type, shape);
            const bool is_scale = input->type == f32;
            fill_uniform(array, is_scale ? 0.5 : -3.0, is_scale ? 1.5 : 3.0, ++seed);
            bindings.inputs[input->name] = array;
        }
        return bindings;
    }

    /// One key has exponentials of 1, all others about 2^-9, which e4m3 does not tell from each other.
    static void raise_a_score(Bindings& given) {
        fill_uniform(given.inputs.at("q"), 1, 1.01, 1);
        HostArray& keys = given.inputs.at("k");
        fill_uniform(keys, -0.25, 0.25, 2);
        for (int64_t d = 0; d < keys.shape[3]; ++d) keys.set({0, 5, 0, d}, make_value(e4m3, 1.125));
    }

    /// Outputs start as NaN.
    void expect_as_exact_as_the_formula(const std::string& name, bool has_high_score = false) {
        SCOPED_TRACE(name);
        const AttentionShape shape = parse_fp8_attention(name)->shape;
        const Schedule s = find_kernel(name)->make(device_target());
        Executable executable(build(s), device_);
        Bindings given = data(s, 7);
        if (has_high_score) raise_a_score(given);
        const std::vector<HostArray> got = run_on(executable, given);
        const Expected expected = Formula(shape, given).run();
        double squares = 0;
        size_t k = 0;
        std::vector<int64_t> at(4);
        do squares += std::pow(got[0].at(at).real - expected.o[k++], 2);
        while (advance(at, got[0].shape));
        EXPECT_LE(std::sqrt(squares), 1.5 * expected.error);
        at.assign(3, 0), k = 0;
        // The unit's sums of products lose bits, the more the longer they are.
        const double lost = 5e-3 * std::max(1.0, static_cast<double>(shape.depth) / 128);
        do ASSERT_NEAR(got[1].at(at).real, expected.lse[k++], lost);
        while (advance(at, got[1].shape));
    }
};
TW_ON_EACH_DEVICE(Fp8AttentionKernels);

TEST_P(Fp8AttentionKernels, AreAsExactAsTheFormula) {
    for (const char* name :
         {"attention_e4m3_1x2x128x64_tile128x64s2", "attention_e4m3_1x4x100x64_group2_tile64x64s2",
          "attention_e4m3_1x1x200x32_causal_tile64x64s3", "attention_e4m3_2x1x130x32_keys70_width64_tile64x96s2",
          "attention_e4m3_1x1x64x128_tile64x128s2", "attention_e4m3_1x1x256x32_causal_tile128x64s2",
          "attention_e4m3_1x1x150x256_causal_tile64x64s2", "attention_e4m3_1x2x200x128_keys300_tile64x128s2"})
        expect_as_exact_as_the_formula(name);
}

/// All of them together weigh as much as the one: exponentials up to 2^8 keep them.
TEST_P(Fp8AttentionKernels, SmallExponentialsCount) {
    expect_as_exact_as_the_formula("attention_e4m3_1x1x64x32_keys512_tile64x64s2", true);
}

}  // namespace
}  // namespace tw::schedules

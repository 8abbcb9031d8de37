// wgmma: every type, layout and transpose, from descriptors and from registers, against sums of integers and a GPU.
#include "device/wgmma.h"
#include "tests/emulator/operand_kinds.h"
#include "tests/emulator/run_on.h"
#include "tests/emulator/tensor_core_reference.h"

namespace tw {
namespace {

const Format& format_of(const std::string& type) {
    static const Format all[] = {Bf16, F16, Tf32, E4m3, E5m2};
    return all[type == "bf16" ? 0 : type == "f16" ? 1 : type == "tf32" ? 2 : type == "e4m3" ? 3 : 4];
}

/// One operand, [rows, k], as it lies in shared memory.
struct Layout {
    int span = 128;  // of the swizzle's lines; 16: none
    bool transposed = false;
    int first_unit = 0;  // within the lines, where they are of k
};

struct Image {
    Bytes bytes;
    int start = 0, leading = 0, stride = 0;
};

/// The line of a tile within the swizzle's pattern decides how its units of 16 bytes are exchanged.
int exchanged(int unit, int line, int span) {
    switch (span) {
        case 128: return unit ^ (line & 7);
        case 64: return unit ^ (line >> 1 & 3);
        case 32: return unit ^ (line >> 2 & 1);
    }
    return unit;
}

/// `get(row, k)` gives the bits of an element of `size` bytes.
template <class Get>
Image image_of(const Layout& layout, int rows, int k, int size, Get get) {
    Image image;
    image.bytes.assign(size_t(64 << 10), 0xee);
    const int span = layout.span;
    auto put = [&](int group, int line, int byte, uint32_t bits) {  // groups of eight lines
        const int unit = exchanged(byte / 16, line, span);
        std::memcpy(&image.bytes[size_t(group * 8 * span + line * span + unit * 16 + byte % 16)], &bits, size_t(size));
    };
    for (int row = 0; row < rows; ++row)
        for (int i = 0; i < k; ++i) {
            const int byte = i * size;
            if (layout.transposed) {  // lines of span / 2 rows; groups: first the two of k, then the next rows
                const int per_line = span / 2;
                put(row / per_line * (k / 8) + i / 8, i % 8, row % per_line * 2, get(row, i));
            } else if (span == 16) {
                put(row / 8 * 2 + byte / 16, row % 8, byte % 16, get(row, i));
            } else {
                put(row / 8, row % 8, layout.first_unit * 16 + byte, get(row, i));
            }
        }
    const int group = 8 * span;
    image.start = layout.transposed || span == 16 ? 0 : layout.first_unit * 16;
    if (layout.transposed) {
        image.leading = span > 16 ? k / 8 * group : group;
        image.stride = span > 16 ? group : k / 8 * group;
    } else {
        image.leading = span > 16 ? 16 : group;
        image.stride = span > 16 ? group : 2 * group;
    }
    return image;
}

struct Wgmma {
    std::string name;
    Layout a = {}, b = {};
    bool accumulate = true;
};

void PrintTo(const Wgmma& one, std::ostream* out) { *out << one.name; }

/// Row and column of element e of d in thread t.
std::pair<int, int> place_of(int t, int e) {
    return {t / 32 * 16 + t % 32 / 4 + (e % 4 >= 2 ? 8 : 0), e / 4 * 8 + t % 4 * 2 + e % 2};
}

/// Row and k of element e of a in registers.
std::pair<int, int> place_in_a(int t, int e, int bytes) {
    const int per_register = 4 / bytes, r = e / per_register;
    return {t / 32 * 16 + t % 32 / 4 + (r % 2) * 8, t % 4 * per_register + e % per_register + (r / 2) * 16 / bytes};
}

/// Each block has operands of its own, one behind the other.
SmallKernel kernel_of(const Wgmma& one, const device::WarpgroupProduct& product, const Image& a, const Image& b,
                      int64_t blocks = 1) {
    const bool is_integer = product.a == "s8";
    const int size = 32 / product.k;
    std::string flags;
    if (size == 2)
        flags = product.a_in_registers ? fmt::format("<{}>", one.b.transposed)
                                       : fmt::format("<{}, {}>", one.a.transposed, one.b.transposed);
    std::string text = fmt::format(
        R"(constexpr int A_BYTES = {a_bytes}, B_BYTES = {b_bytes};
in += blockIdx.x * (A_BYTES + B_BYTES + 512 * {num_d});
out += blockIdx.x * 512 * {num_d};
for (int i = t * 16; i < A_BYTES + B_BYTES; i += 2048) tw::copy<16>(shared + i, in + i);
tw::fence_proxy_async();
__syncthreads();
{d_type} d[{num_d}];
unsigned ar[4];
for (int i = 0; i < {num_d}; ++i) d[i] = (({d_type}*)(in + A_BYTES + B_BYTES))[t * {num_d} + i];
for (int i = 0; i < 4; ++i) ar[i] = ((unsigned*)in)[t * 4 + i];
const unsigned long long a = tw::matrix_descriptor(shared + {a_start}, {a_span}, {a_leading}, {a_stride});
const unsigned long long b = tw::matrix_descriptor(shared + A_BYTES + {b_start}, {b_span}, {b_leading}, {b_stride});
{keep}tw::wgmma_fence();
tw::{name}{flags}(d, {operand}, b, {accumulate});
tw::wgmma_commit();
tw::wgmma_wait<0>();
{keep}for (int i = 0; i < {num_d}; ++i) (({d_type}*)out)[t * {num_d} + i] = {result};
)",
        fmt::arg("a_bytes", a.bytes.size()), fmt::arg("b_bytes", b.bytes.size()),
        fmt::arg("d_type", is_integer ? "int" : "float"), fmt::arg("num_d", product.n / 2),
        fmt::arg("a_start", a.start), fmt::arg("a_span", one.a.span == 16 ? 0 : one.a.span),
        fmt::arg("a_leading", a.leading), fmt::arg("a_stride", a.stride), fmt::arg("b_start", b.start),
        fmt::arg("b_span", one.b.span == 16 ? 0 : one.b.span), fmt::arg("b_leading", b.leading),
        fmt::arg("b_stride", b.stride), fmt::arg("keep", "tw::wgmma_fence_operand(d);\n"), fmt::arg("name", one.name),
        fmt::arg("result", is_integer ? "d[i]" : "d[i] == d[i] ? d[i] : __builtin_bit_cast(float, 0x7fffffff)"),
        fmt::arg("flags", flags), fmt::arg("operand", product.a_in_registers ? "ar" : "a"),
        fmt::arg("accumulate", one.accumulate));
    std::set<std::string> names = {one.name,       "fence_proxy_async", "matrix_descriptor",   "wgmma_fence",
                                   "wgmma_commit", "wgmma_wait",        "wgmma_fence_operand", "copy"};
    if (!is_integer && product.a != "tf32") names.insert(product.a);
    return {.names = names, .body = text, .blocks = blocks, .threads = 128, .shared_bytes = 128 << 10};
}

/// The bits of a, [64, k], b, [n, k], and what d, [64, n], holds before.
struct Operands {
    std::vector<uint32_t> a, b, d;
};

/// Behind `in`, what a block of kernel_of reads.
std::pair<Image, Image> append_operands(Bytes& in, const Wgmma& one, const device::WarpgroupProduct& product,
                                        const Operands& of) {
    const int k = product.k, n = product.n, size = 32 / k;
    Image a_image = image_of(one.a, 64, k, size, [&](int row, int i) { return of.a[size_t(row * k + i)]; });
    Image b_image = image_of(one.b, n, k, size, [&](int row, int i) { return of.b[size_t(row * k + i)]; });
    if (product.a_in_registers)
        for (int t = 0; t < 128; ++t)
            for (int e = 0; e < k / 2; ++e) {
                auto [row, i] = place_in_a(t, e, size);
                std::memcpy(&a_image.bytes[size_t((t * k / 2 + e) * size)], &of.a[size_t(row * k + i)], size_t(size));
            }
    in.insert(in.end(), a_image.bytes.begin(), a_image.bytes.end());
    in.insert(in.end(), b_image.bytes.begin(), b_image.bytes.end());
    for (int t = 0; t < 128; ++t)
        for (int e = 0; e < n / 2; ++e) {
            auto [row, column] = place_of(t, e);
            for (int i = 0; i < 4; ++i) in.push_back(uint8_t(of.d[size_t(row * n + column)] >> (8 * i)));
        }
    return {a_image, b_image};
}

/// Nothing where a term is not finite.
std::optional<uint32_t> expected_result(const Wgmma& one, const device::WarpgroupProduct& product, const Operands& of,
                                        std::pair<int, int> place) {
    const int k = product.k;
    auto [row, column] = place;
    const uint32_t start = one.accumulate ? of.d[size_t(row * product.n + column)] : 0;
    const uint32_t *a = &of.a[size_t(row * k)], *b = &of.b[size_t(column * k)];
    if (product.a == "s8") {
        uint32_t sum = start;
        for (int i = 0; i < k; ++i) sum += uint32_t(int8_t(a[i]) * int8_t(b[i]));
        return sum;
    }
    const Format &a_format = format_of(product.a), &b_format = format_of(product.b);
    std::vector<std::pair<Number, Number>> factors;
    for (int i = 0; i < k; ++i)
        factors.emplace_back(with_sign(product.negated, decode(a_format, a[i])), decode(b_format, b[i]));
    const bool is_fp8 = k == 32;
    auto sum = expected_sum(std::bit_cast<float>(start), factors, a_format.mantissa_bits + b_format.mantissa_bits,
                            is_fp8 ? 13 : 25);
    if (!sum) return {};
    const auto bits = std::bit_cast<uint32_t>(*sum);
    return is_fp8 ? bits & ~uint32_t(1023) : bits;
}

class WgmmaConformance : public testing::TestWithParam<Wgmma> {};

TEST_P(WgmmaConformance, MultipliesWhatTheDescriptorsName) {
    const Wgmma& one = GetParam();
    auto product = device::find_warpgroup_product(one.name);
    ASSERT_TRUE(product);
    const bool is_integer = product->a == "s8";
    const int k = product->k, n = product->n;
    uint64_t seed = 1;
    for (int spread : {2, 12, 50}) {
        RandomNumbers random(seed++, spread, false);
        std::mt19937_64 integers(seed);
        auto element = [&](const std::string& type) {
            return is_integer ? uint32_t(integers() & 255) : random(format_of(type));
        };
        std::vector<uint32_t> a(size_t(64 * k)), b(size_t(n * k)), d(size_t(64 * n));
        for (uint32_t& bits : a) bits = element(product->a);
        for (uint32_t& bits : b) bits = element(product->b);
        for (uint32_t& bits : d) bits = is_integer ? uint32_t(integers()) : std::bit_cast<uint32_t>(random.start());

        Bytes in;
        auto [a_image, b_image] = append_operands(in, one, *product, {a, b, d});
        auto results =
            values_of<uint32_t>(kernel_of(one, *product, a_image, b_image).run_everywhere(in, size_t(64 * n * 4)));

        size_t num_wrong = 0;
        for (int t = 0; t < 128; ++t)
            for (int e = 0; e < n / 2; ++e)
                num_wrong +=
                    results[size_t(t * n / 2 + e)] != expected_result(one, *product, {a, b, d}, place_of(t, e));
        EXPECT_EQ(num_wrong, 0u) << "of " << 64 * n << ", spread " << spread;
    }
}

std::vector<Wgmma> all_products() {
    std::vector<Wgmma> all;
    for (int span : {128, 64, 32, 16})
        for (int transposes = 0; transposes < 4; ++transposes) {
            const Layout a{span, (transposes & 1) != 0, span == 128 ? 4 : 0},
                b{span, transposes > 1, span == 128 ? 2 : 0};
            all.push_back({"wgmma_m64n64k16_bf16", a, b});
        }
    for (const char* name :
         {"wgmma_m64n8k16_f16", "wgmma_m64n256k16_bf16", "wgmma_m64n72k8_tf32", "wgmma_m64n32k32_e4m3",
          "wgmma_m64n32k32_e5m2", "wgmma_m64n32k32_e4m3_e5m2", "wgmma_m64n24k32_s8", "wgmma_m64n40k16_bf16_registers",
          "wgmma_m64n16k16_f16_registers", "wgmma_m64n24k8_tf32_registers", "wgmma_m64n16k32_e5m2_e4m3_registers",
          "wgmma_m64n32k32_s8_registers", "wgmma_m64n40k16_bf16_negated", "wgmma_m64n16k16_f16_registers_negated",
          "wgmma_m64n16k8_tf32_negated", "wgmma_m64n16k32_e4m3_negated"})
        all.push_back({name});
    all.push_back({"wgmma_m64n128k16_f16_registers", {}, {128, true}});
    all.push_back({"wgmma_m64n64k16_f16", {}, {64, true}, false});
    all.push_back({"wgmma_m64n64k16_f16_negated", {}, {64, true}, false});
    all.push_back({"wgmma_m64n16k32_s8", {64}, {32}, false});
    all.push_back({"wgmma_m64n16k8_tf32", {16}, {32}, false});
    return all;
}

INSTANTIATE_TEST_SUITE_P(All, WgmmaConformance, testing::ValuesIn(all_products()),
                         [](const auto& info) { return fmt::format("{}_{}", info.param.name, info.index); });

Operands operands_of_kind(const device::WarpgroupProduct& product, RandomOperands& random, std::mt19937_64& integers) {
    const int k = product.k, n = product.n;
    Operands of{std::vector<uint32_t>(size_t(64 * k)), std::vector<uint32_t>(size_t(n * k)),
                std::vector<uint32_t>(size_t(64 * n))};
    if (product.a == "s8") {
        for (auto* list : {&of.a, &of.b})
            for (uint32_t& bits : *list) bits = uint32_t(integers() & 255);
        for (uint32_t& bits : of.d) bits = uint32_t(integers());
        return of;
    }
    for (uint32_t& bits : of.a) bits = random.a(format_of(product.a));
    for (uint32_t& bits : of.b) bits = random.b(format_of(product.b));
    for (uint32_t& bits : of.d) bits = random.start();
    for (size_t i = 0; random.cancels() && i + 1 < of.a.size(); i += 2)
        of.a[i + 1] = random.nearly_negated(format_of(product.a), of.a[i]);
    for (size_t i = 0; random.cancels() && i + 1 < of.b.size(); i += 2) of.b[i + 1] = of.b[i];
    return of;
}

class WgmmaMillion : public testing::TestWithParam<const char*> {};

TEST_P(WgmmaMillion, SetsOfOperands) {
    const Wgmma one{GetParam()};
    auto product = device::find_warpgroup_product(one.name);
    ASSERT_TRUE(product);
    const int n = product->n;
    const int64_t blocks = blocks_for_each_kind(64 * n);
    size_t num_sets = 0, num_checked = 0;
    std::mt19937_64 integers(5);
    for (OperandKind kind : AllOperandKinds) {
        RandomOperands random(kind, 73);
        Bytes in;
        std::pair<Image, Image> images;
        Operands first;
        for (int64_t block = 0; block < blocks; ++block) {
            Operands of = operands_of_kind(*product, random, integers);
            images = append_operands(in, one, *product, of);
            if (block == 0) first = std::move(of);
        }
        auto results = values_of<uint32_t>(kernel_of(one, *product, images.first, images.second, blocks)
                                               .run_everywhere(in, size_t(blocks * 64 * n * 4)));
        num_sets += results.size();
        for (int t = 0; t < 128; ++t)
            for (int e = 0; e < n / 2; ++e) {
                auto expected = expected_result(one, *product, first, place_of(t, e));
                num_checked += expected.has_value();
                EXPECT_TRUE(!expected || *expected == results[size_t(t * n / 2 + e)])
                    << "kind " << int(kind) << ", thread " << t << ", result " << e;
            }
    }
    RecordProperty("sets_of_operands", int(num_sets));
    EXPECT_GT(num_checked, size_t(64 * n * 3));
}

/// One of each type, from shared memory and from registers.
INSTANTIATE_TEST_SUITE_P(Types, WgmmaMillion,
                         testing::Values("wgmma_m64n256k16_bf16", "wgmma_m64n256k16_f16", "wgmma_m64n256k8_tf32",
                                         "wgmma_m64n256k32_e4m3", "wgmma_m64n256k32_e5m2", "wgmma_m64n256k32_e4m3_e5m2",
                                         "wgmma_m64n256k32_e5m2_e4m3", "wgmma_m64n256k32_s8",
                                         "wgmma_m64n128k16_bf16_registers", "wgmma_m64n128k16_f16_registers",
                                         "wgmma_m64n128k8_tf32_registers", "wgmma_m64n128k32_e4m3_registers",
                                         "wgmma_m64n128k32_e5m2_registers", "wgmma_m64n128k32_e4m3_e5m2_registers",
                                         "wgmma_m64n128k32_e5m2_e4m3_registers", "wgmma_m64n128k32_s8_registers"),
                         [](const auto& info) { return std::string(info.param); });

TEST(WgmmaFamily, HasWhatTheHardwareHas) {
    using device::find_warpgroup_product;
    for (const char* name :
         {"wgmma_m64n8k16_bf16", "wgmma_m64n248k16_f16", "wgmma_m64n24k32_s8", "wgmma_m64n16k32_e5m2_e4m3",
          "wgmma_m64n8k8_tf32_registers", "wgmma_m64n8k16_f16_registers_negated"})
        EXPECT_TRUE(find_warpgroup_product(name)) << name;
    for (const char* name : {"wgmma_m64n12k16_bf16", "wgmma_m64n264k16_bf16", "wgmma_m64n40k32_s8",
                             "wgmma_m64n64k8_bf16", "wgmma_m64n64k16_bf16_f16", "wgmma_m64n64k16_bf16_bf16",
                             "wgmma_m64n064k16_bf16", "wgmma_fence", "wgmma_m64n64k16", "wgmma_m64n0k16_bf16",
                             "wgmma_m64n24k32_s8_negated", "wgmma_m64n8k16_f16_negated_registers"})
        EXPECT_FALSE(find_warpgroup_product(name)) << name;
}

/// By NVRTC where it is, on any machine.
TEST(WgmmaFamily, TextsCompileForHopper) {
    for (const Wgmma& one : all_products()) {
        auto product = device::find_warpgroup_product(one.name);
        Image image;
        image.bytes.resize(1024);
        SmallKernel kernel = kernel_of(one, *product, image, image);
        try {
            open_device("null:sm_90a")->load({.name = "k.cu", .source = kernel.text(), .entry = "k"});
        } catch (const NvrtcMissing& missing) {
            GTEST_SKIP() << missing.what();
        }
    }
}

}  // namespace
}  // namespace tw

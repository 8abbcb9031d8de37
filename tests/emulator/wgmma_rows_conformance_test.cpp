// Descriptors that begin anywhere: at any row of a swizzled tile, groups of eight rows at any distance, rows that
// overlap. Products of small integers, which are exact, against the places that the formulas name.
#include <bit>

#include "tests/emulator/run_on.h"
#include "tests/emulator/swizzles.h"
#include "tests/support/on_device.h"

namespace tw {
namespace {

constexpr int ImageBytes = 96 << 10;

/// An operand in the image, as its descriptor says.
struct Operand {
    int start = 0, span = 128, leading = 16, stride = 1024;  // bytes; span 16: no swizzle
    bool transposed = false;

    /// Where element `k` of row `row` of m or n lies, elements of `size` bytes.
    int place(int row, int k, int size) const {
        int at = start;
        if (span == 16)
            at += transposed ? row / 8 * stride + k / 8 * leading + k % 8 * 16 + row % 8 * 2
                             : row / 8 * stride + row % 8 * 16 + k * size / 16 * leading + k * size % 16;
        else if (transposed)
            at += row / (span / 2) * leading + row % (span / 2) * 2 + k / 8 * stride + k % 8 * span;
        else
            at += row / 8 * stride + row % 8 * span + k * size;
        return swizzled(at, span);
    }
    int end(int rows, int k, int size) const {
        int last = 0;
        for (int row : {rows - 1, rows / 8 * 8 - 1, 7})
            for (int i = 0; i < k; ++i) last = std::max(last, place(row, i, size) | 127);
        return last + 1;
    }
    std::string text() const {
        return fmt::format("byte {}, span {}, distances {} and {}{}", start, span, leading, stride,
                           transposed ? ", transposed" : "");
    }
};

struct Product {
    std::string name, type;
    int n, k;
    int size() const { return 32 / k; }
    bool is_integer() const { return type == "s8"; }
};

/// Small integers, the same number in each type; their sums are exact.
struct Images {
    Bytes bytes = Bytes(ImageBytes);
    std::vector<int> values = std::vector<int>(ImageBytes);  // of the element that begins at a byte
};

Images image_of(const Product& product) {
    static const uint8_t e4m3[] = {0xc4, 0xc0, 0xb8, 0x00, 0x38, 0x40, 0x44};  // -3 to 3
    std::mt19937_64 random(7);
    Images image;
    for (int at = 0; at < ImageBytes; at += product.size()) {
        const int value = int(random() % 7) - 3;
        image.values[size_t(at)] = value;
        if (product.type == "bf16") {
            const auto bits = uint16_t(std::bit_cast<uint32_t>(float(value)) >> 16);
            std::memcpy(&image.bytes[size_t(at)], &bits, 2);
        } else {
            image.bytes[size_t(at)] = product.is_integer() ? uint8_t(value) : e4m3[value + 3];
        }
    }
    return image;
}

class WgmmaRows : public OnDevice {
protected:
    /// All products of pairs of operands in one launch, a block each.
    void expect_products(const Product& product, const std::vector<std::pair<Operand, Operand>>& pairs) {
        const Images image = image_of(product);
        std::vector<int32_t> descriptors;
        for (const auto& [a, b] : pairs)
            for (const Operand& operand : {a, b})
                descriptors.insert(descriptors.end(), {operand.start, operand.span == 16 ? 0 : operand.span,
                                                       operand.leading, operand.stride});
        Bytes in = image.bytes;
        const Bytes numbers = bytes_of(descriptors);
        in.insert(in.end(), numbers.begin(), numbers.end());
        const SmallKernel kernel =
            kernel_of(product, pairs[0].first.transposed, pairs[0].second.transposed, int64_t(pairs.size()));
        expect_compiles_for_hopper(kernel.text());
        const auto words = values_of<uint32_t>(kernel.run(*device_, in, pairs.size() * size_t(64 * product.n * 4)));
        for (size_t i = 0; i < pairs.size(); ++i)
            expect_product(product, image, pairs[i], &words[i * size_t(64 * product.n)]);
    }

private:
    static void expect_product(const Product& product, const Images& image, const std::pair<Operand, Operand>& pair,
                               const uint32_t* words) {
        int num_wrong = 0;
        for (int t = 0; t < 128; ++t)
            for (int e = 0; e < product.n / 2; ++e) {
                const int row = t / 32 * 16 + t % 32 / 4 + (e % 4 >= 2 ? 8 : 0), column = e / 4 * 8 + t % 4 * 2 + e % 2;
                int sum = 0;
                for (int k = 0; k < product.k; ++k)
                    sum += image.values[size_t(pair.first.place(row, k, product.size()))] *
                           image.values[size_t(pair.second.place(column, k, product.size()))];
                const uint32_t bits = words[t * product.n / 2 + e];
                num_wrong += product.is_integer() ? bits != uint32_t(sum) : std::bit_cast<float>(bits) != float(sum);
            }
        EXPECT_EQ(num_wrong, 0) << product.name << ", a: " << pair.first.text() << "; b: " << pair.second.text();
    }

    static SmallKernel kernel_of(const Product& product, bool a_transposed, bool b_transposed, int64_t blocks) {
        const std::string flags =
            product.type == "bf16" ? fmt::format("<{}, {}>", int(a_transposed), int(b_transposed)) : "";
        return {.names = {product.name, "matrix_descriptor", "copy", "fence_proxy_async", "wgmma_fence", "wgmma_commit",
                          "wgmma_wait", "wgmma_fence_operand"},
                .body = fmt::format(
                    R"(for (int i = t * 16; i < {bytes}; i += 2048) tw::copy<16>(shared + i, in + i);
tw::fence_proxy_async();
__syncthreads();
const int* of = (const int*)(in + {bytes}) + blockIdx.x * 8;
const unsigned long long a = tw::matrix_descriptor(shared + of[0], of[1], of[2], of[3]),
                         b = tw::matrix_descriptor(shared + of[4], of[5], of[6], of[7]);
{type} d[{num_d}];
for (int i = 0; i < {num_d}; ++i) d[i] = 0;
tw::wgmma_fence_operand(d);
tw::wgmma_fence();
tw::{name}{flags}(d, a, b, false);
tw::wgmma_commit();
tw::wgmma_wait<0>();
tw::wgmma_fence_operand(d);
for (int i = 0; i < {num_d}; ++i) (({type}*)out)[(blockIdx.x * 128 + t) * {num_d} + i] = d[i];)",
                    fmt::arg("bytes", ImageBytes), fmt::arg("type", product.is_integer() ? "int" : "float"),
                    fmt::arg("num_d", product.n / 2), fmt::arg("name", product.name), fmt::arg("flags", flags)),
                .blocks = blocks,
                .threads = 128,
                .shared_bytes = ImageBytes};
    }
};

const Product Bf16{"wgmma_m64n64k16_bf16", "bf16", 64, 16};

/// Rows t of a tile, the groups of eight rows so many rows apart, at every k of a line.
TEST_P(WgmmaRows, BeginAtAnyRowOfASwizzledTile) {
    for (int span : {32, 64, 128}) {
        std::vector<std::pair<Operand, Operand>> pairs;
        for (int rows : {1, 4, 7, 8, 9, 10, 11, 16, 18, 58})
            for (int t : {0, 1, 2, 3, 5, 7, 8, 13, 17}) {
                const Operand a{t * span + (t + rows) % (span / 32) * 32, span, 16, rows * span};
                pairs.emplace_back(a, Operand{(t ^ 5) * span, span, 16, 10 * span});
                pairs.emplace_back(Operand{0, span, 16, 8 * span}, a);
            }
        expect_products(Bf16, pairs);
    }
}

/// Groups of eight k so many rows apart, what does not fit into a line at any distance.
TEST_P(WgmmaRows, BeginAtAnyRowOfATransposedTile) {
    for (int span : {16, 32, 64, 128})
        for (int transposes : {1, 2, 3}) {
            std::vector<std::pair<Operand, Operand>> pairs;
            for (int rows : {8, 9, 10, 58})
                for (int t : {0, 1, 3, 6, 9}) {
                    const int leading = span == 16 ? rows * 16 : 17 * span, stride = span == 16 ? 144 : rows * span;
                    auto with = [&](bool transposed, int t) {
                        return transposed ? Operand{t * span, span, leading, stride, true}
                                          : Operand{t * span, span, 128, 10 * span};
                    };
                    pairs.emplace_back(with(transposes & 1, t), with(transposes & 2, t ^ 3));
                }
            expect_products(Bf16, pairs);
        }
}

/// Any start and any distances that are multiples of 16; k that leaves its line goes on in the next.
TEST_P(WgmmaRows, RandomDescriptors) {
    const Product some[] = {Bf16,
                            {"wgmma_m64n256k16_bf16", "bf16", 256, 16},
                            {"wgmma_m64n64k32_s8", "s8", 64, 32},
                            {"wgmma_m64n64k32_e4m3", "e4m3", 64, 32}};
    std::mt19937_64 random(31);
    auto below = [&](int count) { return int(random() % uint64_t(count)); };
    for (const Product& product : some)
        for (int transposes = 0; transposes < (product.size() == 2 ? 4 : 1); ++transposes) {
            std::vector<std::pair<Operand, Operand>> pairs;
            auto operand = [&](bool transposed, int rows) {
                for (;;) {
                    Operand one{.span = 16 << below(4), .transposed = transposed};
                    one.start = 16 * below(200);
                    one.stride = below(2) ? 16 * below(100) : one.span * below(60);
                    one.leading = !transposed && one.span > 16 ? 16 * below(1 << 14) : 16 * below(200);
                    if (one.end(rows, product.k, product.size()) <= ImageBytes) return one;
                }
            };
            while (pairs.size() < 100) {
                const Operand a = operand(transposes & 1, 64);
                pairs.emplace_back(a, operand(transposes & 2, product.n));
            }
            expect_products(product, pairs);
        }
}

/// Rows 16 bytes apart, each 32 bytes long: neighbours share their pixels. As a filter of width 8 over pixels of 4
/// channels, at every second pixel.
TEST_P(WgmmaRows, RowsWithoutSwizzleMayOverlap) {
    std::vector<std::pair<Operand, Operand>> pairs;
    for (auto [leading, stride] : {std::pair{16, 128},
                                   {128, 256},
                                   {128, 16},
                                   {16, 256},
                                   {32, 128},
                                   {48, 160},
                                   {16, 1840},
                                   {1024, 128},
                                   {16, 16},
                                   {0, 128},
                                   {128, 0},
                                   {4096, 144}})
        for (int t = 0; t < 10; ++t)
            pairs.emplace_back(Operand{t * 16, 16, leading, stride}, Operand{4096 + t * 16, 16, stride, leading});
    expect_products(Bf16, pairs);
}

TW_ON_EACH_DEVICE(WgmmaRows);

}  // namespace
}  // namespace tw

// Columns of pixels of im2col maps: as the walk that defines them, and as the convolutions that they serve.
#include "tests/emulator/tma_requests.h"

namespace tw {
namespace {

class Im2colRequests : public TmaRequests {};

/// Any corners, strides, offsets and numbers of pixels; a first base pixel inside of the bounding box.
Request random_column(Dice& dice) {
    Request request = random_request(dice, {TensorElement::U8, TensorElement::BF16, TensorElement::F32});
    TensorLayout& layout = request.layout;
    const int rank = dice.in(3, 5), count = rank - 2, unit = 16 / request.element_bytes();
    layout.im2col =
        Im2col{.channels = unit * random_units(dice, request, 8), .pixels = dice.one_in(8) ? 1024 : dice.in(1, 400)};
    layout.sizes = {unit * dice.in(1, 16)};
    layout.traversal_strides = {1};
    request.coordinates = {unit * dice.in(-2, int(layout.sizes[0]) / unit)};
    request.offsets.clear();
    for (int d = 0; d < count; ++d) {
        const int size = dice.in(3, rank == 5 ? 8 : 16), stride = dice.one_in(2) ? 1 : dice.in(2, 8);
        const int lower = dice.in(-8, 2), upper = dice.in(std::max(-8, lower + 1 - size), 8);
        layout.sizes.push_back(size);
        layout.traversal_strides.push_back(stride);
        layout.im2col->lower.push_back(lower);
        layout.im2col->upper.push_back(upper);
        request.coordinates.push_back(dice.in(lower, size + upper - 1));
        request.offsets.push_back(dice.in(0, 12));
    }
    layout.sizes.push_back(dice.in(1, 6));
    layout.traversal_strides.push_back(dice.one_in(5) ? dice.in(2, 8) : 1);
    request.coordinates.push_back(dice.in(-1, int(layout.sizes.back())));
    set_dense_strides(layout);
    if (dice.one_in(6)) layout.strides[0] = 16 * dice.in(0, 4);  // pixels that overlap
    return request;
}

TEST_P(Im2colRequests, RandomColumns) {
    Dice dice(201);
    for (int num_maps = 0; num_maps < 400;) {
        Request request = random_column(dice);
        if (request.end_in_shared() > SharedBytes) continue;
        expect_load(request);
        ++num_maps;
    }
}

/// A convolution over one, two or three dimensions of an image, w first: the sizes of its input, and its filter.
struct Convolution {
    std::vector<int> size, taps, padding, stride, dilation;
    int channels = 64, images = 3;

    size_t dimensions() const { return size.size(); }
    int reach(size_t d) const { return (taps[d] - 1) * dilation[d]; }
    int outputs(size_t d) const { return (size[d] + 2 * padding[d] - reach(d) - 1) / stride[d] + 1; }
    int num_pixels() const {
        int count = images;
        for (size_t d = 0; d < dimensions(); ++d) count *= outputs(d);
        return count;
    }
    std::string text() const {
        return fmt::format("{} x {} images of [{}], taps [{}], padding [{}], stride [{}], dilation [{}]", images,
                           channels, fmt::join(size, " "), fmt::join(taps, " "), fmt::join(padding, " "),
                           fmt::join(stride, " "), fmt::join(dilation, " "));
    }
};

TensorLayout layout_of(const Convolution& convolution, int pixels) {
    TensorLayout layout{.sizes = {convolution.channels}, .swizzle = Swizzle::Bytes128};
    layout.traversal_strides = {1};
    layout.im2col = Im2col{.channels = 64, .pixels = pixels};
    for (size_t d = 0; d < convolution.dimensions(); ++d) {
        layout.sizes.push_back(convolution.size[d]);
        layout.traversal_strides.push_back(convolution.stride[d]);
        layout.im2col->lower.push_back(-convolution.padding[d]);
        layout.im2col->upper.push_back(convolution.padding[d] - convolution.reach(d));
    }
    layout.sizes.push_back(convolution.images);
    layout.traversal_strides.push_back(1);
    set_dense_strides(layout);
    return layout;
}

/// Rows [first, first + pixels) of the implicit matrix, at a tap.
Request request_of(const Convolution& convolution, int pixels, int first, const std::vector<int>& tap, int channel) {
    Request request{.layout = layout_of(convolution, pixels), .coordinates = {channel}, .offsets = {}};
    for (size_t d = 0; d < convolution.dimensions(); ++d) {
        const int output = first % convolution.outputs(d);
        first /= convolution.outputs(d);
        request.coordinates.push_back(output * convolution.stride[d] - convolution.padding[d]);
        request.offsets.push_back(tap[d] * convolution.dilation[d]);
    }
    request.coordinates.push_back(first);
    return request;
}

/// The same rows by the definition of the convolution: row m is output pixel m, which at the tap reads x = q * stride -
/// padding + tap * dilation.
Bytes rows_of(const Convolution& convolution, const Request& request, int first, const std::vector<int>& tap,
              const Bytes& contents, size_t shared_bytes) {
    Bytes expected(shared_bytes, 0xff);
    const TensorLayout& layout = request.layout;
    for (int row = 0; row < request.num_rows(); ++row) {
        int rest = first + row;
        int64_t address = request.coordinates[0] * 2;
        bool inside = true;
        for (size_t d = 0; d < convolution.dimensions(); ++d) {
            const int x = rest % convolution.outputs(d) * convolution.stride[d] - convolution.padding[d] +
                          tap[d] * convolution.dilation[d];
            rest /= convolution.outputs(d);
            inside &= x >= 0 && x < convolution.size[d];
            address += x * layout.strides[d];
        }
        inside &= rest < convolution.images;
        address += rest * layout.strides.back();
        for (int byte = 0; byte < 128; ++byte) {
            const bool is_channel = request.coordinates[0] + byte / 2 < convolution.channels;
            expected[request.in_shared(row, byte)] =
                inside && is_channel ? contents[size_t(address + byte)] : uint8_t(0);
        }
    }
    return expected;
}

Convolution random_convolution(Dice& dice) {
    Convolution convolution;
    const int dimensions = dice.in(1, 3);
    convolution.channels = dice.of<int>({64, 96, 128});
    convolution.images = dice.in(1, 5);
    for (size_t d = 0; d < size_t(dimensions); ++d) {
        convolution.taps.push_back(dice.of<int>({1, 2, 3, 3, 5, 7}));
        convolution.dilation.push_back(dice.one_in(2) ? 1 : dice.in(2, 3));
        convolution.stride.push_back(dice.one_in(2) ? 1 : dice.in(2, 8));
        const int reach = convolution.reach(d);
        convolution.padding.push_back(dice.in(0, std::min(reach, 8)));
        const int least = std::max(1, reach + 1 - 2 * convolution.padding[d]);
        convolution.size.push_back(least + dice.in(0, dimensions == 3 ? 5 : 18));
    }
    return convolution;
}

TEST_P(Im2colRequests, RandomConvolutions) {
    Dice dice(202);
    for (int i = 0; i < 120;) {
        const Convolution convolution = random_convolution(dice);
        bool fits = true;  // corners of five dimensions have five bits, as have the offsets
        for (size_t d = 0; d < convolution.dimensions(); ++d)
            fits &= convolution.dimensions() < 3 || convolution.padding[d] - convolution.reach(d) >= -16;
        fits &= convolution.num_pixels() * convolution.channels * 2 < TensorBytes / 2;
        int64_t bytes = convolution.channels * 2 * convolution.images;
        for (int size : convolution.size) bytes *= size;
        if (!fits || bytes > TensorBytes) continue;
        ++i;
        const int pixels = dice.of<int>({64, 128, 256});
        for (int tile = 0; tile < 3; ++tile) {
            const int first = tile == 0 ? 0 : dice.in(0, convolution.num_pixels() - 1);
            std::vector<int> tap;
            for (int taps : convolution.taps) tap.push_back(dice.in(0, taps - 1));
            const int channel = convolution.channels > 64 ? 64 * dice.in(0, 1) : 0;
            Request request = request_of(convolution, pixels, first, tap, channel);
            request.place = 128 * dice.in(0, 9);
            const Bytes expected = rows_of(convolution, request, first, tap, contents_, SharedBytes);
            SCOPED_TRACE(convolution.text());
            expect_equal(load(request), expected, request);
            EXPECT_EQ(expected, expected_load(request)) << "the walk is another";
        }
    }
}

/// All taps of filters of 3 x 3 and 7 x 7, at tiles that begin in the middle of rows and end behind the last image.
TEST_P(Im2colRequests, EveryTap) {
    const Convolution some[] = {
        {{14, 13}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
        {{15, 16}, {3, 3}, {1, 1}, {2, 2}, {1, 1}},
        {{30, 29}, {3, 3}, {6, 6}, {3, 3}, {6, 6}},
        {{30, 29}, {7, 7}, {3, 3}, {2, 2}, {1, 1}},
    };
    for (const Convolution& convolution : some)
        for (int first : {5, convolution.num_pixels() - 30})
            for (int r = 0; r < convolution.taps[1]; ++r)
                for (int s = 0; s < convolution.taps[0]; ++s) {
                    const Request request = request_of(convolution, 128, first, {s, r}, 0);
                    SCOPED_TRACE(convolution.text());
                    expect_equal(load(request), rows_of(convolution, request, first, {s, r}, contents_, SharedBytes),
                                 request);
                }
}

/// The gradient of the input, stride 1: a convolution of dy [n, p, q, k] by the turned filter. Its bounding box has as
/// many pixels as the input, W x H.
TEST_P(Im2colRequests, GradientsOfInputs) {
    for (int padding : {0, 1, 2})
        for (int dilation : {1, 2}) {
            const int w = 14, h = 13, taps = 3, reach = (taps - 1) * dilation;
            const int q = w + 2 * padding - reach, p = h + 2 * padding - reach;
            const int lower = padding - reach, upper = lower + w - q;
            TensorLayout layout{.sizes = {64, q, p, 5}, .swizzle = Swizzle::Bytes128};
            layout.im2col =
                Im2col{.lower = {lower, lower}, .upper = {upper, lower + h - p}, .channels = 64, .pixels = 128};
            set_dense_strides(layout);
            for (int first : {0, 5, w * h * 2 - 9, w * h * 5 - 20})
                for (int r = 0; r < taps; ++r)
                    for (int s = 0; s < taps; ++s) {
                        const Request request{
                            .layout = layout,
                            .coordinates = {0, first % w + lower, first / w % h + lower, first / w / h},
                            .offsets = {reach - s * dilation, reach - r * dilation}};
                        Bytes expected(SharedBytes, 0xff);
                        for (int row = 0; row < 128; ++row) {
                            const int m = first + row, image = m / w / h;
                            const int x = m % w + padding - s * dilation, y = m / w % h + padding - r * dilation;
                            const bool inside = x >= 0 && x < q && y >= 0 && y < p && image < 5;
                            for (int byte = 0; byte < 128; ++byte)
                                expected[request.in_shared(row, byte)] =
                                    inside ? contents_[size_t(((image * p + y) * q + x) * 128 + byte)] : uint8_t(0);
                        }
                        expect_equal(load(request), expected, request);
                    }
        }
}

TEST_P(Im2colRequests, LimitsAreTaken) {
    auto with = [](std::vector<int64_t> sizes, const Im2col& im2col, std::vector<int> coordinates,
                   std::vector<int> offsets) {
        Request request{.layout = {.sizes = std::move(sizes), .im2col = im2col, .swizzle = Swizzle::Bytes128},
                        .coordinates = std::move(coordinates),
                        .offsets = std::move(offsets)};
        set_dense_strides(request.layout);
        return request;
    };
    expect_load(with({64, 14, 13, 3}, {{-128, -1}, {127, -1}, 64, 256}, {0, -3, 2, 0}, {255, 2}));
    expect_load(with({64, 14, 13, 3}, {{-1, -1}, {-1, -1}, 64, 1024}, {0, -1, -1, -1}, {200, 100}));
    expect_load(with({64, 14, 13, 3}, {{-1, -1}, {-1, -1}, 64, 1}, {0, 12, 11, 3}, {1, 1}));
    expect_load(with({64, 50, 5}, {{-300}, {300}, 64, 400}, {0, -300, 1}, {301}));
    expect_load(with({64, 9, 8, 7, 3}, {{-16, -2, 0}, {15, -3, -1}, 64, 256}, {0, -16, 0, 5, 1}, {31, 0, 1}));
    // A raster of (W + 1) (H + 1) an image, whose padding neighbours share.
    expect_load(with({64, 56, 14, 2}, {{0, 0}, {1, 1}, 64, 244}, {0, 56, 13, -1}, {0, 0}));
}

/// Two blocks load a column each, of every rank, to both.
TEST_P(Im2colRequests, MulticastReachesAll) {
    for (int rank : {3, 4, 5}) {
        Request request{.layout = {.sizes = {64}, .swizzle = Swizzle::Bytes128}, .coordinates = {0}, .offsets = {}};
        request.layout.im2col = Im2col{.channels = 64, .pixels = 96};
        std::string offsets;
        for (int d = 1; d < rank - 1; ++d) {
            request.layout.sizes.push_back(9 - d);
            request.layout.im2col->lower.push_back(-1);
            request.layout.im2col->upper.push_back(-1);
            request.coordinates.push_back(d - 1);
            request.offsets.push_back(3 - d);
            offsets += fmt::format("{}, ", 3 - d);
        }
        request.layout.sizes.push_back(16);
        request.coordinates.push_back(0);  // in the second block, 1
        set_dense_strides(request.layout);
        std::string coordinates;
        for (int d = 0; d + 1 < rank; ++d) coordinates += fmt::format("{}, ", request.coordinates[size_t(d)]);
        const std::string text =
            device::vocabulary_text({"Barrier", "TensorMap", "shared_memory", "copy", "mbarrier_init",
                                     "fence_mbarrier_init", "mbarrier_expect_tx", "mbarrier_wait", "cluster_rank",
                                     "cluster_arrive", "cluster_wait", "tma_load_im2col_multicast"}) +
            fmt::format(R"(struct Shared {{
    alignas(1024) unsigned char a[2][12288];
    tw::Barrier full;
}};
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(64)
k(const __grid_constant__ tw::TensorMap map, unsigned char* out) {{
    Shared& s = tw::shared_memory<Shared>();
    const int t = threadIdx.x, rank = tw::cluster_rank();
    if (t == 0) {{ tw::mbarrier_init(s.full, 1); tw::fence_mbarrier_init(); tw::mbarrier_expect_tx(s.full, 24576); }}
    tw::cluster_arrive();
    tw::cluster_wait();
    if (t == 0) tw::tma_load_im2col_multicast<{}>(s.a[rank], map, {}rank, {}s.full, 3);
    tw::mbarrier_wait(s.full, 0);
    for (int i = t * 16; i < 24576; i += 1024) tw::copy<16>(out + blockIdx.x * 24576 + i, &s.a[0][0] + i);
    tw::cluster_arrive();
    tw::cluster_wait();
}}
)",
                        rank, coordinates, offsets);
        expect_compiles_for_hopper(text);
        Kernel kernel = device_->load({.name = "k.cu", .source = text, .entry = "k"});
        TensorMap map = encode_tensor_map(tensor_, request.layout);
        out_.fill(0xff);
        device_
            ->prepare(kernel, {.grid = {2}, .block = {64}, .dynamic_shared_bytes = 24576 + 1024, .cluster = 2},
                      {Argument::bytes(as_bytes(map), tensor_), out_})
            .run();
        device_->synchronize();
        const Bytes result = out_.read<uint8_t>();
        for (int image : {0, 1}) {
            request.coordinates.back() = image;
            const Bytes expected = expected_load(request);
            for (int block : {0, 1})
                EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + 12288,
                                       result.begin() + block * 24576 + image * 12288))
                    << "rank " << rank << ", block " << block << ", image " << image;
        }
    }
}

TW_ON_EACH_DEVICE(Im2colRequests);

}  // namespace
}  // namespace tw

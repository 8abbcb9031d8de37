// Boxes of random tiled maps, there and back, against their definition: every rank, swizzle, width of rows and
// traversal stride; begins and ends outside of the tensor; anywhere in shared memory.
#include "tests/emulator/tma_requests.h"

namespace tw {
namespace {

int64_t end_of(const TensorLayout& layout) {
    int64_t end = layout.offset + layout.sizes[0] * bytes_of(layout.element);
    for (size_t d = 1; d < layout.sizes.size(); ++d) end += (layout.sizes[d] - 1) * layout.strides[d - 1];
    return end;
}

/// A box of at most `most_rows` rows, so many elements of 16 bytes wide as the swizzle allows, or fewer.
Request random_box(Dice& dice, int most_rows) {
    Request request =
        random_request(dice, {TensorElement::U8, TensorElement::BF16, TensorElement::F32, TensorElement::U64});
    TensorLayout& layout = request.layout;
    const int unit = 16 / request.element_bytes(), rank = dice.in(2, 5);
    layout.box = {unit * random_units(dice, request, 16)};
    layout.sizes = {dice.in(1, 20 * unit)};
    layout.traversal_strides = {1};
    for (int d = 1; d < rank; ++d) {
        const int stride = dice.one_in(2) ? 1 : dice.in(2, 8), most = std::max(1, std::min(12, most_rows));
        layout.traversal_strides.push_back(stride);
        layout.box.push_back(dice.in(1, most * stride));
        layout.sizes.push_back(dice.in(1, rank < 5 ? 24 : 9));
        most_rows /= request.side(d);
    }
    if (dice.one_in(4) && std::ranges::count(layout.traversal_strides, 1) == rank) layout.traversal_strides.clear();
    set_dense_strides(layout, dice.in(0, 3));
    request.coordinates = {unit * dice.in(0, int(layout.sizes[0]) / unit)};
    for (size_t d = 1; d < layout.sizes.size(); ++d) request.coordinates.push_back(dice.in(0, int(layout.sizes[d])));
    return request;
}

TEST_P(TmaRequests, RandomBoxesAreLoaded) {
    Dice dice(101);
    int num_maps = 0, num_strided = 0, num_narrow = 0;
    while (num_maps < 300) {
        Request request = random_box(dice, 1000);
        TensorLayout& layout = request.layout;
        if (dice.one_in(3)) request.coordinates[0] -= int(layout.box[0]);
        for (size_t d = 1; d < layout.sizes.size(); ++d)
            if (dice.one_in(3)) request.coordinates[d] = -dice.in(1, int(layout.box[d]));
        if (dice.one_in(5)) layout.strides[0] = 16 * dice.in(0, 4);  // rows that overlap
        if (request.end_in_shared() > SharedBytes || end_of(layout) > TensorBytes) continue;
        expect_load(request);
        ++num_maps;
        num_strided += std::ranges::any_of(layout.traversal_strides, [](int64_t stride) { return stride > 1; });
        num_narrow += request.row_bytes() < request.span();
    }
    EXPECT_GT(num_strided, 100);
    EXPECT_GT(num_narrow, 60);
}

TEST_P(TmaRequests, RandomBoxesAreStored) {
    Dice dice(102);
    const Bytes shared = random_bytes(SharedBytes, 5);
    for (int num_maps = 0; num_maps < 200;) {
        Request request = random_box(dice, 1000);
        if (request.end_in_shared() > SharedBytes || end_of(request.layout) > TensorBytes) continue;
        expect_equal(store(request, shared), expected_store(request, shared), request);
        ++num_maps;
    }
}

TEST_P(TmaRequests, EveryTraversalStride) {
    for (int stride = 1; stride <= 8; ++stride)
        for (int less : {0, 1, stride - 1}) {
            Request request{.layout = {.sizes = {64, 40, 37, 2},
                                       .box = {64, 8 * stride - less, 4 * stride - less, 1},
                                       .traversal_strides = {1, stride, stride, 1},
                                       .swizzle = Swizzle::Bytes128},
                            .coordinates = {0, 3, 2, 1},
                            .place = 384};
            set_dense_strides(request.layout, 1);
            expect_load(request);
            const Bytes shared = random_bytes(SharedBytes, 6);
            expect_equal(store(request, shared), expected_store(request, shared), request);
            shared_.write(Bytes(SharedBytes, 0xff));
            tensor_.write(contents_);
            for (int begin : {-1, -stride, -2 * stride - 1, 30}) {
                request.coordinates = {0, begin, begin, 0};
                expect_load(request);
            }
        }
}

/// Rows of 32 channels under a swizzle of 128 bytes: half of each line is left alone.
TEST_P(TmaRequests, NarrowRowsLeaveTheRestOfTheirLines) {
    const Request request{.layout = {.sizes = {64, 14, 13, 3},
                                     .strides = {128, 1792, 23296},
                                     .box = {32, 10, 6, 2},
                                     .swizzle = Swizzle::Bytes128},
                          .coordinates = {32, -1, -1, 1}};
    const Bytes result = load(request);
    expect_equal(result, expected_load(request), request);
    EXPECT_EQ(request.bytes(), 7680);
    int num_untouched = 0;
    for (int unit = 0; unit < 120 * 8; ++unit) num_untouched += result[size_t(unit * 16)] == 0xff;
    EXPECT_GE(num_untouched, 120 * 4);
}

/// Unsigned integers of 4 bytes, added to what lies in the tensor.
TEST_P(TmaRequests, RandomBoxesAreAdded) {
    Dice dice(103);
    const Bytes shared = random_bytes(SharedBytes, 5);
    const auto terms = values_of<uint32_t>(shared);
    for (int num_maps = 0; num_maps < 100;) {
        Request request = random_box(dice, 1000);
        if (request.layout.element != TensorElement::F32) continue;
        request.layout.element = TensorElement::U32;
        if (request.end_in_shared() > SharedBytes || end_of(request.layout) > TensorBytes) continue;
        auto expected = values_of<uint32_t>(contents_);
        visit_bytes(request, RequestKind::Add, [&](size_t from, int64_t to) {
            if (to >= 0 && to % 4 == 0) expected[size_t(to) / 4] += terms[from / 4];
        });
        expect_equal(store(request, shared, RequestKind::Add), bytes_of(expected), request);
        ++num_maps;
    }
}

TW_ON_EACH_DEVICE(TmaRequests);

}  // namespace
}  // namespace tw

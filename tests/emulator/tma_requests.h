// Single requests of TMA on a device, and what they do by definition, byte by byte.
#pragma once
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/emulator/run_on.h"
#include "tests/emulator/swizzles.h"
#include "tests/support/on_device.h"

namespace tw {

/// Random numbers that are the same everywhere.
class Dice {
public:
    explicit Dice(uint64_t seed) : random_(seed) {}
    int in(int low, int high) { return low + int(random_() % uint64_t(high - low + 1)); }  // both included
    bool one_in(int count) { return in(1, count) == 1; }
    template <class T>
    T of(const std::vector<T>& some) {
        return some[size_t(in(0, int(some.size()) - 1))];
    }

private:
    std::mt19937_64 random_;
};

enum class RequestKind { Load, Store, Add };

struct Request {
    TensorLayout layout;
    std::vector<int> coordinates, offsets = {0, 0, 0};
    int place = 0;  // in shared memory, bytes

    int rank() const { return int(layout.sizes.size()); }
    int element_bytes() const { return int(bytes_of(layout.element)); }
    int row_bytes() const { return int(layout.im2col ? layout.im2col->channels : layout.box[0]) * element_bytes(); }
    int span() const { return span_of(layout.swizzle); }
    int pitch() const { return std::max(span(), row_bytes()); }  // from row to row of shared memory
    int stride(int d) const { return layout.traversal_strides.empty() ? 1 : int(layout.traversal_strides[size_t(d)]); }
    int side(int d) const { return (int(layout.box[size_t(d)]) + stride(d) - 1) / stride(d); }
    int num_rows() const {
        if (layout.im2col) return int(layout.im2col->pixels);
        int count = 1;
        for (int d = 1; d < rank(); ++d) count *= side(d);
        return count;
    }
    int bytes() const { return num_rows() * row_bytes(); }

    /// Where a byte of a row lies in shared memory.
    size_t in_shared(int row, int byte) const { return size_t(swizzled(place + row * pitch() + byte, span())); }
    int end_in_shared() const { return place + num_rows() * pitch(); }

    std::string text() const {
        std::string im2col;
        if (layout.im2col)
            im2col = fmt::format(", corners [{}] [{}], {} channels, {} pixels", fmt::join(layout.im2col->lower, " "),
                                 fmt::join(layout.im2col->upper, " "), layout.im2col->channels, layout.im2col->pixels);
        return fmt::format(
            "sizes [{}], strides [{}], box [{}], traversal strides [{}]{}, swizzle {}, elements of {} bytes, begins at "
            "[{}], offsets [{}], byte {} of shared memory",
            fmt::join(layout.sizes, " "), fmt::join(layout.strides, " "), fmt::join(layout.box, " "),
            fmt::join(layout.traversal_strides, " "), im2col, span(), element_bytes(), fmt::join(coordinates, " "),
            fmt::join(offsets, " "), place);
    }
};

/// Of a tensor of some such elements, anywhere in its buffer and in shared memory, under any swizzle.
inline Request random_request(Dice& dice, const std::vector<TensorElement>& elements) {
    Request request;
    request.layout.swizzle = dice.of<Swizzle>({Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128});
    request.layout.element = dice.of(elements);
    request.layout.offset = 16 * dice.in(0, 99);
    request.place = 128 * dice.in(0, 20);
    return request;
}

/// Units of 16 bytes that a row may have: a line of the swizzle, or `most`, or fewer.
inline int random_units(Dice& dice, const Request& request, int most) {
    const bool has_lines = request.layout.swizzle != Swizzle::None;
    if (has_lines) most = request.span() / 16;
    return has_lines && dice.one_in(2) ? most : dice.in(1, most);
}

/// Rows one behind the other, so many units of 16 bytes between them.
inline void set_dense_strides(TensorLayout& layout, int gap = 0) {
    int64_t stride = (layout.sizes[0] * bytes_of(layout.element) + 15) / 16 * 16 + 16 * gap;
    layout.strides.clear();
    for (size_t d = 1; d < layout.sizes.size(); ++d) {
        layout.strides.push_back(stride);
        stride *= layout.sizes[d];
    }
}

/// Calls `visit(row, at)` for each row of a request, `at` the coordinates of its first element: by going the way that
/// the request goes.
template <class Visit>
void visit_rows(const Request& request, Visit visit) {
    const int last = request.rank() - 1;
    std::vector<int> at = request.coordinates, count(size_t(request.rank()), 0);
    for (int row = 0; row < request.num_rows(); ++row) {
        std::vector<int> place = at;
        for (int d = 1; d < last && request.layout.im2col; ++d) place[size_t(d)] += request.offsets[size_t(d - 1)];
        visit(row, place);
        for (int d = 1; d <= last; ++d) {
            const auto i = size_t(d);
            at[i] += request.stride(d);
            if (request.layout.im2col) {
                const Im2col& im2col = *request.layout.im2col;
                if (d == last || at[i] < request.layout.sizes[i] + im2col.upper[i - 1]) break;
                at[i] = int(im2col.lower[i - 1]);
            } else {
                if (++count[i] < request.side(d)) break;
                count[i] = 0;
                at[i] = request.coordinates[i];
            }
        }
    }
}

/// Calls `visit(shared, global)` for each byte that a request moves: where it lies in shared memory, and in the
/// tensor's buffer, -1 outside of the tensor. What leaves does so in whole units of 16 bytes: the rest of a row's last
/// one lands behind the row.
template <class Visit>
void visit_bytes(const Request& request, RequestKind kind, Visit visit) {
    const TensorLayout& layout = request.layout;
    int64_t end = layout.sizes[0] * request.element_bytes();
    if (kind != RequestKind::Load) end = (end + 15) / 16 * 16;
    visit_rows(request, [&](int row, const std::vector<int>& at) {
        int64_t address = layout.offset;
        bool inside = true;
        for (size_t d = 1; d < at.size(); ++d) {
            inside &= at[d] >= 0 && at[d] < layout.sizes[d];
            address += at[d] * layout.strides[d - 1];
        }
        const int64_t first = int64_t{at[0]} * request.element_bytes();
        for (int byte = 0; byte < request.row_bytes(); ++byte) {
            const int64_t x = first + byte;
            visit(request.in_shared(row, byte), inside && x >= 0 && x < end ? address + x : -1);
        }
    });
}

/// A tensor's buffer of random bytes, and shared memory that holds NaN.
class TmaRequests : public OnDevice {
protected:
    static constexpr int SharedBytes = 144 << 10, TensorBytes = 1 << 20;

    void SetUp() override {
        OnDevice::SetUp();
        if (!device_) return;
        tensor_ = device_->allocate(TensorBytes, "tensor");
        shared_ = device_->allocate(SharedBytes, "shared");
        out_ = device_->allocate(SharedBytes, "out");
        contents_ = random_bytes(TensorBytes, 17);
        tensor_.write(contents_);
        shared_.write(Bytes(SharedBytes, 0xff));  // NaN
    }

    /// All of shared memory behind the load. It holds NaN before.
    Bytes load(const Request& request) {
        out_.fill(0xff);
        run(request, RequestKind::Load);
        return out_.read<uint8_t>();
    }

    /// The tensor's buffer behind a store of what `shared` holds.
    Bytes store(const Request& request, const Bytes& shared, RequestKind kind = RequestKind::Store) {
        tensor_.write(contents_);
        shared_.write(shared);
        run(request, kind);
        return tensor_.read<uint8_t>();
    }

    Bytes expected_load(const Request& request) const {
        Bytes expected(SharedBytes, 0xff);
        visit_bytes(request, RequestKind::Load, [&](size_t shared, int64_t global) {
            expected[shared] = global < 0 ? 0 : contents_[size_t(global)];
        });
        return expected;
    }

    Bytes expected_store(const Request& request, const Bytes& shared) const {
        Bytes expected = contents_;
        visit_bytes(request, RequestKind::Store, [&](size_t from, int64_t to) {
            if (to >= 0) expected[size_t(to)] = shared[from];
        });
        return expected;
    }

    void expect_load(const Request& request) { expect_equal(load(request), expected_load(request), request); }

    void expect_equal(const Bytes& result, const Bytes& expected, const Request& request) {
        if (result == expected) return;
        const auto at = size_t(std::mismatch(result.begin(), result.end(), expected.begin()).first - result.begin());
        ADD_FAILURE() << fmt::format("byte {} is {:#x} instead of {:#x}: {}", at, result[at], expected[at],
                                     request.text());
    }

    Buffer tensor_, shared_, out_;
    Bytes contents_;

private:
    static std::string call_of(const Request& request, RequestKind kind) {
        std::string coordinates, offsets;
        for (int d = 0; d < request.rank(); ++d) coordinates += fmt::format("c{}, ", d);
        for (int d = 0; d < request.rank() - 2 && request.layout.im2col; ++d) offsets += fmt::format("o{}, ", d);
        if (kind == RequestKind::Load)
            return fmt::format(
                "tw::mbarrier_expect_tx(s.full, bytes); tw::tma_load{}<{}>(s.a + place, map, {}{}s.full);",
                request.layout.im2col ? "_im2col" : "", request.rank(), coordinates, offsets);
        return fmt::format("tw::tma_{}<{}>(map, {}s.a + place); tw::tma_store_commit(); tw::tma_store_wait<0>();",
                           kind == RequestKind::Store ? "store" : "reduce_add", request.rank(), coordinates);
    }

    static std::string text_of(const Request& request, RequestKind kind) {
        const char* show = "    for (int i = t * 16; i < BYTES; i += 2048) tw::copy<16>(out + i, s.a + i);\n";
        return device::vocabulary_text({"Barrier", "TensorMap", "shared_memory", "copy", "mbarrier_init",
                                        "fence_mbarrier_init", "mbarrier_expect_tx", "mbarrier_wait", "tma_load",
                                        "tma_load_im2col", "tma_store", "tma_reduce_add", "tma_store_commit",
                                        "tma_store_wait", "fence_proxy_async"}) +
               fmt::format(
                   R"(constexpr int BYTES = {};
struct Shared {{
    alignas(1024) unsigned char a[BYTES];
    tw::Barrier full;
}};
extern "C" __global__ void __launch_bounds__(128) k(const __grid_constant__ tw::TensorMap map, const unsigned char* in,
    unsigned char* out, int place, int bytes, int c0, int c1, int c2, int c3, int c4, int o0, int o1, int o2) {{
    Shared& s = tw::shared_memory<Shared>();
    const int t = threadIdx.x;
    for (int i = t * 16; i < BYTES; i += 2048) tw::copy<16>(s.a + i, in + i);
    tw::fence_proxy_async();
    if (t == 0) {{ tw::mbarrier_init(s.full, 1); tw::fence_mbarrier_init(); }}
    __syncthreads();
    if (t == 0) {{ {} }}
{}}}
)",
                   SharedBytes, call_of(request, kind),
                   kind == RequestKind::Load ? std::string("    tw::mbarrier_wait(s.full, 0);\n") + show : "");
    }

    void run(const Request& request, RequestKind kind) {
        const std::string text = text_of(request, kind);
        if (!kernels_.contains(text)) {
            expect_compiles_for_hopper(text);
            kernels_.emplace(text, device_->load({.name = "k.cu", .source = text, .entry = "k"}));
        }
        TensorMap map = encode_tensor_map(tensor_, request.layout);
        std::vector<Argument> arguments{Argument::bytes(as_bytes(map), tensor_), shared_, out_, int32_t(request.place),
                                        int32_t(request.bytes())};
        for (size_t d = 0; d < 5; ++d)
            arguments.emplace_back(int32_t(d < request.coordinates.size() ? request.coordinates[d] : 0));
        for (size_t d = 0; d < 3; ++d)
            arguments.emplace_back(int32_t(d < request.offsets.size() ? request.offsets[d] : 0));
        device_
            ->prepare(kernels_.at(text), {.grid = {1}, .block = {128}, .dynamic_shared_bytes = SharedBytes + 1024},
                      arguments)
            .run();
        device_->synchronize();
    }

    std::map<std::string, Kernel> kernels_;  // by their text
};

}  // namespace tw

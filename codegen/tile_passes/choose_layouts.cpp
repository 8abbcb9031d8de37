#include <algorithm>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "codegen/tile_passes/simulate_banks.h"
#include "codegen/tile_passes/tile_passes.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

constexpr int64_t padding_bytes[] = {0, 4, 8, 16, 32};
constexpr int64_t widest_bytes = 16;

/// Rows whose vectors of `vector` elements are dealt out to `ways` runs: threads that read `ways` neighbouring vectors
/// each then have their first vectors side by side, then their second ones.
Layout interleaved(const std::vector<int64_t>& shape, std::vector<int> order, int64_t vector, int64_t ways) {
    Layout layout = permuted(shape, order);
    int d = order.back();
    layout.digits.pop_back();
    layout.digits.push_back({d, vector, ways});
    layout.digits.push_back({d, vector * ways, shape[d] / (vector * ways)});
    layout.digits.push_back({d, 1, vector});
    layout.row_digits = 3;
    return layout;
}

std::vector<Layout> candidates(const Buffer& buffer) {
    std::vector<int64_t> shape = constant_shape(buffer);
    std::vector<Layout> result{row_major(shape)};
    int64_t bytes = bytes_of(buffer->type), vector = std::max<int64_t>(widest_bytes / bytes, 1);
    int rank = static_cast<int>(shape.size());
    for (int inner = rank - 1; inner >= 0; --inner) {
        std::vector<int> order;
        for (int d = 0; d < rank; ++d)
            if (d != inner) order.push_back(d);
        order.push_back(inner);
        std::vector<Layout> bases{permuted(shape, order)};
        for (int64_t ways : {2, 4})
            if (shape[inner] % (vector * ways) == 0 && shape[inner] > vector * ways)
                bases.push_back(interleaved(shape, order, vector, ways));
        for (const Layout& base : bases) {
            std::set<int64_t> paddings;
            for (int64_t padding : padding_bytes) paddings.insert((padding + bytes - 1) / bytes);
            for (int64_t padding : paddings) {
                Layout layout = base;
                layout.pitch += padding;
                if (rank == 1 && padding) continue;
                result.push_back(layout);
            }
        }
    }
    return result;
}

struct Chooser {
    const TileKernel& kernel;
    const Target& target;

    /// No more is counted once it is `enough`.
    double cost(const std::vector<SharedAccess>& accesses, const Buffer& buffer, const Layout& layout,
                double enough = std::numeric_limits<double>::infinity()) const {
        double total = 0;
        for (const SharedAccess& access : accesses)
            if (total < enough) total += cost_of(access, buffer, layout, target);
        return total;
    }

    /// The cheapest layout of at most `most_bytes`; among equals the first, that is the plainest.
    SharedBuffer choose(const SharedBuffer& shared, int64_t most_bytes, std::vector<std::string>& notes) const {
        const Buffer& buffer = shared.buffer;
        std::vector<SharedAccess> accesses = shared_accesses(kernel, buffer, target);
        if (buffer->shape.empty() || accesses.empty() || shared.fixed) return shared;
        double plain = cost(accesses, buffer, shared.layout), least = plain;
        Layout best = shared.layout;
        for (const Layout& layout : candidates(buffer)) {
            if (layout.elements() * bytes_of(buffer->type) > most_bytes) continue;
            const double enough = least * 0.999, own = cost(accesses, buffer, layout, enough);
            if (own >= enough) continue;
            least = own;
            best = layout;
        }
        if (!(best == shared.layout))
            notes.push_back(
                fmt::format("{}: laid out as {}: {:.0f} wavefronts of shared memory a warp, {:.0f} row-major",
                            buffer->name, best.to_string(), least, plain));
        else
            notes.push_back(
                fmt::format("{}: row-major: {:.0f} wavefronts of shared memory a warp", buffer->name, plain));
        SharedBuffer result = shared;
        result.layout = best;
        return result;
    }
};

}  // namespace

TileKernel choose_layouts(const TileKernel& kernel, const Target& target) {
    TileKernel result = kernel;
    auto bytes_of_buffer = [](const SharedBuffer& s) { return s.layout.elements() * bytes_of(s.buffer->type); };
    int64_t room = target.shared_bytes;
    for (const SharedBuffer& shared : kernel.shared) room -= bytes_of_buffer(shared);
    for (SharedBuffer& shared : result.shared) {
        int64_t plain = bytes_of_buffer(shared);
        shared = Chooser{kernel, target}.choose(shared, plain + std::max<int64_t>(room, 0), result.notes);
        room -= bytes_of_buffer(shared) - plain;
    }
    return result;
}

}  // namespace tw::codegen

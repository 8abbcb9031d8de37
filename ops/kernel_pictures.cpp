#include "ops/kernel_pictures.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/lower.h"

namespace tw {
namespace {

using codegen::SignalLane;
using codegen::SignalSpan;

constexpr int chunk_bytes = 16, lines_of_pattern = 8;

SharedArray array_of(const BufferNode& buffer) {
    SharedArray array{.name = buffer.name,
                      .type = buffer.is_barrier ? "barriers" : std::string(name_of(buffer.type)),
                      .bytes = bytes_of(buffer.type),
                      .swizzle_bytes = buffer.swizzle};
    for (const Expr& extent : buffer.shape) {
        array.shape.push_back(require_constant(extent));
        array.bytes *= array.shape.back();
    }
    return array;
}

std::string line_of(const SharedArray& array) {
    std::string shape;
    for (int64_t extent : array.shape) shape += fmt::format("[{}]", extent);
    std::string line = fmt::format("{:<24} {:<20} {:<9} {:>8} bytes", array.name, shape, array.type, array.bytes);
    return line + (array.swizzle_bytes ? fmt::format("   lines of {} bytes, swizzled\n", array.swizzle_bytes) : "\n");
}

/// Which chunk of its line stands at each place: bits 7 to 9 of an address are added to bits 4 to 6, as many as the
/// line has.
std::string swizzle_picture(int line_bytes) {
    int chunks = line_bytes / chunk_bytes;
    std::string text = fmt::format("\nChunks of 16 bytes in lines of {}, by their places:\n", line_bytes);
    for (int line = 0; line < lines_of_pattern; ++line) {
        text += fmt::format("  line {}: ", line);
        for (int place = 0; place < chunks; ++place)
            text += fmt::format(" {}", place ^ (line * line_bytes / 128 % chunks));
        text += "\n";
    }
    return text;
}

/// Cycles of a column that each kind of span takes.
using Shares = std::array<int64_t, 4>;

char letter_of(const Shares& shares, int64_t column) {
    auto share = [&](SignalSpan::Kind kind) { return shares[static_cast<size_t>(kind)]; };
    if (share(SignalSpan::Kind::Multiply) * 2 >= column) return 'M';
    if (share(SignalSpan::Kind::Load) * 2 >= column) return 'L';
    int64_t work = share(SignalSpan::Kind::Work), wait = share(SignalSpan::Kind::Wait);
    if (work + wait == 0) return ' ';
    return work >= wait ? 'w' : '.';
}

std::string row_of(const SignalLane& lane, int64_t cycles, size_t columns) {
    int64_t width = std::max<int64_t>((cycles + static_cast<int64_t>(columns) - 1) / static_cast<int64_t>(columns), 1);
    std::vector<Shares> shares(columns, Shares{});
    for (const SignalSpan& span : lane.spans)
        for (int64_t at = span.from; at < span.to;) {
            int64_t column = at / width, end = std::min(span.to, (column + 1) * width);
            if (column >= static_cast<int64_t>(columns)) break;
            shares[static_cast<size_t>(column)][static_cast<size_t>(span.kind)] += end - at;
            at = end;
        }
    std::string row;
    for (const Shares& one : shares) row += letter_of(one, width);
    return row;
}

}  // namespace

std::vector<SharedArray> shared_arrays(const codegen::ThreadKernel& kernel) {
    std::vector<SharedArray> arrays;
    for (const codegen::Buffer& buffer : kernel.shared) arrays.push_back(array_of(*buffer));
    return arrays;
}

std::string shared_memory_picture(const codegen::ThreadKernel& kernel) {
    std::string text;
    std::set<int> swizzles;
    for (const SharedArray& array : shared_arrays(kernel)) {
        text += line_of(array);
        if (array.swizzle_bytes) swizzles.insert(array.swizzle_bytes);
    }
    for (const codegen::SharedUnion& shared : kernel.unions)
        text += fmt::format("the same bytes: {}\n", codegen::to_string(shared));
    for (int swizzle : swizzles) text += swizzle_picture(swizzle);
    return text;
}

std::string timeline_picture(const codegen::SignalSimulation& simulation, size_t columns) {
    std::string text;
    for (const SignalLane& lane : simulation.lanes)
        text += fmt::format("{:<12}|{}|\n", lane.name, row_of(lane, simulation.cycles, columns));
    return text;
}

std::vector<codegen::ThreadKernel> kernels_before_printing(const Tree& tree, const Target& target) {
    std::vector<codegen::ThreadKernel> kernels;
    codegen::LowerOptions options;
    options.printed = [&](const codegen::ThreadKernel& kernel) { kernels.push_back(kernel); };
    codegen::lower(tree, target, options);
    return kernels;
}

}  // namespace tw

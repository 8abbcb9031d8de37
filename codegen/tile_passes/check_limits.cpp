#include "codegen/tile_passes/check_limits.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/tile_ir/placement.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

/// The step of the last buffer or loop that can be blamed, for the citation.
int last_step(const std::vector<SharedBuffer>& shared) {
    int step = -1;
    for (const SharedBuffer& buffer : shared) step = std::max(step, buffer.buffer->step);
    return step;
}

}  // namespace

void check_limits(const TileKernel& kernel, const Target& target, const CiteStep& cite) {
    if (all_threads(kernel) > target.max_threads)
        throw_error(Error,
                    "{}: its thread loops and roles need {} threads, a block of {} has at most {}; bind smaller loops",
                    kernel.name, all_threads(kernel), target.arch, target.max_threads);
    std::string parts;
    for (const SharedBuffer& shared : kernel.shared)
        parts += fmt::format("{}{} {}", parts.empty() ? "" : " + ", shared.buffer->name,
                             shared.layout.elements() * bytes_of(shared.buffer->type));
    for (const SharedUnion& shared : kernel.unions) parts += "; " + to_string(shared);
    const Placement placement(kernel);
    const int64_t bytes = bytes_of_shared(placement.shared(), placement.unions());
    if (bytes > target.shared_bytes)
        throw_error(Error,
                    "{}{}: shared memory of {} bytes ({}), a block of {} has at most {}; use smaller tiles or fewer "
                    "staged operands, or fewer stages of a pipeline",
                    cite(last_step(kernel.shared)), kernel.name, bytes, parts, target.arch, target.shared_bytes);
}

}  // namespace tw::codegen

#include "schedules/streamed_attention.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/cost/known_nests.h"
#include "dsl/edit.h"
#include "schedules/find_attention.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

ScheduledPart part_of(const FoundAttention& found, const Target& target) {
    const AttentionShape& shape = found.shape;
    ScheduledPart part{.given = {found.o},
                       .operands = found.operands,
                       .schedule =
                           [found, target](const std::vector<Tensor>& operands) {
                               const Attention declared = found.declare(operands);
                               const AttentionTiles tiles = attention_tiles(declared, found.shape, target);
                               return attention_schedule(declared, found.shape, tiles, target);
                           },
                       .text = fmt::format("'{}' is attention of {} rows and {} keys, {}{} heads, in one pass over the "
                                           "keys; outputs() has it as it is now",
                                           found.o.name(), shape.rows, shape.keys,
                                           shape.batch > 1 ? fmt::format("{} times ", shape.batch) : "", shape.heads)};
    for (const FoundAttention::OfRow& row : found.of_rows) part.given.push_back(row.given);
    return part;
}

}  // namespace

std::optional<Schedule> with_streamed_attention(const std::vector<Tensor>& outputs, const Target& target,
                                                const ChooseRest& choose_rest) {
    if (!target.has_wgmma || !target.has_tma) return {};
    std::vector<ScheduledPart> parts;
    for (const auto& operation : operations_of(outputs))
        if (const auto found = find_attention(Tensor(operation, 0), outputs)) parts.push_back(part_of(*found, target));
    std::vector<std::string> refusals;
    std::erase_if(parts, [&](const ScheduledPart& part) {
        const std::string refusal = refusal_of(part, target);
        if (!refusal.empty())
            refusals.push_back(fmt::format("'{}' is attention, not in one pass: {}", part.given[0].name(), refusal));
        return !refusal.empty();
    });
    if (parts.empty() && refusals.empty()) return {};
    std::optional<Schedule> streamed;
    try {
        if (!parts.empty()) {
            streamed = composed_of(parts, outputs, target, choose_rest);
            codegen::counted_kernels(streamed->tree(), target);
        }
    } catch (const Error& error) {
        streamed.reset();
        refusals.push_back(fmt::format("attention is not in one pass, with all else: {}", error.what()));
    }
    Schedule s = streamed ? std::move(*streamed) : choose_rest(outputs, target);
    for (const std::string& refusal : refusals) Edit::note(s, refusal);
    return s;
}

}  // namespace tw::schedules

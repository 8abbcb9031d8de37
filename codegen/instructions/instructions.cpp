#include "codegen/instructions/instructions.h"

#include <fmt/format.h>

#include "support/error.h"
#include "support/overloaded.h"

namespace tw::codegen {
namespace {

std::string entry_of_registers(const char* function, const WriteOperand& registers) {
    return fmt::format("{}_{}", function, name_of(registers.place.buffer->type));
}

/// A function of several ranks has an entry each.
VocabularyCall of_rank(const std::string& function, size_t rank) {
    return {fmt::format("{}_{}d", function, rank), function, {}};
}

VocabularyCall plain(const std::string& name, std::vector<int64_t> parameters = {}) {
    return {name, name, std::move(parameters)};
}

VocabularyCall of_product(const Wgmma& product) {
    const bool registers = product.takes_a_from_registers();
    VocabularyCall call =
        plain(product.atom->name + (registers ? "_registers" : "") + (product.negative ? "_negated" : ""));
    if (!product.transposed) return call;
    auto [a, b] = *product.transposed;
    call.parameters = registers ? std::vector<int64_t>{b} : std::vector<int64_t>{a, b};
    return call;
}

/// Calls `see` with each field that is an operand, in the order of the call; `instruction` may be const.
template <class I, class See>
void each_field(I& instruction, See&& see) {
    auto all = [&](auto&... fields) { (see(fields), ...); };
    auto numbers = [&](auto& exprs) {
        for (auto& e : exprs) see(e);
    };
    auto given = [&](auto& expr) {
        if (expr.defined()) see(expr);
    };
    std::visit(
        [&]<class T>(T& i) {
            using Plain = std::remove_const_t<T>;
            if constexpr (OneOf<Plain, MbarrierInit>)
                all(i.barrier, i.arrivals);
            else if constexpr (OneOf<Plain, MbarrierExpectTx>)
                all(i.barrier, i.bytes);
            else if constexpr (OneOf<Plain, MbarrierWait>)
                all(i.barrier, i.parity);
            else if constexpr (OneOf<Plain, MbarrierArrive>)
                all(i.barrier);
            else if constexpr (OneOf<Plain, MbarrierArriveAt>)
                all(i.barrier, i.rank);
            else if constexpr (OneOf<Plain, BarrierSync, BarrierArrive>)
                all(i.id, i.threads);
            else if constexpr (OneOf<Plain, PrefetchTensorMap>)
                all(i.map);
            else if constexpr (OneOf<Plain, TmaLoad>)
                all(i.to, i.map), numbers(i.coordinates), numbers(i.offsets), all(i.barrier), given(i.ranks),
                    given(i.first_rank);
            else if constexpr (OneOf<Plain, TmaStore>)
                all(i.map), numbers(i.coordinates), all(i.from);
            else if constexpr (OneOf<Plain, CpAsync>)
                all(i.to, i.from), given(i.there);
            else if constexpr (OneOf<Plain, LdMatrix>)
                all(i.to, i.row);
            else if constexpr (OneOf<Plain, StMatrix>)
                all(i.row, i.from);
            else if constexpr (OneOf<Plain, TransposeLanes>)
                all(i.elements);
            else if constexpr (OneOf<Plain, Mma>)
                all(i.sums, i.a, i.b);
            else if constexpr (OneOf<Plain, PackRegisters>)
                all(i.words, i.elements);
            else if constexpr (OneOf<Plain, NarrowPair>)
                all(i.to, i.from);
            else if constexpr (OneOf<Plain, Wgmma>)
                all(i.sums), std::visit(see, i.a), all(i.b, i.accumulates);
            else if constexpr (OneOf<Plain, WgmmaFenceOperand, LeaveUndefined>)
                all(i.registers);
            else if constexpr (OneOf<Plain, TakeTicket>)
                all(i.ticket, i.counter, i.tickets, i.first);
            else if constexpr (OneOf<Plain, BeginArray>)
                all(i.array, i.bytes);
            else
                static_assert(std::is_empty_v<Plain> ||
                              OneOf<Plain, TmaStoreWaitRead, CpAsyncWait, WgmmaWait, SetMaxNReg>);
        },
        instruction);
}

}  // namespace

std::vector<const MatrixOperand*> Wgmma::matrices() const {
    std::vector<const MatrixOperand*> all{&b};
    if (auto matrix = std::get_if<MatrixOperand>(&a)) all.insert(all.begin(), matrix);
    return all;
}

VocabularyCall vocabulary_call(const Instruction& instruction) {
    return std::visit(
        Overloaded{
            [](const MbarrierInit&) { return plain("mbarrier_init"); },
            [](const MbarrierExpectTx&) { return plain("mbarrier_expect_tx"); },
            [](const MbarrierWait&) { return plain("mbarrier_wait"); },
            [](const MbarrierArrive&) { return plain("mbarrier_arrive"); },
            [](const MbarrierArriveAt&) { return plain("mbarrier_arrive_at"); },
            [](const FenceMbarrierInit&) { return plain("fence_mbarrier_init"); },
            [](const FenceProxyAsync&) { return plain("fence_proxy_async"); },
            [](const BarrierSync&) { return plain("barrier_sync"); },
            [](const BarrierArrive&) { return plain("barrier_arrive"); },
            [](const ClusterArrive&) { return plain("cluster_arrive"); },
            [](const ClusterWait&) { return plain("cluster_wait"); },
            [](const PrefetchTensorMap&) { return plain("prefetch_tensor_map"); },
            [](const TmaLoad& i) {
                const std::string function = i.offsets.empty() ? "tma_load" : "tma_load_im2col";
                return of_rank(function + (i.ranks.defined() ? "_multicast" : ""), i.coordinates.size());
            },
            [](const TmaStore& i) { return of_rank(i.adds ? "tma_reduce_add" : "tma_store", i.coordinates.size()); },
            [](const TmaStoreCommit&) { return plain("tma_store_commit"); },
            [](const TmaStoreWaitRead& i) { return plain("tma_store_wait_read", {i.pending}); },
            [](const CpAsync& i) { return plain(i.there.defined() ? "cp_async_or_zero" : "cp_async", {i.width}); },
            [](const CpAsyncCommit&) { return plain("cp_async_commit"); },
            [](const CpAsyncWait& i) { return plain("cp_async_wait", {i.pending}); },
            [](const LdMatrix& i) { return plain(i.transposed ? "ldmatrix_trans" : "ldmatrix", {i.matrices}); },
            [](const StMatrix& i) { return plain(i.transposed ? "stmatrix_trans" : "stmatrix", {i.matrices}); },
            [](const TransposeLanes& i) { return plain("transpose_lanes", {i.lanes}); },
            [](const Mma& i) { return plain(i.atom->name + (i.negative ? "_negated" : "")); },
            [](const PackRegisters& i) { return plain("pack_registers", {i.words.elements}); },
            [](const NarrowPair& i) {
                return VocabularyCall{entry_of_registers("narrow_pair", i.to), "narrow_pair", {}};
            },
            [](const Wgmma& i) { return of_product(i); },
            [](const WgmmaFence&) { return plain("wgmma_fence"); },
            [](const WgmmaCommit&) { return plain("wgmma_commit"); },
            [](const WgmmaWait& i) { return plain("wgmma_wait", {i.pending}); },
            [](const WgmmaFenceOperand& i) {
                return VocabularyCall{
                    entry_of_registers("wgmma_fence_operand", i.registers), "wgmma_fence_operand", {}};
            },
            [](const LeaveUndefined& i) {
                return VocabularyCall{entry_of_registers("leave_undefined", i.registers), "leave_undefined", {}};
            },
            [](const TakeTicket&) { return plain("take_ticket"); },
            [](const BeginArray&) { return plain("begin_array"); },
            [](const SetMaxNReg& i) { return plain(i.grows ? "setmaxnreg_inc" : "setmaxnreg_dec", {i.count}); },
            [](const GriddepcontrolWait&) { return plain("griddepcontrol_wait"); },
            [](const GriddepcontrolLaunchDependents&) { return plain("griddepcontrol_launch_dependents"); },
        },
        instruction);
}

bool Target::*needed_by(const Instruction& instruction) {
    using Feature = bool Target::*;
    return std::visit(
        Overloaded{
            [](const OneOf<MbarrierInit, MbarrierExpectTx, MbarrierWait, MbarrierArrive, FenceMbarrierInit,
                           FenceProxyAsync, PrefetchTensorMap, TmaLoad, TmaStore, TmaStoreCommit,
                           TmaStoreWaitRead> auto&) -> Feature { return &Target::has_tma; },
            [](const OneOf<MbarrierArriveAt, ClusterArrive, ClusterWait> auto&) -> Feature {
                return &Target::has_clusters;
            },
            [](const OneOf<CpAsync, CpAsyncCommit, CpAsyncWait, LdMatrix> auto&) -> Feature {
                return &Target::has_mma_sync;
            },
            [](const StMatrix&) -> Feature { return &Target::has_stmatrix; },
            [](const Mma& product) -> Feature { return product.atom->needed; },
            [](const OneOf<Wgmma, WgmmaFence, WgmmaCommit, WgmmaWait> auto&) -> Feature { return &Target::has_wgmma; },
            [](const OneOf<BarrierSync, BarrierArrive, TransposeLanes, PackRegisters, NarrowPair, WgmmaFenceOperand,
                           LeaveUndefined, TakeTicket, BeginArray> auto&) -> Feature { return nullptr; },
            [](const SetMaxNReg&) -> Feature { return &Target::has_setmaxnreg; },
            [](const OneOf<GriddepcontrolWait, GriddepcontrolLaunchDependents> auto&) -> Feature {
                return &Target::has_programmatic_launch;
            },
        },
        instruction);
}

std::string to_string(const Instruction& instruction) {
    const VocabularyCall call = vocabulary_call(instruction);
    std::vector<std::string> arguments;
    for (const Operand& operand : operands(instruction))
        arguments.push_back(std::visit(
            Overloaded{[](const Expr& number) { return tw::to_string(number); },
                       [](const MapOperand& map) { return "&" + map.map->name; },
                       [](const MatrixOperand& matrix) {
                           std::string further = matrix.further.defined() ? tw::to_string(matrix.further) : "";
                           return "&" + to_string(matrix.place) +
                                  (further.empty() ? "" : fmt::format(" and {} bytes", further));
                       },
                       [](const auto& other) { return "&" + to_string(other.place); }},
            operand));
    std::string parameters = call.parameters.empty() ? "" : fmt::format("<{}>", fmt::join(call.parameters, ", "));
    return fmt::format("{}{}({})", call.entry, parameters, fmt::join(arguments, ", "));
}

std::vector<Operand> operands(const Instruction& instruction) {
    std::vector<Operand> result;
    each_field(instruction, [&](const auto& field) { result.emplace_back(field); });
    return result;
}

Instruction with_operands(const Instruction& instruction, const std::vector<Operand>& operands) {
    Instruction result = instruction;
    size_t next = 0;
    each_field(result, [&]<class Field>(Field& field) {
        internal_check(next < operands.size(), "{} has more than {} operands", vocabulary_call(instruction).entry,
                       next);
        field = std::get<Field>(operands[next++]);
    });
    internal_check(next == operands.size(), "{} has {} operands", vocabulary_call(instruction).entry, next);
    return result;
}

Instruction map_operands(const Instruction& instruction, const std::function<Operand(const Operand&)>& rule) {
    Instruction result = instruction;
    each_field(result, [&]<class Field>(Field& field) { field = std::get<Field>(rule(field)); });
    return result;
}

void visit_exprs(const Instruction& instruction, const std::function<void(const Expr&)>& see) {
    each_field(instruction, [&](const auto& field) { visit_exprs(Operand(field), see); });
}

Instruction map_exprs(const Instruction& instruction, const std::function<Expr(const Expr&)>& rule) {
    return map_operands(instruction, [&](const Operand& operand) { return map_exprs(operand, rule); });
}

void visit_places(const Instruction& instruction, const std::function<void(const Access&)>& see) {
    for (const Operand& operand : operands(instruction))
        if (const Access* place = operand_place(operand)) see(*place);
}

Instruction map_places(const Instruction& instruction, const std::function<Access(const Access&)>& rule) {
    return map_operands(instruction, [&](const Operand& operand) { return map_place(operand, rule); });
}

}  // namespace tw::codegen

#include "verify/trace_threads.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "dsl/check_bindings.h"
#include "dsl/integers.h"
#include "dsl/simplify.h"
#include "support/error.h"
#include "support/overloaded.h"
#include "verify/branch_as_selects.h"

namespace tw::fuzz {
namespace {

using namespace codegen;  // NOLINT: the thread IR is all that this file is about

constexpr int64_t kDescriptorUnit = 16;
constexpr int64_t kRowsOfGroup = 8;

TracedOperation::Kind kind_of(const Instruction& instruction) {
    using Kind = TracedOperation::Kind;
    return std::visit(
        Overloaded{
            [](const MbarrierInit&) { return Kind::Init; },
            [](const OneOf<MbarrierArrive, MbarrierArriveAt> auto&) { return Kind::Arrival; },
            [](const MbarrierWait&) { return Kind::Wait; }, [](const WgmmaWait&) { return Kind::Products; },
            [](const TmaStore&) { return Kind::Result; },
            [](const TmaLoad& load) { return load.ranks.defined() ? Kind::Multicast : Kind::Other; },
            [](const OneOf<Wgmma, WgmmaFence, WgmmaCommit> auto&) { return Kind::Multiply; },
            // Hints for the compiler, and how many registers a warp may use.
            [](const OneOf<WgmmaFenceOperand, LeaveUndefined, PrefetchTensorMap, BeginArray, SetMaxNReg> auto&) {
                return Kind::Idle;
            },
            [](const OneOf<MbarrierExpectTx, FenceMbarrierInit, FenceProxyAsync, BarrierSync, BarrierArrive,
                           ClusterArrive, ClusterWait, TmaStoreCommit, TmaStoreWaitRead, CpAsync, CpAsyncCommit,
                           CpAsyncWait, LdMatrix, StMatrix, TransposeLanes, Mma, PackRegisters, NarrowPair, TakeTicket,
                           GriddepcontrolWait, GriddepcontrolLaunchDependents> auto&) { return Kind::Other; }},
        instruction);
}

class ThreadTracer {
public:
    ThreadTracer(Terms& terms, const ThreadKernel& kernel, const Bindings& sizes)
        : kernel_(kernel), sizes_(sizes), values_(terms, kernel, sizes) {
        visit(kernel.body, [&](const ThreadStmt& stmt) {
            if (auto load = instruction_of<TmaLoad>(stmt)) of_hardware_.insert(load->to.place.buffer->name);
            if (auto product = instruction_of<Wgmma>(stmt))
                for (const MatrixOperand* matrix : product->matrices()) of_hardware_.insert(matrix->place.buffer->name);
            if (auto loop = stmt.as<ThreadLoop>(); loop && loop->next) next_tickets_.insert(loop->next->name);
        });
    }

    ThreadTrace run(const std::array<int64_t, 3>& block, int thread) {
        values_.start(block, thread);
        cluster_ = {block[0] / kernel_.cluster, block[1], block[2]};
        thread_ = thread, barriers_ = 0, met_ = stores_boxes_ = copies_boxes_ = is_told_ = false;
        trace_ = {};
        run(kernel_.body);
        note_reliance();
        trace_.accesses = values_.take_accesses();
        return std::move(trace_);
    }

private:
    using Kind = TracedOperation::Kind;

    void add(const Hash& operation, Kind kind = Kind::Other, int number = 0, uint64_t place = 0) {
        (met_ ? trace_.after : trace_.before).push_back({operation.value(), kind, number, place});
    }

    /// Before anything that could tell the thread that the launches before are over.
    void note_reliance() {
        const bool touched = values_.take_touch_of_global() || std::exchange(copies_boxes_, false);
        if (touched && !trace_.waited && !trace_.relied && !is_told_) trace_.relied = barriers_;
    }

    void run(const ThreadStmt& stmt) {
        std::visit([&](const auto& node) { run(node); }, (*stmt).kind);
    }
    void run(const ThreadBlock& block) {
        for (const ThreadStmt& stmt : block.stmts) run(stmt);
    }
    void run(const ThreadLoop& loop) {
        const int64_t extent = values_.number(loop.extent, "a loop's extent");
        if (loop.next) return run_tickets(loop, extent);
        for (int64_t i = 0; i < extent; ++i) {
            values_.define(loop.variable, i);
            run(loop.body);
        }
    }
    void run_tickets(const ThreadLoop& loop, int64_t extent) {
        for (int64_t i = 0, ticket = ticket_in(loop.next); ticket < extent; ++i) {
            values_.define(loop.variable, i);
            run(loop.body);
            if (ticket_in(loop.next) <= ticket) throw Undecided{"tickets do not grow"};
            ticket = ticket_in(loop.next);
        }
    }
    int64_t ticket_in(const codegen::Buffer& next) {
        return values_.number(make_expr(next->type, Load{next, {}}), "a ticket");
    }
    void run(const ThreadIf& branch) {
        if (!values_.is_known(branch.condition))
            if (const auto stores = branch_as_selects(branch)) return run(*stores);
        if (values_.number(branch.condition, "a condition")) run(branch.body);
    }
    void run(const ThreadLet& let) { values_.define(let.variable, values_.eval(let.value)); }
    void run(const ThreadDeclare& declaration) { values_.declare(declaration.buffer); }
    void run(const ThreadAccess&) {}
    void run(const ThreadComment&) {}

    void run(const ThreadStore& store) {
        const std::optional<BinaryOp> atomic = store.atomic;
        write(store.to, {values_.eval(store.value)}, atomic ? static_cast<int64_t>(*atomic) : -1);
    }
    void run(const ThreadWide& wide) {
        if (wide.where.defined() && !values_.number(wide.where, "a condition")) return;
        write(wide.to, values_.read(wide.from, wide.width), -1);
    }

    void write(const Access& to, const std::vector<Term>& values, int64_t atomic) {
        const auto width = static_cast<int>(values.size());
        if (next_tickets_.contains(to.buffer->name) && !values_.is_number(values[0])) return take(to, values[0]);
        if (to.buffer->memory == Memory::Registers) return values_.set_registers(to, values);
        Hash operation;
        operation << "store" << atomic << to.buffer->name << values_.where(to, width);
        for (Term value : values) operation << value;
        if (to.buffer->memory == Memory::Global) return add(operation, Kind::Result);
        const uint64_t place = values_.touch(to, width, true);
        const bool by_threads = atomic < 0 && !of_hardware_.contains(to.buffer->name);
        add(operation, by_threads ? Kind::Store : Kind::Other, by_threads ? width : 0, by_threads ? place : 0);
    }

    /// The ticket that another thread has taken, where the trace says from: as if in each round every block took one,
    /// in an order that changes from round to round.
    void take(const Access& next, Term from) {
        Hash operation;
        add(operation << "ticket" << next.buffer->name << from);
        const int64_t blocks = require_constant(kernel_.grid[0]), last = ticket_in(next.buffer),
                      place = (last + blocks - 1) % blocks;
        values_.set_registers(next, {values_.integer(next.buffer->type, (last / blocks + 1) * blocks + place)});
    }

    void run(const ThreadBarrier& barrier) {
        Hash operation;
        operation << "barrier" << barrier.threads;
        int64_t id = barrier.id;
        if (barrier.turn.defined()) id += values_.number(barrier.turn, "a barrier's number");
        add(operation, Kind::Barrier, static_cast<int>(id));
        values_.pass_barrier();
        note_reliance();
        barriers_ += barrier.threads == 0;
        is_told_ = is_told_ || barrier.threads > 0;
        met_ = met_ || barrier.threads == 0;
    }
    void run(const ThreadRole& role) {
        if (thread_ < role.first || thread_ >= role.first + role.threads) return;
        const int each = role.threads / role.turns, inside = thread_ - role.first;
        if (role.thread.defined()) values_.define(role.thread, int64_t{inside % each});
        if (role.turn.defined()) values_.define(role.turn, int64_t{inside / each});
        run(role.body);
    }
    void run(const Instruction& instruction) {
        const VocabularyCall call = vocabulary_call(instruction);
        Hash operation;
        operation << call.entry;
        if (std::holds_alternative<WgmmaFenceOperand>(instruction)) return add(operation, Kind::Idle);
        if (auto forget = std::get_if<LeaveUndefined>(&instruction)) {
            values_.forget(forget->registers.place, forget->registers.elements);
            return add(operation, Kind::Idle);
        }
        if (!std::holds_alternative<WgmmaWait>(instruction))
            for (int64_t parameter : call.parameters) operation << parameter;
        if (std::holds_alternative<TmaStoreWaitRead>(instruction) && !stores_boxes_) return add(operation, Kind::Idle);
        if (auto load = std::get_if<TmaLoad>(&instruction)) return run(*load, operation);
        if (auto store = std::get_if<TmaStore>(&instruction)) return run(*store, operation);
        if (auto product = std::get_if<Wgmma>(&instruction))
            add_operands(operation, *product);
        else
            for (const codegen::Operand& operand : operands(instruction)) add_operand(operation, operand);
        finish(instruction, operation);
    }

    void run(const TmaLoad& load, Hash& operation) {
        if (const TensorMapUse* use = map_of(load.map); use && use->im2col) return run_walk(load, *use, operation);
        const bool outside = lies_outside(load.map, load.coordinates);
        TmaLoad told = load;
        if (outside) told.coordinates.clear();  // they say no more
        for (const codegen::Operand& operand : operands(told)) add_operand(operation, operand);
        copies_boxes_ = copies_boxes_ || !outside;
        if (load.ranks.defined())
            for (int64_t place : cluster_) operation << place;
        finish(load, operation);
    }

    /// Of a walk over pixels only those that it reads matter, and that it begins inside of its bounding box.
    void run_walk(const TmaLoad& load, const TensorMapUse& use, Hash& operation) {
        add_operand(operation, load.to);
        add_operand(operation, load.barrier);
        operation << use.tensor->name << use.swizzle << use.im2col->channels;
        std::vector<int64_t> sizes = extents_of(use.tensor->shape, sizes_), base, offsets = {0};
        std::ranges::reverse(sizes);
        for (const Expr& coordinate : load.coordinates) base.push_back(values_.number(coordinate, "a coordinate"));
        for (const Expr& offset : load.offsets) offsets.push_back(values_.number(offset, "an offset"));
        offsets.push_back(0);
        operation << base[0];
        const size_t images = sizes.size() - 1;
        auto end = [&](size_t d) { return sizes[d] + use.im2col->upper[d - 1]; };
        for (size_t d = 1; d < images; ++d)
            if (base[d] < use.im2col->lower[d - 1] || base[d] >= end(d)) operation << "outside" << base[d];
        for (int64_t pixel = 0; pixel < use.im2col->pixels; ++pixel) {
            bool inside = true;
            for (size_t d = 1; d <= images; ++d)
                inside = inside && base[d] + offsets[d] >= 0 && base[d] + offsets[d] < sizes[d];
            for (size_t d = 1; d <= images; ++d) operation << (inside ? base[d] + offsets[d] : -1);
            for (size_t d = 1; d <= images; ++d) {
                base[d] += use.traversal_strides[d];
                if (d == images || base[d] < end(d)) break;
                base[d] = use.im2col->lower[d - 1];
            }
        }
        copies_boxes_ = true;
        if (load.ranks.defined())
            for (int64_t place : cluster_) operation << place;
        finish(load, operation);
    }

    void run(const TmaStore& store, Hash& operation) {
        if (lies_outside(store.map, store.coordinates)) return add(operation, Kind::Idle);
        read_box(store);
        for (const codegen::Operand& operand : operands(store)) add_operand(operation, operand);
        copies_boxes_ = true;
        finish(store, operation);
    }

    void finish(const Instruction& instruction, const Hash& operation) {
        const Kind kind = kind_of(instruction);
        if (kind == Kind::Idle) return add(operation, kind);
        for (const codegen::Operand& operand : operands(instruction))
            if (auto to = std::get_if<WriteOperand>(&operand); to && to->place.buffer->memory == Memory::Registers)
                values_.receive(to->place, to->elements);
        if (auto matrices = std::get_if<StMatrix>(&instruction)) return add_row(operation, matrices->row);
        int64_t number = 0;
        uint64_t place = 0;
        auto at = [&](const auto& barrier) { place = values_.place_of(barrier.place, 1); };
        std::visit(Overloaded{[&](const WgmmaWait& wait) { number = wait.pending; },
                              [&](const MbarrierWait& wait) {
                                  number = values_.number(wait.parity, "a phase");
                                  at(wait.barrier);
                              },
                              [&](const OneOf<MbarrierInit, MbarrierArrive, MbarrierArriveAt> auto& other) {
                                  at(other.barrier);
                              },
                              [](const auto&) {}},
                   instruction);
        add(operation, kind, static_cast<int>(number), place);
        meet(instruction, kind, number);
    }

    /// What the thread may know of others behind the instruction.
    void meet(const Instruction& instruction, Kind kind, int64_t phase) {
        const bool with_all = std::holds_alternative<ClusterWait>(instruction),
                   waits = std::holds_alternative<GriddepcontrolWait>(instruction);
        const bool ends_a_phase = kind == Kind::Wait && (phase == 0 || is_told_);  // not the one before the first
        if (!with_all && !waits && !ends_a_phase) return;
        note_reliance();
        if (waits && !trace_.waited) trace_.waited = barriers_;
        is_told_ = is_told_ || ends_a_phase;
        barriers_ += with_all;
        met_ = met_ || with_all;
    }

    void add_row(const Hash& operation, const WriteOperand& row) {
        if (of_hardware_.contains(row.place.buffer->name)) return add(operation);
        add(operation, Kind::Matrices, row.elements, values_.place_of(row.place, row.elements));
    }

    /// What lies inside of the tensor.
    void read_box(const TmaStore& store) {
        stores_boxes_ = true;
        const TensorMapUse& use = *map_of(store.map);
        const std::vector<int64_t> sizes = extents_of(use.tensor->shape, sizes_);
        std::vector<int64_t> inside;  // elements along each dimension, innermost first
        for (size_t d = 0; d < sizes.size(); ++d) {
            const int64_t first = values_.number(store.coordinates[d], "a coordinate");
            const int64_t covered = std::min(use.box[d], sizes[sizes.size() - 1 - d] - first);
            inside.push_back((covered + use.traversal_stride(d) - 1) / use.traversal_stride(d));
        }
        const int64_t rows = std::accumulate(inside.begin() + 1, inside.end(), int64_t{1}, std::multiplies());
        Access line = store.from.place;
        for (int64_t row = 0; row < rows; ++row) {
            values_.touch(line, static_cast<int>(inside[0]), false);
            if (rows > 1) line.indices[line.indices.size() - 2] = simplify(line.indices[line.indices.size() - 2] + 1);
        }
    }

    const TensorMapUse* map_of(const MapOperand& map) const {
        auto use = std::ranges::find_if(kernel_.maps, [&](const TensorMapUse& one) { return one.map == map.map; });
        return use == kernel_.maps.end() ? nullptr : &*use;
    }

    /// Such a box brings zeros, wherever it lies, or is not stored.
    bool lies_outside(const MapOperand& map, const std::vector<Expr>& coordinates) {
        const TensorMapUse* use = map_of(map);
        if (!use || use->im2col) return false;
        const std::vector<int64_t> sizes = extents_of(use->tensor->shape, sizes_);
        for (size_t d = 0; d < sizes.size(); ++d) {
            const int64_t first = values_.number(coordinates.at(d), "a coordinate");
            if (first >= sizes[sizes.size() - 1 - d] || first + use->box[d] <= 0) return true;
        }
        return false;
    }

    /// A product that does not add to its registers does not look at them.
    void add_operands(Hash& operation, const Wgmma& product) {
        if (values_.number(product.accumulates, "whether sums go on") != 0) add_operand(operation, product.sums);
        operation << static_cast<int64_t>(product.negative);
        auto transposed = [&](size_t side) { return product.transposed && (*product.transposed)[side]; };
        if (auto registers = std::get_if<ReadOperand>(&product.a))
            add_operand(operation, *registers);
        else
            add_matrix(operation, std::get<MatrixOperand>(product.a), product.atom->m, transposed(0));
        add_matrix(operation, product.b, product.atom->n, transposed(1));
        add_operand(operation, product.accumulates);
    }

    void add_operand(Hash& operation, const codegen::Operand& operand) {
        operation << static_cast<int64_t>(operand.index());
        std::visit(Overloaded{[&](const Expr& number) { operation << values_.eval(number); },
                              [&](const MapOperand& map) { add_map(operation, map.map); },
                              [](const MatrixOperand&) { internal_check(false, "a matrix outside of a product"); },
                              [&](const AddressOperand& address) { place(operation, address.place, 1); },
                              [&](const OneOf<ReadOperand, WriteOperand> auto& used) { add_used(operation, used); }},
                   operand);
    }

    template <class Used>
    void add_used(Hash& operation, const Used& used) {
        operation << used.elements;
        if (used.place.buffer->memory == Memory::Registers) {
            for (Term value : values_.read(used.place, used.elements)) operation << value;
            return;
        }
        place(operation, used.place, used.elements);
        values_.touch(used.place, used.elements, std::same_as<Used, WriteOperand>);
    }

    void add_map(Hash& operation, const codegen::Buffer& map) {
        for (const TensorMapUse& use : kernel_.maps) {
            if (use.map != map) continue;
            operation << use.tensor->name << use.swizzle;
            for (int64_t side : use.box) operation << side;
            for (int64_t stride : use.traversal_strides) operation << stride;
        }
    }

    /// Descriptors tell the start in units of 16 bytes. Where lines are swizzled, the distance of eight lines counts
    /// only if there are more, and the leading one only if rows that stand side by side take more than a line.
    void add_matrix(Hash& operation, const MatrixOperand& matrix, int64_t rows, bool transposed) {
        const BufferNode& buffer = *matrix.place.buffer;
        const int64_t size = bytes_of(buffer.type), per_line = buffer.swizzle / size;
        int64_t start = values_.where(matrix.place, 1) * size;
        if (matrix.further.defined()) start += values_.number(matrix.further, "a distance");
        operation << buffer.name << floor_div(start, kDescriptorUnit) << buffer.swizzle;
        const bool is_swizzled = buffer.swizzle != 0, one_group = rows <= kRowsOfGroup;
        if (!is_swizzled || transposed || !one_group) operation << matrix.stride_bytes / kDescriptorUnit;
        if (!is_swizzled || (transposed && rows > per_line)) operation << matrix.leading_bytes / kDescriptorUnit;
    }

    Hash& place(Hash& operation, const Access& access, int elements) {
        return operation << access.buffer->name << values_.where(access, elements);
    }

    const ThreadKernel& kernel_;
    const Bindings& sizes_;
    ThreadValues values_;
    std::array<int64_t, 3> cluster_ = {};
    int thread_ = 0;
    int barriers_ = 0;  // of all threads, that it has passed
    bool met_ = false, stores_boxes_ = false, copies_boxes_ = false, is_told_ = false;
    ThreadTrace trace_;
    std::set<std::string> of_hardware_, next_tickets_;  // arrays that instructions read and fill; what ends loops
};

}  // namespace

std::variant<Traces, Misuse, Undecided> trace_threads(Terms& terms, const ThreadKernel& kernel, const Bindings& sizes) {
    std::array<int64_t, 3> grid = {1, 1, 1};
    for (size_t d = 0; d < 3; ++d)
        if (kernel.grid[d].defined()) grid[d] = extent_of(kernel.grid[d], sizes);
    Traces traces;
    ThreadTracer tracer(terms, kernel, sizes);
    try {
        for (int64_t z = 0; z < grid[2]; ++z)
            for (int64_t y = 0; y < grid[1]; ++y)
                for (int64_t x = 0; x < grid[0]; ++x) {
                    std::vector<ThreadTrace>& threads = traces.emplace_back();
                    for (int t = 0; t < kernel.threads + kernel.producer_threads; ++t)
                        threads.push_back(tracer.run({x, y, z}, t));
                    normalise(threads);
                }
    } catch (const Misuse& finding) {
        return finding;
    } catch (const Undecided& reason) {
        return reason;
    }
    return traces;
}

}  // namespace tw::fuzz

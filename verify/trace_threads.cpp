#include "verify/trace_threads.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "device/wgmma.h"
#include "dsl/check_bindings.h"
#include "dsl/simplify.h"
#include "support/error.h"

namespace tw::fuzz {
namespace {

using namespace codegen;  // NOLINT: the thread IR is all that this file is about

constexpr int64_t kDescriptorUnit = 16, kRowsOfGroup = 8;

/// Hints for the compiler, and how many registers a warp may use.
bool is_idle(const std::string& primitive) {
    return primitive == "keep" || primitive == "forget" || primitive == "prefetch_map" ||
           primitive == "shrink_registers" || primitive == "grow_registers";
}

bool sends_box(const std::string& primitive) {
    return primitive.starts_with("tma_store") || primitive.starts_with("tma_reduce_add");
}

TracedOperation::Kind kind_of(const std::string& primitive) {
    using Kind = TracedOperation::Kind;
    if (primitive == "barrier_init") return Kind::Init;
    if (primitive == "barrier_arrive" || primitive == "barrier_arrive_at") return Kind::Arrival;
    if (primitive == "barrier_wait") return Kind::Wait;
    if (primitive == "wgmma_wait") return Kind::Products;
    if (sends_box(primitive)) return Kind::Result;
    if (primitive.starts_with("tma_load_multicast")) return Kind::Multicast;
    return primitive.starts_with("wgmma_") ? Kind::Multiply : Kind::Other;
}

class ThreadTracer {
public:
    ThreadTracer(Terms& terms, const ThreadKernel& kernel, const Bindings& sizes)
        : kernel_(kernel), sizes_(sizes), values_(terms, kernel, sizes) {
        using Effect = CallArgument::Effect;
        visit(kernel.body, [&](const ThreadStmt& stmt) {
            if (auto call = stmt.as<ThreadCall>())
                for (const CallArgument& argument : call->arguments)
                    if (argument.effect == Effect::Matrix || (argument.effect == Effect::Address && !is_store(*call)))
                        of_hardware_.insert(argument.place.buffer->name);
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
        for (int64_t i = 0; i < extent; ++i) {
            values_.define(loop.variable, i);
            run(loop.body);
        }
    }
    void run(const ThreadIf& branch) {
        if (values_.number(branch.condition, "a condition")) run(branch.body);
    }
    void run(const ThreadLet& let) { values_.define(let.variable, values_.eval(let.value)); }
    void run(const ThreadDeclare& declaration) { values_.declare(declaration.buffer); }
    void run(const ThreadMark&) {}
    void run(const ThreadComment&) {}

    void run(const ThreadStore& store) {
        const std::optional<BinaryOp> atomic = store.atomic;
        write(store.to, {values_.eval(store.value)}, atomic ? static_cast<int64_t>(*atomic) : -1);
    }
    void run(const ThreadWide& wide) { write(wide.to, values_.read(wide.from, wide.width), -1); }

    void write(const Access& to, const std::vector<Term>& values, int64_t atomic) {
        const auto width = static_cast<int>(values.size());
        if (to.buffer->memory == Memory::Registers) return values_.set_registers(to, values);
        Hash operation;
        operation << "store" << atomic << to.buffer->name << values_.where(to, width);
        for (Term value : values) operation << value;
        if (to.buffer->memory == Memory::Global) return add(operation, Kind::Result);
        const uint64_t place = values_.touch(to, width, true);
        const bool by_threads = atomic < 0 && !of_hardware_.contains(to.buffer->name);
        add(operation, by_threads ? Kind::Store : Kind::Other, by_threads ? width : 0, by_threads ? place : 0);
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
    void run(const ThreadCall& call) {
        Hash operation;
        operation << call.primitive << call.function;
        if (call.primitive == "keep") return add(operation, Kind::Idle);
        if (call.primitive == "forget") {
            values_.forget(call.arguments.at(0).place, call.arguments[0].elements);
            return add(operation, Kind::Idle);
        }
        const bool is_wait_for_products = call.primitive == "wgmma_wait";
        for (int64_t parameter : call.parameters)
            if (!is_wait_for_products) operation << parameter;
        const bool outside = lies_outside(call);
        const bool idle_wait = call.primitive.starts_with("wait_stores") && !stores_boxes_;
        if ((outside && is_store(call)) || idle_wait) return add(operation, Kind::Idle);
        if (is_store(call)) read_box(call);
        const size_t coordinates = outside ? first_coordinate(call) : call.arguments.size();  // that say no more
        // A product that does not add to its registers does not look at them.
        const bool overwrites = call.primitive.starts_with("wgmma_m64") &&
                                values_.number(call.arguments.back().value, "whether sums go on") == 0;
        for (size_t a = overwrites ? 1 : 0; a < call.arguments.size(); ++a)
            if (a < coordinates || a >= coordinates + rank_of(call)) add_argument(operation, call, call.arguments[a]);
        if (is_idle(call.primitive)) return add(operation, Kind::Idle);
        copies_boxes_ = copies_boxes_ || (!outside && copies_box(call));
        for (const CallArgument& argument : call.arguments)
            if (argument.effect == CallArgument::Effect::Write && argument.place.buffer->memory == Memory::Registers)
                values_.receive(argument.place, argument.elements);
        const Kind kind = kind_of(call.primitive);
        if (kind == Kind::Multicast)
            for (int64_t place : cluster_) operation << place;
        const bool of_barrier = kind == Kind::Init || kind == Kind::Arrival || kind == Kind::Wait;
        if (call.primitive.starts_with("stmatrix")) return add_row(operation, call.arguments.at(0));
        int64_t number = kind == Kind::Products ? call.parameters.at(0) : 0;
        if (kind == Kind::Wait) number = values_.number(call.arguments.at(1).value, "a phase");
        add(operation, kind, static_cast<int>(number),
            of_barrier ? values_.place_of(call.arguments.at(0).place, 1) : 0);
        meet(call, kind, number);
    }

    /// What the thread may know of others behind the call.
    void meet(const ThreadCall& call, Kind kind, int64_t phase) {
        const bool with_all = call.primitive == "cluster_wait", waits = call.primitive == "wait_for_previous";
        const bool ends_a_phase = kind == Kind::Wait && (phase == 0 || is_told_);  // not the one before the first
        if (!with_all && !waits && !ends_a_phase) return;
        note_reliance();
        if (waits && !trace_.waited) trace_.waited = barriers_;
        is_told_ = is_told_ || ends_a_phase;
        barriers_ += with_all;
        met_ = met_ || with_all;
    }

    void add_row(const Hash& operation, const CallArgument& row) {
        if (of_hardware_.contains(row.place.buffer->name)) return add(operation);
        add(operation, Kind::Matrices, row.elements, values_.place_of(row.place, row.elements));
    }

    static bool is_store(const ThreadCall& call) { return sends_box(call.primitive); }

    /// What lies inside of the tensor.
    void read_box(const ThreadCall& store) {
        stores_boxes_ = true;
        const TensorMapUse& use = *map_of(store);
        const std::vector<int64_t> sizes = extents_of(use.tensor->shape, sizes_);
        std::vector<int64_t> inside;  // elements along each dimension, innermost first
        for (size_t d = 0; d < sizes.size(); ++d) {
            const int64_t first = values_.number(store.arguments[first_coordinate(store) + d].value, "a coordinate");
            inside.push_back(std::min(use.box[d], sizes[sizes.size() - 1 - d] - first));
        }
        const int64_t rows = std::accumulate(inside.begin() + 1, inside.end(), int64_t{1}, std::multiplies());
        codegen::Access line = store.arguments.back().place;
        for (int64_t row = 0; row < rows; ++row) {
            values_.touch(line, static_cast<int>(inside[0]), false);
            if (rows > 1) line.indices[line.indices.size() - 2] = simplify(line.indices[line.indices.size() - 2] + 1);
        }
    }

    const TensorMapUse* map_of(const ThreadCall& copy) const {
        const codegen::Buffer& map = copy.arguments.at(first_coordinate(copy) - 1).place.buffer;
        auto use = std::ranges::find_if(kernel_.maps, [&](const TensorMapUse& one) { return one.map == map; });
        return use == kernel_.maps.end() ? nullptr : &*use;
    }

    static bool copies_box(const ThreadCall& call) { return call.primitive.starts_with("tma_load") || is_store(call); }
    static size_t rank_of(const ThreadCall& copy) {  // "tma_load_2d"
        return static_cast<size_t>(copy.primitive[copy.primitive.size() - 2] - '0');
    }
    /// Behind the map.
    static size_t first_coordinate(const ThreadCall& copy) {
        auto is_map = [](const CallArgument& argument) { return argument.effect == CallArgument::Effect::Map; };
        return static_cast<size_t>(std::ranges::find_if(copy.arguments, is_map) - copy.arguments.begin()) + 1;
    }

    /// Such a box brings zeros, wherever it lies, or is not stored.
    bool lies_outside(const ThreadCall& call) {
        if (!copies_box(call)) return false;
        const size_t coordinates = first_coordinate(call);
        const TensorMapUse* use = map_of(call);
        if (!use) return false;
        const std::vector<int64_t> sizes = extents_of(use->tensor->shape, sizes_);
        for (size_t d = 0; d < sizes.size(); ++d) {
            const int64_t first = values_.number(call.arguments.at(coordinates + d).value, "a coordinate");
            if (first >= sizes[sizes.size() - 1 - d] || first + use->box[d] <= 0) return true;
        }
        return false;
    }

    void add_argument(Hash& operation, const ThreadCall& call, const CallArgument& argument) {
        using Effect = CallArgument::Effect;
        operation << static_cast<int64_t>(argument.effect);
        switch (argument.effect) {
            case Effect::Value: operation << values_.eval(argument.value); return;
            case Effect::Map: add_map(operation, argument.place.buffer); return;
            case Effect::Matrix: add_matrix(operation, call, argument); return;
            case Effect::Address: place(operation, argument.place, argument.elements) << argument.elements; return;
            case Effect::Read:
            case Effect::Write: break;
        }
        operation << argument.elements;
        if (argument.place.buffer->memory == Memory::Registers) {
            for (Term value : values_.read(argument.place, argument.elements)) operation << value;
            return;
        }
        place(operation, argument.place, argument.elements);
        values_.touch(argument.place, argument.elements, argument.effect == Effect::Write);
    }

    void add_map(Hash& operation, const codegen::Buffer& map) {
        for (const TensorMapUse& use : kernel_.maps) {
            if (use.map != map) continue;
            operation << use.tensor->name << use.swizzle;
            for (int64_t side : use.box) operation << side;
        }
    }

    /// Descriptors tell the start in units of 16 bytes. Where lines are swizzled, the distance of eight lines counts
    /// only if there are more, and the leading one only if rows that stand side by side take more than a line.
    void add_matrix(Hash& operation, const ThreadCall& call, const CallArgument& argument) {
        const BufferNode& buffer = *argument.place.buffer;
        const bool transposed = std::any_of(call.parameters.begin(), call.parameters.end(),
                                            [](int64_t parameter) { return parameter != 0; });
        const int64_t size = bytes_of(buffer.type), rows = rows_of(call, argument), per_line = buffer.swizzle / size;
        int64_t start = values_.where(argument.place, argument.elements) * size;
        if (argument.value.defined()) start += values_.number(argument.value, "a distance");
        operation << buffer.name << start / kDescriptorUnit << buffer.swizzle;
        const bool is_swizzled = buffer.swizzle != 0, one_group = rows <= kRowsOfGroup;
        if (!is_swizzled || transposed || !one_group) operation << argument.stride_bytes / kDescriptorUnit;
        if (!is_swizzled || (transposed && rows > per_line)) operation << argument.leading_bytes / kDescriptorUnit;
    }

    /// Of the operand that the instruction's name tells: 64 of a, n of b.
    static int64_t rows_of(const ThreadCall& call, const CallArgument& argument) {
        constexpr int64_t rows_of_a = 64;
        const bool is_last =
            std::none_of(&argument + 1, call.arguments.data() + call.arguments.size(),
                         [](const CallArgument& a) { return a.effect == CallArgument::Effect::Matrix; });
        const auto product = device::find_warpgroup_product(call.primitive);
        return is_last && product ? product->n : rows_of_a;
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
    std::set<std::string> of_hardware_;  // arrays that instructions read and fill
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
                    for (int t = 0; t < kernel.threads + kernel.helpers; ++t)
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

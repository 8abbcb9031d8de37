#include "races.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"
#include "dsl/evaluate.h"
#include "support/error.h"

namespace tw::codegen {
namespace {

struct Event {
    int phase;  // barriers passed
    const BufferNode* buffer;
    int64_t element;
    int thread;
    bool writes;  // plainly: an atomic update counts as a read
    const ThreadNode* at;
};

/// An access and the conditions of the Selects around it.
struct GuardedAccess {
    MemoryAccess access;
    std::vector<Expr> guards;
};

/// The ways of all threads through a kernel.
class Walk {
public:
    explicit Walk(const ThreadKernel& kernel) : kernel_(kernel), struct_(shared_struct(kernel.shared, kernel.unions)) {}

    /// The number of barriers that the thread passes.
    int run(int thread, std::array<int64_t, 3> block, int64_t size) {
        thread_ = thread;
        phase_ = 0;
        set(kernel_.thread, thread);
        for (int d = 0; d < 3; ++d) set(kernel_.block[d], block[d]);
        for (const Expr& e : kernel_.sizes) set(e, size);
        run(kernel_.body);
        return phase_;
    }

    std::vector<Event> events;

private:
    void set(const Expr& variable, int64_t value) {
        if (!variable.defined()) return;
        size_t slot = slots_.slot(variable);
        if (values_.size() <= slot) values_.resize(slot + 1);
        values_[slot].integer = value;
    }

    int64_t evaluate(const Expr& expr) {
        auto known = code_.find(expr.id());
        if (known == code_.end()) {
            auto none = [](const ExprNode&) -> const MemoryView* { return nullptr; };
            known = code_.emplace(expr.id(), CompiledExpr(expr, slots_, none)).first;
            values_.resize(slots_.size());
            kept_.push_back(expr);
        }
        return known->second.run_integer(values_);
    }

    void run(const ThreadStmt& stmt) {
        for (const GuardedAccess& access : guarded_accesses(stmt)) note(access, stmt);
        if (stmt.as<ThreadBarrier>()) ++phase_;
        if (auto let = stmt.as<ThreadLet>(); let && is_integer(let->value.type()) && !reads_memory(let->value))
            set(let->variable, evaluate(let->value));
        if (auto block = stmt.as<ThreadBlock>())
            for (const ThreadStmt& inner : block->stmts) run(inner);
        if (auto branch = stmt.as<ThreadIf>(); branch && evaluate(branch->condition)) run(branch->body);
        if (auto loop = stmt.as<ThreadLoop>())
            for (int64_t i = 0, extent = evaluate(loop->extent); i < extent; ++i) {
                set(loop->variable, i);
                run(loop->body);
            }
    }

    const std::vector<GuardedAccess>& guarded_accesses(const ThreadStmt& stmt) {
        auto [entry, fresh] = accesses_.try_emplace(&*stmt);
        if (!fresh) return entry->second;
        for (const Expr& expr : expressions(stmt)) add_loads(expr, {}, entry->second);
        for (const MemoryAccess& access : memory_accesses(stmt))
            if (access.writes || stmt.as<ThreadWide>()) entry->second.push_back({access, {}});
        std::erase_if(entry->second,
                      [](const GuardedAccess& t) { return t.access.place.buffer->memory == Memory::Registers; });
        return entry->second;
    }

    static void add_loads(const Expr& expr, std::vector<Expr> guards, std::vector<GuardedAccess>& found) {
        if (auto load = expr.as<Load>()) found.push_back({{{load->buffer, load->indices}, 1, false}, guards});
        auto select = expr.as<Select>();
        if (!select || reads_memory(select->condition)) {
            for (const Expr& kid : children(expr)) add_loads(kid, guards, found);
            return;
        }
        guards.push_back(select->condition);
        add_loads(select->yes, guards, found);
        guards.back() = unary(UnaryOp::Not, select->condition);
        add_loads(select->no, guards, found);
    }

    void note(const GuardedAccess& guarded, const ThreadStmt& stmt) {
        for (const Expr& guard : guarded.guards)
            if (!evaluate(guard)) return;
        const auto& [access, width, writes, atomic, by_warp, begins] = guarded.access;
        if (begins) return;  // where it stands says nothing but that others are over
        int64_t element = 0;
        for (size_t d = 0; d < access.indices.size(); ++d) {
            int64_t extent = d == 0 ? 0 : require_constant(access.buffer->shape[d]);
            element = element * extent + evaluate(access.indices[d]);
        }
        const UnionPlace turns = place_in_unions(access.buffer.get(), kernel_.unions);
        for (int w = 0; w < width; ++w)
            if (turns.number < 0)
                events.push_back(
                    {phase_, array_of(access.buffer, kernel_), element + w, thread_, writes && !atomic, &*stmt});
            else
                note_bytes(access.buffer, turns, element + w, {phase_, nullptr, 0, thread_, writes && !atomic, &*stmt});
    }

    /// Arrays that take turns share bytes: those of the first of them stand for all.
    void note_bytes(const Buffer& buffer, const UnionPlace& turns, int64_t element, Event event) {
        const auto array = static_cast<size_t>(std::ranges::find(kernel_.shared, buffer) - kernel_.shared.begin());
        const int64_t size = bytes_of(buffer->type);
        event.buffer = kernel_.unions[static_cast<size_t>(turns.number)].alternatives[0][0].get();
        for (int64_t byte = 0; byte < size; ++byte) {
            event.element = struct_.places[array].offset + element * size + byte;
            events.push_back(event);
        }
    }

    const ThreadKernel& kernel_;
    const SharedStruct struct_;
    int thread_ = 0, phase_ = 0;
    SlotMap slots_;
    std::vector<Register> values_;
    std::unordered_map<const ExprNode*, CompiledExpr> code_;
    std::vector<Expr> kept_;
    std::unordered_map<const ThreadNode*, std::vector<GuardedAccess>> accesses_;
};

auto place(const Event& e) { return std::make_tuple(e.phase, e.buffer, e.element); }

/// Events of one element between two barriers.
bool is_race(const Event* first, const Event* last) {
    bool several = false, reads = false, places = false;
    const Event* write = nullptr;
    for (const Event* e = first; e != last; ++e) {
        several = several || e->thread != first->thread;
        reads = reads || !e->writes;
        if (!e->writes) continue;
        places = places || (write && write->at != e->at);
        write = e;
    }
    // Many threads may store one value at one place of the program at once.
    return several && write && (reads || places);
}

}  // namespace

std::string find_race(const ThreadKernel& kernel, std::array<int64_t, 3> block, int64_t size) {
    Walk walk(kernel);
    int phases = walk.run(0, block, size);
    for (int thread = 1; thread < kernel.threads; ++thread)
        if (int own = walk.run(thread, block, size); own != phases)
            return fmt::format("thread {} passes {} barriers, not {}", thread, own, phases);
    auto& events = walk.events;
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return place(a) < place(b); });
    for (size_t first = 0, last; first < events.size(); first = last) {
        for (last = first; last < events.size() && place(events[last]) == place(events[first]);) ++last;
        if (is_race(&events[first], &events[first] + (last - first)))
            return fmt::format("'{}' element {}, after {} barriers", events[first].buffer->name, events[first].element,
                               events[first].phase);
    }
    return "";
}

int count_barriers(const ThreadKernel& kernel) {
    int count = 0;
    visit(kernel.body, [&](const ThreadStmt& stmt) { count += stmt.as<ThreadBarrier>() != nullptr; });
    return count;
}

ThreadKernel without_barrier(const ThreadKernel& kernel, int n) {
    ThreadKernel result = kernel;
    int seen = 0;
    result.body = transform(kernel.body, [&](const ThreadStmt& stmt) -> ThreadStmt {
        return stmt.as<ThreadBarrier>() && seen++ == n ? make_thread(ThreadBlock{}) : ThreadStmt();
    });
    return result;
}

}  // namespace tw::codegen

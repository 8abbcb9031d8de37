// The grammar of the thread IR.
#include <algorithm>

#include "codegen/thread_ir/check_unions.h"
#include "codegen/thread_ir/thread_walk.h"
#include "support/error.h"
#include "support/overloaded.h"

namespace tw::codegen {
namespace {

bool among(const std::vector<Expr>& list, const Expr& variable) {
    return std::any_of(list.begin(), list.end(), [&](const Expr& v) { return v.same(variable); });
}

class Verifier {
public:
    explicit Verifier(const ThreadKernel& kernel) : kernel_(kernel), bounds_(kernel) {
        visible_ = kernel.sizes;
        visible_.insert(visible_.end(), kernel.scalars.begin(), kernel.scalars.end());
        for (const Expr& builtin : {kernel.thread, kernel.block[0], kernel.block[1], kernel.block[2]})
            if (builtin.defined()) visible_.push_back(builtin);
        buffers_ = kernel.arguments;
        buffers_.insert(buffers_.end(), kernel.shared.begin(), kernel.shared.end());
        internal_check(kernel.written.size() == kernel.arguments.size(),
                       "kernel {}: `written` needs an entry for each argument", kernel.name);
        for (const auto& [out, in] : kernel.aliases)
            internal_check(codegen::is_argument(kernel, out) && codegen::is_argument(kernel, in),
                           "kernel {}: '{}' in the place of '{}': both must be arguments", kernel.name, out->name,
                           in->name);
    }

    void check(const ThreadStmt& stmt) {
        internal_check(stmt.defined(), "kernel {}: an undefined statement", kernel_.name);
        at_ = stmt;
        for (const Expr& expr : expressions(stmt)) check_variables(expr);
        for (const MemoryAccess& access : memory_accesses(stmt)) check_access(access);
        std::visit([&](const auto& node) { check(node); }, (*stmt).kind);
    }

private:
    bool is_argument(const Buffer& buffer) const {
        return std::find(kernel_.arguments.begin(), kernel_.arguments.end(), buffer) != kernel_.arguments.end();
    }

    template <class... Arguments>
    void require(bool holds, fmt::format_string<Arguments...> message, Arguments&&... arguments) const {
        if (holds) return;
        std::string text = fmt::format(message, std::forward<Arguments>(arguments)...);
        internal_check(holds, "kernel {}: {} in: {}", kernel_.name, text, to_string(at_));
    }

    void check_variables(const Expr& expr) const {
        for (const Expr& variable : variables_of(expr))
            require(among(visible_, variable), "'{}' is not defined", variable.as<Variable>()->name);
    }

    void check_access(const MemoryAccess& access) const {
        const BufferNode& buffer = *access.place.buffer;
        bool declared =
            std::any_of(buffers_.begin(), buffers_.end(), [&](const Buffer& b) { return b.get() == &buffer; });
        require(declared, "'{}' is not declared", buffer.name);
        size_t rank = buffer.memory == Memory::Global ? 1 : buffer.shape.size();
        require(access.place.indices.size() == rank, "'{}' takes {} indices", buffer.name, rank);
        if (access.writes) check_written(buffer);
        if (access.width > 1) check_width(access);
        if (buffer.memory == Memory::Global) return;
        for (size_t d = 0; d < rank; ++d) check_index(access, d);
    }

    void check_written(const BufferNode& buffer) const {
        for (size_t a = 0; a < kernel_.arguments.size(); ++a)
            require(kernel_.arguments[a].get() != &buffer || kernel_.written[a],
                    "'{}' is an argument that is not written", buffer.name);
    }

    void check_width(const MemoryAccess& access) const {
        int64_t bytes = int64_t{access.width} * bytes_of(access.place.buffer->type);
        if (at_.as<Instruction>()) return;
        bool power = bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16;
        require(power, "an access of {} bytes", bytes);
        require(!access.place.indices.empty(), "a wide access of a scalar");
    }

    /// Out of bounds for sure.
    void check_index(const MemoryAccess& access, size_t d) const {
        const BufferNode& buffer = *access.place.buffer;
        const Expr& index = access.place.indices[d];
        Interval bounds = bounds_.of(index);
        bool whole_array = buffer.memory == Memory::Registers && at_.as<Instruction>();  // may go on in the next row
        int64_t width = d + 1 == access.place.indices.size() && !whole_array ? access.width : 1;
        int64_t last = require_constant(buffer.shape[d]) - width;
        bool outside = (bounds.max && *bounds.max < 0) || (bounds.min && *bounds.min > last);
        require(!outside || conditions_ > 0 || zero_trips_ > 0, "index {} of '{}' is out of bounds", d, buffer.name);
    }

    void check(const ThreadBlock& block) {
        size_t variables = visible_.size(), buffers = buffers_.size(), derived = divergent_variables_.size();
        KnownBounds outside = bounds_;
        for (const ThreadStmt& stmt : block.stmts) {
            check(stmt);
            if (auto let = stmt.as<ThreadLet>()) define(*let);
            if (auto declare = stmt.as<ThreadDeclare>()) buffers_.push_back(declare->buffer);
        }
        visible_.resize(variables);
        buffers_.resize(buffers);
        divergent_variables_.resize(derived);
        bounds_ = outside;
    }

    void define(const ThreadLet& let) {
        require(let.variable.type() == let.value.type(), "a let of another type than its value");
        auto is_ticket = [&](const ThreadLoop* loop) { return names_ticket(let, *loop); };
        bool same_for_all = std::any_of(ticket_loops_.begin(), ticket_loops_.end(), is_ticket);
        if (!same_for_all && is_divergent(let.value)) divergent_variables_.push_back(let.variable);
        visible_.push_back(let.variable);
        bounds_.define(let);
    }

    void check(const ThreadLoop& loop) {
        require(!loop.unroll || as_constant(loop.extent), "an unrolled loop of unknown extent");
        bool divergent = is_divergent(loop.extent), empty = bounds_.of(loop.extent).max.value_or(1) < 1;
        KnownBounds outside = bounds_;
        bounds_.enter_loop(loop);
        visible_.push_back(loop.variable);
        divergent_ += divergent;
        zero_trips_ += empty;
        if (loop.next) check_next(loop);
        check(loop.body);
        if (loop.next) ticket_loops_.pop_back();
        zero_trips_ -= empty;
        divergent_ -= divergent;
        visible_.pop_back();
        bounds_ = outside;
    }

    void check_next(const ThreadLoop& loop) {
        bool declared = std::find(buffers_.begin(), buffers_.end(), loop.next) != buffers_.end();
        require(declared && loop.next->memory == Memory::Registers && loop.next->shape.empty(),
                "'{}', by which a loop ends, is no register there", loop.next->name);
        ticket_loops_.push_back(&loop);
    }

    void check(const ThreadIf& branch) {
        require(branch.condition.type() == Type::Bool, "a condition that is not bool");
        bool divergent = is_divergent(branch.condition);
        divergent_ += divergent;
        ++conditions_;
        check(branch.body);
        --conditions_;
        divergent_ -= divergent;
    }

    void check(const ThreadRole& role) {
        require(role.first % 128 == 0 && role.threads % 128 == 0, "a role of warps that are no warpgroups");
        if (!role.thread.defined()) return check(role.body);
        size_t outside = visible_.size();
        visible_.push_back(role.thread);
        if (role.turn.defined()) visible_.push_back(role.turn);  // the same for all that meet
        divergent_variables_.push_back(role.thread);
        check(role.body);
        divergent_variables_.pop_back();
        visible_.resize(outside);
    }

    void check(const ThreadBarrier&) const { require(divergent_ == 0, "a barrier that not all threads reach"); }

    void check(const ThreadStore& store) const {
        require(store.to.buffer->type == store.value.type(), "{} stored to {}", name_of(store.value.type()),
                name_of(store.to.buffer->type));
        require(!store.atomic || store.to.buffer->memory != Memory::Registers, "an atomic update of registers");
    }

    void check(const ThreadWide& wide) const {
        require(wide.width > 1, "a wide access of {} elements", wide.width);
        require(wide.to.buffer->type == wide.from.buffer->type, "a wide access between two types");
        const bool leaves = wide.from.buffer->memory == Memory::Shared && wide.to.buffer->memory == Memory::Global;
        require(!wide.where.defined() || leaves, "a conditional access that is no copy of shared to global memory");
    }

    void check(const Instruction& instruction) const {
        for (const Operand& operand : operands(instruction))
            std::visit(Overloaded{[&](const Expr& number) { require(number.defined(), "an operand without a value"); },
                                  [&](const OneOf<ReadOperand, WriteOperand> auto& place) {
                                      require(place.elements >= 1, "an operand without elements");
                                  },
                                  [](const OneOf<MatrixOperand, AddressOperand, MapOperand> auto&) {}},
                       operand);
    }

    void check(const ThreadAccess&) const {}
    void check(const ThreadLet&) const {}
    void check(const ThreadDeclare&) const {}
    void check(const ThreadComment&) const {}

    /// May differ between threads. Global memory that nobody writes is the same for all.
    bool is_divergent(const Expr& expr) const {
        bool found = false;
        visit(expr, [&](const Expr& node) {
            if (auto load = node.as<Load>())
                found = found || load->buffer->memory != Memory::Global || is_written(load->buffer);
            found = found || (node.as<Variable>() && (node.same(kernel_.thread) || among(divergent_variables_, node)));
        });
        return found;
    }

    bool is_written(const Buffer& buffer) const {
        for (size_t a = 0; a < kernel_.arguments.size(); ++a)
            if (kernel_.arguments[a] == buffer) return kernel_.written[a];
        return true;
    }

    const ThreadKernel& kernel_;
    KnownBounds bounds_;
    ThreadStmt at_;
    std::vector<Expr> visible_, divergent_variables_;
    std::vector<Buffer> buffers_;
    std::vector<const ThreadLoop*> ticket_loops_;
    int divergent_ = 0, conditions_ = 0, zero_trips_ = 0;
};

}  // namespace

void verify_thread_ir(const ThreadKernel& kernel) {
    Verifier(kernel).check(kernel.body);
    check_unions(kernel);
}

}  // namespace tw::codegen

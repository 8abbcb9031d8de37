#include "codegen/print/print_statements.h"

#include <cctype>

#include <fmt/format.h>

#include "support/error.h"

namespace tw::codegen {
namespace {

/// The stage of the first comment inside; empty if there is none.
std::string first_stage(const ThreadStmt& stmt) {
    std::string stage;
    visit(stmt, [&](const ThreadStmt& inner) {
        const ThreadComment* comment = inner.as<ThreadComment>();
        if (comment && stage.empty()) stage = comment->stage;
    });
    return stage;
}

/// Stands above the comment of what it is made for.
bool leads_in(const ThreadStmt& stmt) {
    return stmt.as<ThreadComment>() || stmt.as<ThreadLet>() || stmt.as<ThreadDeclare>();
}

class StatementPrinter {
public:
    explicit StatementPrinter(const PrintContext& context)
        : names_(context.names), bounds_(context.bounds), exprs_(context.exprs), out_(context.out) {}

    void print(const ThreadStmt& stmt) {
        if (!stmt.as<ThreadBlock>()) paragraph(stmt);
        std::visit([&](const auto& node) { (*this)(node, stmt.step()); }, (*stmt).kind);
    }

    void operator()(const ThreadBlock& block, int) {
        for (size_t s = 0; s < block.stmts.size(); ++s) {
            enter_stage(block, s);
            if (s + 1 < block.stmts.size() && defines(block.stmts[s], block.stmts[s + 1]))
                ++s;
            else
                print(block.stmts[s]);
        }
    }

    void operator()(const ThreadLoop& loop, int step) {
        bool is_loaded = reads_memory(loop.extent);
        std::string extent = is_loaded ? exprs_.print(loop.extent) : exprs_.print_compared(loop.extent);
        in_scope([&] {
            bounds_.enter_loop(loop);
            std::string index = declare(loop.variable), type = exprs_.type(loop.variable.type());
            if (loop.unroll || loop.rolled) out_.line(loop.unroll ? "#pragma unroll" : "#pragma unroll 1", step);
            std::string start = fmt::format("{} {} = 0", type, index), end = extent;
            if (is_loaded) {  // once: barriers inside keep the compiler from remembering
                end = names_.reserve(index + "_end");
                start += fmt::format(", {} = {}", end, extent);
            }
            body(fmt::format("for ({}; {} < {}; ++{})", start, index, end, index), loop.body, step);
        });
    }

    void operator()(const ThreadIf& branch, int step) {
        std::string head = fmt::format("if ({})", exprs_.print(branch.condition));
        in_scope([&] { body(head, branch.body, step); });
    }

    void operator()(const ThreadLet& let, int step) { out_.line(text_of(let), step); }

    void operator()(const ThreadDeclare& declare, int step) {
        names_.declare(declare.buffer.get(), declare.buffer->name);
        out_.line(declaration(*declare.buffer, names_, exprs_) + ";", step);
    }

    void operator()(const ThreadStore& store, int step) { out_.line(text_of(store), step); }
    void operator()(const ThreadWide& wide, int step) { out_.line(text_of(wide), step); }
    void operator()(const ThreadCall& call, int step) { out_.line(exprs_.call_primitive(call), step); }
    void operator()(const ThreadMark&, int) { internal_check(false, "a mark that insert_barriers has not taken away"); }
    void operator()(const ThreadBarrier& barrier, int step) { out_.line(text_of(barrier), step); }

    void operator()(const ThreadRole& role, int step) {
        std::string index = "threadIdx.x", end = fmt::format("{} < {}", index, role.threads);
        std::string turns = role.turns > 1 ? fmt::format(", {} groups in turn", role.turns) : "";
        out_.line(fmt::format("// {}role {}: threads {} to {}{}", step >= 0 ? fmt::format("[{}] ", step) : "",
                              role.name, role.first, role.first + role.threads - 1, turns),
                  step);
        in_scope([&] {
            std::string from = fmt::format("{} >= {}", index, role.first);
            out_.open(fmt::format("if ({})", role.first == 0 ? end : from), step);
            std::string own = role.first ? fmt::format("{} - {}", index, role.first) : index;
            if (role.turn.defined()) {
                out_.line(fmt::format("const int {} = {} / {};", declare(role.turn), own, role.threads / role.turns));
                own = fmt::format("{} % {}", own, role.threads / role.turns);
            }
            if (role.thread.defined()) out_.line(fmt::format("const int {} = {};", declare(role.thread), own));
            print(role.body);
            out_.close();
        });
    }

    void operator()(const ThreadComment& comment, int step) {
        std::string number = step >= 0 ? fmt::format("[{}] ", step) : "";
        out_.line("// " + number + harmless_comment(comment.text), step);
    }

private:
    /// Values and arrays are of the stage below them, loops and conditions of the first one inside.
    void enter_stage(const ThreadBlock& block, size_t s) {
        while (s + 1 < block.stmts.size() && leads_in(block.stmts[s]) && !block.stmts[s].as<ThreadComment>()) ++s;
        if (std::string stage = first_stage(block.stmts[s]); !stage.empty()) out_.set_stage(stage);
    }

    /// A blank line where, outside of all loops, something new begins.
    void paragraph(const ThreadStmt& stmt) {
        if (scopes_ > 0) return;
        const bool leads = leads_in(stmt);
        if (leads && after_action_) out_.line("");
        after_action_ = !leads;
    }

    /// A number that is stored to where it is declared: "float x = 1.0f;".
    bool defines(const ThreadStmt& declared, const ThreadStmt& stored) {
        auto declare = declared.as<ThreadDeclare>();
        auto store = stored.as<ThreadStore>();
        if (!declare || !store || store->to.buffer != declare->buffer || !declare->buffer->shape.empty()) return false;
        for (const Touch& touch : touches(stored))
            if (!touch.writes && touch.access.buffer == declare->buffer) return false;
        paragraph(declared);
        std::string value = exprs_.print(store->value);
        names_.declare(declare->buffer.get(), declare->buffer->name);
        out_.line(fmt::format("{} = {};", declaration(*declare->buffer, names_, exprs_), value), stored.step());
        return true;
    }

    /// A body of one short statement stands on the head's line.
    void body(const std::string& head, const ThreadStmt& body, int step) {
        std::string single = one_liner(body);
        if (!single.empty() && static_cast<int>(head.size() + single.size()) < out_.columns())
            return out_.line(fmt::format("{} {}", head, single), body_step(body, step));
        out_.open(head, step);
        print(body);
        out_.close();
    }

    std::string one_liner(const ThreadStmt& body) {
        auto stmts = statements(body);
        if (stmts.size() != 1) return "";
        if (auto store = stmts[0].as<ThreadStore>()) return text_of(*store);
        if (auto wide = stmts[0].as<ThreadWide>()) return text_of(*wide);
        if (auto call = stmts[0].as<ThreadCall>()) return exprs_.call_primitive(*call);
        return "";
    }

    static int body_step(const ThreadStmt& body, int step) {
        int inner = statements(body)[0].step();
        return inner >= 0 ? inner : step;
    }

    std::string text_of(const ThreadBarrier& barrier) {
        if (barrier.id == 0) return "__syncthreads();";
        auto number = [](int value) {
            return CallArgument{CallArgument::Effect::Value, constant(Type::I32, int64_t{value}), {}};
        };
        CallArgument id = number(barrier.id);
        if (barrier.turn.defined()) id.value = barrier.turn + barrier.id;
        return exprs_.call_primitive({"barrier_sync", {}, {id, number(barrier.threads)}});
    }

    std::string text_of(const ThreadLet& let) {
        std::string value = exprs_.print(let.value);
        bounds_.define(let);
        std::string type = exprs_.type(let.variable.type());
        return fmt::format("const {} {} = {};", type, declare(let.variable), value);
    }

    std::string text_of(const ThreadStore& store) {
        std::string to = exprs_.element(store.to);
        if (store.atomic) return exprs_.call_atomic(*store.atomic, to, store.value);
        // x = x + y as x += y
        auto binary = store.value.as<Binary>();
        auto load = binary ? binary->a.as<Load>() : nullptr;
        bool updates = load && !is_integer(store.value.type()) && load->buffer == store.to.buffer &&
                       binary->a.type() == store.value.type() && exprs_.element({load->buffer, load->indices}) == to;
        const char* sign = !updates                      ? ""
                           : binary->op == BinaryOp::Add ? "+"
                           : binary->op == BinaryOp::Sub ? "-"
                           : binary->op == BinaryOp::Mul ? "*"
                                                         : "";
        return fmt::format("{} {}= {};", to, sign, exprs_.print(*sign ? binary->b : store.value));
    }

    std::string text_of(const ThreadWide& wide) {
        bool to_registers = wide.to.buffer->memory == Memory::Registers;
        bool from_registers = wide.from.buffer->memory == Memory::Registers;
        internal_check(!to_registers || !from_registers, "a wide access between registers");
        std::string primitive = to_registers ? "load" : from_registers ? "store" : "copy";
        return exprs_.call_wide(primitive, wide.width, wide.to, wide.from);
    }

    std::string declare(const Expr& variable) { return names_.declare(variable.id(), variable.as<Variable>()->name); }

    template <class F>
    void in_scope(const F& inside) {
        KnownBounds outside = bounds_;
        const std::string stage = out_.stage();
        names_.enter();
        ++scopes_;
        inside();
        --scopes_;
        names_.leave();
        out_.set_stage(stage);
        bounds_ = outside;
    }

    Names& names_;
    KnownBounds& bounds_;
    ExprPrinter& exprs_;
    Writer& out_;
    int scopes_ = 0;
    bool after_action_ = false;  // the last statement outside of all scopes did something
};

}  // namespace

void print_body(const ThreadStmt& body, const PrintContext& context) { StatementPrinter(context).print(body); }

std::string declaration(const BufferNode& buffer, const Names& names, ExprPrinter& exprs) {
    std::string type = buffer.is_barrier ? "tw::Barrier" : exprs.type(buffer.type);
    std::string text = fmt::format("{} {}", type, names.of(&buffer, buffer.name));
    for (const Expr& extent : buffer.shape) text += fmt::format("[{}]", require_constant(extent));
    return text;
}

}  // namespace tw::codegen

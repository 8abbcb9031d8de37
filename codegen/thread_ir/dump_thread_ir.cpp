// Thread IR as plain text: for tests, for people who follow the passes, and for messages of verify_thread_ir.
#include <fmt/format.h>

#include "codegen/thread_ir/thread_walk.h"

namespace tw::codegen {
namespace {

std::string text_of(const Buffer& buffer) {
    std::string text = fmt::format("{} {}", name_of(buffer->type), buffer->name);
    for (const Expr& extent : buffer->shape) text += fmt::format("[{}]", to_string(extent));
    return text;
}

/// One line a statement; `depth` levels of indentation.
struct Dump {
    std::string text;
    int depth = 0;

    void line(const std::string& content, int step) {
        text += std::string(2 * depth, ' ') + content + (step >= 0 ? fmt::format("  // [{}]", step) : "") + "\n";
    }
    void body(const ThreadStmt& stmt) {
        ++depth;
        statement(stmt);
        --depth;
    }
    void statement(const ThreadStmt& stmt) {
        std::visit([&](const auto& node) { (*this)(node, stmt.step()); }, (*stmt).kind);
    }

    void operator()(const ThreadBlock& block, int) {
        for (const ThreadStmt& stmt : block.stmts) statement(stmt);
    }
    void operator()(const ThreadLoop& loop, int step) {
        std::string until = loop.next ? fmt::format(", while {} < {}", loop.next->name, to_string(loop.extent)) : "";
        const std::string together = loop.unroll_by > 1 ? fmt::format(", {} as one", loop.unroll_by) : "";
        line(fmt::format("{} {} < {}{}{}{}", loop.unroll ? "unroll" : "for", to_string(loop.variable),
                         to_string(loop.extent), until, loop.apart ? ", apart" : "", together),
             step);
        body(loop.body);
    }
    void operator()(const ThreadIf& branch, int step) {
        line("if " + to_string(branch.condition), step);
        body(branch.body);
    }
    void operator()(const ThreadLet& let, int step) {
        line(fmt::format("let {} = {}", to_string(let.variable), to_string(let.value)), step);
    }
    void operator()(const ThreadDeclare& declare, int step) { line("declare " + text_of(declare.buffer), step); }
    void operator()(const ThreadStore& store, int step) {
        line(store_text(to_string(store.to), to_string(store.value), store.atomic), step);
    }
    void operator()(const ThreadWide& wide, int step) {
        const std::string where = wide.where.defined() ? " where " + to_string(wide.where) : "";
        line(fmt::format("{} = {}, {} wide{}", to_string(wide.to), to_string(wide.from), wide.width, where), step);
    }
    void operator()(const Instruction& instruction, int step) { line(to_string(instruction), step); }
    void operator()(const ThreadAccess& access, int step) {
        line(fmt::format("{}: {}, {} wide", access.writes ? "written" : "read", to_string(access.to), access.width),
             step);
    }
    void operator()(const ThreadBarrier& barrier, int step) {
        line(barrier.id ? fmt::format("barrier {} of {} threads", barrier.id, barrier.threads) : "barrier", step);
    }
    void operator()(const ThreadRole& role, int step) {
        line(fmt::format("role {}: threads {} to {}", role.name, role.first, role.first + role.threads - 1), step);
        body(role.body);
    }
    void operator()(const ThreadComment& comment, int step) { line("# " + comment.text, step); }
};

}  // namespace

std::string to_string(const ThreadStmt& stmt) {
    Dump dump;
    dump.statement(stmt);
    return dump.text;
}

std::string to_string(const ThreadKernel& kernel) {
    Dump dump;
    dump.line(fmt::format("kernel {}: {} threads", kernel.name, kernel.threads), -1);
    for (const Buffer& buffer : kernel.arguments) dump.line("argument " + text_of(buffer), -1);
    for (const Buffer& buffer : kernel.shared) dump.line("shared " + text_of(buffer), -1);
    for (const SharedUnion& shared : kernel.unions) dump.line(to_string(shared), -1);
    dump.body(kernel.body);
    return dump.text;
}

}  // namespace tw::codegen

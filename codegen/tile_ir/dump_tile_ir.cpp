// Tile IR as indented text.
#include <fmt/format.h>

#include "codegen/tile_ir/tile_ir.h"
#include "support/overloaded.h"

namespace tw::codegen {
namespace {

std::string bracketed(const std::vector<Expr>& exprs) {
    std::vector<std::string> texts;
    for (const Expr& e : exprs) texts.push_back(to_string(e));
    return fmt::format("[{}]", fmt::join(texts, ", "));
}

std::string name_of(const TileOp& op) {
    return std::visit(
        Overloaded{[](const InitOp&) { return "init"; }, [](const UpdateOp&) { return "update"; },
                   [](const CombineOp&) { return "combine"; }, [](const MapOp&) { return "map"; },
                   [](const CopyOp&) { return "copy"; }, [](const AsyncCopyOp&) { return "copy asynchronously"; },
                   [](const AwaitedOp&) { return "awaited:"; }, [](const TmaCopyOp&) { return "copy boxes"; },
                   [](const FragmentOp&) { return "fragment"; },
                   [](const AccessOp& access) { return access.writes ? "writes" : "reads"; },
                   [](const CallOp&) { return "call"; }},
        op.action);
}

std::string text_of(const OpLoop& loop) {
    const char* how = loop.execution == Execution::Vector   ? " vector"
                      : loop.execution == Execution::Unroll ? " unroll"
                                                            : "";
    return fmt::format("{} < {}{}{}", to_string(loop.variable), to_string(loop.extent), how,
                       loop.reduces ? " reduces" : "");
}

struct TilePrinter {
    std::string text;
    int depth = 0;

    void line(const std::string& content) { text += std::string(2 * depth, ' ') + content + "\n"; }
    void inside(const TileStmt& stmt) {
        ++depth;
        print(stmt);
        --depth;
    }
    void print(const TileStmt& stmt) {
        std::visit([&](const auto& node) { (*this)(node); }, (*stmt).kind);
    }

    void operator()(const TileOp& op) {
        line(fmt::format("{} {}{}", name_of(op), op.name, op.step >= 0 ? fmt::format("  [{}]", op.step) : ""));
        ++depth;
        for (const OpLoop& loop : op.loops) line("for " + text_of(loop));
        for (const ThreadCoordinate& coordinate : op.threads)
            line(fmt::format("{} = thread / {} % {}", to_string(coordinate.variable), coordinate.stride,
                             coordinate.extent));
        if (!is_constant(op.active, 1)) line("active " + to_string(op.active));
        if (!is_constant(op.mask, 1)) line("mask " + to_string(op.mask));
        for (const StoreTo& store : op.stores)
            line(store_text(store.buffer->name + bracketed(store.indices), to_string(store.value), store.atomic));
        if (const UpdateOp* update = op.as<UpdateOp>(); update && update->atom) line("by " + update->atom->name);
        if (const AccessOp* access = op.as<AccessOp>())
            line(fmt::format("{}, {} wide", to_string(access->place), access->elements));
        if (const CallOp* call = op.as<CallOp>())
            for (const Instruction& i : call->instructions) line(to_string(i));
        if (op.reads_ahead) line("reads ahead of choices");
        if (op.otherwise.defined()) line("otherwise " + to_string(op.otherwise));
        for (const std::string& note : op.notes) line("# " + note);
        --depth;
    }
    void operator()(const TileLoop& loop) {
        line(fmt::format("{} {} < {}", loop.unroll ? "unroll" : "for", to_string(loop.variable),
                         to_string(loop.extent)));
        inside(loop.body);
    }
    void operator()(const TileBlock& block) {
        for (const TileStmt& stmt : block.stmts) print(stmt);
    }
    void operator()(const TileAllocate& allocate) {
        const BufferNode& b = *allocate.buffer;
        line(fmt::format("registers {} {}{}", tw::name_of(b.type), b.name, bracketed(b.shape)));
        print(allocate.body);
    }
};

}  // namespace

std::string to_string(const TileOp& op) {
    TilePrinter printer;
    printer(op);
    return printer.text;
}

std::string to_string(const TileKernel& kernel) {
    TilePrinter printer;
    printer.line(fmt::format("kernel {}: blocks ({}, {}, {}), {} threads", kernel.name, to_string(kernel.grid[0]),
                             to_string(kernel.grid[1]), to_string(kernel.grid[2]), kernel.threads));
    ++printer.depth;
    for (const GridCoordinate& coordinate : kernel.grid_coordinates)
        printer.line(fmt::format("{} = {} / {} % {}", to_string(coordinate.variable),
                                 to_string(kernel.block[coordinate.dimension]), to_string(coordinate.stride),
                                 to_string(coordinate.extent)));
    for (const SharedBuffer& shared : kernel.shared)
        printer.line(fmt::format("shared {} {}{} as {}", tw::name_of(shared.buffer->type), shared.buffer->name,
                                 bracketed(shared.buffer->shape), shared.layout.to_string()));
    for (const SharedUnion& shared : kernel.unions) printer.line(to_string(shared));
    printer.print(kernel.body);
    for (const std::string& note : kernel.notes) printer.line("# " + note);
    return printer.text;
}

}  // namespace tw::codegen

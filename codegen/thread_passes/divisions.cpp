#include "codegen/thread_passes/divisions.h"

#include <algorithm>
#include <set>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"

namespace tw::codegen {
namespace {

bool is_mod(const Expr& expr) {
    auto binary = expr.as<Binary>();
    return binary && binary->op == BinaryOp::Mod;
}

/// The index of an element in an array of rows; with a factor, of the vector or group of rows in which it is.
std::string part_of_index(size_t dimension, size_t rank, int64_t factor) {
    if (rank < 2 || dimension + 2 < rank) return "index";
    if (dimension + 1 == rank) return factor == 1 ? "column" : "vector";
    return factor == 1 ? "row" : "group";
}

}  // namespace

bool is_division(const Expr& expr) {
    auto binary = expr.as<Binary>();
    return binary && (binary->op == BinaryOp::Div || binary->op == BinaryOp::Mod);
}

bool is_digit(const Expr& expr) {
    return is_mod(expr) && is_division(expr.as<Binary>()->a) && !is_mod(expr.as<Binary>()->a);
}

Divisions::Divisions(const ThreadKernel& kernel) : kernel_(kernel) {
    visit(kernel.body, [&](const ThreadStmt& stmt) {
        for (const Expr& expr : expressions(stmt)) count(expr);
    });
    visit(kernel.body, [&](const ThreadStmt& stmt) {
        for (const MemoryAccess& access : memory_accesses(stmt)) see_indices(access.place);
        if (auto instruction = stmt.as<Instruction>())
            visit_places(*instruction, [&](const Access& place) { see_indices(place); });
        if (auto wait = instruction_of<MbarrierWait>(stmt)) add_part(wait->parity, "phase", "");
    });
}

void Divisions::count(const Expr& root) {
    std::set<const ExprNode*> inside_of_digits;
    visit(root, [&](const Expr& expr) {
        if (is_digit(expr)) inside_of_digits.insert(expr.as<Binary>()->a.id());
    });
    visit(root, [&](const Expr& expr) {
        if (expr.type() != Type::I64 || !is_division(expr) || inside_of_digits.count(expr.id())) return;
        Division* known = find(expr);
        if (!known) known = &all_.emplace_back(Division{expr});
        ++known->uses;
    });
}

Divisions::Division* Divisions::find(const Expr& expr) {
    auto same = [&](const Division& division) { return equal(division.expr, expr); };
    auto found = std::find_if(all_.begin(), all_.end(), same);
    return found == all_.end() ? nullptr : &*found;
}

const Divisions::Division* Divisions::find(const Expr& expr) const { return const_cast<Divisions*>(this)->find(expr); }

bool Divisions::of_the_block(const Expr& expr) const {
    return std::ranges::none_of(variables_of(expr), [&](const Expr& v) { return v.same(kernel_.thread); });
}

void Divisions::see_indices(const Access& access) {
    const BufferNode& buffer = *access.buffer;
    if (buffer.memory == Memory::Global) return;
    const std::vector<Expr> indices = place_of(access).indices;
    for (size_t d = 0; d < indices.size(); ++d)
        for (const auto& [atom, factor] : affine_of(indices[d]).terms) {
            if (!is_division(atom)) continue;
            // All threads of a block turn from one part of an array to the next.
            bool turns = d == 0 && factor == 1 && is_mod(atom) && equal(atom.as<Binary>()->b, buffer.shape[0]) &&
                         of_the_block(atom) && (buffer.is_barrier || indices.size() > 1);
            if (turns)
                add_part(atom, "stage", "");
            else
                add_part(atom, part_of_index(d, indices.size(), factor), buffer.name);
        }
}

void Divisions::add_part(const Expr& expr, const std::string& what, const std::string& buffer) {
    Division* division = find(expr);
    if (!division) return;
    auto same = [&](const Part& part) { return part.what == what; };
    auto part = std::ranges::find_if(division->parts, same);
    if (part == division->parts.end()) part = division->parts.insert(part, Part{what, {}});
    if (std::ranges::find(part->buffers, buffer) == part->buffers.end()) part->buffers.push_back(buffer);
}

int Divisions::uses(const Expr& expr) const {
    const Division* division = find(expr);
    return division ? division->uses : 0;
}

std::string Divisions::name(const Expr& expr) const {
    const Binary& node = *expr.as<Binary>();
    bool quotient = node.op == BinaryOp::Div;
    if (node.a.same(kernel_.thread) && is_constant(node.b, 32)) return quotient ? "warp" : "lane";
    if (node.a.same(kernel_.thread) && is_constant(node.b, 128)) return quotient ? "warpgroup" : "warpgroup_thread";
    const Division* division = find(expr);
    if (division && division->parts.size() == 1) {
        const Part& part = division->parts[0];
        bool one_array = part.buffers.size() == 1 && !part.buffers[0].empty();
        if (part.what == "stage" && affine_of(node.a).offset != 0) return "other_stage";
        return one_array ? part.buffers[0] + "_" + part.what : part.what;
    }
    const Expr& divided = is_digit(expr) ? node.a.as<Binary>()->a : node.a;
    const Variable* variable = divided.as<Variable>();
    if (!variable) return "index";
    return variable->name + (is_digit(expr) ? "_digit" : quotient ? "_group" : "_in_group");
}

}  // namespace tw::codegen

#include "codegen/cost/nest_key.h"

#include <bit>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "dsl/tensor.h"
#include "dsl/walk.h"
#include "support/overloaded.h"

namespace tw::codegen {
namespace {

class KeyWriter {
public:
    std::string of(const Tree& tree, const Nest& nest) {
        write(nest.roles);
        put(nest.persistent_blocks), put(nest.longest_first), put(nest.persistent_stages);
        put(nest.tickets ? number(nest.tickets) : 0);
        put(nest.occupancy.blocks), steps_.push_back(nest.occupancy.step);
        for (const ExclusiveSection& section : nest.exclusive) {
            put(section.stages);
            steps_.push_back(section.step);
        }
        write(nest.body);
        for (const auto& [out, in] : tree.in_place)
            if (buffers_.contains(out.get()) && buffers_.contains(in.get()))
                put(buffers_.at(out.get())), put(buffers_.at(in.get()));
        for (const std::vector<int>* numbers : {&steps_, &stages_, &loops_}) put_order(*numbers);
        return std::move(key_);
    }

private:
    void put(int64_t value) { key_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
    void put(const std::string& text) {
        put(static_cast<int64_t>(text.size()));
        key_ += text;
    }
    void put(const std::vector<int>& stages) {
        put(static_cast<int64_t>(stages.size()));
        stages_.insert(stages_.end(), stages.begin(), stages.end());
    }
    void put(const std::vector<Expr>& exprs) {
        std::vector<int64_t> numbers;
        for (const Expr& expr : exprs) numbers.push_back(number(expr));
        put(static_cast<int64_t>(numbers.size()));
        for (const int64_t each : numbers) put(each);
    }
    /// Of each, how many different ones there are below it; none stays none.
    void put_order(const std::vector<int>& numbers) {
        std::map<int, int64_t> ranks;
        for (const int each : numbers) ranks[each] = 0;
        int64_t rank = 0;
        for (auto& [each, own] : ranks) own = each < 0 ? -1 : rank++;
        put(static_cast<int64_t>(numbers.size()));
        for (const int each : numbers) put(ranks.at(each));
    }

    void write(const std::vector<RoleSpec>& roles) {
        put(static_cast<int64_t>(roles.size()));
        for (const RoleSpec& role : roles) {
            put(role.name), put(role.warps), put(role.registers), put(role.ping_pong), put(role.stages);
            steps_.push_back(role.step);
        }
    }

    void write(const Stmt& stmt) {
        if (!stmt.defined()) return put(-1);
        put(static_cast<int64_t>((*stmt).kind.index()));
        std::visit(Overloaded{
                       [&](const For& loop) {
                           for (const int64_t each : {number(loop.variable), number(loop.extent)}) put(each);
                           put(static_cast<int64_t>(loop.level)), put(loop.reduces), put(loop.stages);
                           put(loop.in_flight), put(static_cast<int64_t>(loop.role)), put(loop.is_part);
                           steps_.push_back(loop.bind_step), steps_.push_back(loop.pipeline_step);
                           loops_.push_back(loop.loop);
                           write(loop.body);
                       },
                       [&](const Sequence& block) {
                           put(static_cast<int64_t>(block.stmts.size()));
                           for (const Stmt& each : block.stmts) write(each);
                       },
                       [&](const Allocate& allocate) {
                           put(number(allocate.buffer));
                           write(allocate.body);
                       },
                       [&](const Leaf& leaf) { write(leaf); },
                   },
                   (*stmt).kind);
    }

    void write(const Leaf& leaf) {
        put(static_cast<int64_t>(leaf.kind)), put(leaf.purpose);
        stages_.push_back(leaf.stage), steps_.push_back(leaf.step), steps_.push_back(leaf.via.step);
        put(static_cast<int64_t>(leaf.via.copy)), put(leaf.atom ? leaf.atom->name : std::string());
        put(leaf.atom ? static_cast<int64_t>(leaf.atom->operand) : -1);
        for (const StoreTo& store : leaf.stores) {
            put(number(store.buffer)), put(store.indices), put(number(store.value));
            put(store.atomic ? static_cast<int64_t>(*store.atomic) : -1);
        }
        put(std::vector<Expr>{leaf.mask, leaf.readers_mask, leaf.iteration, leaf.across.variable});
        put(leaf.across.extent), put(leaf.across.left), put(leaf.across.right);
        if (!leaf.reducer) return put(-1);
        put(leaf.reducer->commutative), put(leaf.reducer->identity), put(leaf.reducer->left);
        put(leaf.reducer->right), put(leaf.reducer->combined);
    }

    // Numbers of buffers and expressions, from 1 on, in the order in which they are met; what they are made of before.

    int64_t number(const BufferRef& buffer) {
        const auto [known, is_new] = buffers_.try_emplace(buffer.get(), 0);
        if (!is_new) return known->second;
        std::vector<int64_t> numbers;
        for (const std::vector<Expr>* exprs : {&buffer->shape, &buffer->strides, &buffer->joined_from}) {
            numbers.push_back(static_cast<int64_t>(exprs->size()));
            for (const Expr& expr : *exprs) numbers.push_back(number(expr));
        }
        put(-2), put(static_cast<int64_t>(buffer->type)), put(static_cast<int64_t>(buffer->memory));
        for (const int64_t each : numbers) put(each);
        put(buffer->role == BufferNode::Role::Local), put(buffer->swizzle), put(buffer->alignment);
        put(buffer->is_barrier), put(buffer->below), put(buffer->is_counter);
        if (buffer->memory != Memory::Global) steps_.push_back(buffer->step);
        return buffers_[buffer.get()] = static_cast<int64_t>(buffers_.size());
    }

    int64_t number(const Expr& expr) {
        if (!expr.defined()) return 0;
        if (const auto known = exprs_.find(expr.id()); known != exprs_.end()) return known->second;
        std::vector<int64_t> parts;
        for_each_child(*expr, [&](const Expr& child) { parts.push_back(number(child)); });
        const Variable* variable = expr.as<Variable>();
        if (const Load* load = expr.as<Load>()) parts.push_back(number(load->buffer));
        if (variable) parts.push_back(number(variable->extent));
        put(-3), put(static_cast<int64_t>(expr.type())), put(static_cast<int64_t>((*expr).kind.index()));
        put(static_cast<int64_t>(parts.size()));
        for (const int64_t part : parts) put(part);
        if (const IntConstant* n = expr.as<IntConstant>()) put(n->value);
        if (const FloatConstant* n = expr.as<FloatConstant>()) put(std::bit_cast<int64_t>(n->value));
        if (const Unary* n = expr.as<Unary>()) put(static_cast<int64_t>(n->op));
        if (const Binary* n = expr.as<Binary>()) put(static_cast<int64_t>(n->op));
        if (const Exchange* n = expr.as<Exchange>()) put(n->lane_bits);
        if (variable) {
            put(static_cast<int64_t>(variable->kind)), put(variable->multiple_of);
            for (const auto& bound : {variable->min, variable->max}) put(bound.has_value()), put(bound.value_or(0));
        }
        const int64_t own = static_cast<int64_t>(exprs_.size()) + 1;
        return exprs_[expr.id()] = own;
    }

    std::string key_;
    std::unordered_map<const ExprNode*, int64_t> exprs_;
    std::unordered_map<const BufferNode*, int64_t> buffers_;
    std::vector<int> steps_, stages_, loops_;
};

}  // namespace

std::string nest_key(const Tree& tree, const Nest& nest) { return KeyWriter().of(tree, nest); }

}  // namespace tw::codegen

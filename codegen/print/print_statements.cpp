#include "codegen/print/print_statements.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>
#include <utility>

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
    StatementPrinter(const PrintContext& context, bool multiplies, std::set<const BufferNode*> widened)
        : multiplies_(multiplies),
          widened_(std::move(widened)),
          names_(context.names),
          bounds_(context.bounds),
          exprs_(context.exprs),
          out_(context.out),
          threads_(context.threads),
          constants_(context.constants) {}

    void print(const ThreadStmt& stmt) {
        if (!stmt.as<ThreadBlock>()) paragraph(stmt);
        std::visit([&](const auto& node) { (*this)(node, stmt.step()); }, (*stmt).kind);
    }

    void operator()(const ThreadBlock& block, int) {
        for (size_t s = 0; s < block.stmts.size(); ++s) {
            enter_stage(block, s);
            size_t roles = s;
            while (roles < block.stmts.size() && block.stmts[roles].as<ThreadRole>()) ++roles;
            if (roles > s) {
                if (scopes_ == 0 && after_action_) out_.line("");
                after_action_ = true;
                print_roles({block.stmts.begin() + s, block.stmts.begin() + roles});
                s = roles - 1;
            } else if (std::string bytes = bytes_asked_for(block, s); !bytes.empty()) {
                out_.line(exprs_.call_instruction(*block.stmts[s].as<Instruction>(), bytes), block.stmts[s].step());
            } else if (s + 1 < block.stmts.size() && defines(block.stmts[s], block.stmts[s + 1]))
                ++s;
            else
                print(block.stmts[s]);
        }
    }

    void operator()(const ThreadLoop& loop, int step) {
        if (auto walk = walk_of(loop)) return print_walk(loop, *walk, step);
        bool is_loaded = reads_memory(loop.extent);
        std::string extent = is_loaded ? exprs_.print(loop.extent) : exprs_.print_compared(loop.extent);
        in_scope([&] {
            bounds_.enter_loop(loop);
            std::string index = declare(loop.variable), type = exprs_.type(loop.variable.type());
            print_unrolling(loop, step);
            std::string start = fmt::format("{} {} = 0", type, index), end = extent;
            if (is_loaded) {  // once: barriers inside keep the compiler from remembering
                end = names_.reserve(index + "_end");
                start += fmt::format(", {} = {}", end, extent);
            }
            std::string counted = loop.next ? names_.of(loop.next.get(), loop.next->name) : index;
            const std::string head = fmt::format("for ({}; {} < {}; ++{})", start, counted, end, index);
            if (!loop.apart) return body(head, loop.body, step);
            out_.open(head, step);
            body(fmt::format("if ({})", exprs_.call_always()), loop.body, step);
            out_.close();
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
    void operator()(const Instruction& instruction, int step) { out_.line(exprs_.call_instruction(instruction), step); }
    void operator()(const ThreadAccess&, int) {
        internal_check(false, "an access that insert_barriers has not taken away");
    }
    void operator()(const ThreadBarrier& barrier, int step) { out_.line(text_of(barrier), step); }

    void operator()(const ThreadRole& role, int step) { print_roles({make_thread(ThreadRole(role), step)}); }

    void operator()(const ThreadComment& comment, int step) {
        std::string number = step >= 0 ? fmt::format("[{}] ", step) : "";
        out_.line("// " + number + harmless_comment(comment.text), step);
    }

private:
    void print_unrolling(const ThreadLoop& loop, int step) {
        if (loop.unroll) out_.line("#pragma unroll", step);
        if (!loop.unroll && loop.unroll_by > 0) out_.line(fmt::format("#pragma unroll {}", loop.unroll_by), step);
    }

    // ---- loops along tiles ------------------------------------------------------------------------------------------

    /// A loop whose body begins with let x = variable * step + first.
    struct Walk {
        const ThreadLet* let;
        int64_t step;
        Expr first;
        ThreadStmt rest;
        bool counts;  ///< the rest needs the variable
    };

    std::optional<Walk> walk_of(const ThreadLoop& loop) const {
        constexpr int64_t largest = std::numeric_limits<int32_t>::max();
        std::vector<ThreadStmt> stmts = statements(loop.body);
        const ThreadLet* let = loop.ends_at > 0 && !stmts.empty() ? stmts[0].as<ThreadLet>() : nullptr;
        if (!let || let->variable.type() != Type::I32 || loop.variable.type() != Type::I32) return {};
        Affine affine = affine_of(let->value);
        int64_t step = coefficient(affine, loop.variable).value_or(0);
        if (step <= 0 || loop.ends_at > largest - step) return {};
        erase_terms(affine, [&](const auto& term) { return term.first.same(loop.variable); });
        Walk walk{let, step, to_expr(affine), block_of({stmts.begin() + 1, stmts.end()}), false};
        visit(walk.rest, [&](const ThreadStmt& stmt) {
            for (const Expr& expr : expressions(stmt)) walk.counts = walk.counts || contains(expr, loop.variable);
        });
        Interval first = bounds_.of(walk.first);
        bool is_remainder = first.min.value_or(-1) >= 0 && first.max && *first.max < step;
        return walk.counts && !is_remainder ? std::nullopt : std::optional(walk);
    }

    /// A name for the number, if it has no other meaning yet.
    std::string constant_text(const std::string& name, int64_t value) const {
        bool named = constants_ && constants_->try_emplace(name, value).first->second == value;
        return named ? name : std::to_string(value);
    }

    /// for (int x = first; x < TILES; x += step)
    void print_walk(const ThreadLoop& loop, const Walk& walk, int step) {
        std::string first = exprs_.print(walk.first);
        in_scope([&] {
            bounds_.enter_loop(loop);
            bounds_.define(*walk.let);
            std::string x = declare(walk.let->variable);
            print_unrolling(loop, step);
            std::string end = constant_text(tiles_name, loop.ends_at);
            out_.open(fmt::format("for (int {} = {}; {} < {}; {} += {})", x, first, x, end, x, walk.step), step);
            if (walk.counts) out_.line(fmt::format("const int {} = {} / {};", declare(loop.variable), x, walk.step));
            print(walk.rest);
            out_.close();
        });
    }

    // ---- roles ------------------------------------------------------------------------------------------------------

    /// As if, else if, else, where no thread has two of them.
    void print_roles(const std::vector<ThreadStmt>& roles) {
        std::vector<bool> left;  // threads that no role of the chain has
        for (const ThreadStmt& stmt : roles) {
            const ThreadRole& role = *stmt.as<ThreadRole>();
            const std::string what = comment_of(role, stmt.step());
            const bool follows = !left.empty() && all_left(role, left);
            if (!follows) {
                if (!left.empty()) out_.close();
                left.assign(static_cast<size_t>(std::max(threads_, role.first + role.threads)), true);
            }
            const std::string condition = condition_of(role, left);
            const bool fits = static_cast<int>(condition.size() + what.size()) + 16 <= out_.columns();
            const std::string beside = fits ? what : "";
            if (!follows)
                out_.open(fmt::format("if ({})", condition), stmt.step(), beside);
            else
                out_.reopen(condition.empty() ? "else" : fmt::format("else if ({})", condition), stmt.step(), beside);
            if (!fits) out_.line("// " + what);
            in_scope([&] { print_inside(role); });
        }
        out_.close();
    }

    static bool all_left(const ThreadRole& role, const std::vector<bool>& left) {
        auto begin = left.begin() + role.first;
        return role.first + role.threads <= static_cast<int>(left.size()) &&
               std::find(begin, begin + role.threads, false) == begin + role.threads;
    }

    static std::string comment_of(const ThreadRole& role, int step) {
        std::string number = step >= 0 ? fmt::format("[{}] ", step) : "";
        std::string turns = role.turns > 1 ? fmt::format(", {} groups in turn", role.turns) : "";
        return harmless_comment(fmt::format("{}role {}: threads {} to {}{}", number, role.name, role.first,
                                            role.first + role.threads - 1, turns));
    }

    /// Tells the role's threads from the others that are left; empty if there are none. Takes them.
    std::string condition_of(const ThreadRole& role, std::vector<bool>& left) const {
        const int end = role.first + role.threads;
        const bool whole = threads_ > 0 && std::count(left.begin(), left.end(), true) < static_cast<int>(left.size());
        const bool below = std::find(left.begin(), left.begin() + role.first, true) != left.begin() + role.first;
        const bool above = std::find(left.begin() + end, left.end(), true) != left.end() || threads_ == 0;
        std::fill(left.begin() + role.first, left.begin() + end, false);
        std::string from = fmt::format("threadIdx.x >= {}", role.first), to = fmt::format("threadIdx.x < {}", end);
        if (!below && !above) return whole ? "" : to;
        return below && above ? from + " && " + to : below ? from : to;
    }

    void print_inside(const ThreadRole& role) {
        std::string own = role.first ? fmt::format("threadIdx.x - {}", role.first) : "threadIdx.x";
        if (role.turn.defined()) {
            const std::string turn = fmt::format("{} / {}", own, role.threads / role.turns);
            out_.line(fmt::format("const int {} = {};", declare(role.turn), exprs_.call_broadcast(turn)));
            own = fmt::format("{} % {}", own, role.threads / role.turns);
        }
        if (role.thread.defined()) out_.line(fmt::format("const int {} = {};", declare(role.thread), own));
        print(role.body);
    }

    // ---- boxes ------------------------------------------------------------------------------------------------------

    /// How many bytes a barrier expects, as the sizes of what the loads behind it fill, if they come to that.
    std::string bytes_asked_for(const ThreadBlock& block, size_t expects) {
        const MbarrierExpectTx* expect = instruction_of<MbarrierExpectTx>(block.stmts[expects]);
        if (!expect) return "";
        int64_t bytes = 0;
        std::vector<const BufferNode*> filled;
        for (size_t s = expects + 1; s < block.stmts.size() && loads_boxes(block.stmts[s]); ++s)
            visit(block.stmts[s], [&](const ThreadStmt& stmt) {
                const TmaLoad* load = instruction_of<TmaLoad>(stmt);
                const BufferNode* buffer = load ? load->to.place.buffer.get() : nullptr;
                if (!buffer || buffer->shape.empty() || std::ranges::find(filled, buffer) != filled.end()) return;
                filled.push_back(buffer);
                int64_t stage = tw::bytes_of(buffer->type);
                for (size_t d = 1; d < buffer->shape.size(); ++d) stage *= require_constant(buffer->shape[d]);
                bytes += stage;
            });
        if (filled.empty() || as_constant(expect->bytes) != bytes) return "";
        std::string sizes;
        for (const BufferNode* buffer : filled)
            sizes += fmt::format("{}sizeof shared.{}[0]", sizes.empty() ? "" : " + ", names_.of(buffer, buffer->name));
        return sizes;
    }

    static bool loads_boxes(const ThreadStmt& stmt) {
        const ThreadLoop* loop = stmt.as<ThreadLoop>();
        return loop ? loads_boxes(loop->body) : instruction_of<TmaLoad>(stmt) != nullptr;
    }

    // ---- paragraphs -------------------------------------------------------------------------------------------------

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
        for (const MemoryAccess& access : memory_accesses(stored))
            if (!access.writes && access.place.buffer == declare->buffer) return false;
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
        if (auto instruction = stmts[0].as<Instruction>()) return exprs_.call_instruction(*instruction);
        return "";
    }

    static int body_step(const ThreadStmt& body, int step) {
        int inner = statements(body)[0].step();
        return inner >= 0 ? inner : step;
    }

    std::string text_of(const ThreadBarrier& barrier) {
        if (barrier.id == 0) return "__syncthreads();";
        Expr id = constant(Type::I32, int64_t{barrier.id});
        if (barrier.turn.defined()) id = barrier.turn + barrier.id;
        return exprs_.call_barrier(id, barrier.threads);
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
        if (rounds_sum(store)) return fmt::format("{} = {};", to, exprs_.call_rounded_alone(store.value));
        return fmt::format("{} {}= {};", to, sign, exprs_.print(*sign ? binary->b : store.value));
    }

    /// Whether it stores a sum that a unit may be writing still, as far as ptxas knows.
    bool rounds_sum(const ThreadStore& store) const {
        const Cast* cast = store.value.as<Cast>();
        const Load* sum = cast ? cast->a.as<Load>() : nullptr;
        return multiplies_ && sum && sum->buffer->memory == Memory::Registers && cast->a.type() == f32 &&
               (store.value.type() == bf16 || store.value.type() == f16) &&
               (store.to.buffer->memory != Memory::Registers || widened_.count(store.to.buffer.get()) > 0);
    }

    std::string text_of(const ThreadWide& wide) {
        bool to_registers = wide.to.buffer->memory == Memory::Registers;
        bool from_registers = wide.from.buffer->memory == Memory::Registers;
        internal_check(!to_registers || !from_registers, "a wide access between registers");
        std::string primitive = to_registers ? "load" : from_registers ? "store" : "copy";
        if (wide.where.defined()) primitive += "_where";
        return exprs_.call_wide(primitive, wide);
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

    const bool multiplies_;                      // while its threads go on
    const std::set<const BufferNode*> widened_;  // registers of narrow elements that are read one by one
    Names& names_;
    KnownBounds& bounds_;
    ExprPrinter& exprs_;
    Writer& out_;
    int threads_;
    std::map<std::string, int64_t>* constants_;
    int scopes_ = 0;
    bool after_action_ = false;  // the last statement outside of all scopes did something
};

}  // namespace

void print_body(const ThreadStmt& body, const PrintContext& context) {
    bool multiplies = false;
    std::set<const BufferNode*> widened;
    visit(body, [&](const ThreadStmt& stmt) {
        const Instruction* instruction = stmt.as<Instruction>();
        multiplies = multiplies || (instruction && std::get_if<Wgmma>(instruction));
        const ThreadLet* let = stmt.as<ThreadLet>();
        const ThreadStore* store = stmt.as<ThreadStore>();
        if (let || store)
            visit(let ? let->value : store->value, [&](const Expr& node) {
                const Cast* cast = node.as<Cast>();
                const Load* load = cast ? cast->a.as<Load>() : nullptr;
                if (load && load->buffer->memory == Memory::Registers) widened.insert(load->buffer.get());
            });
    });
    StatementPrinter(context, multiplies, std::move(widened)).print(body);
}

std::string declaration(const BufferNode& buffer, const Names& names, ExprPrinter& exprs) {
    std::string type = buffer.is_barrier ? "tw::Barrier" : exprs.type(buffer.type);
    std::string text = fmt::format("{} {}", type, names.of(&buffer, buffer.name));
    for (const Expr& extent : buffer.shape) text += fmt::format("[{}]", require_constant(extent));
    return text;
}

}  // namespace tw::codegen

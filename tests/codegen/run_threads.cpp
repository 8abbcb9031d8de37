#include "run_threads.h"

#include <cmath>
#include <functional>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include <fmt/format.h>

#include "codegen/access/access.h"
#include "codegen/thread_ir/thread_walk.h"
#include "dsl/integers.h"
#include "dsl/plain_arithmetic.h"

namespace tw::codegen {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

/// Elements of a shared or register array; a thread's own ones each in the latter case.
struct Array {
    std::vector<double> values;
    std::vector<bool> written;
};

int64_t elements_of(const BufferNode& buffer) {
    int64_t count = 1;
    for (const Expr& extent : buffer.shape) count *= require_constant(extent);
    return count;
}

class Block {
public:
    Block(const ThreadKernel& kernel, Machine& machine, const std::array<int64_t, 3>& index)
        : kernel_(kernel), machine_(machine), active_(kernel.threads, true) {
        for (int d = 0; d < 3; ++d) set_all(kernel.block[d], static_cast<double>(index[d]));
        auto& thread = variables_[kernel.thread.id()];
        for (int t = 0; t < kernel.threads; ++t) thread.push_back(t);
        for (const auto* list : {&kernel.sizes, &kernel.scalars})
            for (const Expr& e : *list) set_all(e, machine.parameters.at(e.as<Variable>()->name));
        for (const Buffer& buffer : kernel.shared) make(buffer, 1);
    }

    void run() { run(kernel_.body); }

private:
    void set_all(const Expr& variable, double value) { variables_[variable.id()].assign(kernel_.threads, value); }

    void make(const Buffer& buffer, int copies) {
        int64_t count = elements_of(*buffer) * copies;
        arrays_[buffer.get()] = {std::vector<double>(count), std::vector<bool>(count)};
    }

    void run(const ThreadStmt& stmt) {
        std::visit([&](const auto& node) { (*this)(node); }, (*stmt).kind);
    }

public:
    void operator()(const ThreadBlock& block) {
        for (const ThreadStmt& stmt : block.stmts) run(stmt);
    }
    void operator()(const ThreadLoop& loop) {
        std::vector<bool> entered = active_;
        for (int64_t i = 0;; ++i) {
            bool any = false;
            for (int t = 0; t < kernel_.threads; ++t) {
                active_[t] = entered[t] && i < integer(loop.extent, t);
                any = any || active_[t];
            }
            if (!any) break;
            set_all(loop.variable, static_cast<double>(i));
            run(loop.body);
        }
        active_ = entered;
    }
    void operator()(const ThreadIf& branch) {
        std::vector<bool> entered = active_;
        for (int t = 0; t < kernel_.threads; ++t) active_[t] = entered[t] && evaluate(branch.condition, t) != 0;
        run(branch.body);
        active_ = entered;
    }
    void operator()(const ThreadLet& let) {
        std::vector<double> values(kernel_.threads);
        each([&](int t) { values[t] = evaluate(let.value, t); });
        variables_[let.variable.id()] = values;
    }
    void operator()(const ThreadDeclare& declare) { make(declare.buffer, kernel_.threads); }
    void operator()(const ThreadStore& store) {
        begin_writes();
        std::vector<double> values(kernel_.threads);
        each([&](int t) { values[t] = evaluate(store.value, t); });
        each([&](int t) { write(store.to, 0, t, rounded(store.to.buffer->type, values[t])); });
    }
    void operator()(const ThreadWide& wide) {
        begin_writes();
        if (wide.from.buffer->type != wide.to.buffer->type) fail("wide access between types");
        std::vector<std::vector<double>> values(kernel_.threads);
        each([&](int t) {
            check_aligned(wide.from, wide.width, t);
            check_aligned(wide.to, wide.width, t);
            for (int v = 0; v < wide.width; ++v) values[t].push_back(read(wide.from, v, t));
        });
        each([&](int t) {
            for (int v = 0; v < wide.width; ++v) write(wide.to, v, t, values[t][v]);
        });
    }
    void operator()(const Instruction&) { fail("an instruction, which this machine does not know"); }
    void operator()(const ThreadRole&) { fail("roles, which this machine does not know"); }
    void operator()(const ThreadAccess&) {}
    void operator()(const ThreadBarrier&) {}
    void operator()(const ThreadComment&) {}

private:
    template <class F>
    void each(const F& f) {
        for (int t = 0; t < kernel_.threads; ++t)
            if (active_[t]) f(t);
    }

    // Memory.

    int64_t offset_of(const Access& checked, int t) {
        const Access access = place_of(checked);
        const BufferNode& buffer = *access.buffer;
        if (buffer.memory == Memory::Global) return integer(access.indices.at(0), t);
        if (access.indices.size() != buffer.shape.size()) fail("wrong rank of " + buffer.name);
        int64_t offset = 0;
        for (size_t d = 0; d < access.indices.size(); ++d) {
            int64_t index = integer(access.indices[d], t), extent = require_constant(buffer.shape[d]);
            if (index < 0 || index >= extent)
                fail(fmt::format("{}: index {} of dimension {} is outside 0..{}", buffer.name, index, d, extent - 1));
            offset = offset * extent + index;
        }
        return buffer.memory == Memory::Registers ? t * elements_of(buffer) + offset : offset;
    }

    void check_aligned(const Access& access, int width, int t) {
        if (access.buffer->memory == Memory::Registers) return;
        if (offset_of(access, t) % width != 0)
            fail(
                fmt::format("{}: {} elements at {} are not aligned", access.buffer->name, width, offset_of(access, t)));
    }

    double read(const Access& access, int64_t v, int t) {
        int64_t offset = offset_of(access, t) + v;
        if (access.buffer->memory == Memory::Global) {
            auto& values = machine_.memory.at(access.buffer->name);
            if (offset < 0 || offset >= static_cast<int64_t>(values.size()))
                fail(fmt::format("{}: read at {} of {}", access.buffer->name, offset, values.size()));
            return values[offset];
        }
        Array& array = arrays_.at(access.buffer.get());
        if (offset >= static_cast<int64_t>(array.values.size())) fail(access.buffer->name + ": read outside");
        if (!array.written[offset] && machine_.unwritten_registers && access.buffer->memory == Memory::Registers)
            return std::nan("");
        if (!array.written[offset])
            fail(fmt::format("{}: element {} is read but was not written", access.buffer->name, offset));
        return array.values[offset];
    }

    void begin_writes() { writers_.clear(); }

    void write(const Access& access, int64_t v, int t, double value) {
        int64_t offset = offset_of(access, t) + v;
        auto [found, fresh] = writers_.try_emplace(offset, value);
        bool same = found->second == value || (std::isnan(value) && std::isnan(found->second));
        if (!fresh && access.buffer->memory != Memory::Registers && !same)
            fail(fmt::format("{}: two threads store different values at {}", access.buffer->name, offset));
        if (!fresh && access.buffer->memory != Memory::Registers) ++duplicate_writes;
        if (access.buffer->memory == Memory::Global) {
            auto& values = machine_.memory.at(access.buffer->name);
            if (offset < 0 || offset >= static_cast<int64_t>(values.size()))
                fail(fmt::format("{}: write at {} of {}", access.buffer->name, offset, values.size()));
            values[offset] = value;
            return;
        }
        Array& array = arrays_.at(access.buffer.get());
        if (offset >= static_cast<int64_t>(array.values.size())) fail(access.buffer->name + ": write outside");
        array.values[offset] = value;
        array.written[offset] = true;
    }

    // Expressions.

    int64_t integer(const Expr& expr, int t) { return static_cast<int64_t>(evaluate(expr, t)); }

    double rounded(Type type, double value) {
        if (is_float(type)) return round_to_type(type, value);
        return value;
    }

    double evaluate(const Expr& expr, int t) {
        if (auto* node = expr.as<IntConstant>()) return static_cast<double>(node->value);
        if (auto* node = expr.as<FloatConstant>()) return node->value;
        if (auto* node = expr.as<Variable>()) {
            auto found = variables_.find(expr.id());
            if (found == variables_.end()) fail("no value for " + node->name);
            return found->second[t];
        }
        if (auto* node = expr.as<Load>()) return read({node->buffer, node->indices}, 0, t);
        if (auto* node = expr.as<Select>())
            return evaluate(evaluate(node->condition, t) != 0 ? node->yes : node->no, t);
        if (auto* node = expr.as<Cast>()) {
            double value = evaluate(node->a, t);
            return is_float(expr.type()) ? round_to_type(expr.type(), value) : std::trunc(value);
        }
        if (auto* node = expr.as<Exchange>()) {
            if (!active_.at(t ^ node->lane_bits)) fail("thread exchanges with one that does not take part");
            return evaluate(node->a, t ^ node->lane_bits);
        }
        if (auto* node = expr.as<Fma>())
            return rounded(expr.type(), std::fma(evaluate(node->a, t), evaluate(node->b, t), evaluate(node->c, t)));
        if (auto* node = expr.as<Unary>()) return rounded(expr.type(), apply(node->op, evaluate(node->a, t)));
        if (auto* node = expr.as<Binary>()) return binary_value(*node, expr.type(), t);
        fail("cannot evaluate " + to_string(expr));
    }

    static double apply(UnaryOp op, double a) {
        switch (op) {
            case UnaryOp::Negate: return -a;
            case UnaryOp::Not: return a == 0;
            case UnaryOp::Abs: return std::fabs(a);
            case UnaryOp::Sqrt: return std::sqrt(a);
            case UnaryOp::Exp: return std::exp(a);
            case UnaryOp::Tanh:
            case UnaryOp::TanhApprox: return std::tanh(a);
            case UnaryOp::Sigmoid: return 1 / (1 + std::exp(-a));
            case UnaryOp::ExpNonpositive: return std::exp(a);
            case UnaryOp::Erf: return std::erf(a);
            case UnaryOp::NormalCdf: return normal_cdf(a);
            case UnaryOp::Logistic2: return 1 / (1 + std::exp2(a));
            default: fail("an operator that this test does not know");
        }
    }

    double binary_value(const Binary& node, Type type, int t) {
        double a = evaluate(node.a, t);
        if (node.op == BinaryOp::And && a == 0) return 0;
        if (node.op == BinaryOp::Or && a != 0) return 1;
        double b = evaluate(node.b, t);
        bool integers = is_integer(node.a.type());
        switch (node.op) {
            case BinaryOp::Add: return rounded(type, a + b);
            case BinaryOp::Sub: return rounded(type, a - b);
            case BinaryOp::Mul: return rounded(type, a * b);
            case BinaryOp::Div: return integers ? std::floor(a / b) : rounded(type, a / b);
            case BinaryOp::DivShared: return rounded(type, a / b);
            case BinaryOp::Mod: return a - std::floor(a / b) * b;
            case BinaryOp::Min: return std::fmin(a, b);
            case BinaryOp::Max: return std::fmax(a, b);
            case BinaryOp::Less: return a < b;
            case BinaryOp::LessEqual: return a <= b;
            case BinaryOp::Equal: return a == b;
            case BinaryOp::NotEqual: return a != b;
            case BinaryOp::And: return b != 0;
            case BinaryOp::Or: return b != 0;
            default: break;
        }
        if (auto word = apply_to_integers(node.op, static_cast<int64_t>(a), static_cast<int64_t>(b)))
            return static_cast<double>(*word);
        return 0;
    }

public:
    int64_t duplicate_writes = 0;

private:
    const ThreadKernel& kernel_;
    Machine& machine_;
    std::vector<bool> active_;
    std::unordered_map<const ExprNode*, std::vector<double>> variables_;
    std::unordered_map<const BufferNode*, Array> arrays_;
    std::unordered_map<int64_t, double> writers_;
};

int64_t blocks_in(const Expr& extent, const Machine& machine) {
    std::function<int64_t(const Expr&)> value = [&](const Expr& e) -> int64_t {
        if (auto known = as_constant(e)) return *known;
        if (const Variable* v = e.as<Variable>()) return static_cast<int64_t>(machine.parameters.at(v->name));
        if (const Cast* cast = e.as<Cast>()) return value(cast->a);
        const Binary* node = e.as<Binary>();
        if (!node) fail("cannot evaluate the grid " + to_string(e));
        int64_t a = value(node->a), b = value(node->b);
        switch (node->op) {
            case BinaryOp::Add: return a + b;
            case BinaryOp::Sub: return a - b;
            case BinaryOp::Mul: return a * b;
            case BinaryOp::Div: return a / b;
            case BinaryOp::Mod: return a % b;
            default: fail("cannot evaluate the grid " + to_string(e));
        }
    };
    return value(extent);
}

}  // namespace

void run_threads(const ThreadKernel& kernel, Machine& machine) {
    std::array<int64_t, 3> blocks, index;
    for (int d = 0; d < 3; ++d) blocks[d] = blocks_in(kernel.grid[d], machine);
    for (index[2] = 0; index[2] < blocks[2]; ++index[2])
        for (index[1] = 0; index[1] < blocks[1]; ++index[1])
            for (index[0] = 0; index[0] < blocks[0]; ++index[0]) {
                Block block(kernel, machine, index);
                block.run();
                if (block.duplicate_writes) fail("several threads store to one element");
            }
}

}  // namespace tw::codegen

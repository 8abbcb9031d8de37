#include "verify/thread_values.h"

#include <algorithm>

#include <fmt/format.h>

#include "codegen/access/access.h"
#include "dsl/check_bindings.h"
#include "support/error.h"

namespace tw::fuzz {

using codegen::Access;

void ThreadValues::start(const std::array<int64_t, 3>& block, int thread) {
    block_ = block, thread_ = thread, epoch_ = 0, received_ = 0, touched_global_ = false;
    variables_.clear();
    registers_.clear();
    accesses_.clear();
}

void ThreadValues::declare(const codegen::Buffer& registers) {
    int64_t elements = 1;
    for (const Expr& extent : registers->shape) elements *= require_constant(extent);
    registers_[registers.get()].assign(static_cast<size_t>(elements), kUnwritten);
}

std::vector<Term>& ThreadValues::registers_of(const codegen::Buffer& buffer) {
    if (!registers_.contains(buffer.get())) declare(buffer);
    return registers_.at(buffer.get());
}

void ThreadValues::set_registers(const Access& to, const std::vector<Term>& values) {
    const int64_t first = offset(to, static_cast<int>(values.size()));
    std::copy(values.begin(), values.end(), registers_of(to.buffer).begin() + first);
}

void ThreadValues::receive(const Access& to, int width) {
    std::vector<Term> values;
    for (int e = 0; e < width; ++e) values.push_back(terms_.symbol(to.buffer->type, -4, received_++));
    set_registers(to, values);
}

void ThreadValues::forget(const Access& registers, int width) {
    set_registers(registers, std::vector<Term>(static_cast<size_t>(width), kUnwritten));
}

std::vector<Term> ThreadValues::read(const Access& from, int width) {
    std::vector<Term> values;
    const int64_t first = where(from, width);
    if (from.buffer->memory == Memory::Registers) {
        auto begin = registers_of(from.buffer).begin() + first;
        values.assign(begin, begin + width);
        for (Term& value : values)
            if (value == kUnwritten) value = terms_.symbol(from.buffer->type, -3, 0);
        return values;
    }
    touch(from, width, false);
    Hash memory;
    memory << from.buffer->name << epoch_;
    const auto number = static_cast<int>(memory.value() >> 34) | 1 << 30;
    for (int e = 0; e < width; ++e) values.push_back(terms_.symbol(from.buffer->type, number, first + e));
    return values;
}

uint64_t ThreadValues::place_of(const Access& access, int elements) {
    return (std::hash<std::string>()(access.buffer->name) << 24) +
           static_cast<uint64_t>(offset(access, std::max(elements, 1)));
}

uint64_t ThreadValues::touch(const Access& access, int elements, bool writes) {
    if (access.buffer->memory != Memory::Shared || access.buffer->is_barrier) return 0;
    const uint64_t place = place_of(access, elements);
    for (int e = 0; e < elements; ++e) accesses_.push_back({place + static_cast<uint64_t>(e), epoch_, writes});
    return place;
}

/// Elements of global memory at indices that depend on data have no number.
int64_t ThreadValues::where(const Access& access, int elements) {
    touched_global_ = touched_global_ || access.buffer->memory == Memory::Global;
    if (access.buffer->memory != Memory::Global || access.indices.empty()) return offset(access, elements);
    const Term index = eval(access.indices[0]);
    if (auto number = terms_.value(index)) return *number;
    return static_cast<int64_t>(index) - (int64_t{1} << 40);
}

int64_t ThreadValues::offset(const Access& checked, int elements) {
    const Access access = codegen::place_of(checked);
    const BufferNode& buffer = *access.buffer;
    int64_t flat = 0, total = 1;
    for (size_t d = 0; d < access.indices.size(); ++d) {
        const int64_t index = known(eval(access.indices[d]), "an address");
        if (buffer.memory == Memory::Global) return index;
        const int64_t extent = require_constant(buffer.shape[d]);
        const bool last = d + 1 == access.indices.size() && buffer.memory != Memory::Registers;
        if (index < 0 || index + (last ? elements - 1 : 0) >= extent)
            throw Misuse{fmt::format("index {} of '{}' is {}, its extent {}", d, buffer.name, index, extent)};
        flat = flat * extent + index;
        total *= extent;
    }
    if (flat + elements > total)
        throw Misuse{
            fmt::format("elements {} to {} of '{}', which has {}", flat, flat + elements - 1, buffer.name, total)};
    return flat;
}

int64_t ThreadValues::known(Term term, const char* what) const {
    auto value = terms_.value(term);
    if (!value) throw Undecided{fmt::format("{} depends on data", what)};
    return *value;
}

Term ThreadValues::eval(const Expr& expr) {
    const Type type = expr.type();
    if (auto integer = expr.as<IntConstant>()) return terms_.integer(type, integer->value);
    if (auto real = expr.as<FloatConstant>()) return terms_.real(type, real->value);
    if (auto variable = expr.as<Variable>()) return value_of(expr, *variable);
    if (auto load = expr.as<Load>()) return read({load->buffer, load->indices}, 1)[0];
    if (auto choice = expr.as<Select>()) return select(*choice, type);
    if (auto operation = expr.as<Binary>()) return binary(*operation, type);
    if (auto exchange = expr.as<Exchange>())  // of another lane: a term of its own
        return terms_.element(type, -2 - exchange->lane_bits, eval(exchange->a));
    std::vector<Term> kids;
    for (const Expr& kid : children(expr)) kids.push_back(eval(kid));
    if (auto operation = expr.as<Unary>()) return terms_.unary(operation->op, type, kids[0]);
    if (expr.as<Cast>()) return terms_.cast(type, kids[0]);
    internal_check(expr.as<Fma>(), "no term for {}", to_string(expr));
    return terms_.fma(type, kids[0], kids[1], kids[2]);
}

Term ThreadValues::select(const Select& choice, Type type) {
    const Term condition = eval(choice.condition);
    if (auto decided = terms_.value(condition)) return eval(*decided ? choice.yes : choice.no);
    return terms_.select(type, condition, eval(choice.yes), eval(choice.no));
}

Term ThreadValues::binary(const Binary& operation, Type type) {
    const Term left = eval(operation.a);
    auto decided = terms_.value(left);
    if (operation.op == BinaryOp::And && decided == 0) return left;
    if (operation.op == BinaryOp::Or && decided.value_or(0) != 0) return left;
    return terms_.binary(operation.op, type, left, eval(operation.b));
}

Term ThreadValues::value_of(const Expr& expr, const Variable& variable) const {
    if (expr.same(kernel_.thread)) return terms_.integer(expr.type(), thread_);
    for (size_t d = 0; d < 3; ++d)
        if (expr.same(kernel_.block[d])) return terms_.integer(expr.type(), block_[d]);
    if (variable.kind == VariableKind::Size) return terms_.integer(expr.type(), bound_size(expr, sizes_));
    if (variable.kind == VariableKind::Scalar) {
        for (size_t s = 0; s < kernel_.scalars.size(); ++s)
            if (kernel_.scalars[s].same(expr)) return terms_.symbol(expr.type(), -1, static_cast<int64_t>(s));
    }
    return variables_.at(expr.id());
}

}  // namespace tw::fuzz

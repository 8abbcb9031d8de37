#include "codegen/print/print_expr_cuda.h"

#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "codegen/print/cuda_operators.h"
#include "support/error.h"
#include "support/overloaded.h"

namespace tw::codegen {
namespace {

/// Whether the vocabulary has one version of the function, which takes an f32.
bool has_one_version(UnaryOp op) { return op == UnaryOp::TruncateTf32 || op == UnaryOp::TanhApprox; }

/// The end of the name that the version of an overloaded function has in the vocabulary, for arguments as C++ sees
/// them.
std::string version_of(Type type, bool wide) {
    if (type == Type::F64) return "_f64";
    if (!is_integer(type)) return "_f32";
    return type == Type::U32 ? "_u32" : wide ? "_i64" : "_i32";
}

/// Storage types that are structs in the text.
bool is_struct(Type type) {
    return type == Type::F16 || type == Type::BF16 || type == Type::E4M3 || type == Type::E5M2;
}

/// The number itself: conversions between i32 and i64 are the width in which it is computed.
Expr without_index_casts(const Expr& expr) {
    const Cast* cast = expr.as<Cast>();
    bool widens = cast && (expr.type() == Type::I64 || expr.type() == Type::I32) &&
                  (cast->a.type() == Type::I64 || cast->a.type() == Type::I32);
    return widens ? without_index_casts(cast->a) : expr;
}

/// A name inside of a string literal.
std::string quoted(const std::string& name) {
    std::string text = harmless_comment(name);
    std::erase(text, '"');
    return text;
}

std::string in_parentheses(const std::string& text) {
    std::string result = "(";
    return result.append(text).append(")");
}

}  // namespace

std::string ExprPrinter::type(Type type) {
    switch (type) {
        case Type::Bool: return "bool";
        case Type::I8: return "signed char";
        case Type::U8: return "unsigned char";
        case Type::I32: return "int";
        case Type::U32: return "unsigned";
        case Type::I64: return "long long";
        case Type::F32:
        case Type::TF32: return "float";
        case Type::F64: return "double";
        case Type::F16:
        case Type::BF16:
        case Type::E4M3:
        case Type::E5M2: break;
    }
    vocabulary_.insert(std::string(name_of(type)));
    return fmt::format("tw::{}", name_of(type));
}

std::string ExprPrinter::print_compared(const Expr& expr) {
    Text text = text_of(expr);
    return text.precedence > kRelation ? text.text : in_parentheses(text.text);
}

std::string ExprPrinter::element(const Access& access) {
    const BufferNode& buffer = *access.buffer;
    std::string text = buffer.memory == Memory::Shared ? "shared." : "";
    text += names_.of(&buffer, buffer.name);
    Access place = place_of(access);
    std::vector<IndexCheck> outer_checks = std::exchange(checks_, checks_of(access));
    std::string outer_tensor = std::exchange(checked_tensor_, buffer.name);
    for (size_t d = 0; d < place.indices.size(); ++d) {
        bool column = buffer.swizzle > 0 && d + 1 == place.indices.size();
        std::string index = column ? swizzled(place) : print(place.indices[d]);
        if (d + 1 == place.indices.size()) index = behind_checks(index);
        text += "[" + index + "]";
    }
    checks_ = outer_checks, checked_tensor_ = outer_tensor;
    return text;
}

/// The text of an index behind the checks that are not parts of it.
std::string ExprPrinter::behind_checks(const std::string& index) {
    std::string text;
    while (!checks_.empty()) {
        IndexCheck check = checks_.back();
        checks_.pop_back();
        text += call_check(check).text + ", ";
    }
    return text.empty() ? index : in_parentheses(text + index);
}

ExprPrinter::Text ExprPrinter::call_check(const IndexCheck& check) {
    Text index = text_of(check.index);
    Text extent = text_of(check.extent);
    Text name{fmt::format("\"{}\"", quoted(checked_tensor_)), kPrimary};
    Text result = call("inside", {index, extent, name, {std::to_string(check.dimension), kPrimary}});
    result.wide = index.wide;
    return result;
}

namespace {

/// Pieces of rows are exchanged by the number of the row, rows of all dimensions counted, of which eight repeat.
Expr row_of_swizzle(const Access& access) {
    constexpr int64_t period = 8;
    size_t d = access.indices.size() - 2;
    Expr row = access.indices[d];
    for (int64_t rows = 1; d > 0;) {
        rows *= require_constant(access.buffer->shape[d]);
        if (rows % period == 0) break;
        --d;
        row = simplify(cast_unchecked(Type::I64, access.indices[d]) * rows + cast_unchecked(Type::I64, row));
    }
    return row;
}

}  // namespace

std::string ExprPrinter::swizzled(const Access& access) {
    const BufferNode& buffer = *access.buffer;
    vocabulary_.insert("swizzle");
    return fmt::format("tw::swizzle<{}, {}>({}, {})", buffer.swizzle, bytes_of(buffer.type),
                       print(row_of_swizzle(access)), print(access.indices.back()));
}

std::string ExprPrinter::address(const Access& access) {
    if (!checks_of(access).empty()) return "&" + element(access);
    bool whole_row = !access.indices.empty() && is_constant(access.indices.back(), 0) && !access.buffer->swizzle;
    if (!whole_row) return "&" + element(access);
    Access row = access;
    row.indices.pop_back();
    return element(row);
}

std::string ExprPrinter::call_wide(const std::string& primitive, const ThreadWide& wide) {
    vocabulary_.insert(primitive);
    const std::string where = wide.where.defined() ? print(wide.where) + ", " : "";
    return fmt::format("tw::{}<{}>({}{}, {});", primitive, wide.width, where, address(wide.to), address(wide.from));
}

std::string ExprPrinter::print(const Operand& operand) {
    auto in_shared = [&](const Access& place) {
        std::string text = "&shared." + names_.of(place.buffer.get(), place.buffer->name);
        for (const Expr& index : place.indices) text += "[" + print(index) + "]";
        return text;
    };
    return std::visit(Overloaded{[&](const Expr& number) { return print(number); },
                                 [&](const MapOperand& map) { return names_.of(map.map.get(), map.map->name); },
                                 [&](const AddressOperand& address) { return in_shared(address.place); },
                                 [&](const MatrixOperand& matrix) {
                                     vocabulary_.insert("matrix_descriptor");
                                     std::string start = in_shared(matrix.place);
                                     std::string further = matrix.further.defined() ? ", " + print(matrix.further) : "";
                                     return fmt::format("tw::matrix_descriptor({}, {}, {}, {}{})", start,
                                                        matrix.place.buffer->swizzle, matrix.leading_bytes,
                                                        matrix.stride_bytes, further);
                                 },
                                 [&](const OneOf<ReadOperand, WriteOperand> auto& used) {
                                     return used.place.buffer->is_barrier ? element(used.place) : address(used.place);
                                 }},
                      operand);
}

std::string ExprPrinter::call_instruction(const Instruction& instruction, const std::string& last) {
    const VocabularyCall call = vocabulary_call(instruction);
    vocabulary_.insert(call.entry);
    std::vector<std::string> arguments;
    for (const Operand& operand : operands(instruction)) arguments.push_back(print(operand));
    if (!last.empty()) arguments.back() = last;
    std::string parameters = call.parameters.empty() ? "" : fmt::format("<{}>", fmt::join(call.parameters, ", "));
    return fmt::format("tw::{}{}({});", call.function, parameters, fmt::join(arguments, ", "));
}

std::string ExprPrinter::call_barrier(const Expr& id, int threads) {
    vocabulary_.insert("barrier_sync");
    return fmt::format("tw::barrier_sync({}, {});", print(id), threads);
}

std::string ExprPrinter::call_atomic(BinaryOp op, const std::string& element, const Expr& value) {
    const char* function = op == BinaryOp::Add ? "atomic_add" : op == BinaryOp::Min ? "atomic_min" : "atomic_max";
    vocabulary_.insert(function);
    Text text = text_of(value);
    bool narrow = value.type() == Type::I64 && !text.wide;  // its C++ type must be the element's
    std::string argument = narrow ? fmt::format("(long long)({})", text.text) : text.text;
    return fmt::format("tw::{}(&{}, {});", function, element, argument);
}

std::string ExprPrinter::call_broadcast(const std::string& value) {
    vocabulary_.insert("shuffle_from");
    return fmt::format("tw::shuffle_from({}, 0)", value);
}

std::string ExprPrinter::call_always() {
    vocabulary_.insert("always");
    return "tw::always()";
}

std::string ExprPrinter::call_rounded_alone(const Expr& cast) {
    const std::string function = cast.type() == bf16 ? "to_bf16_alone" : "to_f16_alone";
    vocabulary_.insert(function);
    return fmt::format("tw::{}({})", function, print(cast.as<Cast>()->a));
}

ExprPrinter::Text ExprPrinter::text_of(const Expr& expr) {
    for (size_t c = 0; c < checks_.size(); ++c) {
        if (!equal(without_index_casts(expr), without_index_casts(checks_[c].index))) continue;
        IndexCheck check = checks_[c];
        checks_.erase(checks_.begin() + static_cast<std::ptrdiff_t>(c));
        check.index = expr;
        return call_check(check);
    }
    return plain_text_of(expr);
}

ExprPrinter::Text ExprPrinter::plain_text_of(const Expr& expr) {
    if (auto constant = expr.as<IntConstant>()) return integer(*constant, expr.type());
    if (auto constant = expr.as<FloatConstant>()) return real(constant->value, expr.type());
    if (expr.as<Variable>()) return variable(expr);
    if (auto operation = expr.as<Unary>()) return unary(expr, *operation);
    if (auto operation = expr.as<Binary>()) return binary(expr, *operation);
    if (auto product = expr.as<Fma>())
        return call("fma", {text_of(product->a), text_of(product->b), text_of(product->c)},
                    "fma" + version_of(expr.type(), false));
    if (auto choice = expr.as<Select>()) return select(*choice);
    if (auto conversion = expr.as<Cast>()) return cast(expr.type(), conversion->a);
    if (auto bits = expr.as<Bitcast>()) {
        const std::string to = type(expr.type()), from = type(bits->a.type());
        Text result = call(fmt::format("bit_cast<{}, {}>", to, from), {text_of(bits->a)}, "bit_cast");
        result.wide = expr.type() == Type::I64;
        return result;
    }
    if (auto exchange = expr.as<Exchange>()) {
        std::string lane_bits = std::to_string(exchange->lane_bits);
        return call("shuffle_xor", {text_of(exchange->a), {lane_bits, kPrimary}});
    }
    auto load = expr.as<Load>();
    internal_check(load, "no CUDA text for {}", to_string(expr));
    return {element({load->buffer, load->indices}), kPrimary, expr.type() == Type::I64};
}

ExprPrinter::Text ExprPrinter::integer(const IntConstant& constant, Type type) const {
    using Int = std::numeric_limits<int32_t>;
    int64_t value = constant.value;
    if (type == Type::Bool) return {value ? "true" : "false", kPrimary};
    if (type == Type::U32) return {fmt::format("{}u", value), kPrimary};
    // The smallest integers have no literal: their digits alone do not fit.
    if (value == std::numeric_limits<int64_t>::min()) return {"-9223372036854775807ll - 1", kAdd, true};
    if (value == Int::min()) return {"-2147483647 - 1", kAdd};
    bool wide = value < Int::min() || value > Int::max();
    return {fmt::format("{}{}", value, wide ? "ll" : ""), value < 0 ? kUnary : kPrimary, wide};
}

ExprPrinter::Text ExprPrinter::real(double value, Type type) {
    value = round_to_type(type, value);
    if (is_struct(type)) return call(fmt::format("to_{}", name_of(type)), {real(value, Type::F32)});
    bool negative = std::signbit(value) && !std::isnan(value);
    int precedence = negative ? kUnary : kPrimary;
    std::string name = this->type(type);
    if (std::isnan(value) || std::isinf(value)) {
        std::string function = std::isnan(value) ? "nan" : "infinity";
        vocabulary_.insert(function);
        return {fmt::format("{}tw::{}<{}>()", negative ? "-" : "", function, name), precedence};
    }
    // The shortest digits that give the value back.
    std::string digits = type == Type::F64 ? fmt::format("{}", value) : fmt::format("{}", static_cast<float>(value));
    if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
    return {digits + (type == Type::F64 ? "" : "f"), precedence};
}

ExprPrinter::Text ExprPrinter::variable(const Expr& expr) const {
    const Variable& variable = *expr.as<Variable>();
    bool wide = (variable.kind == VariableKind::Size ? argument_type(expr) : expr.type()) == Type::I64;
    return {names_.of(expr.id(), variable.name), kPrimary, wide};
}

ExprPrinter::Text ExprPrinter::unary(const Expr& expr, const Unary& operation) {
    Text operand = text_of(operation.a);
    if (expr.type() == Type::I64 && !operand.wide) operand = c_cast(Type::I64, operand);
    if (operation.op == UnaryOp::Negate && wrapping_function(expr, BinaryOp::Sub)) {
        bool wide = expr.type() == Type::I64;
        return call("wrapping_sub", {{wide ? "0ll" : "0", kPrimary, wide}, operand},
                    "wrapping_sub" + version_of(expr.type(), wide));
    }
    if (operation.op == UnaryOp::Negate || operation.op == UnaryOp::Not) {
        std::string sign = operation.op == UnaryOp::Not ? "!" : "-";
        bool bare = operand.precedence == kPrimary || (operand.precedence == kUnary && operand.text[0] != '-');
        return {sign + (bare ? operand.text : in_parentheses(operand.text)), kUnary, operand.wide};
    }
    std::string function = function_of(operation.op);
    if (has_one_version(operation.op)) return call(function, {operand});
    return call(function, {operand}, function + version_of(expr.type(), operand.wide));
}

/// 64-bit arithmetic has an operand of 64 bits; C++ converts the other one.
void ExprPrinter::widen_one(Text& left, Text& right) {
    if (left.wide || right.wide) return;
    bool literal = left.text.find_first_not_of("-0123456789") == std::string::npos;
    Text& widened = literal ? right : left;
    widened = c_cast(Type::I64, widened);
}

/// The arguments of an overloaded function are alike.
void ExprPrinter::widen_both(Text& left, Text& right) {
    for (Text* side : {&left, &right})
        if (!side->wide) *side = c_cast(Type::I64, *side);
}

/// Data of signed types wraps in the language, while C++ leaves overflow undefined: what bounds do not exclude is
/// called by name. Index arithmetic is bounded and prints as operators.
const char* ExprPrinter::wrapping_function(const Expr& expr, BinaryOp op) const {
    bool is_signed = expr.type() == Type::I32 || expr.type() == Type::I64;
    if (!is_signed || (op != BinaryOp::Add && op != BinaryOp::Sub && op != BinaryOp::Mul)) return nullptr;
    if (!bounds_.may_wrap(expr)) return nullptr;
    return op == BinaryOp::Add ? "wrapping_add" : op == BinaryOp::Sub ? "wrapping_sub" : "wrapping_mul";
}

/// What has no operator, and shifts of which bounds do not show that bits are left: C++ has no meaning for others.
const char* ExprPrinter::word_function(const Binary& operation) const {
    if (operation.op == BinaryOp::MulHigh) return "mul_high";
    bool left = operation.op == BinaryOp::ShiftLeft;
    if (!left && operation.op != BinaryOp::ShiftRight) return nullptr;
    if (bounds_.of(operation.b).max.value_or(32) < 32) return nullptr;
    return left ? "shift_left" : "shift_right";
}

ExprPrinter::Text ExprPrinter::binary(const Expr& expr, const Binary& operation) {
    Text left = text_of(operation.a), right = text_of(operation.b);
    if (operation.op == BinaryOp::DivShared) return call(operator_of(operation.op).text, {left, right}, "divided_f32");
    bool integers = is_integer(operation.a.type()), wide = expr.type() == Type::I64;
    auto natural = [&](const Expr& e) { return bounds_.of(e).min.value_or(-1) >= 0; };
    bool division = integers && (operation.op == BinaryOp::Div || operation.op == BinaryOp::Mod);
    bool truncates = expr.type() == Type::U32 || (natural(operation.a) && natural(operation.b));
    bool min_or_max = operation.op == BinaryOp::Min || operation.op == BinaryOp::Max;
    if (min_or_max || (division && !truncates)) {
        if (wide || left.wide || right.wide) widen_both(left, right);
        std::string rounded = operation.op == BinaryOp::Div ? "floor_div" : "floor_mod";
        const std::string function = min_or_max ? operator_of(operation.op).text : rounded;
        return call(function, {left, right}, function + version_of(operation.a.type(), left.wide));
    }
    if (const char* wrapping = wrapping_function(expr, operation.op)) {
        if (wide || left.wide || right.wide) widen_both(left, right);
        return call(wrapping, {left, right}, wrapping + version_of(expr.type(), left.wide));
    }
    if (const char* function = word_function(operation)) return call(function, {left, right});
    if (wide) widen_one(left, right);
    Operator op = operator_of(operation.op);
    bool negative = as_constant(operation.b).value_or(0) < 0 && right.precedence == kUnary;
    if (operation.op == BinaryOp::Add && negative && right.text[0] == '-') {  // x + -5 as x - 5
        op = operator_of(BinaryOp::Sub);
        right = {right.text.substr(1), kPrimary, right.wide};
    }
    bool logical = operation.op == BinaryOp::And || operation.op == BinaryOp::Or;
    auto inside = [](const Text& text, int least) {
        return text.precedence >= least ? text.text : in_parentheses(text.text);
    };
    auto side = [&](const Text& text, bool is_right) {
        if (is_mixed(text.precedence, op.precedence)) return in_parentheses(text.text);
        return inside(text, op.precedence + (is_right && !logical ? 1 : 0));
    };
    return {fmt::format("{} {} {}", side(left, false), op.text, side(right, true)), op.precedence,
            wide || (integers && expr.type() != Type::Bool && (left.wide || right.wide))};
}

ExprPrinter::Text ExprPrinter::select(const Select& select) {
    Text condition = text_of(select.condition), yes = text_of(select.yes), no = text_of(select.no);
    auto side = [](const Text& text) { return text.precedence > kConditional ? text.text : in_parentheses(text.text); };
    return {fmt::format("{} ? {} : {}", side(condition), side(yes), no.text), kConditional, yes.wide || no.wide};
}

ExprPrinter::Text ExprPrinter::cast(Type to, const Expr& expr) {
    const Unary* function = expr.as<Unary>();
    const bool in_one = to == Type::I32 || to == Type::I8 || to == Type::U8;  // conversions that round
    if (in_one && expr.type() == Type::F32 && function && function->op == UnaryOp::Round)
        return call(fmt::format("round_to_{}", name_of(to)), {text_of(function->a)});
    Text operand = text_of(expr);
    Type from = expr.type();
    if (is_struct(from)) {
        operand = call("to_f32", {operand}, fmt::format("to_f32_{}", name_of(from)));
        from = Type::F32;
    }
    if (type(from) == "float" && type(to) == "float" && to != Type::TF32) return operand;
    if (is_struct(to) || to == Type::TF32) {
        if (type(from) != "float") operand = before_rounding(expr, operand);
        return call(fmt::format("to_{}", name_of(to)), {operand});
    }
    if (to == Type::Bool)
        return {(operand.precedence > kEquality ? operand.text : in_parentheses(operand.text)) + " != 0", kEquality};
    if (is_float(from) && is_integer(to)) return float_to_integer(to, from, operand);
    // int to long long happens by itself where it matters: the users of wide texts see to that
    bool to_index = to == Type::I64 || (to == Type::I32 && !operand.wide);
    if (to_index && (from == Type::I64 || from == Type::I32 || from == Type::I8 || from == Type::U8)) return operand;
    return c_cast(to, operand);
}

/// A double or an integer as the f32 that narrower floats are rounded from: the same number, or rounded to odd.
ExprPrinter::Text ExprPrinter::before_rounding(const Expr& expr, const Text& operand) {
    constexpr int64_t most = 1 << 24;
    Interval bounds = is_float(expr.type()) ? Interval{} : bounds_.of(expr);
    if (bounds.min && bounds.max && *bounds.min >= -most && *bounds.max <= most) return c_cast(Type::F32, operand);
    Text result = call("round_to_odd", {operand}, "round_to_odd" + version_of(expr.type(), operand.wide));
    result.wide = false;
    return result;
}

ExprPrinter::Text ExprPrinter::float_to_integer(Type to, Type from, const Text& operand) {
    const std::string function = fmt::format("to_{}", name_of(to));
    bool of_any = to == Type::I8 || to == Type::U8;  // templates
    Text result = call(function, {operand}, of_any ? function : function + version_of(from, false));
    result.wide = to == Type::I64;
    return result;
}

ExprPrinter::Text ExprPrinter::call(const std::string& function, const std::vector<Text>& arguments,
                                    const std::string& entry) {
    vocabulary_.insert(entry.empty() ? function : entry);
    std::string list;
    bool wide = false;
    for (const Text& argument : arguments) {
        list.append(list.empty() ? "" : ", ").append(argument.text);
        wide = wide || argument.wide;
    }
    return {fmt::format("tw::{}({})", function, list), kPrimary, wide};
}

ExprPrinter::Text ExprPrinter::c_cast(Type to, const Text& operand) {
    std::string inside =
        operand.precedence >= kUnary && operand.text[0] != '-' ? operand.text : in_parentheses(operand.text);
    return {in_parentheses(type(to)) + inside, kUnary, to == Type::I64};
}

}  // namespace tw::codegen

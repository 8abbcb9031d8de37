// The declaration, evaluated element by element: the oracle. It has its own arithmetic, so that it checks the compiled
// expressions too. It walks an expression once for a block of elements, or of terms of reductions, side by side: each
// node gives a column, its values at all of them.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "dsl/check_bindings.h"
#include "dsl/deep.h"
#include "dsl/interpret.h"
#include "dsl/plain_arithmetic.h"
#include "dsl/plain_columns.h"
#include "support/error.h"

namespace tw {
namespace {

/// The operation of a reducer that is one which fails nowhere: a sum, a product, the largest or the smallest.
const Binary* plain_combination(const ReducerNode& reducer) {
    auto* node = reducer.combined[0].as<Binary>();
    if (!node || reducer.combined.size() > 1 || is_comparison(node->op) || is_lazy(node->op)) return nullptr;
    if (divides(node->op) && !is_float(node->a.type())) return nullptr;
    return node->a.same(reducer.left[0]) && node->b.same(reducer.right[0]) ? node : nullptr;
}

class PlainInterpreter {
public:
    PlainInterpreter(const Bindings& bindings, Precision precision)
        : bindings_(bindings), exact_reals_(precision == Precision::Float64) {}

    std::vector<HostArray> run(const std::vector<Tensor>& outputs) {
        for (const auto& operation : operations_of(outputs)) {
            if (operation->is_input())
                arrays_[operation.get()] = {&bound_input(*operation, bindings_)};
            else
                compute(*operation);
        }
        std::vector<HostArray> results;
        for (const Tensor& output : outputs) results.push_back(array(output.operation().get(), output.output()));
        return results;
    }

private:
    const HostArray& array(const Operation* operation, int output) const {
        auto known = arrays_.find(operation);
        internal_check(known != arrays_.end(), "interpret '{}': '{}' has not been computed", name_, operation->name);
        return *known->second[output];
    }

    Type numbers_of(Type type) const { return exact_reals_ && is_float(type) ? Type::F64 : type; }

    void compute(const Operation& operation) {
        std::vector<int64_t> shape = extents_of(operation.shape, bindings_);
        std::vector<HostArray>& results = computed_.emplace_back();
        for (const auto& output : operation.outputs) results.push_back(host_array(numbers_of(output.type), shape));
        name_ = operation.name;
        int depth = find_shared(operation);
        if (results[0].num_elements() > 0) with_room_for(depth, [&] { compute_elements(operation, shape, results); });
        for (const HostArray& result : results) arrays_[&operation].push_back(&result);
    }

    void compute_elements(const Operation& operation, const std::vector<int64_t>& shape,
                          std::vector<HostArray>& results) {
        Block block;
        for (const Expr& axis : operation.axes) block.add_variable(axis, pool_.take());
        std::vector<int64_t> point(shape.size());
        const int64_t num_elements = results[0].num_elements();
        for (int64_t first = 0; first < num_elements; first += block.size) {
            block.begin(static_cast<int>(std::min<int64_t>(num_elements - first, most_lanes)));
            for (int lane = 0; lane < block.size; ++lane, advance(point, shape))
                for (size_t d = 0; d < point.size(); ++d) block.variables[d].second[lane].integer = point[d];
            for (size_t o = 0; o < results.size(); ++o) {
                Column values = (*this)(operation.outputs[o].body, Points(block));
                std::byte* bytes = results[o].bytes.data() + first * bytes_of(results[o].type);
                store_column(values, block.size, results[o].type, bytes);
            }
        }
    }

    /// Nodes that stand in several places have one value at a point, and reductions that differ in the component alone
    /// are one. Returns the levels of a walk of the bodies.
    int find_shared(const Operation& operation) {
        std::unordered_set<const ExprNode*> seen, entered;
        std::map<std::vector<const void*>, const ExprNode*> reductions;
        std::vector<Expr> roots;
        auto see = [&](const Expr& expr) {
            if (depth_of(expr) > 1 && !seen.insert(expr.id()).second) shared_.emplace(expr.id(), expr.id());
        };
        auto enter = [&](const Expr& root) {
            see(root);
            if (entered.insert(root.id()).second) roots.push_back(root);
        };
        auto see_reduction = [&](const Reduce& reduce, const Expr& expr) {
            std::vector<const void*> parts{reduce.reducer.get()};
            for (const Expr& axis : reduce.axes) parts.push_back(axis.id()), enter(axis.as<Variable>()->extent);
            for (const Expr& value : reduce.values) parts.push_back(value.id());
            for (const Expr& combined : reduce.reducer->combined) enter(combined);
            auto [first, is_new] = reductions.emplace(std::move(parts), expr.id());
            if (!is_new) shared_[expr.id()] = shared_[first->second] = first->second;
        };
        shared_.clear();
        for (const auto& output : operation.outputs) enter(output.body);
        int depth_of_bodies = 0, depth_within = 0;
        for (size_t i = 0; i < roots.size(); ++i) {
            int& depth = i < operation.outputs.size() ? depth_of_bodies : depth_within;
            depth = std::max(depth, depth_of(roots[i]));
            visit(Expr(roots[i]), [&](const Expr& node) {
                for (const Expr& kid : children(node)) see(kid);
                if (auto* reduce = node.as<Reduce>()) see_reduction(*reduce, node);
            });
        }
        return depth_of_bodies + depth_within;
    }

    /// Its values at these points; other lanes hold anything.
    Column operator()(const Expr& expr, const Points& points) {
        if (expr.as<Variable>()) return ColumnPool::lend(variable(expr, points.block()));
        auto shared = shared_.find(expr.id());
        if (shared != shared_.end()) return known(expr, shared->second, points);
        return evaluate(expr, points);
    }

    /// The value of a shared node, evaluated where it is not known yet.
    Column known(const Expr& expr, const ExprNode* name, const Points& points) {
        const Block& block = points.block();
        Block::Known& known = points.block().known[name];
        if (known.round != block.round) {
            known.round = block.round;
            known.num_lanes = 0;
            known.has_value.assign(static_cast<size_t>(block.size), false);
        }
        if (known.num_lanes < block.size)
            learn(known, expr, points.where([&](int lane) { return !known.has_value[lane]; }));
        auto* reduce = expr.as<Reduce>();
        return ColumnPool::lend(known.columns[reduce ? reduce->component : 0]);
    }
    void learn(Block::Known& known, const Expr& expr, const Points& unknown) {
        if (unknown.is_empty()) return;
        std::vector<Column> columns;
        if (auto* reduce = expr.as<Reduce>())
            columns = reduced(*reduce, unknown);
        else
            columns.push_back(evaluate(expr, unknown));
        while (known.columns.size() < columns.size()) known.columns.push_back(pool_.take());
        for (size_t c = 0; c < columns.size(); ++c) copy(columns[c], known.columns[c], unknown);
        unknown.each([&](int lane) { known.has_value[lane] = true; });
        known.num_lanes += unknown.size();
    }
    Column evaluate(const Expr& expr, const Points& points) {
        return std::visit([&](const auto& node) { return evaluate(node, expr, points); }, (*expr).kind);
    }

    /// A variable's values in all lanes of the block.
    const Column& variable(const Expr& expr, Block& block) {
        for (const auto& [known, column] : block.variables)
            if (known == expr.id()) return column;
        Column column = pool_.take();
        if (block.outer) {
            const Column& outside = variable(expr, *block.outer);
            for (int lane = 0; lane < block.size; ++lane) column[lane] = outside[block.outer_lane[lane]];
        } else {
            std::fill_n(column.get(), most_lanes, number_of(bound(expr)));
        }
        block.variables.emplace_back(expr.id(), std::move(column));
        return block.variables.back().second;
    }
    Value bound(const Expr& expr) const {
        const Variable& variable = *expr.as<Variable>();
        internal_check(variable.kind == VariableKind::Size || variable.kind == VariableKind::Scalar,
                       "interpret '{}': '{}' has no value", name_, variable.name);
        if (variable.kind == VariableKind::Size) return {Type::I64, 0, bound_size(expr, bindings_)};
        return convert(numbers_of(expr.type()), bound_scalar(expr, bindings_));
    }

    // One case a node type.
    Column evaluate(const IntConstant& node, const Expr&, const Points& points) {
        Column result = pool_.take();
        points.each([&](int lane) { result[lane].integer = node.value; });
        return result;
    }
    Column evaluate(const FloatConstant& node, const Expr&, const Points& points) {
        Column result = pool_.take();
        points.each([&](int lane) { result[lane].real = node.value; });
        return result;
    }
    Column evaluate(const Variable&, const Expr& expr, const Points& points) { return (*this)(expr, points); }
    Column evaluate(const Cast& node, const Expr& expr, const Points& points) {
        return converted(expr.type(), numbers_of(node.a.type()), (*this)(node.a, points), points);
    }
    Column evaluate(const Bitcast& node, const Expr& expr, const Points& points) {
        const Type from = node.a.type(), held = numbers_of(from);
        const Column values = (*this)(node.a, points);
        Column result = pool_.take();
        points.each([&](int lane) {
            const Value bits = bits_as(expr.type(), convert(from, value_of(values[lane], held)));
            result[lane] = number_of(convert(numbers_of(expr.type()), bits));
        });
        return result;
    }
    Column converted(Type type, Type from, Column values, const Points& points) {
        const Type to = numbers_of(type);
        if (is_float(from) && to == Type::F64) return values;
        if (to == from && to != Type::TF32) return values;
        Column result = pool_.take();
        if (is_float(from) != is_float(to)) {
            points.each([&](int lane) { result[lane] = number_of(convert(to, value_of(values[lane], from))); });
            return result;
        }
        copy(values, result, points);
        is_float(to) ? round_column(to, result, points) : wrap_column(to, result, points);
        return result;
    }

    Column evaluate(const Select& node, const Expr&, const Points& points) {
        Column condition = (*this)(node.condition, points);
        Points yes = points.where([&](int lane) { return condition[lane].integer != 0; });
        if (yes.size() == points.size()) return (*this)(node.yes, points);
        if (yes.is_empty()) return (*this)(node.no, points);
        Points no = points.where([&](int lane) { return condition[lane].integer == 0; });
        Column result = pool_.take();
        copy((*this)(node.yes, yes), result, yes);
        copy((*this)(node.no, no), result, no);
        return result;
    }
    Column evaluate(const Load&, const Expr&, const Points&) {
        internal_check(false, "interpret '{}': a declaration reads tensors, not buffers", name_);
        return {};
    }
    Column evaluate(const Fma& node, const Expr& expr, const Points& points) {
        Column a = (*this)(node.a, points), b = (*this)(node.b, points), c = (*this)(node.c, points);
        Column result = pool_.take();
        if (numbers_of(expr.type()) == Type::F64)
            points.each([&](int lane) { result[lane].real = std::fma(a[lane].real, b[lane].real, c[lane].real); });
        else
            points.each([&](int lane) {
                auto single = [lane](const Column& column) { return static_cast<float>(column[lane].real); };
                result[lane].real = std::fmaf(single(a), single(b), single(c));
            });
        return result;
    }

    Column evaluate(const Unary& node, const Expr& expr, const Points& points) {
        Column a = (*this)(node.a, points), result = pool_.take();
        if (node.op == UnaryOp::Not) {
            points.each([&](int lane) { result[lane].integer = !a[lane].integer; });
        } else if (is_float(node.a.type())) {
            const Type type = numbers_of(expr.type());
            const bool is_rsqrt = node.op == UnaryOp::Rsqrt;  // two operations, each rounded
            const UnaryOp op = is_rsqrt ? UnaryOp::Sqrt : node.op;
            points.each([&](int lane) { result[lane].real = apply_plainly(op, a[lane].real); });
            round_column(type, result, points);
            if (!is_rsqrt) return result;
            points.each([&](int lane) { result[lane].real = 1 / result[lane].real; });
            round_column(type, result, points);
        } else {
            points.each([&](int lane) {
                int64_t value = a[lane].integer;
                bool negate = node.op == UnaryOp::Negate || (node.op == UnaryOp::Abs && value < 0);
                result[lane].integer = negate ? static_cast<int64_t>(0 - static_cast<uint64_t>(value)) : value;
            });
            wrap_column(expr.type(), result, points);
        }
        return result;
    }

    Column evaluate(const Binary& node, const Expr& expr, const Points& points) {
        Column a = (*this)(node.a, points);
        if (is_lazy(node.op)) return decided(node, std::move(a), points);
        Column b = (*this)(node.b, points), result = pool_.take();
        const bool reals = is_float(node.a.type());
        if (is_comparison(node.op)) {
            points.each([&](int lane) {
                result[lane].integer = reals ? compare(node.op, a[lane].real, b[lane].real)
                                             : compare(node.op, a[lane].integer, b[lane].integer);
            });
        } else if (reals) {
            run_on_reals(node.op, [&](auto op) {
                points.each([&](int lane) { result[lane].real = apply_plainly(op, a[lane].real, b[lane].real); });
            });
            round_column(numbers_of(expr.type()), result, points);
        } else {
            check_divisors(node.op, b, expr, points);
            run_on_integers(node.op, [&](auto op) {
                points.each(
                    [&](int lane) { result[lane].integer = apply_plainly(op, a[lane].integer, b[lane].integer); });
            });
            wrap_column(expr.type(), result, points);
        }
        return result;
    }
    /// And or Or of `a` and node.b, which is evaluated where `a` does not decide.
    Column decided(const Binary& node, Column a, const Points& points) {
        Points open = points.where([&](int lane) { return (a[lane].integer != 0) == (node.op == BinaryOp::And); });
        if (open.is_empty()) return a;
        Column b = (*this)(node.b, open), result = pool_.take();
        copy(a, result, points);
        copy(b, result, open);
        return result;
    }

    void check_divisors(BinaryOp op, const Column& divisors, const Expr& expr, const Points& points) const {
        if (!divides(op)) return;
        points.each([&](int lane) {
            if (divisors[lane].integer == 0)
                throw_error(Error, "interpret '{}': division by zero in {}", name_, to_string(expr));
        });
    }

    Column evaluate(const Read& node, const Expr& expr, const Points& points) {
        const HostArray& array = this->array(node.operation.get(), node.output);
        std::vector<Column> indices;
        for (const Expr& index : node.indices) indices.push_back((*this)(index, points));
        Column result = pool_.take();
        points.each([&](int lane) { result[lane].integer = 0; });
        for (size_t d = 0; d < indices.size(); ++d) {
            const Column& index = indices[d];
            const int64_t extent = array.shape[d], stride = array.strides[d];
            points.each([&](int lane) {
                if (index[lane].integer < 0 || index[lane].integer >= extent)
                    fail_outside(node, array, expr, indices, lane);
                result[lane].integer += index[lane].integer * stride;
            });
        }
        load_column(array, result, points);
        return converted(expr.type(), array.type, std::move(result), points);
    }
    [[noreturn]] void fail_outside(const Read& node, const HostArray& array, const Expr& expr,
                                   const std::vector<Column>& indices, int lane) {
        std::vector<int64_t> place;
        for (const Column& index : indices) place.push_back(index[lane].integer);
        throw_error(Error, "interpret '{}': {} reads {}{}, which has shape {}", name_, to_string(expr),
                    node.operation->name, indices_text(place), indices_text(array.shape));
    }

    Column evaluate(const Exchange&, const Expr& expr, const Points&) {
        internal_check(false, "a tensor's expression has no threads: {}", to_string(expr));
        return {};
    }
    Column evaluate(const Reduce& node, const Expr&, const Points& points) {
        return std::move(reduced(node, points)[node.component]);
    }

    /// All components of a reduction. At each point, terms are added to its totals one by one, in their order.
    std::vector<Column> reduced(const Reduce& node, const Points& points) {
        std::vector<Column> extents, totals;
        for (const Expr& axis : node.axes) extents.push_back((*this)(axis.as<Variable>()->extent, points));
        for (const Expr& identity : node.reducer->identity) {
            totals.push_back(pool_.take());
            copy((*this)(identity, points), totals.back(), points);
        }
        Block block(&points.block()), operands(&points.block());
        for (const Expr& axis : node.axes) block.add_variable(axis, pool_.take());
        for (auto* side : {&node.reducer->left, &node.reducer->right})
            for (const Expr& operand : *side) operands.add_variable(operand, pool_.take());
        const Binary* plain = plain_combination(*node.reducer);
        for (ReduceTerms terms(extents, points); terms.fill(block);) {
            std::vector<Column> values;
            for (const Expr& value : node.values) values.push_back((*this)(value, Points(block)));
            if (plain)
                combine_plainly(*plain, node.reducer->combined[0], totals[0], values[0], block, terms.starts());
            else
                combine(*node.reducer, totals, values, block, terms.starts(), operands);
        }
        return totals;
    }

    void combine_plainly(const Binary& node, const Expr& expr, const Column& totals, const Column& terms,
                         const Block& block, const std::vector<int>& starts) {
        const Type type = numbers_of(expr.type());
        auto combine_all = [&](auto combined) {
            for (size_t point = 0; point + 1 < starts.size(); ++point) {
                Number total = totals[block.outer_lane[starts[point]]];
                for (int term = starts[point]; term < starts[point + 1]; ++term) total = combined(total, terms[term]);
                totals[block.outer_lane[starts[point]]] = total;
            }
        };
        if (is_float(type))
            run_on_reals(node.op, [&](auto op) {
                combine_all([&](Number a, Number b) {
                    return Number{.real = rounded(type, apply_plainly(op, a.real, b.real))};
                });
            });
        else
            run_on_integers(node.op, [&](auto op) {
                combine_all([&](Number a, Number b) {
                    return Number{.integer = wrap_to_type(type, apply_plainly(op, a.integer, b.integer))};
                });
            });
    }
    static double rounded(Type type, double real) {
        if (type == Type::F64) return real;
        return type == Type::F32 ? static_cast<float>(real) : round_to_type(type, real);
    }

    /// As `operands` of a reducer of any kind: first the first term of each point, then each second one and so on.
    void combine(const ReducerNode& reducer, const std::vector<Column>& totals, const std::vector<Column>& terms,
                 const Block& block, const std::vector<int>& starts, Block& operands) {
        const size_t num_components = totals.size();
        for (int step = 0;; ++step) {
            operands.begin(all_lanes(operands.outer->size));
            std::vector<int> lanes;
            for (size_t point = 0; point + 1 < starts.size(); ++point) {
                const int term = starts[point] + step;
                if (term >= starts[point + 1]) continue;
                const int lane = lanes.emplace_back(block.outer_lane[term]);
                for (size_t c = 0; c < num_components; ++c) {
                    operands.variables[c].second[lane] = totals[c][lane];
                    operands.variables[num_components + c].second[lane] = terms[c][term];
                }
            }
            if (lanes.empty()) return;
            Points points(operands, std::move(lanes));
            for (size_t c = 0; c < num_components; ++c) copy((*this)(reducer.combined[c], points), totals[c], points);
        }
    }
    static std::vector<int> all_lanes(int size) {
        std::vector<int> lanes(size);
        std::iota(lanes.begin(), lanes.end(), 0);
        return lanes;
    }

    const Bindings& bindings_;
    bool exact_reals_;
    ColumnPool pool_;
    std::string name_;  ///< of the operation being computed
    std::deque<std::vector<HostArray>> computed_;
    std::unordered_map<const Operation*, std::vector<const HostArray*>> arrays_;  ///< inputs and computed ones
    /// Shared nodes, and the names by which blocks know their values.
    std::unordered_map<const ExprNode*, const ExprNode*> shared_;
};

}  // namespace

std::vector<HostArray> interpret_plain(const std::vector<Tensor>& outputs, const Bindings& bindings,
                                       Precision precision) {
    return PlainInterpreter(bindings, precision).run(outputs);
}

}  // namespace tw

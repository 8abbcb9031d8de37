#include "schedules/score_rules.h"

#include <algorithm>
#include <optional>

#include "dsl/adjoints.h"
#include "dsl/constant_factors.h"
#include "dsl/magnitude.h"
#include "dsl/philox.h"
#include "dsl/simplify.h"
#include "schedules/elementwise.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// Boxes of elements have rows of 16 bytes, and five dimensions at most.
bool has_rows_of_boxes(const Operation& tensor) {
    if (tensor.shape.empty()) return false;
    const auto width = as_constant(tensor.shape.back());
    return tensor.shape.size() <= 5 && tensor.strides.empty() && width &&
           *width * bytes_of(tensor.outputs[0].type) % 16 == 0;
}

/// Which of the four an index is, or 4.
size_t place_of(const Expr& index, const ScorePlace& at) {
    const std::array<Expr, 4> place{at.batch, at.head, at.row, at.key};
    return std::ranges::find_if(place, [&](const Expr& each) { return each.same(index); }) - place.begin();
}

std::optional<PairInput> pair_input(const Read& read, const ScorePlace& at) {
    PairInput input{Tensor(read.operation, read.output), {-1, -1, -1, -1}};
    for (size_t d = 0; d < read.indices.size(); ++d) {
        if (is_constant(read.indices[d], 0) && is_constant(read.operation->shape[d], 1)) continue;
        const size_t of = place_of(read.indices[d], at);
        if (of == input.dimension.size() || input.dimension[of] >= 0) return {};
        input.dimension[of] = static_cast<int>(d);
    }
    const int last = static_cast<int>(read.indices.size()) - 1;
    if (input.dimension[2] < 0 || input.dimension[3] != last || !has_rows_of_boxes(*read.operation)) return {};
    return input;
}

}  // namespace

std::vector<PairInput> inputs_of_pairs(const Expr& score, const ScorePlace& at) {
    std::vector<const Read*> reads;
    visit(score, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (read && read->operation->is_input() && !read->indices.empty()) reads.push_back(read);
    });
    std::vector<PairInput> found;
    for (size_t r = 0; r < reads.size(); ++r) {
        auto of_same = [&](const Read* other) { return other->operation == reads[r]->operation; };
        auto elsewhere = [&](const Read* other) {
            return of_same(other) && !std::ranges::equal(other->indices, reads[r]->indices, equal);
        };
        const bool again = std::any_of(reads.begin(), reads.begin() + static_cast<std::ptrdiff_t>(r), of_same);
        if (again || std::ranges::any_of(reads, elsewhere)) continue;
        if (auto input = pair_input(*reads[r], at)) found.push_back(*input);
    }
    return found;
}

namespace {

/// The place of the row or the key, 2 or 3, if the last index is that, and the others are of the batch or the head.
std::optional<size_t> line_of(const Read& read, const ScorePlace& at) {
    if (!read.operation->is_input() || read.guarded || read.indices.empty()) return {};
    const size_t last = place_of(read.indices.back(), at);
    if (last != 2 && last != 3) return {};
    for (size_t d = 0; d + 1 < read.indices.size(); ++d)
        if (!is_constant(read.indices[d], 0) && place_of(read.indices[d], at) > 1) return {};
    return last;
}

/// Where its rows are no boxes, they are filled up to 16 bytes with the last number again: a step may have all of one.
Tensor view_of(const Tensor& input, const std::string& suffix) {
    Shape shape(input.shape().begin(), input.shape().end());
    const auto width = as_constant(shape.back().expr);
    const bool fills = width && !has_rows_of_boxes(*input.operation());
    if (fills) shape.back() = rounded_up(*width, std::max<int64_t>(1, 16 / bytes_of(input.type())));
    return compute(input.name() + suffix, shape, [&](const std::vector<Expr>& at) {
        std::vector<Operand> place(at.begin(), at.end());
        if (fills) place.back() = min(at.back(), *width - 1);
        return input.read(place);
    });
}

}  // namespace

Expr with_line_inputs(const Expr& score, const ScorePlace& at, LineInputs& lines, const std::string& suffix) {
    return transform(score, [&](const Expr& e) -> Expr {
        const Read* read = e.as<Read>();
        const auto line = read ? line_of(*read, at) : std::nullopt;
        if (!line) return {};
        std::vector<LineInput>& known = *line == 2 ? lines.of_rows : lines.of_keys;
        const Tensor input(read->operation, read->output);
        auto found = std::ranges::find_if(known, [&](const LineInput& each) { return each.input.same(input); });
        if (found == known.end()) {
            known.push_back({input, view_of(input, (*line == 2 ? "_of_rows" : "_of_keys") + suffix)});
            found = known.end() - 1;
        }
        return found->view.read(std::vector<Operand>(read->indices.begin(), read->indices.end()));
    });
}

Stage stage_line(Schedule& s, const LineInput& line, const std::vector<StageRef>& readers, Loop loop,
                 std::source_location where) {
    const Stage staged = s.stage(readers, line.view, Memory::Shared, loop, where);
    if (has_rows_of_boxes(*line.input.operation()))
        s.inline_stage(line.view, where);
    else
        schedule_each_element(s, line.view, 128, where);
    return staged;
}

void keep_line(Schedule& s, const LineInput& line, const std::vector<StageRef>& readers, Loop loop,
               std::source_location where) {
    s.stage(readers, line.view, Memory::Registers, loop, where);
    s.inline_stage(line.view, where);
}

namespace {

/// What a rule makes of a score has to be made of it at some place: else there is no product of matrices.
void check_depends(const ScoreRule& rule, const ScorePlace& at, std::source_location where) {
    const Expr score = scalar("score", f32), made = simplify(rule(score, at));
    user_check(contains(made, score), where,
               "attention: the rule for scores makes {} of all of them, at any place; let it return something of "
               "the score where rows see keys, and -infinity elsewhere",
               to_string(made));
}

}  // namespace

Expr changed_by(const ScoreRule& rule, const Expr& score, const ScorePlace& at, std::source_location where) {
    const Expr changed = rule(score, at);
    user_check(changed.defined(), where, "attention: the rule for scores returns nothing; return a score, f32");
    user_check(changed.type() != boolean, where,
               "attention: the rule for scores returns a condition; to leave out keys where it does not "
               "hold, return select(condition, score, -infinity)");
    user_check(changed.type() == f32, where,
               "attention: the rule for scores returns {}, scores are f32; cast(f32, ..) what it makes",
               name_of(changed.type()));
    if (!score.as<FloatConstant>()) check_depends(rule, at, where);
    return join_constants(changed);
}

Expr weighed_by(const WeightRule& rule, const Expr& weight, const ScorePlace& at, std::source_location where) {
    const Expr changed = rule(weight, at);
    user_check(changed.defined() && changed.type() == f32, where,
               "attention: the rule for weights returns {}, weights are f32; return one, such as "
               "select(condition, weight, 0.0)",
               changed.defined() ? name_of(changed.type()) : "nothing");
    return changed;
}

Expr adjoint_of_argument(const Expr& result, const Expr& adjoint, const Tensor& argument) {
    Expr total;
    for (const ReadAdjoint& part : adjoints_of_reads(result, adjoint, result))
        if (part.read.as<Read>()->operation == argument.operation()) total = add_adjoints(total, part.adjoint);
    return total.defined() ? total : constant(f32, 0.0);
}

bool reads(const Tensor& tensor, const Tensor& other) {
    bool found = false;
    visit(tensor.operation()->outputs[0].body, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        found = found || (read && read->operation == other.operation());
    });
    return found;
}

bool slope_depends_on_score(const ScoreRule& rule) {
    auto place = [](const char* name) { return make_expr(Type::I64, Variable{.name = name, .min = 0}); };
    const Expr row = place("row");
    const Tensor score = input("score", f32, {1});
    const Expr element = score(int64_t{0}),
               changed = rule(element, {place("batch"), place("head"), row, place("key"), row});
    return contains(adjoint_of_argument(changed, constant(f32, 1.0), score), element);
}

bool may_add_far(const ScoreRule& rule) {
    if (!rule) return false;
    constexpr double near = 4096;  // a weight errs by 2^-13 of it or less, which every type of operands rounds more
    const Expr row = index_variable("row", 0, 1 << 20);
    const ScorePlace own_key{index_variable("batch", 0, 1 << 20), index_variable("head", 0, 1 << 20), row, row, row};
    return largest_magnitude(simplify(changed_by(rule, constant(f32, 0.0), own_key))) > near;
}

ScoreRule in_turn(std::vector<ScoreRule> rules) {
    return [rules = std::move(rules)](const Expr& score, const ScorePlace& at) {
        Expr result = score;
        for (const ScoreRule& rule : rules) result = rule(result, at);
        return result;
    };
}

ScoreRule soft_cap(double cap, std::source_location where) {
    user_check(cap > 0, where, "soft_cap({}): scores stay between -cap and cap; give a cap above 0", cap);
    // tanh(x) = 2 sigmoid(2 x) - 1, in fewer instructions; near 0 its error is one of cap, not of the score.
    return [cap](const Expr& score, const ScorePlace&) { return (sigmoid(score * (2 / cap)) * 2.0 - 1.0) * cap; };
}

ScoreRule soft_cap_approx(double cap, std::source_location where) {
    user_check(cap > 0, where, "soft_cap_approx({}): scores stay between -cap and cap; give a cap above 0", cap);
    return [cap](const Expr& score, const ScorePlace&) { return tanh_approx(score * (1 / cap)) * cap; };
}

ScoreRule linear_bias(const Tensor& slopes, std::source_location where) {
    user_check(slopes.rank(where) == 1, where, "linear_bias({}): slopes have one dimension, [heads]", slopes.name());
    return [slopes](const Expr& score, const ScorePlace& at) {
        return score + cast(f32, slopes(at.head)) * cast(f32, at.key - at.position);
    };
}

ScoreRule additive_bias(const Tensor& bias, std::source_location where) {
    user_check(bias.rank(where) == 4, where,
               "additive_bias({}): it has 4 dimensions, [batch, heads, rows, keys], each of them or 1", bias.name());
    return [bias](const Expr& score, const ScorePlace& at) {
        const std::vector<Expr> place = {at.batch, at.head, at.row, at.key};
        std::vector<Operand> indices;
        for (size_t d = 0; d < place.size(); ++d)
            indices.emplace_back(is_constant(bias.shape()[d], 1) ? integer(0) : place[d]);
        return score + cast(f32, bias.read(indices));
    };
}

ScoreRule sliding_window(int64_t width, std::source_location where) {
    user_check(width >= 1, where, "sliding_window({}): rows see at least themselves, a width of 1", width);
    return [width](const Expr& score, const ScorePlace& at) {
        return select(at.key <= at.position && at.position - at.key < width, score, -infinity);
    };
}

ScoreRule documents(const Tensor& of_rows, const Tensor& of_keys, std::source_location where) {
    for (const Tensor& numbers : {of_rows, of_keys})
        user_check(numbers.rank(where) == 2, where,
                   "documents(.. {} ..): numbers have two dimensions, the batch's and rows or keys", numbers.name());
    return [of_rows, of_keys](const Expr& score, const ScorePlace& at) {
        return select(of_rows(at.batch, at.row) == of_keys(at.batch, at.key), score, -infinity);
    };
}

WeightRule weight_dropout(double probability, const Expr& seed, int64_t heads, int64_t rows, int64_t keys) {
    is_kept(probability, seed, 0);  // refuses what is none
    return [=](const Expr& weight, const ScorePlace& at) {
        const Expr row = (at.batch * heads + at.head) * ((rows + 1) / 2) + at.row / 2;
        const Expr call = row * ((keys + 1) / 2) + at.key / 2;
        return dropout(weight, probability, seed, call * 4 + (at.row % 2 * 2 + at.key % 2));
    };
}

}  // namespace tw::schedules

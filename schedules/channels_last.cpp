#include "schedules/channels_last.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/choose_windows.h"
#include "schedules/find_depthwise.h"
#include "schedules/free_names.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

constexpr const char* behind = "_channels_last";  // names

/// Which of a sum's tensors have their dimension 1 moved to the end.
struct Moves {
    bool a = false, b = false, result = false;

    int count() const { return int{a} + int{b} + int{result}; }
};

Shape shape_of(const Tensor& tensor) { return {tensor.shape().begin(), tensor.shape().end()}; }
bool has_channels(const Tensor& tensor) { return tensor.rank() >= 3; }

/// The tensor with its dimension 1 last.
Tensor moved_copy(const std::string& name, const Tensor& of) {
    const Layout first = Layout::ChannelsFirst;
    return compute(name, with_channels_last(first, shape_of(of)), [&](const std::vector<Expr>& at) {
        const std::vector<Expr> own = in_layout(first, at);
        return of.read({own.begin(), own.end()});
    });
}

/// Under that name, with its last dimension second.
Tensor channels_first_copy(const std::string& name, const Tensor& of) {
    const Layout first = Layout::ChannelsFirst;
    return compute(name, in_layout(first, shape_of(of)), [&](const std::vector<Expr>& at) {
        const std::vector<Expr> last = with_channels_last(first, at);
        return of.read({last.begin(), last.end()});
    });
}

/// A sum of products of two tensors, over which it is declared with dimensions moved.
class MovableSum {
public:
    MovableSum(const Tensor& tensor, const std::vector<Tensor>& outputs) : tensor_(tensor), outputs_(outputs) {
        const Operation& operation = *tensor.operation();
        if (operation.is_input() || operation.outputs.size() != 1) return;
        body_ = with_elements(operation.outputs[0].body, outputs, false);
        const Reduce* sum = only_reduction(body_);
        if (!sum || sum->values.size() != 1 || sum->values[0].type() != f32 ||
            atomic_operation(*sum->reducer) != BinaryOp::Add)
            return;
        const auto term = term_of(*sum, outputs, Factors::AnyFloats);
        if (!term) return;
        for (const Read* read : term->reads) operands_.emplace_back(read->operation, read->output);
    }

    bool is_product() const { return operands_.size() == 2; }
    const Tensor& operand(size_t k) const { return operands_[k]; }

    /// Whether all that are to move have channels.
    bool takes(const Moves& moves) const {
        return (!moves.a || has_channels(operands_[0])) && (!moves.b || has_channels(operands_[1])) &&
               (!moves.result || has_channels(tensor_));
    }
    /// Over those operands, of which the moved ones have another order of dimensions.
    Tensor declared(const std::string& name, const Moves& moves, const Tensor& a, const Tensor& b) const {
        const Operation& operation = *tensor_.operation();
        auto reads_moved = [&](const Expr& e) -> Expr {
            const Read* read = e.as<Read>();
            if (!read) return {};
            for (const auto& [from, to, is_moved] :
                 {std::tuple(operands_[0], a, moves.a), std::tuple(operands_[1], b, moves.b)})
                if (is_moved && read->operation == from.operation() && read->output == from.output())
                    return make_expr(e.type(),
                                     Read{to.operation(), to.output(),
                                          with_channels_last(Layout::ChannelsFirst, read->indices), read->guarded});
            return {};
        };
        const Expr body = transform(body_, reads_moved);
        const Layout layout = moves.result ? Layout::ChannelsFirst : Layout::ChannelsLast;
        return compute(
            name, with_channels_last(layout, shape_of(tensor_)),
            [&](const std::vector<Expr>& at) {
                const std::vector<Expr> own = in_layout(layout, at);
                Substitution renamed;
                for (size_t d = 0; d < own.size(); ++d) renamed.emplace_back(operation.axes[d], own[d]);
                return substitute(body, renamed);
            },
            operation.where);
    }

    /// Those with which units have most to multiply, the fewest that do.
    Moves best() const {
        Moves best;
        double most = units_of(tensor_);
        for (const Moves& moves : choices())
            if (takes(moves)) {
                const Tensor a = moves.a ? moved_copy("a", operands_[0]) : operands_[0],
                             b = moves.b ? moved_copy("b", operands_[1]) : operands_[1];
                const double units = units_of(declared("sums", moves, a, b));
                if (units > most) most = units, best = moves;
            }
        return best;
    }

    /// Those, the fewest that do, with which it is a convolution of each channel by itself.
    Moves best_of_channels() const {
        for (const Moves& moves : choices())
            if (takes(moves) && depthwise(moves)) return moves;
        return {};
    }
    std::optional<FoundDepthwise> depthwise(const Moves& moves) const {
        const Tensor a = moves.a ? moved_copy("a", operands_[0]) : operands_[0],
                     b = moves.b ? moved_copy("b", operands_[1]) : operands_[1];
        return find_depthwise(declared("sums", moves, a, b), outputs_);
    }

private:
    static std::array<Moves, 7> choices() {
        return {{{true, false, false},
                 {false, true, false},
                 {false, false, true},
                 {true, true, false},
                 {true, false, true},
                 {false, true, true},
                 {true, true, true}}};
    }
    /// Rows, columns and terms of a product, without pixels that have filters of their own.
    double units_of(const Tensor& sums) const {
        const auto form = form_of_windows(sums, outputs_);
        if (!form) return 0;
        double units =
            as_double(form->extents.rows) * as_double(form->extents.columns) * as_double(form->extents.terms);
        for (int64_t phase : form->phases) units /= as_double(phase);
        return units;
    }

    const Tensor tensor_;
    const std::vector<Tensor>& outputs_;
    Expr body_;
    std::vector<Tensor> operands_;
};

double elements_of(const Tensor& tensor) {
    double elements = 1;
    for (const Expr& extent : tensor.shape()) elements *= as_double(as_constant(extent).value_or(0));
    return elements;
}

/// What a kernel with channels last does: by tensor cores, or of each channel by itself, by windows in registers.
struct Work {
    double flops, flops_a_second;  ///< of a multiprocessor of an H200
};
Work work_of(const ConvolutionForm& form) {
    const ConvolutionExtents& e = form.extents;
    return {2 * as_double(e.rows) * as_double(e.columns) * as_double(e.terms) * as_double(e.products) * e.taps, 3.8e12};
}
Work work_of(const DepthwiseWindows& w) {
    return {2 * as_double(w.images * w.channels) * as_double(w.rows.windows * w.rows.taps) *
                as_double(w.columns.windows * w.columns.taps),
            250e9};
}

/// Whether copies, of two operands and the result, cost less time of an H200 with so many multiprocessors than the
/// kernel saves.
bool pay(const Moves& moves, const MovableSum& of, const Tensor& tensor, const Work& work, const Target& target) {
    constexpr double bytes_a_second = 2.5e12, launch = 2e-6;
    const double threads_a_second = 38e9 * target.multiprocessors,
                 moved_a_second = work.flops_a_second * target.multiprocessors;
    double bytes = 0;
    auto add = [&](const Tensor& copied) { bytes += 2 * elements_of(copied) * bytes_of(copied.type()); };
    if (moves.a) add(of.operand(0));
    if (moves.b) add(of.operand(1));
    if (moves.result) add(tensor);
    return work.flops / threads_a_second >
           work.flops / moved_a_second + bytes / bytes_a_second + launch * moves.count();
}

class Moving {
public:
    Moving(const std::vector<Tensor>& outputs, const UnmovedChannels& without, const Target& target)
        : given_(outputs), without_(without), target_(target), names_(outputs) {}

    MovedChannels run() {
        for (const auto& operation : operations_of(given_)) {
            const Tensor tensor(operation, 0);
            if (operation->is_input() || holds(without_.given, tensor)) continue;
            if (holds(without_.lying, tensor) || !take_as_it_lies(tensor)) move(tensor);
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    bool take_as_it_lies(const Tensor& given) {
        const auto lying = lying_pixels(whole_.of(given), given_);
        if (!lying) return false;
        result_.given.push_back(given);
        result_.sums.push_back(lying->sums);
        result_.lying.push_back(*lying);
        result_.notes.push_back(fmt::format("'{}' sums over {} of '{}' as they lie, channels first, without copies",
                                            given.name(), lying->sums_pixels ? "pixels" : "channels",
                                            lying->images.name()));
        whole_.put(given, lying->sums);
        return true;
    }

    void move(const Tensor& given) {
        const Tensor tensor = whole_.of(given);
        const MovableSum sum(tensor, given_);
        if (!sum.is_product()) return;
        const Moves of_units = sum.best(), none;
        const bool on_units = of_units.count() > 0;
        const Moves moves = on_units || sum.depthwise(none) ? of_units : sum.best_of_channels();
        if (moves.count() == 0) return;
        std::vector<Tensor> operands;
        std::vector<std::string> copied;
        for (size_t k = 0; k < 2; ++k) {
            const bool moved = k == 0 ? moves.a : moves.b;
            operands.push_back(moved ? copy_of(sum.operand(k)) : sum.operand(k));
            if (moved) copied.push_back("'" + sum.operand(k).name() + "'");
        }
        const std::string name = moves.result ? names_.take(tensor.name() + behind) : tensor.name();
        const Tensor sums = sum.declared(name, moves, operands[0], operands[1]);
        const auto form = on_units ? form_of_windows(sums, given_) : std::nullopt;
        if (on_units && !form) return;
        if (!pay(moves, sum, tensor, form ? work_of(*form) : work_of(sum.depthwise(moves)->windows), target_)) {
            result_.notes.push_back(
                fmt::format("'{}' is computed as its channels lie, dimension 1: copies of so little, channels last, "
                            "would take longer than {} save",
                            tensor.name(), on_units ? "tensor cores" : "windows in registers"));
            return;
        }
        result_.given.push_back(given);
        result_.sums.push_back(sums);
        result_.notes.push_back(fmt::format(
            "'{}' sums over windows of channels, dimension 1, which its kernel has last: "
            "copied so {}, at two passes over memory each",
            tensor.name(), copied.empty() ? "is nothing" : "are " + fmt::format("{}", fmt::join(copied, ", "))));
        whole_.put(given, moves.result ? result_of(tensor, sums) : sums);
    }

    Tensor copy_of(const Tensor& operand) {
        Tensor& copy = copies_[{operand.operation().get(), operand.output()}];
        if (!copy.defined()) copy = moved_copy(names_.take(operand.name() + behind), operand);
        return copy;
    }
    /// Under the tensor's name.
    Tensor result_of(const Tensor& tensor, const Tensor& sums) {
        result_.results.push_back(channels_first_copy(tensor.name(), sums));
        return result_.results.back();
    }

    const std::vector<Tensor>& given_;
    const UnmovedChannels& without_;
    const Target& target_;
    FreeNames names_;
    Replacement whole_;
    std::map<std::pair<const Operation*, int>, Tensor> copies_;
    MovedChannels result_;
};

}  // namespace

Convolution with_channels_first(const Convolution& last) {
    Convolution c;
    Replacement over;
    auto given = [&](const Tensor& operand) {
        if (!operand.defined()) return operand;
        const Tensor own = input(operand.name(), operand.type(), in_layout(Layout::ChannelsFirst, shape_of(operand)));
        over.put(operand, moved_copy(operand.name() + behind, own));
        return own;
    };
    c.x = given(last.x), c.w = given(last.w), c.dy = given(last.dy);
    for (const Tensor& copy : last.copies) c.copies.push_back(over.of(copy));
    c.windows = over.of(last.windows), c.other = over.of(last.other);
    for (const auto& [read, plain] : {std::pair(c.windows, last.windows), std::pair(c.other, last.other)})
        if (plain.operation()->is_input()) c.copies.push_back(read);
    c.product = over.named(last.product.name() + behind, last.product);
    const bool is_product = last.result.same(last.product);
    c.result = channels_first_copy(last.result.name(),
                                   is_product ? c.product : over.named(last.result.name() + behind, last.result));
    return c;
}

void UnmovedChannels::add(const std::vector<Tensor>& in_vain, const MovedChannels& moved) {
    for (const Tensor& tensor : in_vain) {
        const bool lay =
            std::ranges::any_of(moved.lying, [&](const LyingPixels& p) { return p.sums.name() == tensor.name(); });
        (lay ? lying : given).push_back(tensor);
    }
}

MovedChannels move_channels(const std::vector<Tensor>& outputs, const UnmovedChannels& without, const Target& target) {
    if (!target.has_wgmma || !target.has_tma) return {outputs, {}, {}, {}, {}, {}};
    return Moving(outputs, without, target).run();
}

std::optional<MovableChannels> movable_channels(const Tensor& sums) {
    const std::vector<Tensor> outputs{sums};
    const MovableSum sum(sums, outputs);
    if (!sum.is_product()) return {};
    const Moves of_units = sum.best(), none;
    const Moves moves = of_units.count() > 0 || sum.depthwise(none) ? of_units : sum.best_of_channels();
    if (moves.count() == 0) return {};
    MovableChannels found{.operands = {}, .result = moves.result};
    if (moves.a) found.operands.push_back(sum.operand(0));
    if (moves.b) found.operands.push_back(sum.operand(1));
    return found;
}

Tensor with_channels_moved(const Tensor& sums) {
    const std::vector<Tensor> outputs{sums};
    const MovableSum sum(sums, outputs);
    const Moves moves = sum.is_product() ? sum.best() : Moves();
    if (moves.count() == 0) return sums;
    return sum.declared(sums.name(), moves, moves.a ? moved_copy("a", sum.operand(0)) : sum.operand(0),
                        moves.b ? moved_copy("b", sum.operand(1)) : sum.operand(1));
}

}  // namespace tw::schedules

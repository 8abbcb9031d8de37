#include "schedules/outline_images.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "dsl/simplify.h"
#include "dsl/stage.h"
#include "schedules/choose_windows.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

/// A factor that is made of one element: zero but where the conditions hold.
struct MadeFactor {
    std::vector<Expr> conditions;
    Expr made;         ///< of 16 bits
    const Read* read;  ///< the element
};

bool is_half(Type type) { return type == bf16 || type == f16; }

/// The only element of 16 bits, of several dimensions, that is read; others belong to its last index.
const Read* only_element(const Expr& made) {
    const Read* found = nullptr;
    bool only = true;
    visit(made, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read || read->indices.size() < 3) return;
        only = only && is_half(e.type()) &&
               (!found || (read->operation == found->operation && read->output == found->output &&
                           std::ranges::equal(read->indices, found->indices, equal)));
        found = read;
    });
    if (!found || !only) return nullptr;
    visit(made, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read || read->indices.size() >= 3) return;
        only = only && read->indices.size() == 1 && equal(read->indices[0], found->indices.back());
    });
    const Expr rest = transform(made, [](const Expr& e) -> Expr {
        if (!e.as<Read>()) return {};
        return is_float(e.type()) ? constant(e.type(), 1.5) : constant(e.type(), 1);
    });
    return only && variables_of(rest).empty() ? found : nullptr;
}

void add_conjuncts(const Expr& condition, std::vector<Expr>& found) {
    const Binary* both = condition.as<Binary>();
    if (both && both->op == BinaryOp::And) return add_conjuncts(both->a, found), add_conjuncts(both->b, found);
    found.push_back(simplify(condition));
}

/// Without choices of an element or zero that the conditions around have made already.
Expr without_known_choices(const Expr& made, const std::vector<Expr>& conditions) {
    std::vector<Expr> known;
    for (const Expr& condition : conditions) add_conjuncts(simplify(condition), known);
    auto is_known = [&](const Expr& condition) {
        return prove(condition) == true ||
               std::ranges::any_of(known, [&](const Expr& each) { return equal(each, condition); });
    };
    return transform(made, [&](const Expr& e) -> Expr {
        const Select* choice = e.as<Select>();
        if (!choice || !choice->yes.as<Read>() || !is_zero(choice->no)) return {};
        std::vector<Expr> own;
        add_conjuncts(simplify(choice->condition), own);
        return std::ranges::all_of(own, is_known) ? choice->yes : Expr();
    });
}

std::optional<MadeFactor> made_factor(const Expr& factor) {
    MadeFactor found;
    const Cast* wide = guarded(factor, found.conditions).as<Cast>();
    if (!wide || !is_half(wide->a.type())) return {};
    const Expr narrow = guarded(wide->a, found.conditions);
    const Cast* rounded = narrow.as<Cast>();
    if (!rounded || rounded->a.type() != f32) return {};
    const Expr unrounded = guarded(rounded->a, found.conditions);
    found.made = cast(narrow.type(), without_known_choices(unrounded, found.conditions));
    found.read = only_element(found.made);
    return found.read ? std::optional(found) : std::nullopt;
}

class Outlining {
public:
    explicit Outlining(const std::vector<Tensor>& outputs) : given_(outputs) {
        for (const auto& operation : operations_of(outputs)) names_.insert(operation->name);
    }

    Redeclared run() {
        for (const auto& operation : operations_of(given_)) {
            if (operation->is_input() || operation->outputs.size() != 1) continue;
            const Tensor given(operation, 0), tensor = whole_.of(given);
            if (const Tensor wide = by_narrow_elements(given, tensor); wide.defined()) whole_.put(given, wide);
            if (const Tensor outlined = declared(tensor); outlined.defined()) whole_.put(given, outlined);
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    /// What sums read in f32, though it is elements of 16 bits or zeros, as adjoints behind a ReLU are: of a tensor
    /// that has these, which units multiply.
    Tensor by_narrow_elements(const Tensor& given, const Tensor& tensor) {
        const Operation& operation = *tensor.operation();
        if (tensor.type() != f32 || reduces(operation.outputs[0].body) || !is_summed(given)) return {};
        std::vector<Expr> conditions;
        const Expr element = guarded(with_elements(operation.outputs[0].body, given_, false), conditions);
        const Cast* wide = element.as<Cast>();
        if (!wide || !is_half(wide->a.type()) || conditions.empty()) return {};
        const Shape shape(operation.shape.begin(), operation.shape.end());
        const Expr value = chosen({conditions.rbegin(), conditions.rend()}, wide->a);
        auto at_axes = [&](const std::vector<Expr>& at) {
            Substitution renamed;
            for (size_t d = 0; d < at.size(); ++d) renamed.emplace_back(operation.axes[d], at[d]);
            return substitute(value, renamed);
        };
        const Tensor narrow = compute(free_name(tensor.name() + "_narrow"), shape, at_axes, operation.where);
        names_.insert(narrow.name());
        result_.notes.push_back(fmt::format("'{}': '{}', whose elements are {} or zero, in that type", narrow.name(),
                                            tensor.name(), name_of(narrow.type())));
        return compute(
            tensor.name(), shape,
            [&](const std::vector<Expr>& at) {
                return cast(f32, narrow.read({at.begin(), at.end()}));
            },
            operation.where);
    }
    /// Whether a sum that units may compute, of several dimensions, reads the tensor, which is no output.
    bool is_summed(const Tensor& tensor) const {
        if (std::ranges::any_of(given_, [&](const Tensor& output) { return output.same(tensor); })) return false;
        return std::ranges::any_of(operations_of(given_), [&](const auto& operation) {
            return operation->axes.size() > 1 &&
                   std::ranges::any_of(operation->outputs, [&](const Operation::Output& output) {
                       return output.body.defined() && reduces(output.body) &&
                              reads_of(tensor, *operation, output.body).any;
                   });
        });
    }

    Tensor declared(const Tensor& tensor) {
        const Operation& operation = *tensor.operation();
        const Reduce* sum = only_reduction(operation.outputs[0].body);
        if (!sum || sum->values.size() != 1 || sum->axes.size() < 2 || sum->values[0].type() != f32 ||
            atomic_operation(*sum->reducer) != BinaryOp::Add)
            return {};
        std::vector<Expr> conditions;
        const Expr term = guarded(with_elements(sum->values[0], given_, false), conditions);
        const Binary* times = term.as<Binary>();
        if (!times || times->op != BinaryOp::Mul) return {};
        std::vector<Tensor> images;
        const Expr a = read_of_image(times->a, tensor, images), b = read_of_image(times->b, tensor, images);
        if (images.empty()) return {};
        const Expr value = chosen(conditions, a * b);
        const Reduce outlined{sum->reducer, {value}, sum->axes, sum->component, sum->where};
        const Expr body = with_reduction(operation.outputs[0].body, make_expr(f32, Reduce(outlined)));
        const Tensor result = compute(
            operation.name, {operation.shape.begin(), operation.shape.end()},
            [&](const std::vector<Expr>& at) {
                Substitution renamed;
                for (size_t d = 0; d < at.size(); ++d) renamed.emplace_back(operation.axes[d], at[d]);
                return substitute(body, renamed);
            },
            operation.where);
        if (!is_made_of_windows(result, given_)) return {};
        for (const Tensor& image : images) {
            names_.insert(image.name());
            result_.notes.push_back(fmt::format("'{}': what '{}' makes of each element before its windows, as a tensor",
                                                image.name(), operation.name));
        }
        return result;
    }

    static Expr chosen(const std::vector<Expr>& conditions, const Expr& value) {
        Expr result = value;
        for (const Expr& condition : conditions) result = select(condition, result, constant(value.type(), 0.0));
        return result;
    }

    /// The factor, or the element of a new tensor.
    Expr read_of_image(const Expr& factor, const Tensor& reader, std::vector<Tensor>& images) const {
        const auto found = made_factor(factor);
        if (!found) return factor;
        const Tensor x(found->read->operation, found->read->output);
        const Tensor image = compute(
            free_name(reader.name() + "_image"), {x.shape().begin(), x.shape().end()},
            [&](const std::vector<Expr>& at) {
                return transform(found->made, [&](const Expr& e) -> Expr {
                    const Read* read = e.as<Read>();
                    if (!read) return {};
                    return make_expr(e.type(), Read{read->operation, read->output,
                                                    read->indices.size() == 1 ? std::vector<Expr>{at.back()} : at});
                });
            });
        images.push_back(image);
        const Expr element =
            make_expr(image.type(), Read{image.operation(), 0, found->read->indices, found->read->guarded});
        return cast(f32, chosen(found->conditions, element));
    }
    std::string free_name(const std::string& wanted) const {
        std::string name = wanted;
        for (int number = 2; names_.count(name) > 0; ++number) name = fmt::format("{}_{}", wanted, number);
        return name;
    }

    const std::vector<Tensor>& given_;
    std::set<std::string> names_;
    Replacement whole_;
    Redeclared result_;
};

}  // namespace

Redeclared outline_images(const std::vector<Tensor>& outputs) { return Outlining(outputs).run(); }

}  // namespace tw::schedules

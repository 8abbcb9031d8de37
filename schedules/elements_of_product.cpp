#include "schedules/elements_of_product.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "codegen/cost/predict_time.h"
#include "dsl/edit.h"
#include "schedules/choose_elements.h"
#include "schedules/composed_parts.h"
#include "schedules/declared_as.h"
#include "schedules/replace_tensors.h"
#include "schedules/unit_product.h"
#include "schedules/warp_space.h"
#include "schedules/warpgroup_space.h"
#include "schedules/window_terms.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

bool contains_tensor(const std::vector<Tensor>& tensors, const Tensor& one) {
    return std::ranges::any_of(tensors, [&](const Tensor& each) { return each.same(one); });
}

/// The tensors that the expression reads, each once.
std::vector<Tensor> tensors_in(const Expr& expr) {
    std::vector<Tensor> found;
    visit(expr, [&](const Expr& e) {
        const Read* read = e.as<Read>();
        if (!read) return;
        const Tensor tensor(read->operation, read->output);
        if (!contains_tensor(found, tensor)) found.push_back(tensor);
    });
    return found;
}

/// Whether the tensor is a product that belongs behind this one.
bool is_later_product(const Tensor& tensor, const Tensor& product, const std::vector<Tensor>& outputs) {
    const auto all = operations_of(outputs);
    auto place = [&](const Tensor& each) { return std::ranges::find(all, each.operation()); };
    return unit_product(tensor) && place(tensor) > place(product);
}

bool depends_on(const Tensor& tensor, const Tensor& product) {
    return std::ranges::any_of(operations_of({tensor}),
                               [&](const auto& operation) { return operation == product.operation(); });
}

/// The element of a stage, of tensors that are stored.
Expr of_stored(const Tensor& element, const Tensor& product, const std::vector<Tensor>& outputs) {
    std::vector<Tensor> stored = outputs;
    stored.push_back(product);
    return with_elements(body_of(element), stored, true);
}

bool is_element_of(const Tensor& element, const Tensor& product, const std::vector<Tensor>& outputs) {
    if (element.same(product) || element.operation()->is_input() || element.operation()->outputs.size() != 1 ||
        !std::ranges::equal(element.shape(), product.shape(), equal))
        return false;
    const Expr body = of_stored(element, product, outputs);
    const ReadsOf reads = reads_of(product, *element.operation(), body);
    if (reduces(body) || !reads.any || !reads.own) return false;
    const std::vector<Tensor> read = tensors_in(body);
    return std::ranges::all_of(read, [&](const Tensor& each) {
        return each.same(product) || each.operation()->is_input() ||
               (!depends_on(each, product) && !is_later_product(each, product, outputs));
    });
}

/// Whether a kernel that reduces it, and is no product, would have it in its registers: one that makes it, too, reads
/// the product as often as this one reads what a product's kernel has stored.
bool is_reduced(const Tensor& element, const std::vector<Tensor>& outputs) {
    return std::ranges::any_of(operations_of(outputs), [&](const auto& operation) {
        if (operation->is_input() || unit_product(Tensor(operation, 0))) return false;
        return std::ranges::any_of(bodies_of(*operation), [&](const Expr& body) {
            const Expr whole = with_elements(body, outputs, true);
            return reduces(whole) && contains_tensor(tensors_in(whole), element);
        });
    });
}

/// The product and its elements, over inputs in the place of what is computed.
struct ProductAndElements {
    UnitProduct unit;
    std::vector<Tensor> elements;

    std::vector<Tensor> results() const {
        std::vector<Tensor> all{unit.c};
        all.insert(all.end(), elements.begin(), elements.end());
        return all;
    }
};

std::optional<ProductAndElements> over_inputs(const Tensor& product, const std::vector<Tensor>& elements,
                                              const std::vector<Tensor>& outputs) {
    const auto unit = unit_product(product);
    if (!unit || !unit->more.empty() || !unit->joined.empty() || unit->rows_of_matrix > 0 || unit->terms_of_block > 0)
        return {};
    std::vector<Tensor> stored = outputs;
    stored.insert(stored.end(), {unit->a, unit->b});
    const Expr sums = with_elements(body_of(product), stored, true);
    std::vector<Expr> bodies;
    for (const Tensor& each : elements) bodies.push_back(of_stored(each, product, outputs));
    std::vector<Tensor> operands = tensors_in(sums);
    for (const Expr& body : bodies)
        for (const Tensor& each : tensors_in(body))
            if (!each.same(product) && !contains_tensor(operands, each)) operands.push_back(each);
    Replacement over;
    const std::vector<Tensor> inputs = as_inputs(operands);
    for (size_t k = 0; k < operands.size(); ++k)
        if (!inputs[k].same(operands[k])) over.put(operands[k], inputs[k]);
    const Tensor own = over.of(declared_as(product, sums));
    over.put(product, own);
    auto whole = unit_product(own);
    if (!whole) return {};
    ProductAndElements found{*whole, {}};
    for (size_t k = 0; k < elements.size(); ++k) found.elements.push_back(over.of(declared_as(elements[k], bodies[k])));
    return found;
}

void multiply(Schedule& s, const UnitProduct& unit, const ProductTiling& tiling, const std::vector<Tensor>& elements) {
    const TensorProduct product{
        .a = unit.a, .b = unit.b, .bias = {}, .c = unit.c, .left = unit.a, .right = unit.b, .elements = elements};
    std::visit([&](const auto& tiles) { schedule_tensor_product(s, product, tiles); }, tiling);
}

/// By the model of lowered kernels; nothing if a step or a pass refuses.
template <class Make>
std::optional<double> seconds_of(const Make& make, const Target& target) {
    try {
        return codegen::predict_time(made_with_trees_later(make).tree(), target).seconds;
    } catch (const Error&) {
        return {};
    }
}

/// Of each size of tiles that stages its results the best of the space, at most `most` of them.
template <class Tiles, class Size>
void best_of_sizes(std::vector<Tiles> space, const TensorProductShape& shape, const Target& target, size_t most,
                   const Size& size_of, std::vector<ProductTiling>& found) {
    std::erase_if(space, [](const Tiles& tiles) { return !tiles.stage_result || tiles.split_k > 1; });
    std::ranges::stable_sort(space, {}, [&](const Tiles& tiles) { return predicted_cycles(tiles, shape, target); });
    std::vector<decltype(size_of(space[0]))> sizes;
    for (const Tiles& tiles : space) {
        if (sizes.size() == most) return;
        if (std::ranges::find(sizes, size_of(tiles)) != sizes.end()) continue;
        sizes.push_back(size_of(tiles));
        found.push_back(tiles);
    }
}

std::vector<ProductTiling> staged_tilings(const TensorProductShape& shape, const Target& target) {
    constexpr size_t most = 5;
    std::vector<ProductTiling> found;
    if (takes_warpgroups(shape, target)) {
        best_of_sizes(
            warpgroup_space(shape, target), shape, target, most,
            [](const WarpgroupTiles& t) { return std::tuple(t.block_m, t.block_n, t.warpgroups, t.ping_pong); }, found);
        return found;
    }
    std::vector<TensorTiles> space = warp_space(shape, target);
    std::erase_if(space, [](const TensorTiles& tiles) { return tiles.block_b > 1; });
    for (TensorTiles& tiles : space) tiles.stage_result = true;  // f32 leaves from registers otherwise
    best_of_sizes(
        space, shape, target, most, [](const TensorTiles& t) { return std::tuple(t.block_m, t.block_n); }, found);
    return found;
}

/// The widest vector of a thread in rows of so many columns of the tensor.
int64_t vector_of(const Tensor& tensor, int64_t columns) {
    const int64_t most = piece_bytes / bytes_of(tensor.type());
    return std::gcd(std::gcd(most, columns), as_constant(tensor.shape().back()).value_or(1));
}

/// Warps that multiply also make the elements, few at a time: a mask beside 32768 x 3072 results took 0.39 ms for the
/// 0.28 that the model expects, GELU by tanh 1.2 for 0.27.
bool takes_few_instructions(const ProductAndElements& part) {
    double count = 0;
    for (const Tensor& each : part.elements) count += instructions_besides_sums(body_of(each));
    return count < many_instructions_behind;
}

}  // namespace

std::vector<Tensor> elements_of_product(const Tensor& product, const std::vector<Tensor>& outputs) {
    std::vector<Tensor> found;
    for (const Tensor& output : outputs)
        if (is_element_of(output, product, outputs) && !contains_tensor(found, output) && !is_reduced(output, outputs))
            found.push_back(output);
    return found;
}

ElementTilings tilings_with_elements(const Tensor& product, const std::vector<Tensor>& elements,
                                     const std::vector<Tensor>& outputs, const Target& target) {
    constexpr double gain = 0.92, short_time = 2e-5;  // of the time apart: what the model is sure of; launches decide
    const auto part = elements.empty() ? std::nullopt : over_inputs(product, elements, outputs);
    if (!part) return {};
    auto apart = [&] {
        Schedule s(part->results(), target);
        multiply(s, part->unit, best_tiling(part->unit.shape, target), {});
        for (const Tensor& each : part->elements) schedule_elements(s, s[each]);
        return s;
    };
    const auto longest = seconds_of(apart, target);
    if (!longest) return {};
    std::vector<std::pair<double, ProductTiling>> timed;
    for (const ProductTiling& tiling : staged_tilings(part->unit.shape, target)) {
        auto together = [&] {
            Schedule s(part->results(), target);
            multiply(s, part->unit, tiling, part->elements);
            return s;
        };
        if (const auto seconds = seconds_of(together, target)) timed.emplace_back(*seconds, tiling);
    }
    std::ranges::stable_sort(timed, {}, [](const auto& each) { return each.first; });
    ElementTilings found;
    const bool sure = *longest < short_time || takes_few_instructions(*part);
    for (const auto& [seconds, tiling] : timed)
        (sure && seconds < gain * *longest ? found.faster : found.others).push_back(tiling);
    return found;
}

void make_elements_of_tile(Schedule& s, const std::vector<Tensor>& elements, const Loop& leaving, int64_t threads) {
    for (const Tensor& each : elements) {
        s.at(each, leaving);
        const std::vector<Loop> own = s.data_loops(each);
        const Loop row = own[own.size() - 2], column = own.back();
        const int64_t width = vector_of(each, as_constant(s.extent(column)).value_or(1));
        auto [piece, element] = s.split(column, width, {"piece", "element"});
        auto [step, share] = s.split(s.fuse({row, piece}), threads, Tail::Mask, {"step", "share"});
        s.bind(share, thread);
        if (width > 1) s.bind(element, vector);
    }
}

}  // namespace tw::schedules

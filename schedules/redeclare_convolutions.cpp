#include "schedules/redeclare_convolutions.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "schedules/channel_sums.h"
#include "schedules/choose_windows.h"
#include "schedules/declared_as.h"
#include "schedules/find_convolution.h"
#include "schedules/find_depthwise.h"
#include "schedules/made_elements.h"
#include "schedules/replace_tensors.h"
#include "schedules/tuned_records.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"

namespace tw::schedules {
namespace {

class Redeclaration {
public:
    Redeclaration(const std::vector<Tensor>& outputs, const Exceptions& exceptions, const Target& target)
        : given_(outputs), except_(exceptions), target_(target) {
        for (const auto& operation : operations_of(outputs)) {
            names_.insert(operation->name);
            for (size_t k = 0; k < operation->outputs.size(); ++k)
                names_.insert(Tensor(operation, static_cast<int>(k)).name());
        }
    }

    RedeclaredConvolutions run() {
        for (const auto& operation : operations_of(given_)) {
            if (operation->is_input()) continue;
            sum_waiting(operation);
            finish_sum(operation);
            const Tensor tensor(operation, 0);
            if (operation->outputs.size() == 1) declare(tensor);
            done_.insert(operation);
            sum_apart(tensor);
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    /// Sums of a tensor's elements, as given.
    struct WaitingSums {
        Tensor of;
        std::vector<ChannelSum> sums;
    };

    void declare(const Tensor& tensor) {
        if (holds(except_.as_given, tensor)) return;
        if (const Tensor reader = only_caster(tensor); reader.defined() && !holds(except_.as_given, reader)) return;
        const Tensor sums = casted(tensor);
        if (!sums.defined()) {
            put(tensor, again(tensor, whole_.of(tensor)));
        } else if (Tensor declared = again(tensor, with_sums(tensor, whole_.of(sums)), true); declared.defined()) {
            put(tensor, declared);
        } else if (!holds(except_.as_given, sums)) {
            put(sums, again(sums, whole_.of(sums)));
        }
    }

    void put(const Tensor& tensor, const Tensor& declared) {
        if (!declared.defined()) return;
        whole_.put(tensor, declared);
        result_.given.push_back(tensor);
    }

    /// Sums that the tensor, casts of its own elements of them, alone reads; undefined: there are none.
    Tensor casted(const Tensor& tensor) const {
        Expr value = body_of(tensor);
        if (const Cast* cast = value.as<Cast>()) value = cast->a;
        if (const Cast* cast = value.as<Cast>(); cast && value.type() == f32 && bytes_of(cast->a.type()) == 2)
            value = cast->a;  // exact
        const Read* read = value.as<Read>();
        if (!read || read->operation->is_input() || read->operation->outputs.size() != 1) return {};
        const Tensor sums(read->operation, read->output);
        const bool is_own = std::ranges::equal(read->indices, tensor.operation()->axes, equal);
        if (!is_own || !reduces(body_of(sums)) || holds(given_, sums) || readers_of(sums) != 1) return {};
        return sums;
    }
    Tensor only_caster(const Tensor& sums) const {
        if (!reduces(body_of(sums))) return {};
        for (const auto& operation : operations_of(given_))
            if (!operation->is_input() && operation->outputs.size() == 1)
                if (const Tensor reader(operation, 0), of = casted(reader); of.defined() && of.same(sums))
                    return reader;
        return {};
    }
    int readers_of(const Tensor& tensor) const {
        int count = 0;
        for (const auto& operation : operations_of(given_))
            for (const Operation::Output& output : operation->outputs) {
                bool reads = false;
                if (output.body.defined())
                    visit(output.body, [&](const Expr& e) {
                        const Read* read = e.as<Read>();
                        reads = reads || (read && read->operation == tensor.operation());
                    });
                count += reads ? 1 : 0;
            }
        return count;
    }
    ConvolutionNeighbours neighbours_of(const Tensor& given, const Tensor& sums, const FoundConvolution& found) {
        ConvolutionNeighbours around;
        if (found.pass == ConvolutionPass::WeightGradient || holds(except_.apart, given)) return around;
        around.result = made_result(sums, given_);
        if (!around.result) return {};
        around.sums = channel_sums(given, given_);
        std::erase_if(around.sums, [&](const ChannelSum& sum) { return taken_.count(sum.operation) > 0; });
        // Of places of a raster that are no pixels.
        const auto counts = [&](const ChannelSum& sum) { return !sum.of_zeros || !is_ready(sum, given); };
        if (std::ranges::any_of(around.sums, counts)) around.sums.clear();
        if (found.pass == ConvolutionPass::Forward && is_read_once(found.x, given))
            around.image = made_image(found.x, given_);
        return around;
    }
    /// Of what stands for a tensor before `reader`, that is no output.
    bool is_read_once(const Tensor& tensor, const Tensor& reader) {
        for (const auto& operation : operations_of(given_)) {
            if (operation == reader.operation()) return false;
            const Tensor own(operation, 0);
            if (!operation->is_input() && whole_.of(own).same(tensor))
                return !holds(given_, own) && readers_of(own) == 1;
        }
        return false;
    }

    /// All in one stage, over what was declared of the tensor. What is made of a sum and of others is made behind it.
    Tensor declare_sums(const Tensor& given, const std::vector<ChannelSum>& sums, const std::vector<Axis>& axes,
                        const std::function<Expr(const Tensor&, const Expr&)>& element) {
        summed_.push_back(given);
        for (const ChannelSum& sum : sums) taken_.insert(sum.operation);
        std::vector<std::string> names, told;
        for (const ChannelSum& sum : sums) {
            const Tensor own(sum.operation, sum.output);
            names.push_back(sum.ends_with_sum ? own.name() : free_name(own, "sum"));
            told.push_back("'" + own.name() + "'");
        }
        const std::string name = sums.size() == 1 ? names[0] : free_name(given, "statistics");
        if (sums.size() == 1) names.clear();
        const Tensor totals = whole_.of(declare_channel_sums(sums, name, names, axes, element));
        for (size_t k = 0; k < sums.size(); ++k) {
            const Tensor sum(totals.operation(), static_cast<int>(k));
            if (!sums[k].ends_with_sum)
                finishing_.emplace_back(sums[k], sum);
            else if (sums[k].output == 0)
                whole_.put(Tensor(sums[k].operation, 0), sum);
        }
        result_.notes.push_back(fmt::format("{}: of '{}', by the kernel that makes it, and one behind",
                                            fmt::join(told, ", "), given.name()));
        return totals;
    }
    void finish_sum(const std::shared_ptr<const Operation>& operation) {
        for (const auto& [own, sum] : finishing_)
            if (own.operation == operation) {
                const Tensor tensor(operation, 0);
                whole_.put(tensor, whole_.of(declared_as(tensor, with_reduction(own.body, sum(operation->axes[0])))));
                return;
            }
    }
    /// Whether all that the sum reads beside the tensor's elements, and what is made of it, has its declaration.
    bool is_ready(const ChannelSum& sum, const Tensor& of) const {
        bool ready = true;
        visit(sum.body, [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (!read || !ready || read->operation == of.operation()) return;
            const auto needed = operations_of({Tensor(read->operation, 0)});
            if (std::ranges::any_of(needed, [&](const auto& each) { return each == of.operation(); })) return;
            ready =
                std::ranges::all_of(needed, [&](const auto& each) { return each->is_input() || done_.count(each); });
        });
        return ready;
    }
    /// Of what tiles of windows make.
    void sum_apart(const Tensor& given) {
        if (!target_.has_wgmma || !target_.has_tma || given.rank() < 3 || given.operation()->outputs.size() != 1 ||
            holds(summed_, given) || holds(except_.apart, given))
            return;
        std::vector<ChannelSum> sums = channel_sums(given, given_);
        std::erase_if(sums, [&](const ChannelSum& sum) { return taken_.count(sum.operation) > 0; });
        if (sums.empty() || !is_made_of_windows(whole_.of(given), given_)) return;
        for (const ChannelSum& sum : sums) taken_.insert(sum.operation);
        waiting_.push_back({given, std::move(sums)});
        sum_waiting(nullptr);
    }
    /// Sums wait for what they read beside the tensor, until `next`, one of them, is there.
    void sum_waiting(const std::shared_ptr<const Operation>& next) {
        std::vector<WaitingSums> left;
        for (WaitingSums& each : std::exchange(waiting_, {})) {
            auto is_unready = [&](const ChannelSum& sum) { return !is_ready(sum, each.of); };
            const bool is_next =
                std::ranges::any_of(each.sums, [&](const ChannelSum& sum) { return sum.operation == next; });
            if (is_next) std::erase_if(each.sums, is_unready);
            if (std::ranges::any_of(each.sums, is_unready))
                left.push_back(std::move(each));
            else if (!each.sums.empty())
                sum_together(each);
        }
        waiting_.insert(waiting_.end(), left.begin(), left.end());
    }
    void sum_together(const WaitingSums& waiting) {
        const Tensor of = whole_.of(waiting.of);
        std::vector<Axis> axes;
        for (int d = 0; d + 1 < of.rank(); ++d) axes.push_back(reduce_axis("n", of.shape()[static_cast<size_t>(d)]));
        const Tensor totals =
            declare_sums(waiting.of, waiting.sums, axes, [&](const Tensor& tensor, const Expr& channel) {
                std::vector<Operand> at(axes.begin(), axes.end());
                at.emplace_back(channel);
                return whole_.of(tensor).read(at);
            });
        result_.summed.push_back({waiting.of, of, totals, {}});
        for (const ChannelSum& sum : waiting.sums)
            if (const Tensor beside = sum.beside.defined() ? whole_.of(sum.beside) : Tensor();
                beside.defined() && !holds(result_.summed.back().beside, beside))
                result_.summed.back().beside.push_back(beside);
    }
    /// Undefined: it is best as it is, unless it was merged of two.
    Tensor again(const Tensor& given, const Tensor& sums, bool is_merged = false) {
        if (const auto depthwise = find_depthwise(sums, given_)) return in_registers(sums, *depthwise);
        const auto found = target_.has_wgmma ? find_convolution(sums, given_) : std::nullopt;
        if (!found || !takes_warpgroups(found->shape, target_)) return {};
        const ConvolutionNeighbours around = neighbours_of(given, sums, *found);
        // Records are of sums alone.
        const auto tuned = around.any() || holds(except_.by_model, given)
                               ? std::nullopt
                               : tuned_tiling(found->shape, found->pass, target_);
        const bool may_have_halo =
            !leaves_turned(sums) && (is_of_columns(sums, found->shape.type) || around.has_beside());
        if (const HaloTiles* halo = tuned ? std::get_if<HaloTiles>(&*tuned) : nullptr;
            halo && may_have_halo && takes_halo(found->shape, found->pass, *halo, target_))
            return with_halo(given, sums, *found, {{}, *halo, true}, around);
        const Convolution c = declare_convolution(found->shape, found->pass);
        const auto product = window_product(c.product, {c.result});
        const ConvolutionTiles* recorded = tuned && product ? std::get_if<ConvolutionTiles>(&*tuned) : nullptr;
        const auto tiles = product && !recorded ? convolution_tiles(product->form, target_) : std::nullopt;
        if (!recorded && may_have_halo)
            if (const auto halo =
                    halo_tiles(found->shape, found->pass, cycles_of(product, tiles) + around.cycles_before(), target_,
                               around.extras()))
                return with_halo(given, sums, *found, {{}, *halo}, around);
        if (!tiles && !recorded) return {};
        if (around.image)
            result_.notes.push_back(
                fmt::format("'{}' is not made by the kernel of '{}': over no raster, each tap would make its rows anew",
                            found->x.name(), given.name()));
        const bool stays = is_such(sums, c, *product);
        if (stays && is_merged) result_.sums.push_back(sums);
        const Tensor declared = !stays ? of_declaration(sums, *found, c) : is_merged ? sums : Tensor();
        if (recorded && (stays || declared.defined()))
            result_.recorded.push_back({given, stays ? sums : result_.sums.back(), *recorded});
        return declared;
    }
    double cycles_of(const std::optional<WindowProduct>& product, const std::optional<ConvolutionTiles>& tiles) const {
        return tiles ? convolution_cycles(product->form, *tiles, target_) : std::numeric_limits<double>::max();
    }

    /// "y_raster", or with a number behind it if a tensor has that name.
    std::string free_name(const Tensor& of, const std::string& what) {
        std::string name = of.name() + "_" + what;
        for (int number = 2; !names_.insert(name).second; ++number)
            name = fmt::format("{}_{}_{}", of.name(), what, number);
        return name;
    }

    /// Whether the result leaves with its columns before pixels: a raster's would be copied.
    bool leaves_turned(const Tensor& sums) const {
        const auto own = window_products(sums, given_);
        return !own.empty() && own[0].form.turns_result;
    }

    /// Whether the tensor has the declaration's product already.
    bool is_such(const Tensor& sums, const Convolution& c, const WindowProduct& product) const {
        const auto own = window_products(sums, given_);
        if (own.empty() || !c.copies.empty() || !c.result.same(c.product)) return false;
        ConvolutionForm form = own.back().form;
        form.result = product.form.result;
        return form == product.form;
    }

    static Replacement operands_of(const Convolution& c, const FoundConvolution& found) {
        Replacement operands;
        if (found.x.defined()) operands.put(c.x, found.x);
        if (found.w.defined()) operands.put(c.w, found.w);
        if (found.dy.defined()) operands.put(c.dy, found.dy);
        return operands;
    }

    Tensor of_declaration(const Tensor& sums, const FoundConvolution& found, const Convolution& c) {
        const bool is_cut = !c.result.same(c.product);
        const Cast* cast = body_of(sums).as<Cast>();
        if (is_cut && (!cast || !cast->a.as<Reduce>() || sums.type() != found.shape.type)) return {};
        Replacement operands = operands_of(c, found);
        for (const Tensor& copy : c.copies) operands.named(free_name(sums, copy.name()), copy);
        if (is_cut) {
            result_.sums.push_back(operands.named(free_name(sums, "product"), c.product));
            result_.cut.push_back(operands.named(sums.name(), c.result));
            return result_.cut.back();
        }
        const Tensor product = operands.of(c.product);
        const Expr reduction = over(product.operation()->axes, reduction_of(product), sums.operation()->axes);
        result_.sums.push_back(declared_as(sums, with_reduction(body_of(sums), reduction)));
        return result_.sums.back();
    }

    /// With what stands around it.
    Tensor with_neighbours(const Tensor& given, const Tensor& sums, const FoundConvolution& found,
                           RedeclaredHalo declared, const ConvolutionNeighbours& around) {
        HaloConvolution& h = declared.convolution;
        h = declare_halo_convolution(found.shape, found.pass, declared.tiles.whole_places(), around.of_halo());
        const Tensor x = around.image                                  ? around.image->x
                         : found.pass == ConvolutionPass::DataGradient ? found.dy
                                                                       : found.x;
        Replacement operands;
        operands.put(h.x, x);
        operands.put(h.w, found.w);
        const bool is_made = !h.image.same(h.raster), is_chosen = !h.made.same(h.sums);
        auto name = [&](Tensor& tensor) {
            if (tensor.defined()) tensor = operands.named(free_name(sums, tensor.name()), tensor);
        };
        name(h.raster);
        if (is_made) name(h.image);
        if (!is_made) h.image = h.raster;
        for (Tensor* tensor : {&h.taps, &h.beside, &h.pixel}) name(*tensor);
        if (is_chosen) name(h.made);
        name(h.sums);
        if (!is_chosen) h.made = h.sums;
        h.result = operands.named(sums.name(), h.result);
        h.x = x, h.w = found.w;
        declared.is_fused = true;
        declared.whole = h.by_channel;
        if (around.has_beside()) declared.whole.push_back(around.result->beside);
        if (around.image)
            result_.notes.push_back(fmt::format("'{}' is made of '{}' by the kernel of '{}', once for all taps",
                                                found.x.name(), x.name(), given.name()));
        if (!around.sums.empty()) {
            const Axis m = reduce_axis("m", h.sums.shape()[0]);
            declared.totals = declare_sums(given, around.sums, {m},
                                           [&](const Tensor&, const Expr& channel) { return h.sums(m, channel); });
        }
        result_.sums.push_back(h.sums);
        result_.halos.push_back(declared);
        return h.result;
    }

    Tensor with_halo(const Tensor& given, const Tensor& sums, const FoundConvolution& found, RedeclaredHalo declared,
                     const ConvolutionNeighbours& around) {
        if (around.any()) return with_neighbours(given, sums, found, std::move(declared), around);
        HaloConvolution& h = declared.convolution;
        h = declare_halo_convolution(found.shape, found.pass, declared.tiles.whole_places());
        const Tensor x = found.pass == ConvolutionPass::DataGradient ? found.dy : found.x,
                     w = h.sums_places ? found.dy : found.w;
        Replacement operands;
        operands.put(h.x, x);
        operands.put(h.w, w);
        h.image = h.raster = operands.named(free_name(sums, "raster"), h.raster);
        h.taps = operands.named(free_name(sums, h.sums_places ? "gradient" : "taps"), h.taps);
        const Tensor plain = operands.named(h.sums_places ? sums.name() : free_name(sums, "sums"), h.sums);
        const Expr body = over({sums.operation()->axes.back()}, body_of(sums), {plain.operation()->axes.back()});
        const Tensor finished = declared_as(plain, with_reduction(body, reduction_of(plain)));
        operands.put(h.sums, finished);
        const bool is_result = h.result.same(h.sums);
        h.made = h.sums = finished;
        h.result = is_result ? finished : operands.named(sums.name(), h.result);
        h.x = x, h.w = w;
        result_.sums.push_back(h.sums);
        result_.halos.push_back(declared);
        return h.result;
    }

    /// Depthwise: windows in registers.
    Tensor in_registers(const Tensor& sums, const FoundDepthwise& found) {
        const Depthwise d =
            declare_depthwise(found.windows, found.pass, depthwise_tiles(found.windows, found.pass, target_));
        RedeclaredDepthwise declared{d, {}, {}};
        Replacement operands;
        for (const auto& [tensor, by] : {std::pair(d.x, found.x), std::pair(d.dy, found.dy)}) {
            if (!by.defined()) continue;
            operands.put(tensor, by);
            declared.whole.push_back(by);
        }
        Depthwise& own = declared.convolution;
        auto name = [&](Tensor& tensor) { tensor = operands.named(free_name(sums, tensor.name()), tensor); };
        if (found.w.defined()) operands.put(d.taps, own.taps = taps_of(sums, found, d.taps));
        for (Tensor& tensor : own.copies) name(tensor);
        for (Tensor& tensor : own.tiled) name(tensor);
        for (Tensor& tensor : own.sums) name(tensor);
        own.channels_of_taps = found.channels;
        const auto& axes = sums.operation()->axes;
        std::vector<Expr> at(axes.begin(), axes.end());
        if (found.pass == ConvolutionPass::WeightGradient) {
            const Expr row = found.taps.size() > 1 ? axes[static_cast<size_t>(found.taps[0])] : integer(0);
            at = {axes[static_cast<size_t>(found.channels)], row, axes[static_cast<size_t>(found.taps.back())],
                  integer(0)};
        }
        const Tensor result = operands.of(d.result);
        const Cast* rounded = body_of(result).as<Cast>();
        const Expr value = rounded ? rounded->a : body_of(result);
        own.result = declared_as(sums, with_reduction(body_of(sums), over(result.operation()->axes, value, at)));
        declared.result = own.result;
        result_.sums.push_back(own.sums[0]);
        result_.depthwise.push_back(declared);
        return own.result;
    }
    Tensor taps_of(const Tensor& sums, const FoundDepthwise& found, const Tensor& taps) {
        return compute(free_name(sums, "taps"), {taps.shape().begin(), taps.shape().end()},
                       [&](Expr r, Expr t, Expr c) {
                           const std::vector<Expr> at = found.of_weight(found.w.rank(), c, r, t);
                           return cast(f32, padded(found.w, 0).read({at.begin(), at.end()}));
                       });
    }

    const std::vector<Tensor>& given_;
    const Exceptions& except_;
    const Target& target_;
    std::set<std::string> names_;                      // that tensors have
    std::set<std::shared_ptr<const Operation>> done_;  // as given, that have their declaration
    std::vector<WaitingSums> waiting_;
    std::set<std::shared_ptr<const Operation>> taken_;      // sums that are made with what they are of
    std::vector<Tensor> summed_;                            // as given
    std::vector<std::pair<ChannelSum, Tensor>> finishing_;  // what is made of sums, and these
    Replacement whole_;
    RedeclaredConvolutions result_;
};

}  // namespace

RedeclaredConvolutions redeclare_convolutions(const std::vector<Tensor>& outputs, const Exceptions& exceptions,
                                              const Target& target) {
    if (!target.has_tma) return {outputs, {}, {}, {}, {}, {}, {}, {}, {}};
    return Redeclaration(outputs, exceptions, target).run();
}

}  // namespace tw::schedules

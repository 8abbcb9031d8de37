#include "schedules/choose_by_rule.h"

#include <algorithm>
#include <optional>

#include "codegen/cost/known_nests.h"
#include "dsl/edit.h"
#include "schedules/channels_last.h"
#include "schedules/choices.h"
#include "schedules/choose_elements.h"
#include "schedules/choose_rows.h"
#include "schedules/choose_windows.h"
#include "schedules/deciding_lengths.h"
#include "schedules/declare_rows.h"
#include "schedules/elements_beside_sums.h"
#include "schedules/explain_units.h"
#include "schedules/outline_images.h"
#include "schedules/pick_tilings.h"
#include "schedules/product_rows.h"
#include "schedules/redeclare_convolutions.h"
#include "schedules/repeated_elements.h"
#include "schedules/replace_tensors.h"
#include "schedules/scan_rows.h"
#include "schedules/scattered.h"
#include "schedules/share_reduction.h"
#include "schedules/streamed_attention.h"
#include "schedules/sums_by_phase.h"
#include "schedules/sums_together.h"
#include "schedules/tiled_product.h"
#include "schedules/tilings_to_try.h"
#include "schedules/transposed.h"
#include "schedules/tuned_records.h"
#include "schedules/turned_views.h"
#include "schedules/unit_product.h"
#include "schedules/window_terms.h"
#include "schedules/windows_as_matrices.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t Threads = 256;

/// A convolution that was declared anew in vain.
struct LeftOver {
    Tensor given;
    std::string why;              ///< for explain()
    bool is_from_record = false;  ///< it was declared so for a record's tiling
    bool is_fused = false;        ///< it was declared with its neighbours
};

/// A sum of products of matrices that no tensor core makes.
struct OffUnits {
    std::string sums, why;
};

class Chooser {
public:
    Chooser(const RedeclaredConvolutions& declared, const MovedChannels& moved,
            const std::vector<std::string>& copied_rows, const Target& target)
        : declared_(declared),
          moved_(moved),
          copied_rows_(copied_rows),
          outputs_(declared.outputs),
          target_(target),
          unscheduled_(outputs_, target),
          views_(views_of_elements(outputs_)),
          apart_(deciding_lengths(outputs_)),
          shareable_(may_reorder(outputs_)) {
        notes_ = moved_.notes;
        for (const Tensor& tensor : repeated_elements(outputs_)) {
            apart_.push_back(tensor);
            notes_.push_back(
                fmt::format("'{}': stored, as each of its elements is read for many others", tensor.name()));
        }
        for (const Tensor& tensor : declared_.given)
            notes_.push_back(fmt::format(
                "'{}' is declared anew, as convolutions are fastest; outputs() has it as it is now", tensor.name()));
        notes_.insert(notes_.end(), declared_.notes.begin(), declared_.notes.end());
    }

    /// Products are tiled as well as the tilings that are legal for them allow, one after another.
    Schedule run() {
        std::optional<Schedule> best;
        for (const auto& operation : operations_of(outputs_))
            if (!operation->is_input()) tile(Tensor(operation, 0), best);
        if (auto found = choose_rows()) best = std::move(found);
        if (!best) best = in_a_try([&] { return made_with_trees_later([&] { return scheduled(); }); });
        for (const Tensor& result : moved_.results)
            notes_.push_back(fmt::format("'{}' {}", result.name(),
                                         is_turned(result)
                                             ? "leaves its kernel with channels first"
                                             : "is a copy, with channels first, of what its kernel makes"));
        for (const std::string& note : notes_) Edit::note(*best, note);
        return std::move(*best);
    }

    const ChosenRows& rows() const { return rows_; }
    const std::vector<OffUnits>& off_units() const { return off_units_; }

    /// Of tensors that were declared anew, those that could not be tiled as they are now, and those that have not the
    /// tiling of their record.
    std::vector<LeftOver> left_over() const {
        std::vector<LeftOver> found;
        auto is_tiled = [&](const Tensor& sums, bool from_record) {
            return std::ranges::any_of(tiled_, [&](const TiledProduct& p) {
                return p.is_on_units() && p.c.same(sums) && (p.is_from_record || !from_record);
            });
        };
        auto leave = [&](const Tensor& given, const Tensor& sums, const std::string& how, bool from_record,
                         bool is_fused = false) {
            const auto tried = std::ranges::find_if(tried_, [&](const Tried& one) { return one.sums.same(sums); });
            found.push_back({given,
                             fmt::format("'{}' is not {}, {}", given.name(), how,
                                         tried == tried_.end() ? "for which there is no tiling" : "by " + tried->text),
                             from_record, is_fused});
        };
        for (const SummedWindowResult& summed : declared_.summed)
            if (std::ranges::none_of(tiled_, [&](const TiledProduct& p) {
                    return totals_of(p).defined() && totals_of(p).same(summed.totals);
                }))
                leave(summed.given, summed.of, "made with its sums over pixels", false, true);
        for (const RecordedTiles& recorded : declared_.recorded)
            if (!is_tiled(recorded.sums, true)) leave(recorded.given, recorded.sums, "as its record says", true);
        if (!found.empty()) return found;
        for (size_t k = 0; k < declared_.given.size(); ++k) {
            const Tensor& sums = declared_.sums[k];
            if (is_tiled(sums, false)) continue;
            const auto halo = std::ranges::find_if(
                declared_.halos, [&](const RedeclaredHalo& one) { return one.convolution.sums.same(sums); });
            const bool has_halo = halo != declared_.halos.end();
            const bool is_fused = has_halo && halo->is_fused;
            leave(declared_.given[k], sums,
                  is_fused   ? "made over a raster with its neighbours"
                  : has_halo ? "declared over a raster with its halo"
                             : "declared anew",
                  has_halo && halo->is_from_record, is_fused);
        }
        return found;
    }

    /// Of tensors whose operands were moved, those that could not be tiled nevertheless.
    std::vector<Tensor> moved_in_vain() const {
        std::vector<Tensor> found;
        auto is_named = [](const Tensor& t, const Tensor& like) { return t.name() == like.name(); };
        for (size_t k = 0; k < moved_.given.size(); ++k) {
            const Tensor& sums = moved_.sums[k];
            const bool is_tiled =
                std::ranges::any_of(tiled_,
                                    [&](const TiledProduct& p) { return p.is_on_units() && is_named(p.c, sums); }) ||
                std::ranges::any_of(declared_.given, [&](const Tensor& t) { return is_named(t, sums); });
            if (!is_tiled) found.push_back(moved_.given[k]);
        }
        return found;
    }

private:
    /// A tiling of sums that was tried on tensor cores, and what refused it.
    struct Tried {
        Tensor sums;
        std::string text;
    };

    bool is_turned(const Tensor& result) const {
        return std::ranges::any_of(tiled_, [&](const TiledProduct& p) {
            const TiledWindows* windows = std::get_if<TiledWindows>(&p.tiles);
            return windows && windows->product.form.turns_result && windows->product.result.name() == result.name();
        });
    }

    void tile(const Tensor& c, std::optional<Schedule>& best) {
        if (is_made_with_others(c)) return;
        refusal_.clear();
        for (TiledProduct& tiled : pick_tilings(c, tilings_of_sums(c), target_)) {
            tiled_.push_back(std::move(tiled));
            const bool is_on_units = tiled_.back().is_on_units();
            if (auto found = lowered(is_on_units)) {
                best = std::move(found);
                tell_tiling(c, &tiled_.back());
                if (!is_on_units) break;
                notes_.push_back(fmt::format("'{}': {}", c.name(), tiling_of(tiled_.back())));
                return;
            }
            if (is_on_units) tried_.push_back({c, fmt::format("{}: {}", tiling_of(tiled_.back()), refusal_)});
            if (tiled_.back().is_from_record)
                notes_.push_back(fmt::format("'{}' is not as its record says, by {}", c.name(), tried_.back().text));
            tiled_.pop_back();
            tell_tiling(c, nullptr);
        }
        if (auto reason = why_without_units(c, outputs_, target_, refusal_)) {
            notes_.push_back(*reason);
            off_units_.push_back({c.name(), *reason});
        }
        if (auto reason = why_one_by_one(c, outputs_, target_)) notes_.push_back(*reason);
    }

    bool scatters_or_scans(Stage of) const { return unscheduled_.scatters(of) || scanned_loop(unscheduled_, of); }

    std::optional<Schedule> choose_rows() {
        auto is_taken = [&](const OperationRef& operation) {
            const Stage stage = unscheduled_[Tensor(operation, 0)];
            return is_tiled(unscheduled_, stage) || copy_at(unscheduled_, stage) ||
                   (is_stored(unscheduled_, stage) && !is_one_of(outputs_, unscheduled_, stage) &&
                    !unscheduled_.reduces(stage));
        };
        auto is_copy = [&](const OperationRef& operation) {
            return std::ranges::find(copied_rows_, operation->name) != copied_rows_.end();
        };
        std::vector<Tensor> sums;
        for (const TiledProduct& p : tiled_)
            if (std::holds_alternative<ColumnReduction>(p.tiles)) sums.push_back(p.c);
        auto is_sum = [&](const OperationRef& operation) { return holds(sums, Tensor(operation, 0)); };
        auto found = rows_.choose(outputs_, sums, {is_taken, is_copy, is_sum}, target_, [&](std::string& why) {
            auto schedule = lowered(true);
            why = refusal_;
            return schedule;
        });
        notes_.insert(notes_.end(), rows_.notes.begin(), rows_.notes.end());
        return found;
    }

    static bool is_one_of(const std::vector<Tensor>& tensors, const Schedule& s, Stage stage) {
        return std::ranges::any_of(tensors, [&](const Tensor& t) { return s[t].id == stage.id; });
    }

    /// The best first.
    std::vector<TiledProduct> tilings_of_sums(const Tensor& c) const {
        std::vector<TiledProduct> found = tilings_to_try(c, declared_, moved_.lying, outputs_, target_);
        if (shareable_ && !scatters_or_scans(unscheduled_[c]) && !is_redeclared(c, declared_))
            add_column_reductions(found, c, outputs_);
        return found;
    }

    /// Sums over pixels that are tiled with these, those of a raster from which zeros are told apart behind, or those
    /// of another phase.
    bool is_made_with_others(const Tensor& c) const {
        return std::ranges::any_of(tiled_,
                                   [&](const TiledProduct& p) { return totals_of(p).operation() == c.operation(); }) ||
               std::ranges::any_of(declared_.halos,
                                   [&](const RedeclaredHalo& halo) {
                                       return halo.convolution.made.same(c) && !halo.convolution.sums.same(c);
                                   }) ||
               std::ranges::any_of(declared_.depthwise, [&](const RedeclaredDepthwise& depthwise) {
                   const std::vector<Tensor>& phases = depthwise.convolution.sums;
                   return holds(phases, c) && !phases[0].same(c);
               });
    }

    /// The schedule with what is tiled so far, if it can be built. What a step or a pass refuses is decided by steps
    /// and passes alone.
    std::optional<Schedule> lowered(bool is_on_units) {
        try {
            return in_a_try([&] {
                Schedule s = made_with_trees_later([&] { return scheduled(); });
                codegen::counted_kernels(s.tree(), target_);
                return s;
            });
        } catch (const Error& error) {
            if (is_on_units) refusal_ = error.what();
            return {};
        }
    }

    /// Operands of tiled products are read many times: they are stored.
    bool is_stored(const Schedule& s, Stage stage) const {
        return is_one_of(outputs_, s, stage) || s.reduces(stage) || is_one_of(apart_, s, stage) ||
               is_one_of(views_, s, stage) ||
               std::ranges::any_of(tiled_, [&](const TiledProduct& p) { return is_one_of(stored_for(p), s, stage); });
    }

    Schedule scheduled() const {
        Schedule s = unscheduled_;
        join_axes(s, tiled_);
        for (Stage stage : s.all_stages())
            if (!is_stored(s, stage) && !rows_.holds(s, stage)) s.inline_stage(stage);
        std::vector<Stage> others = s.all_stages();
        std::erase_if(others, [&](Stage stage) { return is_tiled(s, stage) || rows_.holds(s, stage); });
        // Those that read others first: a result that leaves through shared memory has its readers read a copy.
        const auto copies = std::ranges::partition(others, [&](Stage stage) { return !copy_at(s, stage); });
        for (Stage stage : copies) schedule_other(s, stage);
        others.erase(copies.begin(), copies.end());
        std::for_each(tiled_.rbegin(), tiled_.rend(), [&](const TiledProduct& p) {
            if (!rows_.holds(s, s[p.c])) schedule_tiled(s, p);
        });
        rows_.schedule(s);  // before others, which outputs that are free may stand beside
        for (Stage stage : others) schedule_other(s, stage);
        for (const Tensor& view : views()) s.inline_stage(s[view]);
        return s;
    }

    /// Tiles are loaded from what these are of.
    std::vector<Tensor> views() const { return views_for(tiled_, outputs_, views_); }

    /// What stages store element by element: operands of windows, what is cut out of a product, and copies of results.
    std::vector<Tensor> copies() const {
        std::vector<Tensor> found = declared_.cut;
        for (const Tensor& output : outputs_)
            if (std::ranges::any_of(moved_.results, [&](const Tensor& t) { return t.name() == output.name(); }))
                found.push_back(output);
        for (const Tensor& operand : operands_of_windows(tiled_)) found.push_back(operand);
        return found;
    }
    std::optional<Tensor> copy_at(const Schedule& s, Stage stage) const {
        for (const Tensor& t : copies())
            if (!s.reduces(stage) && s.name(stage) == t.name()) return t;
        return {};
    }

    bool is_tiled(const Schedule& s, Stage stage) const {
        return std::ranges::any_of(tiled_, [&](const TiledProduct& p) { return makes(p, s, stage); }) ||
               is_one_of(views(), s, stage);
    }

    void schedule_other(Schedule& s, Stage stage) const {
        if (auto copy = copy_at(s, stage)) {
            std::vector<Tensor> stored = operands_of_windows(tiled_);
            stored.insert(stored.end(), outputs_.begin(), outputs_.end());
            for (const RedeclaredDepthwise& depthwise : declared_.depthwise) stored.push_back(depthwise.result);
            schedule_copy(s, *copy, stored);
        } else if (schedule_scattered(s, stage, outputs_))
            return;
        else if (const auto along = scanned_loop(s, stage))
            schedule_scan(s, stage, *along);
        else if (!s.reduces(stage))
            schedule_elements(s, stage);
        else if (!shareable_ || !reduce_together(s, stage))
            spread_results(s, stage, Threads);
    }

    const RedeclaredConvolutions& declared_;
    const MovedChannels& moved_;
    const std::vector<std::string>& copied_rows_;
    const std::vector<Tensor>& outputs_;
    const Target& target_;
    Schedule unscheduled_;
    std::vector<Tensor> views_;  // of elements, inlined when these are scheduled
    std::vector<Tensor> apart_;  // that reduce nothing, and are kernels of their own: lengths, what is read often
    bool shareable_;
    std::vector<TiledProduct> tiled_;
    ChosenRows rows_;
    std::string refusal_;       // of the last tiling of a product on tensor cores, or of rows
    std::vector<Tried> tried_;  // what was to be first before others
    std::vector<std::string> notes_;
    std::vector<OffUnits> off_units_;
};

struct Chosen {
    Schedule schedule;
    std::vector<Tensor> moved_in_vain;
    std::vector<std::string> rows_in_vain;
    bool sums_in_vain = false;
    std::vector<OffUnits> off_units;
    std::vector<std::string> left;  ///< why what was declared anew is not
};
/// Convolutions that cannot be tiled as they are declared anew are taken by the model, or as they were given.
Chosen chosen(const MovedChannels& moved, const std::vector<std::string>& copied_rows, const Target& target) {
    Exceptions exceptions;
    std::vector<std::string> left;
    for (;;) {
        const RedeclaredConvolutions declared = redeclare_convolutions(moved.outputs, exceptions, target);
        Chooser chooser(declared, moved, copied_rows, target);
        Schedule s = chooser.run();
        const std::vector<LeftOver> left_over = chooser.left_over();
        if (left_over.empty()) {
            for (const std::string& why : left) Edit::note(s, why);
            return {std::move(s),           chooser.moved_in_vain(),
                    chooser.rows().in_vain, chooser.rows().sums_in_vain,
                    chooser.off_units(),    left};
        }
        for (const LeftOver& each : left_over) {
            (each.is_fused         ? exceptions.apart
             : each.is_from_record ? exceptions.by_model
                                   : exceptions.as_given)
                .push_back(each.given);
            left.push_back(each.why);
        }
    }
}

/// Channels that were moved in vain stay.
Chosen with_moved_channels(const DeclaredRows& rows, bool sums_of_copies, const Target& target) {
    const SharedElements shared = share_elements(rows.outputs, {.sums_of_copies = sums_of_copies});
    const Redeclared summed = sums_together(shared.outputs);
    const Redeclared outlined =
        target.has_wgmma && target.has_tma ? outline_images(summed.outputs) : Redeclared{summed.outputs, {}};
    for (UnmovedChannels left;;) {
        const MovedChannels moved = move_channels(outlined.outputs, left, target);
        Chosen found = chosen(moved, rows.copies, target);
        if (found.moved_in_vain.empty()) {
            for (const auto* notes : {&rows.notes, &shared.notes, &summed.notes, &outlined.notes})
                for (const std::string& note : *notes) Edit::note(found.schedule, note);
            return found;
        }
        left.add(found.moved_in_vain, moved);
    }
}

FoundSchedule with_kept_rows(const Redeclared& products, const Target& target) {
    bool has_copies = true;
    for (std::vector<std::string> without;;) {
        Chosen found = with_moved_channels(declare_rows(products.outputs, without), has_copies, target);
        if (found.sums_in_vain && std::exchange(has_copies, false)) continue;
        const size_t before = without.size();
        for (const std::string& name : found.rows_in_vain)
            if (std::ranges::find(without, name) == without.end()) without.push_back(name);
        if (without.size() != before) continue;
        for (const std::string& note : products.notes) Edit::note(found.schedule, note);
        FoundSchedule result{std::move(found.schedule), {}, std::move(found.left)};
        for (OffUnits& each : found.off_units) {
            result.off_units.push_back(std::move(each.sums));
            result.reasons.push_back(std::move(each.why));
        }
        return result;
    }
}

/// Rows of products are made where their tiles are, if the model of time expects that to be faster.
FoundSchedule with_rows_of_products(const Redeclared& products, const Target& target) {
    std::optional<FoundSchedule> of_rest, stored;
    RowsOfProducts found =
        with_product_rows(products.outputs, target, [&](const std::vector<Tensor>& rest, const Target& on) {
            of_rest = with_kept_rows({rest, products.notes}, on);
            return of_rest->schedule;
        });
    auto with_memory = [&]() -> const Schedule& {
        if (!stored) stored = with_kept_rows(products, target);
        return stored->schedule;
    };
    if (are_faster(found, with_memory))
        return {std::move(*found.schedule), of_rest ? of_rest->off_units : std::vector<std::string>(),
                of_rest ? of_rest->reasons : std::vector<std::string>()};
    with_memory();  // also where nothing was found
    for (const std::string& why : found.refused) Edit::note(stored->schedule, why);
    return std::move(*stored);
}

Schedule choose_kernels(const std::vector<Tensor>& outputs, const Target& target) {
    return with_windows_as_matrices(
        outputs, target, [&](const Redeclared& products) { return with_rows_of_products(products, target); });
}

}  // namespace

Schedule choose_by_rule(const std::vector<Tensor>& outputs, const Target& target) {
    if (auto streamed = with_streamed_attention(outputs, target, choose_kernels)) return std::move(*streamed);
    return with_sums_by_phase(outputs, target,
                              [&](const std::vector<Tensor>& each) { return choose_kernels(each, target); });
}

}  // namespace tw::schedules

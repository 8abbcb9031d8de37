#include "schedules/product_rows.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "codegen/cost/predict_time.h"
#include "dsl/edit.h"
#include "schedules/beside_rows.h"
#include "schedules/declare_rows.h"
#include "schedules/rows_by_tiles.h"
#include "schedules/rows_in_tiles.h"
#include "schedules/unit_product.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

/// What the model of time counts at least of a product that is stored and read: by the kernel that multiplies, and by
/// one that reads it.
double seconds_in_memory(const Tensor& product, const Target& target) {
    const codegen::DeviceSpeeds speeds;
    const TensorProductShape shape = unit_product(product)->shape;
    const double rows = as_double(std::max<int64_t>(shape.batch, 1) * shape.m),
                 moved = rows * as_double(shape.n * bytes_of(product.type())) / speeds.memory_bytes,
                 macs = codegen::tensor_core_macs * 2 / as_double(bytes_of(shape.operand)),
                 multiplied = rows * as_double(shape.n * shape.k) / (macs * target.multiprocessors * speeds.clock);
    return std::max(moved, multiplied) + moved;
}

/// Parts of a computation that make rows of products, each where its tiles are.
class Parts {
public:
    Parts(const std::vector<Tensor>& outputs, const Target& target)
        : outputs_(reductions_apart(outputs)), target_(target) {}

    void find() {
        std::set<std::string> seen;
        for (bool more = true; std::exchange(more, false);)
            for (const RowOperation& operation : operations_of(outputs_)) {
                if (operation->is_input() || operation->shape.size() < 2 || !seen.insert(operation->name).second)
                    continue;
                take(Tensor(operation, 0));
                more = true;
                break;  // operations are others where some were declared anew
            }
    }

    const std::vector<Tensor>& outputs() const { return outputs_; }
    const std::vector<ScheduledPart>& found() const { return found_; }
    double least_with_memory() const { return least_with_memory_; }
    std::vector<std::string> refused;

private:
    void take(const Tensor& product) {
        if (take_in_tiles(product)) return;
        const std::vector<Tensor> apart = beside_rows(outputs_, product, BesideRows::OwnProducts);
        try {
            RowOperations inside = taken_;
            if (auto part = rows_by_tiles(product, apart, inside, target_))
                add(product, std::move(*part), inside, apart);
        } catch (const Error& error) {
            refuse(product, error);
        }
    }
    bool take_in_tiles(const Tensor& product) {
        const std::vector<Tensor> apart = beside_rows(outputs_, product, BesideRows::PartsOfRows);
        try {
            RowOperations inside = taken_;
            auto part = rows_in_tiles(product, apart, inside, target_);
            return part && add(product, std::move(*part), inside, apart);
        } catch (const Error& error) {
            refuse(product, error);
            return false;
        }
    }

    /// Whether it goes with the parts before.
    bool add(const Tensor& product, ScheduledPart part, const RowOperations& inside,
             const std::vector<Tensor>& outputs) {
        const RowOperations all = operations_of(outputs);
        for (const ScheduledPart& before : found_)
            for (const Tensor& given : before.given)
                if (!holds_operation(all, given.operation().get())) return false;
        if (!makes_one_of(product.operation(), part.given)) least_with_memory_ += seconds_in_memory(product, target_);
        found_.push_back(std::move(part));
        taken_ = inside;
        outputs_ = outputs;
        return true;
    }
    void refuse(const Tensor& product, const Error& error) {
        refused.push_back(fmt::format("rows of the product '{}' are not made in the registers of its tiles: {}",
                                      product.name(), error.what()));
    }

    std::vector<Tensor> outputs_;
    const Target& target_;
    std::vector<ScheduledPart> found_;
    RowOperations taken_;
    double least_with_memory_ = 0;
};

}  // namespace

RowsOfProducts with_product_rows(const std::vector<Tensor>& outputs, const Target& target,
                                 const ChooseRest& choose_rest) {
    if (!target.has_wgmma || !target.has_tma) return {};
    Parts parts(outputs, target);
    parts.find();
    RowsOfProducts found;
    found.refused = parts.refused;
    if (parts.found().empty()) return found;
    try {
        Schedule s = composed_of(parts.found(), parts.outputs(), target, choose_rest);
        found.seconds = codegen::predict_time(s.tree(), target).seconds;
        found.least_with_memory = parts.least_with_memory();
        for (const std::string& why : found.refused) Edit::note(s, why);
        found.schedule = std::move(s);
    } catch (const Error& error) {
        found.refused.push_back(
            fmt::format("rows of products are not made in the registers of their tiles: {}", error.what()));
    }
    return found;
}

bool are_faster(RowsOfProducts& rows, const std::function<const Schedule&()>& stored) {
    if (!rows.schedule) return false;
    if (rows.seconds < rows.least_with_memory) return true;
    const Schedule& other = stored();
    const double with_memory = codegen::predict_time(other.tree(), other.target()).seconds;
    if (rows.seconds < with_memory) return true;
    rows.refused.push_back(
        fmt::format("rows of products are not made in the registers of their tiles: {:.4f} ms by the model of time, "
                    "{:.4f} with the products in memory",
                    rows.seconds * 1e3, with_memory * 1e3));
    return false;
}

}  // namespace tw::schedules

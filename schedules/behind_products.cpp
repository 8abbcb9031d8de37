#include "schedules/behind_products.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "schedules/choose_windows.h"
#include "schedules/declared_as.h"
#include "schedules/replace_tensors.h"
#include "schedules/tiled_product.h"
#include "schedules/unit_product.h"

namespace tw::schedules {
namespace {

using OperationRef = std::shared_ptr<const Operation>;

class Folding {
public:
    Folding(const std::vector<Tensor>& outputs, const Target& target) : given_(outputs), target_(target) {
        for (const OperationRef& operation : operations_of(outputs))
            for (const Operation* read : operations_read(*operation)) readers_[read].insert(operation.get());
        for (const Tensor& output : outputs) outputs_.insert(output.operation().get());
    }

    Redeclared run() {
        for (const OperationRef& operation : operations_of(given_)) {
            if (operation->is_input() || operation->outputs.size() != 1) continue;
            Tensor now = whole_.of(Tensor(operation, 0));
            if (const Tensor folded = folded_into(now, operation.get()); folded.defined()) {
                whole_.put(Tensor(operation, 0), folded);
                now = folded;
            }
            if (outputs_.contains(operation.get())) continue;
            if (is_product(now) || !carried_by(now).empty())
                carriers_[now.operation().get()] = {now, operation.get(), is_product(now)};
        }
        for (const Tensor& output : given_) result_.outputs.push_back(whole_.of(output));
        return std::move(result_);
    }

private:
    static std::set<const Operation*> operations_read(const Operation& operation) {
        std::set<const Operation*> found;
        for (const Operation::Output& output : operation.outputs) {
            if (!output.body.defined()) continue;
            visit_with_extents(output.body, [&](const Expr& e) {
                if (const Read* read = e.as<Read>()) found.insert(read->operation.get());
            });
        }
        return found;
    }

    bool is_product(const Tensor& tensor) const {
        if (!only_reduction(body_of(tensor)) || window_product(tensor, given_)) return false;
        return unit_product(tensor) || product_of_threads(tensor, target_) || column_reduction(tensor);
    }

    /// A product, or elements that are made of one where they stand; no output.
    struct Carrier {
        Tensor tensor;           ///< as it is declared now
        const Operation* given;  ///< the operation that it was
        bool is_product;
    };

    /// Those that the tensor reads where it stands; none if it reduces anything.
    std::vector<Carrier> carried_by(const Tensor& tensor) const {
        std::vector<Carrier> found;
        bool reduces = false;
        visit(body_of(tensor), [&](const Expr& e) {
            reduces = reduces || e.as<Reduce>();
            const Read* read = e.as<Read>();
            const auto carrier = read ? carriers_.find(read->operation.get()) : carriers_.end();
            if (carrier == carriers_.end()) return;
            const bool is_new =
                std::ranges::none_of(found, [&](const Carrier& each) { return each.given == carrier->second.given; });
            if (is_new && reads_where_it_stands(tensor, carrier->second.tensor)) found.push_back(carrier->second);
        });
        return reduces ? std::vector<Carrier>() : found;
    }

    /// The tensor, with what those make that it alone reads, itself or through others of these, in the place of its
    /// reads, up to the first product; undefined if there is none.
    Tensor folded_into(const Tensor& tensor, const Operation* given) {
        Tensor now = tensor;
        std::set<const Operation*> own{given};
        for (;;) {
            const std::vector<Carrier> carried = carried_by(now);
            const auto alone = std::ranges::find_if(
                carried, [&](const Carrier& each) { return std::ranges::includes(own, readers_.at(each.given)); });
            if (alone == carried.end()) return {};
            now = with_elements_of(now, alone->tensor);
            own.insert(alone->given);
            if (!alone->is_product) continue;
            result_.notes.push_back(
                fmt::format("'{}' is made with '{}', which alone reads it", alone->tensor.name(), tensor.name()));
            return now;
        }
    }
    static Tensor with_elements_of(const Tensor& tensor, const Tensor& read_by_it) {
        const std::vector<Expr>& axes = tensor.operation()->axes;
        const Expr element = over(read_by_it.operation()->axes, body_of(read_by_it), axes);
        return declared_as(tensor, transform(body_of(tensor), [&](const Expr& e) {
                               const Read* read = e.as<Read>();
                               return read && read->operation == read_by_it.operation() ? element : Expr();
                           }));
    }
    static bool reads_where_it_stands(const Tensor& tensor, const Tensor& product) {
        const Operation& reader = *tensor.operation();
        bool own = std::ranges::equal(tensor.shape(), product.shape(), equal);
        visit(body_of(tensor), [&](const Expr& e) {
            const Read* read = e.as<Read>();
            if (read && read->operation == product.operation())
                own = own && !read->guarded && std::ranges::equal(read->indices, reader.axes, equal);
        });
        return own;
    }

    const std::vector<Tensor>& given_;
    const Target& target_;
    std::map<const Operation*, std::set<const Operation*>> readers_;  // of what was given
    std::set<const Operation*> outputs_;
    std::map<const Operation*, Carrier> carriers_;  // by what they are now
    Replacement whole_;
    Redeclared result_;
};

}  // namespace

Redeclared behind_products(const std::vector<Tensor>& outputs, const Target& target) {
    return Folding(outputs, target).run();
}

}  // namespace tw::schedules

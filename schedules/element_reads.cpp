#include "schedules/element_reads.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <set>
#include <unordered_set>

#include "codegen/cost/operation_costs.h"
#include "dsl/deep.h"
#include "dsl/simplify.h"

namespace tw::schedules {
namespace {

constexpr int64_t WarpThreads = 32, LineBytes = 128, MostBytes = 16;
constexpr int64_t UnknownExtent = int64_t{1} << 16;
constexpr int64_t MostElements = int64_t{1} << 50;

/// The loads of an expression, and whether they are made in any case (Collector in codegen/to_threads/preload.cpp).
class Reads {
public:
    void take(const Expr& value) {
        collect(value);
        while (!branches_.empty()) {
            const Expr branch = branches_.back();
            branches_.pop_back();
            is_lazy_ = true;
            collect(branch);
            is_lazy_ = false;
        }
    }
    int64_t operations() const { return static_cast<int64_t>(seen_.size()); }
    double instructions_of_functions() const { return of_functions_; }

    struct Found {
        Expr load;
        bool is_guarded, is_lazy;
    };
    const std::vector<Found>& found() const { return found_; }

private:
    void collect(const Expr& expr) {
        if (!seen_.insert(expr.id()).second) return;
        if (const Load* load = expr.as<Load>()) {
            found_.push_back({expr, false, is_lazy_});
            for (const Expr& index : load->indices) collect(index);
        } else if (const Select* choice = expr.as<Select>()) {
            collect(choice->condition);
            if (choice->yes.as<Load>() && is_literal(choice->no) && seen_.insert(choice->yes.id()).second)
                found_.push_back({choice->yes, true, is_lazy_});
            branches_.insert(branches_.end(), {choice->yes, choice->no});
        } else if (const Binary* both = expr.as<Binary>();
                   both && (both->op == BinaryOp::And || both->op == BinaryOp::Or)) {
            collect(both->a);
            branches_.push_back(both->b);
        } else {
            of_functions_ += codegen::operations_of_function(expr) - (expr.as<Unary>() ? 1 : 0);
            for (const Expr& kid : children(expr)) collect(kid);
        }
    }

    static bool is_literal(const Expr& e) { return e.as<IntConstant>() || e.as<FloatConstant>(); }

    std::vector<Found> found_;
    std::vector<Expr> branches_;
    std::unordered_set<const ExprNode*> seen_;
    double of_functions_ = 0;
    bool is_lazy_ = false;
};

/// Nothing without constant strides.
Expr place_of(const BufferNode& buffer, const std::vector<Expr>& indices) {
    Expr place = integer(0);
    int64_t stride = 1;
    for (size_t d = indices.size(); d-- > 0;) {
        if (!buffer.strides.empty()) {
            const auto given = as_constant(buffer.strides[d]);
            if (!given) return {};
            stride = *given;
        }
        place = place + cast_unchecked(Type::I64, indices[d]) * stride;
        if (d == 0 || !buffer.strides.empty()) continue;
        const auto extent = as_constant(buffer.shape[d]);
        if (!extent || (*extent > 0 && stride > MostElements / *extent)) return {};
        stride *= *extent;
    }
    return place;
}

/// Some number that looks like no other.
uint64_t mixed(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/// The value of an integer at a place in the loops; of what data decide, some number that depends on the same.
class At {
public:
    At(const std::vector<Expr>& loops, const std::vector<int64_t>& digits) : loops_(loops), digits_(digits) {}

    int64_t operator()(const Expr& expr) const {
        if (--left_ < 0) return 0;  // shared parts of data are no reason to take long
        if (const auto value = as_constant(expr)) return *value;
        if (expr.as<Variable>()) return of_variable(expr);
        if (const Cast* cast = expr.as<Cast>(); cast && is_integer(cast->a.type())) return (*this)(cast->a);
        if (const Binary* node = expr.as<Binary>()) return of_binary(*node, expr);
        return of_data(expr);
    }

private:
    int64_t of_variable(const Expr& variable) const {
        for (size_t l = 0; l < loops_.size(); ++l)
            if (loops_[l].same(variable)) return digits_[l];
        return 0;
    }
    int64_t of_binary(const Binary& node, const Expr& expr) const {
        if (!is_integer(expr.type())) return of_data(expr);
        const int64_t a = (*this)(node.a), b = (*this)(node.b);
        const auto wrapped = [](uint64_t value) { return static_cast<int64_t>(value); };
        const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
        const bool divides = b > 0;
        const int64_t remainder = divides ? (a % b + b) % b : 0;
        switch (node.op) {
            case BinaryOp::Add: return wrapped(x + y);
            case BinaryOp::Sub: return wrapped(x - y);
            case BinaryOp::Mul: return wrapped(x * y);
            case BinaryOp::Min: return std::min(a, b);
            case BinaryOp::Max: return std::max(a, b);
            case BinaryOp::Div: return divides ? (a - remainder) / b : 0;
            case BinaryOp::Mod: return remainder;
            default: return some_number(mixed(x) ^ y);
        }
    }
    int64_t of_data(const Expr& expr) const {
        uint64_t all = 0;
        for (const Expr& kid : children(expr)) all = mixed(all ^ static_cast<uint64_t>((*this)(kid)));
        return some_number(all);
    }
    static int64_t some_number(uint64_t seed) { return static_cast<int64_t>(mixed(seed) >> 44); }

    const std::vector<Expr>& loops_;
    const std::vector<int64_t>& digits_;
    mutable int left_ = 1000;  // nodes to look at
};

int64_t lines_of(std::vector<int64_t> places, int64_t bytes) {
    for (int64_t& place : places) place = place * bytes >> 7;  // LineBytes
    std::ranges::sort(places);
    return std::distance(places.begin(), std::unique(places.begin(), places.end()));
}
static_assert(LineBytes == 1 << 7);

/// What an access reads: a sum of multiples of indices by these, all else node by node.
class PlaceOfDigits {
public:
    PlaceOfDigits(const std::vector<Expr>& loops, const Expr& place) : loops_(loops), place_(place) {
        const Affine affine = affine_of(place);
        std::vector<int64_t> factors(loops.size());
        for (const auto& [atom, factor] : affine.terms) {
            const auto loop = std::ranges::find_if(loops, [&](const Expr& each) { return each.same(atom); });
            if (loop == loops.end()) return;
            factors[static_cast<size_t>(loop - loops.begin())] = factor;
        }
        first_ = affine.offset;
        factors_ = std::move(factors);
    }
    int64_t operator()(const std::vector<int64_t>& digits) const {
        if (factors_.empty()) return At(loops_, digits)(place_);
        return std::inner_product(digits.begin(), digits.end(), factors_.begin(), first_);
    }

private:
    const std::vector<Expr>& loops_;
    const Expr& place_;
    int64_t first_ = 0;
    std::vector<int64_t> factors_;  // of each loop; none: the place is no such sum
};

/// A warp's places, of `vector` elements a thread.
class WarpPlaces {
public:
    WarpPlaces(const Elements& elements, const ElementAccess& access, int64_t first, int64_t vector)
        : bytes_(bytes_of(access.buffer->type)), is_lazy_(access.is_lazy) {
        std::vector<int64_t> digits(elements.loops.size());
        const int64_t count = elements.count();
        const PlaceOfDigits place_of(elements.loops, access.place);
        for (int64_t lane = 0; lane < WarpThreads && first + lane * vector < count; ++lane) {
            std::vector<int64_t>& own = places_.emplace_back();
            for (int64_t element = 0; element < vector; ++element) {
                int64_t left = std::min(first + lane * vector + element, count - 1);
                for (size_t l = digits.size(); l-- > 0; left /= elements.extents[l])
                    digits[l] = left % elements.extents[l];
                own.push_back(place_of(digits));
            }
        }
    }

    /// Those of another access, too.
    void join(const WarpPlaces& other) {
        for (size_t lane = 0; lane < places_.size(); ++lane)
            places_[lane].insert(places_[lane].end(), other.places_[lane].begin(), other.places_[lane].end());
    }

    double cost() const {
        const auto vector = static_cast<int64_t>(places_[0].size());
        if (is_uniform()) return of_elements(vector);
        return of_elements(is_wide() ? std::max<int64_t>(MostBytes / bytes_, 1) : 1);
    }

    /// By groups of so many neighbours that begin at multiples of that; nothing where lanes need unlike ones.
    std::optional<double> cost_of_groups(int64_t together) const {
        auto base_of = [&](const std::vector<int64_t>& own) {
            const int64_t first = *std::ranges::min_element(own);
            return first - first % together;
        };
        auto places_of = [&](const std::vector<int64_t>& own) {
            std::set<int64_t> places;
            for (const int64_t place : own) places.insert(place - base_of(own));
            return places;
        };
        const std::set<int64_t> wanted = places_of(places_[0]);
        std::vector<int64_t> bases;
        for (const std::vector<int64_t>& own : places_) {
            if (*std::ranges::min_element(own) < 0 || places_of(own) != wanted) return {};
            bases.push_back(base_of(own));
        }
        double cost = 0;
        for (auto place = wanted.begin(); place != wanted.end();) {
            const auto end = wanted.lower_bound(*place - *place % together + together);
            const int64_t count = std::distance(place, end);
            std::vector<int64_t> all = bases;
            for (int64_t& each : all) each += *place;
            const bool is_joined = count > 1 && count * 2 >= together;
            cost += static_cast<double>((1 + lines_of(all, bytes_)) * (is_joined ? 1 : count));
            place = end;
        }
        return cost;
    }

private:
    bool is_uniform() const {
        return std::ranges::all_of(places_, [](const std::vector<int64_t>& own) {
            return std::ranges::all_of(own, [&](int64_t place) { return place == own[0]; });
        });
    }
    bool is_wide() const {
        return !is_lazy_ && std::ranges::all_of(places_, [](const std::vector<int64_t>& own) {
            const auto vector = static_cast<int64_t>(own.size());
            if (own[0] % vector != 0) return false;
            for (int64_t element = 0; element < vector; ++element)
                if (own[static_cast<size_t>(element)] != own[0] + element) return false;
            return true;
        });
    }
    /// So many elements a request.
    double of_elements(int64_t together) const {
        double cost = 0;
        for (size_t element = 0; element < places_[0].size(); element += static_cast<size_t>(together)) {
            std::vector<int64_t> all;
            for (const std::vector<int64_t>& own : places_) all.push_back(own[element]);
            cost += 1 + static_cast<double>(lines_of(all, bytes_));
        }
        return cost;
    }

    int64_t bytes_;
    bool is_lazy_;
    std::vector<std::vector<int64_t>> places_;  // of each lane
};

/// The loops around the stage's only leaf.
struct Chain {
    std::vector<const For*> loops;
    const Leaf* leaf = nullptr;
};
std::optional<Chain> chain_of(const Tree& tree, int stage) {
    for (const Nest& nest : tree.nests) {
        Chain chain;
        const Stmt* inside = &nest.body;
        while (const For* loop = inside->as<For>()) {
            chain.loops.push_back(loop);
            inside = &loop->body;
        }
        chain.leaf = inside->as<Leaf>();
        const bool is_plain =
            std::ranges::all_of(chain.loops, [](const For* loop) { return loop->level == Level::Serial; });
        if (chain.leaf && chain.leaf->stage == stage && is_plain) return chain;
    }
    return {};
}

}  // namespace

int64_t Elements::count() const {
    int64_t all = 1;
    for (int64_t extent : extents) all = extent > 0 ? std::min(all, MostElements / extent) * extent : 0;
    return all;
}

std::optional<int64_t> size_of(const BufferNode& buffer) {
    int64_t all = 1;
    for (const Expr& extent : buffer.shape) {
        const auto constant = as_constant(extent);
        if (!constant) return {};
        all = *constant > 0 ? std::min(all, MostElements / *constant) * *constant : 0;
    }
    return all;
}

std::optional<Elements> elements_of(const Schedule& s, Stage stage) {
    const auto chain = chain_of(s.tree(), stage.id);
    if (!chain || chain->loops.empty()) return {};
    Elements result;
    for (const For* loop : chain->loops) {
        const auto extent = as_constant(loop->extent);
        if (!extent && !result.loops.empty()) return {};
        result.loops.push_back(loop->variable);
        result.extents.push_back(extent.value_or(UnknownExtent));
    }
    bool is_known = true;
    auto add = [&](const BufferRef& buffer, const std::vector<Expr>& indices, ElementAccess access) {
        if (buffer->memory != Memory::Global) return;
        access.buffer = buffer;
        access.place = place_of(*buffer, indices);
        is_known = is_known && access.place.defined();
        const bool is_listed = std::ranges::any_of(result.accesses, [&](const ElementAccess& known) {
            return known.buffer == buffer && known.is_store == access.is_store && is_known &&
                   equal(known.place, access.place);
        });
        if (is_known && !is_listed) result.accesses.push_back(access);
    };
    for (const StoreTo& store : chain->leaf->stores) result.depth = std::max(result.depth, depth_of(store.value));
    with_room_for(result.depth, [&] {
        Reads reads;
        for (const StoreTo& store : chain->leaf->stores) {
            add(store.buffer, store.indices, {.buffer = {}, .place = {}, .is_store = true});
            reads.take(store.value);
        }
        result.operations = reads.operations();
        result.instructions_of_functions = reads.instructions_of_functions();
        for (const auto& [expr, is_guarded, is_lazy] : reads.found()) {
            const Load& load = *expr.as<Load>();
            add(load.buffer, load.indices, {.buffer = {}, .place = {}, .is_guarded = is_guarded, .is_lazy = is_lazy});
        }
    });
    if (!is_known || result.count() == 0) return {};
    return result;
}

namespace {

/// Of a few warps, for all: for each element of a thread.
double mean_cost(const Elements& elements, int64_t vector, const std::function<double(int64_t first)>& cost_of_warp) {
    constexpr int64_t samples = 4;
    const int64_t warps = std::max<int64_t>(elements.count() / (WarpThreads * vector), 1);
    double cost = 0;
    for (int64_t sample = 0; sample < samples; ++sample) {
        const int64_t warp = static_cast<int64_t>(mixed(static_cast<uint64_t>(sample)) >> 1) % warps;
        cost += cost_of_warp(warp * WarpThreads * vector);
    }
    return cost / static_cast<double>(samples * vector);
}

/// Of reads of one buffer: each by itself, or together.
double cost_of_reads(const Elements& elements, const std::vector<ElementAccess>& reads, int64_t first, int64_t vector) {
    WarpPlaces all(elements, reads[0], first, vector);
    double least = all.cost();
    if (reads.size() == 1) return least;
    for (size_t n = 1; n < reads.size(); ++n) {
        const WarpPlaces other(elements, reads[n], first, vector);
        least += other.cost();
        all.join(other);
    }
    for (int64_t together = 2; together * bytes_of(reads[0].buffer->type) <= MostBytes; together *= 2)
        if (const auto joined = all.cost_of_groups(together)) least = std::min(least, *joined);
    return least;
}

}  // namespace

double cost_of(const Elements& elements, const ElementAccess& access, int64_t vector) {
    return mean_cost(elements, vector,
                     [&](int64_t first) { return WarpPlaces(elements, access, first, vector).cost(); });
}

double cost_of_all(const Elements& elements, int64_t vector) {
    double cost = 0;
    std::vector<std::vector<ElementAccess>> joined;
    for (const ElementAccess& access : elements.accesses) {
        auto same = std::ranges::find_if(joined, [&](const auto& known) { return known[0].buffer == access.buffer; });
        if (access.is_store || access.is_guarded || access.is_lazy)
            cost += cost_of(elements, access, vector);
        else if (same != joined.end())
            same->push_back(access);
        else
            joined.push_back({access});
    }
    // Of threads that read more beside each other, the first cache loses what others of a piece are to read.
    constexpr int64_t most_of_a_thread = 64;  // bytes
    for (const std::vector<ElementAccess>& reads : joined) {
        const int64_t bytes = static_cast<int64_t>(reads.size()) * vector * bytes_of(reads[0].buffer->type);
        if (reads.size() == 1 || bytes <= most_of_a_thread)
            cost += mean_cost(elements, vector,
                              [&](int64_t first) { return cost_of_reads(elements, reads, first, vector); });
        else
            for (const ElementAccess& read : reads) cost += cost_of(elements, read, vector);
    }
    return cost;
}

bool is_chosen_by_data(const Read& read) {
    return std::ranges::any_of(read.indices, [](const Expr& index) {
        bool reads = false;
        visit(index, [&](const Expr& e) { reads = reads || e.as<Read>(); });
        return reads;
    });
}

}  // namespace tw::schedules

// Attention of packed sequences by its formula, in float64, for each row and the keys that it sees: what kernels of it
// are compared with.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "dsl/interpret.h"
#include "schedules/attention_varlen.h"

namespace tw::schedules {

struct Place {
    int64_t batch, head, row, key, position;
};
/// Rules, and what they mean in float64: of a score, its slope there, and what a weight is multiplied by.
struct Varied {
    AttentionRules rules;
    std::function<double(double score, const Place& at)> score = [](double score, const Place&) { return score; };
    std::function<double(double score, const Place& at)> slope = [](double, const Place&) { return 1.0; };
    std::function<double(const Place& at)> weight = [](const Place&) { return 1.0; };
};

struct PackedResults {
    HostArray o, lse, dq, dk, dv, d_sinks;
};

class PackedFormula {
public:
    PackedFormula(const VarlenShape& shape, const Varied& varied, const Bindings& launch)
        : shape_(shape), varied_(varied), launch_(launch) {}

    PackedResults of(const Offsets& of_rows, const Offsets& of_keys, const SeenKeys& seen) {
        const auto& [S, N, H, D, E, G, type] = shape_;
        PackedResults all{zeros({S, H, E}),     zeros({H, S}),        zeros({S, H, D}),
                          zeros({N, H / G, D}), zeros({N, H / G, E}), zeros({H})};
        for (size_t b = 0; b + 1 < of_rows.size(); ++b)
            for (int64_t i = of_rows[b]; i < of_rows[b + 1]; ++i)
                for (int64_t h = 0; h < H; ++h) {
                    std::vector<Place> places;
                    const int64_t row = i - of_rows[b], keys = of_keys[b + 1] - of_keys[b],
                                  position = row + keys - (of_rows[b + 1] - of_rows[b]);
                    for (int64_t key = 0; key < keys; ++key)
                        if (key >= position - seen.before && key <= position + seen.behind)
                            places.push_back({static_cast<int64_t>(b), h, row, key, position});
                    add_row(i, of_keys[b], h, places, all);
                }
        return all;
    }

private:
    static HostArray zeros(const std::vector<int64_t>& shape) {
        HostArray array = host_array(f64, shape);
        fill_uniform(array, 0, 0, 1);
        return array;
    }
    double of(const char* name, int64_t i, int64_t h, int64_t x) const {
        return launch_.inputs.at(name).at({i, h, x}).real;
    }
    double product(const char* left, int64_t i, int64_t h, const char* right, int64_t j, int64_t extent) const {
        double total = 0;
        for (int64_t x = 0; x < extent; ++x) total += of(left, i, h, x) * of(right, j, h / shape_.group, x);
        return total;
    }
    static void add(HostArray& to, const std::vector<int64_t>& at, double value) {
        to.set(at, make_value(f64, to.at(at).real + value));
    }

    void add_row(int64_t i, int64_t first_key, int64_t h, const std::vector<Place>& places, PackedResults& all) const {
        const double scale = 1 / std::sqrt(static_cast<double>(shape_.depth));
        const bool sinks = varied_.rules.sinks.defined();
        std::vector<double> scores, weights;
        const double sink = sinks ? launch_.inputs.at("sinks").at({h}).real : -HUGE_VAL;
        double top = sink, delta = 0;
        for (const Place& at : places) {
            scores.push_back(product("q", i, h, "k", first_key + at.key, shape_.depth) * scale);
            weights.push_back(varied_.score(scores.back(), at));
            top = std::max(top, weights.back());
        }
        if (std::isinf(top)) top = 0;  // no key is seen
        const double of_sink = sinks ? std::exp(sink - top) : 0;
        double total = of_sink;
        for (double& weight : weights) total += weight = std::exp(weight - top);
        all.lse.set({h, i}, make_value(f64, top * std::log2(std::exp(1.0)) + std::log2(total)));
        if (total == 0) return;
        const bool backward = launch_.inputs.contains("g");
        for (int64_t e = 0; e < shape_.width; ++e) {
            double o = 0;
            for (size_t n = 0; n < places.size(); ++n)
                o += weights[n] / total * varied_.weight(places[n]) *
                     of("v", first_key + places[n].key, h / shape_.group, e);
            all.o.set({i, h, e}, make_value(f64, o));
            if (backward) delta += o * of("g", i, h, e);
        }
        if (!backward) return;
        add(all.d_sinks, {h}, -of_sink / total * delta);
        for (size_t n = 0; n < places.size(); ++n) {
            const Place& at = places[n];
            const double p = weights[n] / total, factor = varied_.weight(at);
            const int64_t j = first_key + at.key, head = h / shape_.group;
            if (p == 0) continue;
            const double ds =
                p * (product("g", i, h, "v", j, shape_.width) * factor - delta) * varied_.slope(scores[n], at) * scale;
            for (int64_t x = 0; x < shape_.depth; ++x) {
                add(all.dq, {i, h, x}, ds * of("k", j, head, x));
                add(all.dk, {j, head, x}, ds * of("q", i, h, x));
            }
            for (int64_t e = 0; e < shape_.width; ++e) add(all.dv, {j, head, e}, p * factor * of("g", i, h, e));
        }
    }

    const VarlenShape& shape_;
    const Varied varied_;
    const Bindings& launch_;
};

/// Of finite elements.
inline double largest(const HostArray& array) {
    double most = 0;
    for (std::vector<int64_t> at(array.shape.size(), 0);;) {
        const double value = std::abs(array.at(at).real);
        if (std::isfinite(value)) most = std::max(most, value);
        if (!advance(at, array.shape)) return most;
    }
}

/// Those of the inputs that there are.
inline void set_tables(Bindings& launch, const VarlenTables& tables, const std::string& suffix = "") {
    for (const auto& [name, table] :
         {std::pair("tiles", &tables.tiles), std::pair("seen", &tables.seen), std::pair("places", &tables.places)})
        if (launch.inputs.contains(name + suffix)) launch.inputs.at(name + suffix) = *table;
}
/// o and lse, as types hold them: what a forward pass saves for its gradients.
inline void set_saved(Bindings& launch, const PackedResults& results) {
    for (const auto& [name, saved] : {std::pair("o", &results.o), std::pair("lse", &results.lse)})
        for (std::vector<int64_t> at(saved->shape.size(), 0);;) {
            HostArray& to = launch.inputs.at(name);
            to.set(at, make_value(to.type, saved->at(at).real));
            if (!advance(at, saved->shape)) break;
        }
}

}  // namespace tw::schedules

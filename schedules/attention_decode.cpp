#include "schedules/attention_decode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "schedules/loading_roles.h"
#include "schedules/require_sizes.h"
#include "schedules/whole_tiles.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64, merging_threads = 128;

double to_base_2(const AttentionInParts& a, const AttentionShape& shape) {
    const double of_exponential = std::log2(std::exp(1.0));
    return a.rules.score ? of_exponential : of_exponential / std::sqrt(as_double(shape.depth));
}

}  // namespace

void require_decode_tiles(const DecodeTiles& tiles, std::source_location where) {
    require_sizes("decode tiles", {{"keys", tiles.keys}, {"stages", tiles.stages}, {"parts", tiles.parts}}, where);
}

namespace {

void require_steps_of_units(const DecodeTiles& tiles, std::source_location where) {
    constexpr int64_t terms_of_unit = 16, most = 256;
    require_decode_tiles(tiles, where);
    require_sizes("decode tiles", {{"keys", tiles.keys, 1, terms_of_unit, most}}, where);
}

}  // namespace

bool is_decode(const AttentionShape& shape) {
    const bool sees_all = !shape.causal || shape.keys_before >= shape.keys - 1;
    return shape.rows == 1 && sees_all && !shape.heads_first;
}

AttentionInParts declare_attention_in_parts(const AttentionShape& shape, int64_t keys_of_part,
                                            const AttentionRules& rules, const AttentionOperands& operands,
                                            std::source_location where) {
    CalledFrom caller(where);
    require_sizes("attention in parts", {{"keys_of_part", keys_of_part}}, where);
    user_check(is_decode(shape), where,
               "attention in parts: {} rows{}{}; declare one row that sees all keys, with rows in front of heads",
               shape.rows, shape.causal ? ", causal" : "", shape.heads_first ? ", heads in front of them" : "");
    check_attention(shape);
    const Attention whole = declare_attention(shape, {}, false, {}, rules.sinks, operands);
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    const int64_t T = keys_of_part, C = divided(N, T), keys = N;
    AttentionInParts a;
    a.q = whole.q, a.k = whole.k, a.v = whole.v;
    a.rules = rules;
    a.suffix = operands.suffix;
    // The last part may have fewer keys; those that are missing are masked.
    a.k_part = compute("k_part" + a.suffix, {B, C, T, H / G, D},
                       [&](Expr b, Expr c, Expr j, Expr h, Expr x) { return padded(a.k, 0.0)(b, c * T + j, h, x); });
    a.v_part = compute("v_part" + a.suffix, {B, C, T, H / G, E},
                       [&](Expr b, Expr c, Expr j, Expr h, Expr x) { return padded(a.v, 0.0)(b, c * T + j, h, x); });
    const bool whole_parts = C * T == N;
    auto place = [&](const Expr& b, const Expr& head, const Expr& c, const Expr& j) {
        const Expr key = c * T + j, row = integer(0);
        return ScorePlace{b, head, row, whole_parts ? key : min(key, keys - 1), integer(keys - 1)};
    };
    auto keys_of = [&](const std::string& name, const Expr&, const Expr&) { return reduce_axis(name, T); };
    auto is_there = [&](const Expr&, const Expr& c, const Expr& j) { return whole_parts ? Expr() : c * T + j < keys; };
    declare_parts(shape, a, {B, H / G, G, C, T}, place, keys_of, is_there);
    declare_merged_parts(shape, a, rules.score != nullptr);
    return a;
}

void declare_parts(const AttentionShape& shape, AttentionInParts& a, const Shape& of_keys, const PlaceInPart& at,
                   const std::function<Axis(const std::string& name, const Expr& b, const Expr& c)>& keys_of,
                   const std::function<Expr(const Expr& b, const Expr& c, const Expr& j)>& is_there) {
    const AttentionRules& rules = a.rules;
    const Shape of_parts(of_keys.begin(), of_keys.end() - 1);
    const bool far = may_add_far(rules.score);
    const double scale = to_base_2(a, shape), to_score = 1 / std::sqrt(as_double(shape.depth));
    const Axis d = reduce_axis("d", shape.depth);
    a.s = compute("s" + a.suffix, of_keys, [&](Expr b, Expr h, Expr g, Expr c, Expr j) {
        const Expr head = h * shape.group + g;
        Expr score = sum(cast(f32, a.q(b, 0, head, d)) * cast(f32, a.k_part(b, c, j, h, d)), d);
        if (rules.score) score = changed_by(rules.score, score * to_score, at(b, head, c, j));
        const Expr there = is_there(b, c, j);
        return there.defined() ? select(there, score, -infinity) : score;
    });
    a.m = compute("m" + a.suffix, of_parts, [&](Expr b, Expr h, Expr g, Expr c) {
        const Axis j = keys_of("j1", b, c);
        return reduce_max(a.s(b, h, g, c, j), j);
    });
    a.p = compute("p" + a.suffix, of_keys, [&](Expr b, Expr h, Expr g, Expr c, Expr j) {
        return exp2(exponent_of(a.s(b, h, g, c, j), a.m(b, h, g, c), scale, far));
    });
    a.w = a.p;
    if (rules.weights)
        a.w = compute("w" + a.suffix, of_keys, [&](Expr b, Expr h, Expr g, Expr c, Expr j) {
            return weighed_by(rules.weights, a.p(b, h, g, c, j), at(b, h * shape.group + g, c, j));
        });
    // Of a part that rules leave no key all terms are 0.
    auto of_seen = [&](const Expr& b, const Expr& h, const Expr& g, const Expr& c, const Expr& sum) {
        return rules.score ? select(a.m(b, h, g, c) == -infinity, 0.0, sum) : sum;
    };
    a.l = compute("l" + a.suffix, of_parts, [&](Expr b, Expr h, Expr g, Expr c) {
        const Axis j = keys_of("j2", b, c);
        return of_seen(b, h, g, c, sum(a.p(b, h, g, c, j), j));
    });
    Shape of_values = of_parts;
    of_values.emplace_back(shape.width);
    a.o_part = compute("o_part" + a.suffix, of_values, [&](Expr b, Expr h, Expr g, Expr c, Expr e) {
        const Axis j = keys_of("j3", b, c);
        return of_seen(b, h, g, c, sum(a.w(b, h, g, c, j) * cast(f32, a.v_part(b, c, j, h, e)), j));
    });
}

void declare_merged_parts(const AttentionShape& shape, AttentionInParts& a, bool may_be_empty) {
    const auto& [B, H, S, N, D, E, G, causal, type, before, heads_first] = shape;
    const Expr C = a.m.shape().back();
    const double scale = to_base_2(a, shape);
    const bool far = may_add_far(a.rules.score);
    const Tensor& sinks = a.rules.sinks;
    Axis c1 = reduce_axis("c1", C), c2 = reduce_axis("c2", C), c3 = reduce_axis("c3", C);
    auto of_head = [&](const Tensor& part, const Expr& b, const Expr& h, const Expr& c) {
        return part(b, h / shape.group, h % shape.group, c);
    };
    a.top = compute("top" + a.suffix, {B, H}, [&](Expr b, Expr h) {
        const Expr top = reduce_max(of_head(a.m, b, h, c1), c1);
        // Of which differences from -infinity are that, too.
        const double below_all = far ? std::numeric_limits<float>::lowest() : -1e30;
        return may_be_empty ? max(top, below_all) : top;
    });
    auto share = [&](const Expr& b, const Expr& h, const Expr& c) {
        return exp2(exponent_of(of_head(a.m, b, h, c), a.top(b, h), scale, far));
    };
    a.total = compute("total" + a.suffix, {B, H},
                      [&](Expr b, Expr h) { return sum(of_head(a.l, b, h, c2) * share(b, h, c2), c2); });
    auto divided_by = [&](const Expr& b, const Expr& h) {
        const SoftmaxSum of_keys{a.top(b, h) * scale, a.total(b, h)};
        return sinks.defined() ? with_score(of_keys, sinks(h)) : of_keys;
    };
    auto sink_of = [&](const Expr& h) { return sinks.defined() ? sinks(h) : Expr(); };
    auto beside_top = [&](const Expr& b, const Expr& h) {
        return sum_beside_top(a.total(b, h), a.top(b, h), sink_of(h));
    };
    a.weight = compute("weight" + a.suffix, {B, H, C}, [&](Expr b, Expr h, Expr c) {
        const SoftmaxSum whole = far ? SoftmaxSum{{}, beside_top(b, h)} : divided_by(b, h);
        const Expr weight = (far ? share(b, h, c) : exp2(of_head(a.m, b, h, c) * scale - whole.top)) / whole.sum;
        return may_be_empty ? select(whole.sum > 0.0, weight, 0.0) : weight;
    });
    a.values = compute("values" + a.suffix, {B, H, E}, [&](Expr b, Expr h, Expr e) {
        return sum(a.o_part(b, h / shape.group, h % shape.group, c3, e) * a.weight(b, h, c3), c3);
    });
    a.o = compute("o" + a.suffix, {B, S, H, E},
                  [&](Expr b, Expr, Expr h, Expr e) { return cast(shape.type, a.values(b, h, e)); });
    a.lse = compute("lse" + a.suffix, {B, H, S}, [&](Expr b, Expr h, Expr) {
        if (far) return lse_of_sum(beside_top(b, h), a.top(b, h), sink_of(h));
        const SoftmaxSum whole = divided_by(b, h);
        return whole.top + log2(whole.sum);
    });
}

DecodeTiles decode_tiles(const AttentionShape& shape, const Target& target) {
    DecodeTiles tiles;
    const int64_t key = (padded_head(shape.depth) + padded_head(shape.width)) * bytes_of(shape.type),
                  queries = rows_of_warpgroup * padded_head(shape.depth) * bytes_of(shape.type);
    constexpr int64_t memory = 216 << 10, most_stages = 6;  // all that keeps memory busy
    tiles.stages = static_cast<int>(std::clamp<int64_t>((memory - 2 * queries) / (tiles.keys * key), 2, most_stages));
    const int64_t tiles_of_all = shape.batch * (shape.heads / shape.group) * divided(shape.group, rows_of_warpgroup);
    const int64_t least = 4 * tiles.keys;  // keys of a part for which its start is worth it
    if (tiles_of_all < target.multiprocessors)
        tiles.parts =
            std::clamp<int64_t>(target.multiprocessors / tiles_of_all, 1, std::max<int64_t>(1, shape.keys / least));
    return tiles;
}

namespace {

bool is_longer(const Expr& extent, int64_t step) { return as_constant(extent).value_or(0) > step; }

class DecodeSchedule {
public:
    DecodeSchedule(const AttentionShape& shape, const DecodeTiles& tiles, const Target& target,
                   const AttentionRules& rules, std::source_location where)
        : shape_(shape), tiles_(tiles), target_(target), rules_(rules), where_(where) {}

    Schedule run() {
        const int64_t part = rounded_up(divided(shape_.keys, tiles_.parts), tiles_.keys);
        return run(declare_attention_in_parts(shape_, part, rules_));
    }
    Schedule run(const AttentionInParts& a) {
        Schedule s({a.o, a.lse}, target_);
        stream(s, a);
        merge(s, a);
        return s;
    }

private:
    /// One pass over the keys of a part. Heads of a group are rows: what they share is read once for them.
    void stream(Schedule& s, const AttentionInParts& a) {
        auto [b, head, in_group, c, width] = s.loops<5>(a.o_part, where_);
        auto [e_tile, e] = s.split(width, padded_head(shape_.width), Tail::Mask, {"e_tile", "e"}, where_);
        auto [row_tile, row] = s.split(in_group, rows_of_warpgroup, Tail::Mask, {"row_tile", "row"}, where_);
        auto [step, term] = s.split(s.reduce(a.o_part), tiles_.keys, Tail::Mask, {"step", "term"}, where_);
        s.order({b, c, head, row_tile, e_tile, step, row, e, term}, where_);
        s.persistent({b, c, head, row_tile}, {.stages = 2}, where_);
        s.stream({a.m, a.l, a.o_part}, step, where_);
        s.set_memory(a.p, Memory::Registers, where_);
        s.round_to(s.stage(a.o_part, a.w, Memory::Registers, step, where_), shape_.type, where_);
        if (!a.w.same(a.p)) s.inline_stage(a.w, where_);
        s.at(a.s, step, where_);
        s.set_memory(a.s, Memory::Registers, where_);
        Stage keys = s.stage(a.s, a.k_part, Memory::Shared, step, where_),
              values = s.stage(a.o_part, a.v_part, Memory::Shared, step, where_);
        for (const Tensor& view : {a.k_part, a.v_part}) s.inline_stage(view, where_);
        s.mma(a.o_part, wgmma, {.m = row, .n = e, .k = term}, where_);
        auto [s_b, s_h, s_g, s_c, s_j] = s.loops<5>(a.s, where_);
        auto [d_tile, d] = s.split(s.reduce(a.s), padded_head(shape_.depth), Tail::Mask, {"d_tile", "d"}, where_);
        s.order({s_b, s_h, s_c, d_tile, s_g, s_j, d}, where_);
        if (a.rules.skips && is_longer(a.s.shape().back(), tiles_.keys)) s.skip(step, a.s, where_);
        Stage queries = s.stage(a.s, a.q, Memory::Shared, row_tile, where_);
        for (const Tensor& operand : {a.q, a.k, a.v}) inline_view(s, operand, where_);
        s.mma(a.s, wgmma, {.m = s_g, .n = s_j, .k = d}, where_);
        s.pipeline(step, {.stages = tiles_.stages}, where_);
        s.roles(loading_roles(s.target(), {queries, keys, values}, a.o_part, {.warpgroups = 1}), where_);
    }

    /// A block for each row, whose threads share the parts, and then its columns.
    void merge(Schedule& s, const AttentionInParts& a) {
        auto [b, h, e] = s.loops<3>(a.values, where_);
        const Loop row = s.fuse({b, h}, "merged", where_);
        s.bind(row, grid.x, where_);
        auto [columns, column] = s.split(e, merging_threads, Tail::Mask, {"columns", "column"}, where_);
        s.bind(column, thread, where_);
        s.at(a.lse, row, where_);
        s.at(a.o, column, where_);
        s.at(a.weight, row, where_);
        s.set_memory(a.weight, Memory::Shared, where_);
        share_parts(s, a.total, row);
        share_parts(s, a.top, row);
    }

    void share_parts(Schedule& s, const Tensor& of_parts, const Loop& row) {
        s.at(of_parts, row, where_);
        auto [parts, part] = s.split(s.reduce(of_parts), merging_threads, Tail::Mask, {"parts", "part"}, where_);
        s.bind(part, thread, where_);
    }

    const AttentionShape& shape_;
    const DecodeTiles& tiles_;
    const Target& target_;
    const AttentionRules rules_;
    std::source_location where_;
};

}  // namespace

Schedule decode_schedule(const AttentionInParts& parts, const AttentionShape& shape, const DecodeTiles& tiles,
                         const Target& target, std::source_location where) {
    require_steps_of_units(tiles, where);
    return DecodeSchedule(shape, tiles, target, {}, where).run(parts);
}

Schedule decode_schedule(const AttentionShape& shape, const DecodeTiles& tiles, const Target& target,
                         const AttentionRules& rules, std::source_location where) {
    require_steps_of_units(tiles, where);
    return DecodeSchedule(shape, tiles, target, rules, where).run();
}

}  // namespace tw::schedules

// Names of attention, and the rules that they list.
#include <algorithm>
#include <regex>

#include "schedules/attention.h"

namespace tw::schedules {
namespace {

constexpr int64_t rows_of_warpgroup = 64;

struct NamedRule {
    std::string name, number;
    bool approximate;
};

std::vector<NamedRule> listed(const std::string& rules) {
    static const std::regex each("_([a-z]+)([0-9]*)(a?)");
    std::vector<NamedRule> all;
    for (std::sregex_iterator rule(rules.begin(), rules.end(), each); rule != std::sregex_iterator(); ++rule)
        all.push_back({(*rule)[1], (*rule)[2], (*rule)[3].length() > 0});
    return all;
}

/// Nothing of those that say where scores go, such as sinks.
ScoreRule score_rule(const NamedRule& rule, int64_t heads) {
    if (rule.name == "softcap")
        return rule.approximate ? soft_cap_approx(std::stod(rule.number)) : soft_cap(std::stod(rule.number));
    if (rule.name == "alibi") return linear_bias(input("slopes", f32, {heads}));
    if (rule.name == "window") return sliding_window(std::stoll(rule.number));
    return {};
}

}  // namespace

const char* const rules_without_tables = "((?:_softcap[0-9]+a?|_alibi|_window[1-9][0-9]*)*(?:_sinks)?)";

AttentionRules rules_of(const std::string& rules, int64_t heads) {
    AttentionRules all;
    std::vector<ScoreRule> of_scores;
    for (const NamedRule& rule : listed(rules)) {
        if (ScoreRule made = score_rule(rule, heads)) of_scores.push_back(made);
        if (rule.name == "window") all.skips = true;
        if (rule.name == "sinks") all.sinks = input("sinks", f32, {heads});
    }
    if (!of_scores.empty()) all.score = in_turn(of_scores);
    return all;
}

AttentionRules rules_of(const NamedAttention& named) {
    const AttentionShape& shape = named.shape;
    AttentionRules all = rules_of(named.rules, shape.heads);
    std::vector<ScoreRule> of_scores;
    for (const NamedRule& rule : listed(named.rules)) {
        if (ScoreRule made = score_rule(rule, shape.heads)) of_scores.push_back(made);
        if (rule.name == "bias")
            of_scores.push_back(additive_bias(input("bias", shape.type, {1, shape.heads, shape.rows, shape.keys})));
        if (rule.name != "documents") continue;
        const Tensor numbers = input("documents", i32, {shape.batch, shape.rows});
        of_scores.push_back(documents(numbers, numbers));
    }
    if (!of_scores.empty()) all.score = in_turn(of_scores);
    return all;
}

std::optional<NamedAttention> parse_attention(const std::string& name) {
    static const std::string number_text = "([1-9][0-9]{0,6})", by = "x" + number_text;
    static const std::regex form("attention_(bf16|f16)_" + number_text + by + by + by + "(?:_keys" + number_text +
                                 ")?(?:_width" + number_text + ")?(?:_group" + number_text +
                                 ")?(_causal(?:_lower_right)?)?(_heads_first)?((?:_softcap[0-9]+a?|_alibi|_bias|_"
                                 "documents|_window[0-9]+)*(?:_sinks)?)(?:_tile" +
                                 number_text + by +
                                 "s([1-9])(n)?(p)?(q)?(l)?(r)?(?:h([1-9][0-9]*))?(b)?(d)?(z)?(e)?)?");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return {};
    auto number = [&](size_t index, int64_t otherwise) {
        return match[index].matched ? std::stoll(match[index]) : otherwise;
    };
    NamedAttention named{.shape = {.batch = number(2, 0),
                                   .heads = number(3, 0),
                                   .rows = number(4, 0),
                                   .keys = number(6, number(4, 0)),
                                   .depth = number(5, 0),
                                   .width = number(7, number(5, 0)),
                                   .group = number(8, 1),
                                   .causal = match[9].matched,
                                   .type = match[1] == "bf16" ? bf16 : f16,
                                   .heads_first = match[10].matched},
                         .rules = match[11]};
    if (match[9] == "_causal_lower_right") named.shape.keys_before = named.shape.keys - named.shape.rows;
    const AttentionShape& shape = named.shape;
    if (shape.heads % shape.group != 0 || shape.depth % 8 != 0 || shape.width % 8 != 0) return {};
    if (std::max(shape.depth, shape.width) > 256) return {};
    if (match[12].matched) {
        named.tiles = AttentionTiles{.rows = number(12, 0),
                                     .keys = number(13, 0),
                                     .stages = static_cast<int>(number(14, 0)),
                                     .overlaps = !match[15].matched,
                                     .persistent = match[16].matched,
                                     .query_stages = match[17].matched ? 2 : 1,
                                     .longest_first = match[18].matched,
                                     .stage_result = match[19].matched,
                                     .heads = number(20, 1),
                                     .stage_pairs = match[21].matched,
                                     .dynamic = match[22].matched,
                                     .lazy = match[23].matched,
                                     .exclusive = match[24].matched};
        if (named.tiles->dynamic && !named.tiles->persistent) return {};
        if (named.tiles->rows % rows_of_warpgroup != 0 || named.tiles->rows > 3 * rows_of_warpgroup) return {};
        if (named.tiles->exclusive && named.tiles->rows == rows_of_warpgroup) return {};
        if (shape.heads % named.tiles->heads != 0) return {};
    }
    return named;
}

}  // namespace tw::schedules

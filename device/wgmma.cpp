#include "device/wgmma.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tw::device {
namespace {

int bytes_of(const std::string& type) {
    static const std::map<std::string, int> all = {{"bf16", 2}, {"f16", 2},  {"tf32", 4},
                                                   {"e4m3", 1}, {"e5m2", 1}, {"s8", 1}};
    return all.at(type);
}

bool is_fp8(const std::string& type) { return type == "e4m3" || type == "e5m2"; }
bool may_meet(const std::string& a, const std::string& b) { return a == b || (is_fp8(a) && is_fp8(b)); }

/// Items in lines of at most 120 columns, indented.
std::string in_lines(const std::vector<std::string>& items, size_t indent) {
    std::string text, line;
    for (size_t i = 0; i < items.size(); ++i) {
        const std::string item = items[i] + (i + 1 < items.size() ? "," : "");
        if (!line.empty() && indent + line.size() + 1 + item.size() > 117) {
            text += line + "\n" + std::string(indent, ' ');
            line.clear();
        }
        line += (line.empty() ? "" : " ") + item;
    }
    return text + line;
}

/// The same inside of string literals, one for each line.
std::string in_literals(const std::vector<std::string>& items, size_t indent) {
    std::string text = in_lines(items, indent + 1);
    for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += indent + 4)
        text.replace(at, indent + 2, " \"\n" + std::string(indent, ' ') + "\"");
    return text;
}

std::vector<std::string> numbered(int first, int count) {
    std::vector<std::string> operands;
    for (int i = first; i < first + count; ++i) operands.push_back(fmt::format("%{}", i));
    return operands;
}

/// What the functions of a family member have in common.
struct Signature {
    const WarpgroupProduct& product;
    bool transposes = bytes_of(product.a) == 2;
    const char* d = product.a == "s8" ? "int" : "float";

    std::string flags() const {
        if (!transposes) return "";
        return product.a_in_registers ? "template <bool transpose_b = false>\n"
                                      : "template <bool transpose_a = false, bool transpose_b = false>\n";
    }
    std::vector<std::string> parameters() const {
        return {fmt::format("{} (&d)[{}]", d, product.n / 2),
                product.a_in_registers ? "const unsigned* a" : "unsigned long long a", "unsigned long long b",
                "bool accumulate"};
    }
};

}  // namespace

std::string WarpgroupProduct::name() const {
    return fmt::format("wgmma_m64n{}k{}_{}{}{}{}", n, k, a, a == b ? "" : "_" + b, a_in_registers ? "_registers" : "",
                       negated ? "_negated" : "");
}

std::string WarpgroupProduct::text() const {
    const Signature signature{*this};
    const std::string head = fmt::format("__device__ inline void {}(", name());
    const int num_d = n / 2, num_a = a_in_registers ? 4 : 1;
    const std::string accumulate = fmt::format("%{}", num_d + num_a + 1);

    std::vector<std::string> results, inputs;
    for (int i = 0; i < num_d; ++i) results.push_back(fmt::format("\"+{}\"(d[{}])", a == "s8" ? "r" : "f", i));
    for (int i = 0; i < 4 && a_in_registers; ++i) inputs.push_back(fmt::format("\"r\"(a[{}])", i));
    if (!a_in_registers) inputs.push_back("\"l\"(a)");
    inputs.push_back("\"l\"(b)");
    inputs.push_back("\"r\"((int)accumulate)");

    std::string tail = a == "s8" ? "p" : negated ? "p, -1, 1" : "p, 1, 1";
    if (signature.transposes) {
        int next = num_d + num_a + 2;
        if (!a_in_registers) {
            tail += fmt::format(", %{}", next++);
            inputs.push_back("\"n\"((int)transpose_a)");
        }
        tail += fmt::format(", %{}", next);
        inputs.push_back("\"n\"((int)transpose_b)");
    }
    const std::string a_operand =
        a_in_registers ? fmt::format("{{{}}}", fmt::join(numbered(num_d, 4), ", ")) : numbered(num_d, 1)[0];
    return fmt::format(
        "/// d[64, {n}] = {sign}a[64, {k}] * b[{k}, {n}], plus d where it accumulates; asynchronous, by a warpgroup.\n"
        "{flags}{head}{parameters}) {{\n"
        "    asm volatile(\n"
        "        \"{{ .reg .pred p; setp.ne.b32 p, {accumulate}, 0; \"\n"
        "        \"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{b} \"\n"
        "        \"{{{d_operands}}}, \"\n"
        "        \"{a_operand}, %{b_operand}, {tail}; }}\"\n"
        "        : {results}\n"
        "        : {inputs});\n"
        "}}",
        fmt::arg("n", n), fmt::arg("sign", negated ? "-" : ""), fmt::arg("k", k), fmt::arg("flags", signature.flags()),
        fmt::arg("head", head), fmt::arg("parameters", in_lines(signature.parameters(), head.size())),
        fmt::arg("accumulate", accumulate), fmt::arg("d", a == "s8" ? "s32" : "f32"), fmt::arg("a", a),
        fmt::arg("b", b), fmt::arg("d_operands", in_literals(numbered(0, num_d), 8)), fmt::arg("a_operand", a_operand),
        fmt::arg("b_operand", num_d + num_a), fmt::arg("tail", tail), fmt::arg("results", in_lines(results, 10)),
        fmt::arg("inputs", in_lines(inputs, 10)));
}

std::string WarpgroupProduct::twin() const {
    const Signature signature{*this};
    std::string flags = "accumulate";
    if (signature.transposes && !a_in_registers) flags += " | transpose_a << 1";
    if (signature.transposes) flags += " | transpose_b << 2";
    if (negated) flags += " | 8";
    return fmt::format(
        "{}TW_INLINE void {}({}) {{\n"
        "    emulated::tw_wgmma(d, {}, b, {}, {}, emulated::MatrixType::{}, emulated::MatrixType::{}, {});\n}}\n",
        signature.flags(), name(), fmt::join(signature.parameters(), ", "), a_in_registers ? "a, 0" : "nullptr, a", n,
        k, a, b, flags);
}

std::optional<WarpgroupProduct> find_warpgroup_product(std::string_view name) {
    static const std::string type = "(bf16|f16|tf32|e4m3|e5m2|s8)";
    static const std::regex pattern("wgmma_m64n(\\d{1,3})k(\\d{1,2})_" + type + "(?:_" + type +
                                    ")?(_registers)?(_negated)?");
    std::cmatch match;
    if (!std::regex_match(name.data(), name.data() + name.size(), match, pattern)) return std::nullopt;
    WarpgroupProduct product{.n = std::stoi(match[1]), .k = std::stoi(match[2]), .a = match[3], .b = match[3]};
    if (match[4].matched) product.b = match[4];
    product.a_in_registers = match[5].matched;
    product.negated = match[6].matched;
    if (product.negated && product.a == "s8") return std::nullopt;
    if (!may_meet(product.a, product.b)) return std::nullopt;
    if (product.k * bytes_of(product.a) != 32) return std::nullopt;
    const bool is_size = product.n >= 8 && product.n <= 256 && product.n % 8 == 0;
    if (!is_size || (product.a == "s8" && product.n % 16 != 0 && product.n != 8 && product.n != 24))
        return std::nullopt;
    if (product.name() != name) return std::nullopt;
    return product;
}

std::string warpgroup_twins(const std::vector<std::string_view>& texts) {
    static const std::regex call("\\bwgmma_m64n\\w+");
    std::set<std::string> names;
    for (std::string_view text : texts)
        for (std::cregex_iterator at(text.data(), text.data() + text.size(), call), end; at != end; ++at)
            names.insert(at->str());
    std::string twins;
    for (const std::string& name : names)
        if (auto product = find_warpgroup_product(name)) twins += product->twin();
    return twins.empty() ? "" : "namespace tw {\n" + twins + "}  // namespace tw\n";
}

}  // namespace tw::device

#include "schedules/families.h"

#include <algorithm>
#include <regex>

#include "schedules/array_operators.h"
#include "schedules/choose_in_place.h"
#include "schedules/choose_rows.h"
#include "schedules/long_reductions.h"
#include "schedules/row_operators.h"
#include "schedules/scattered.h"

namespace tw::schedules {
namespace {

int64_t vector_of(Type type) { return 16 / bytes_of(type); }

Tensor matrix(const KernelRequest& r) {
    Shape shape = {r.extents[0], r.extents[1]};
    return r.pitch ? input("x", r.type, shape, {r.pitch, 1}) : input("x", r.type, shape);
}

/// Bytes of the request's extents, `times` over.
std::function<double(const KernelRequest&)> elements(double times) {
    return [times](const KernelRequest& r) {
        double count = times;
        for (int64_t extent : r.extents) count *= static_cast<double>(extent);
        return count;
    };
}
std::function<double(const KernelRequest&)> bytes(double times) {
    return [times](const KernelRequest& r) { return elements(times)(r) * bytes_of(r.type); };
}

using Declare = std::function<Declared(const KernelRequest&)>;

/// As choose_schedule schedules it.
std::function<Schedule(const KernelRequest&, const Target&)> by_rule(const Declare& declare) {
    return [declare](const KernelRequest& r, const Target& target) { return choose_in_place(declare(r), target); };
}

/// `of_kept`: what declares it, in more passes, for rows that registers hold.
Family row_family(const std::string& name, const std::string& description, double passes, double flops,
                  const RowOperator& of_kept = {}) {
    auto declare = [declare = row_operators().at(name), of_kept](const KernelRequest& r) {
        const bool is_kept = row_threads(r.extents[1], vector_of(r.type)).keep;
        const RowOperator& operation = of_kept && is_kept ? of_kept : declare;
        return Declared{operation(matrix(r), reduce_axis("k", r.extents[1]), r.type)};
    };
    return {.name = name,
            .description = description,
            .rank = 2,
            .make = by_rule(declare),
            .bytes = bytes(passes),
            .flops = elements(flops),
            .pitched = true};
}

/// Blocks add their parts to the result in memory.
Schedule make_dot_atomic(const KernelRequest& r, const Target& target) {
    const Declared declared = dot(r.extents[0], r.type);
    Schedule s(declared.outputs, target);
    schedule_full_reduction(s, declared.outputs[0], r.extents[0], vector_of(r.type), Combine::Atomic);
    return s;
}

/// Names give positions x words x width.
Declared declare_embedding(const KernelRequest& r) {
    return embedding(r.extents[0], r.extents[1], r.extents[2], r.type);
}
Declared declare_embedding_gradient(const KernelRequest& r) {
    return embedding_gradient(r.extents[0], r.extents[1], r.extents[2], r.type);
}
Schedule make_embedding_gradient_atomic(const KernelRequest& r, const Target& target) {
    const Declared declared = declare_embedding_gradient(r);
    Schedule s(declared.outputs, target);
    schedule_scattered_updates(s, declared.outputs[0]);
    return s;
}

double product_of(std::initializer_list<int64_t> factors) {
    double product = 1;
    for (int64_t factor : factors) product *= static_cast<double>(factor);
    return product;
}

double embedding_bytes(const KernelRequest& r) {
    return product_of({2, r.extents[0], r.extents[2], bytes_of(r.type)}) + product_of({4, r.extents[0]});
}

double embedding_gradient_bytes(const KernelRequest& r) {
    return product_of({r.extents[0], r.extents[2], bytes_of(r.type)}) + product_of({4, r.extents[0]}) +
           product_of({4, r.extents[1], r.extents[2]});
}

std::vector<Family> make_families() {
    return {
        row_family("row_sum", "sums of rows", 1, 1),
        row_family("softmax", "exp(x) / sum of exp(x) along rows", 2, 4),
        row_family("layernorm", "rows of mean 0 and variance 1, times gain plus bias", 2, 7),
        row_family("rmsnorm", "rows over the root of their mean square, times gain", 2, 4),
        row_family("argmax", "the largest element of each row and its place", 1, 1, row_argmax_of_kept),
        row_family("moments", "mean and variance of rows", 1, 4),
        row_family("similarity", "cosine of each row and one query", 1, 4),
        row_family("softmax_gradient", "dx of softmax along rows, of its result and dy", 3, 4),
        row_family("layernorm_gradient", "dx of layernorm along rows, of x, dy and what was saved", 3, 12),
        row_family("rmsnorm_gradient", "dx of rmsnorm along rows, of x, dy and what was saved", 3, 9),
        row_family("cross_entropy", "log of the sum of exp(x) along rows, less x at the row's label", 1, 4),
        row_family("cross_entropy_gradient", "dx of cross_entropy along rows, of x, labels and losses", 2, 5),
        {.name = "column_sum",
         .description = "sums of columns",
         .rank = 2,
         .make = by_rule([](const KernelRequest& r) { return column_sum(matrix(r)); }),
         .bytes = bytes(1),
         .flops = elements(1),
         .pitched = true},
        {.name = "full_sum",
         .description = "the sum of all elements",
         .rank = 1,
         .make = by_rule([](const KernelRequest& r) { return full_sum(input("x", r.type, {r.extents[0]})); }),
         .bytes = bytes(1),
         .flops = elements(1)},
        {.name = "dot",
         .description = "the dot product of two arrays",
         .rank = 1,
         .make = by_rule([](const KernelRequest& r) { return dot(r.extents[0], r.type); }),
         .bytes = bytes(2),
         .flops = elements(2)},
        {.name = "dot_atomic",
         .description = "the dot product of two arrays, blocks adding to it atomically",
         .rank = 1,
         .make = make_dot_atomic,
         .bytes = bytes(2),
         .flops = elements(2)},
        {.name = "transpose",
         .description = "y[i, j] = x[j, i] through shared memory",
         .rank = 2,
         .make = by_rule([](const KernelRequest& r) { return transpose(matrix(r)); }),
         .bytes = bytes(2),
         .flops = elements(0),
         .pitched = true},
        {.name = "gelu_bias",
         .description = "gelu(x + bias[column])",
         .rank = 2,
         .make = by_rule([](const KernelRequest& r) { return gelu_bias(matrix(r)); }),
         .bytes = bytes(2),
         .flops = elements(9)},
        {.name = "dropout",
         .description = "x / 0.9, or 0 for a tenth of the elements, by philox",
         .rank = 2,
         .make = by_rule([](const KernelRequest& r) { return dropout(matrix(r)); }),
         .bytes = bytes(2),
         .flops = elements(1)},
        {.name = "embedding",
         .description = "rows of a table at ids; positions x words x width",
         .rank = 3,
         .make = by_rule(declare_embedding),
         .bytes = embedding_bytes,
         .flops = elements(0)},
        {.name = "embedding_gradient",
         .description = "gradients of a table's rows; positions x words x width",
         .rank = 3,
         .make = by_rule(declare_embedding_gradient),
         .bytes = embedding_gradient_bytes,
         .flops = elements(1)},
        {.name = "embedding_gradient_atomic",
         .description = "gradients of a table's rows by atomics; positions x words x width",
         .rank = 3,
         .make = make_embedding_gradient_atomic,
         .bytes = embedding_gradient_bytes,
         .flops = elements(0)},
        {.name = "adamw",
         .description = "an AdamW step in place over flat arrays",
         .rank = 1,
         .make = by_rule([](const KernelRequest& r) { return adamw(r.extents[0]); }),
         .bytes = bytes(7),
         .flops = elements(16),
         .f32_only = true},
    };
}

std::vector<int64_t> extents_in(const std::string& text) {
    static const std::regex number("[0-9]+");
    std::vector<int64_t> result;
    for (std::sregex_iterator at(text.begin(), text.end(), number), end; at != end; ++at)
        result.push_back(std::stoll(at->str()));
    return result;
}

}  // namespace

const std::vector<Family>& families() {
    static const std::vector<Family> all = make_families();
    return all;
}

std::optional<KernelRequest> parse_request(const Family& family, const std::string& name) {
    static const std::regex rest("_([0-9]{1,12}(?:x[0-9]{1,12})*)_(f32|bf16|f16)(?:_pitch([0-9]{1,12}))?");
    std::smatch match;
    std::string tail = name.substr(std::min(family.name.size(), name.size()));
    if (name.rfind(family.name, 0) != 0 || !std::regex_match(tail, match, rest)) return {};
    KernelRequest request{.extents = extents_in(match[1])};
    request.type = match[2] == "f32" ? f32 : match[2] == "bf16" ? bf16 : f16;
    if (match[3].matched) request.pitch = std::stoll(match[3]);
    if (request.extents.size() != family.rank || (family.f32_only && request.type != f32)) return {};
    if (match[3].matched && (!family.pitched || request.pitch < request.extents.back())) return {};
    return request;
}

}  // namespace tw::schedules

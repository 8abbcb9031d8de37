#include "schedules/families.h"

#include <algorithm>
#include <numeric>
#include <regex>

#include "schedules/array_operators.h"
#include "schedules/choose_rows.h"
#include "schedules/cooperative_rows.h"
#include "schedules/elementwise.h"
#include "schedules/long_reductions.h"
#include "schedules/row_operators.h"
#include "schedules/scattered.h"
#include "schedules/streamed_rows.h"
#include "schedules/transposed.h"
#include "support/error.h"

namespace tw::schedules {
namespace {

int64_t vector_of(Type type) { return 16 / bytes_of(type); }

Tensor matrix(const KernelRequest& r) {
    Shape shape = {r.extents[0], r.extents[1]};
    return r.pitch ? input("x", r.type, shape, {r.pitch, 1}) : input("x", r.type, shape);
}

Schedule schedule_of(const Declared& declared, const Target& target) {
    Schedule s(declared.outputs, target);
    for (const auto& [out, in] : declared.in_place) s.in_place(out, in);
    return s;
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

/// As many as lie together at multiples of their bytes in each row.
int64_t neighbours_of_rows(const KernelRequest& r) {
    return std::gcd(vector_of(r.type), r.pitch ? r.pitch : r.extents[1]);
}

/// The first schedule of rows that can be made: what a step refuses is decided by steps alone.
std::optional<Schedule> by_rows(const std::vector<Tensor>& y, const RowSchedule& how, const Target& target) {
    try {
        Schedule s(y, target);
        if (how.streams)
            schedule_streamed_rows(s, y[0], how.chunks, how.aligned);
        else
            schedule_cooperative_rows(s, y[0], how.threads);
        return s;
    } catch (const Error&) {
        return {};
    }
}

/// Without reductions, a row's elements are shared. Long rows that do not begin at multiples of a vector are aligned;
/// of short ones, neighbouring threads take fewer neighbours.
Schedule shared_elements(const std::vector<Tensor>& y, const Tensor& x, const KernelRequest& r, const Target& target) {
    const int64_t columns = r.extents[1], vector = vector_of(r.type), own = neighbours_of_rows(r);
    const bool aligns = own < vector && columns >= 64 * vector;
    Schedule s(y, target);
    schedule_streamed_rows(s, y[0], row_chunks(columns, aligns ? vector : own, r.type), aligns ? x : Tensor());
    return s;
}

/// `keeps`: the operator is given rows that its schedule may keep in registers; else it says itself what is kept.
/// `of_kept`: what declares it, in more passes, for rows that registers hold.
Family row_family(const std::string& name, const std::string& description, double passes, double flops,
                  bool keeps = true, const RowOperator& of_kept = {}) {
    auto make = [declare = row_operators().at(name), of_kept, keeps](const KernelRequest& r, const Target& target) {
        const Tensor x = matrix(r);
        const bool is_kept = row_threads(r.extents[1], vector_of(r.type)).keep;
        const RowOperator& operation = of_kept && is_kept ? of_kept : declare;
        const std::vector<Tensor> y = operation(keeps ? kept_rows(x) : x, reduce_axis("k", r.extents[1]), r.type);
        for (const RowGroup& group : row_groups(y))
            for (const RowSchedule& how : row_schedules(group))
                if (auto scheduled = by_rows(y, how, target)) return *scheduled;
        return shared_elements(y, x, r, target);
    };
    return {.name = name,
            .description = description,
            .rank = 2,
            .make = make,
            .bytes = bytes(passes),
            .flops = elements(flops),
            .pitched = true};
}

Schedule make_column_sum(const KernelRequest& r, const Target& target) {
    Declared sum = column_sum(matrix(r));
    Schedule s = schedule_of(sum, target);
    schedule_column_reduction(s, sum.outputs[0], r.extents[0],
                              column_threads(r.extents[0], r.extents[1], vector_of(r.type)));
    return s;
}

Schedule make_full(const Declared& declared, const KernelRequest& r, const Target& target,
                   Combine combine = Combine::Workspace) {
    Schedule s = schedule_of(declared, target);
    schedule_full_reduction(s, declared.outputs[0], r.extents[0], vector_of(r.type), combine);
    return s;
}

Schedule make_full_sum(const KernelRequest& r, const Target& target) {
    return make_full(full_sum(input("x", r.type, {r.extents[0]})), r, target);
}

Schedule make_dot(const KernelRequest& r, const Target& target) {
    return make_full(dot(r.extents[0], r.type), r, target);
}

Schedule make_dot_atomic(const KernelRequest& r, const Target& target) {
    return make_full(dot(r.extents[0], r.type), r, target, Combine::Atomic);
}

Schedule make_transpose(const KernelRequest& r, const Target& target) {
    Tensor x = matrix(r);
    Declared y = transpose(x);
    Schedule s = schedule_of(y, target);
    schedule_transposed(s, y.outputs[0], x);
    return s;
}

Schedule make_gelu_bias(const KernelRequest& r, const Target& target) {
    Declared y = gelu_bias(matrix(r));
    Schedule s = schedule_of(y, target);
    schedule_elementwise(s, y.outputs[0], 256, vector_of(r.type), 2);
    return s;
}

Schedule make_dropout(const KernelRequest& r, const Target& target) {
    Declared y = dropout(matrix(r));
    Schedule s = schedule_of(y, target);
    schedule_elementwise(s, y.outputs[0], 256, vector_of(r.type), 2);
    return s;
}

/// Names give positions x words x width.
Schedule make_embedding(const KernelRequest& r, const Target& target) {
    Declared y = embedding(r.extents[0], r.extents[1], r.extents[2], r.type);
    Schedule s = schedule_of(y, target);
    schedule_elementwise(s, y.outputs[0], 256, vector_of(r.type), 2);
    return s;
}

Schedule make_embedding_gradient(const KernelRequest& r, const Target& target) {
    Declared y = embedding_gradient(r.extents[0], r.extents[1], r.extents[2], r.type);
    Schedule s = schedule_of(y, target);
    int64_t neighbours = vector_of(r.type);
    schedule_column_reduction(s, y.outputs[0], r.extents[0],
                              {.lanes = 32, .rows = 8, .neighbours = neighbours, .chunk = r.extents[0]});
    return s;
}

std::function<Schedule(const KernelRequest&, const Target&)> make_scattered(Combine combine) {
    return [combine](const KernelRequest& r, const Target& target) {
        Declared y = embedding_gradient(r.extents[0], r.extents[1], r.extents[2], r.type);
        Schedule s = schedule_of(y, target);
        const int64_t terms = r.extents[0], rows = r.extents[1], width = r.extents[2];
        const bool searches = combine == Combine::Workspace && searches_terms(terms, rows, width);
        schedule_scattered_rows(s, y.outputs[0], rows, width, searches ? Combine::Search : combine);
        return s;
    };
}

Schedule make_adamw(const KernelRequest& r, const Target& target) {
    Declared step = adamw(r.extents[0]);
    Schedule s = schedule_of(step, target);
    schedule_elementwise(s, step.outputs[0], 256, 4);
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
        row_family("argmax", "the largest element of each row and its place", 1, 1, true, row_argmax_of_kept),
        row_family("moments", "mean and variance of rows", 1, 4),
        row_family("similarity", "cosine of each row and one query", 1, 4),
        row_family("softmax_gradient", "dx of softmax along rows, of its result and dy", 3, 4),
        row_family("layernorm_gradient", "dx of layernorm along rows, of x, dy and what was saved", 3, 12),
        row_family("rmsnorm_gradient", "dx of rmsnorm along rows, of x, dy and what was saved", 3, 9),
        row_family("cross_entropy", "log of the sum of exp(x) along rows, less x at the row's label", 1, 4, false),
        row_family("cross_entropy_gradient", "dx of cross_entropy along rows, of x, labels and losses", 2, 5, false),
        {.name = "column_sum",
         .description = "sums of columns",
         .rank = 2,
         .make = make_column_sum,
         .bytes = bytes(1),
         .flops = elements(1),
         .pitched = true},
        {.name = "full_sum",
         .description = "the sum of all elements",
         .rank = 1,
         .make = make_full_sum,
         .bytes = bytes(1),
         .flops = elements(1)},
        {.name = "dot",
         .description = "the dot product of two arrays",
         .rank = 1,
         .make = make_dot,
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
         .make = make_transpose,
         .bytes = bytes(2),
         .flops = elements(0),
         .pitched = true},
        {.name = "gelu_bias",
         .description = "gelu(x + bias[column])",
         .rank = 2,
         .make = make_gelu_bias,
         .bytes = bytes(2),
         .flops = elements(9)},
        {.name = "dropout",
         .description = "x / 0.9, or 0 for a tenth of the elements, by philox",
         .rank = 2,
         .make = make_dropout,
         .bytes = bytes(2),
         .flops = elements(1)},
        {.name = "embedding",
         .description = "rows of a table at ids; positions x words x width",
         .rank = 3,
         .make = make_embedding,
         .bytes = embedding_bytes,
         .flops = elements(0)},
        {.name = "embedding_gradient",
         .description = "gradients of a table's rows; positions x words x width",
         .rank = 3,
         .make = make_embedding_gradient,
         .bytes = embedding_gradient_bytes,
         .flops = elements(1)},
        {.name = "embedding_gradient_sorted",
         .description = "gradients of a table's rows from sorted ids; positions x words x width",
         .rank = 3,
         .make = make_scattered(Combine::Workspace),
         .bytes = embedding_gradient_bytes,
         .flops = elements(0)},
        {.name = "embedding_gradient_atomic",
         .description = "gradients of a table's rows by atomics; positions x words x width",
         .rank = 3,
         .make = make_scattered(Combine::Atomic),
         .bytes = embedding_gradient_bytes,
         .flops = elements(0)},
        {.name = "adamw",
         .description = "an AdamW step in place over flat arrays",
         .rank = 1,
         .make = make_adamw,
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

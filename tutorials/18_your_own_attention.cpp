// Tutorial 18: your own attention. Rules for scores as plain expressions; one row to many keys, as decoding needs it.
//
// Tutorials 16 and 17 write the schedule. schedules/attention.h has it ready for any shape, and takes the rule by which
// scores change before their softmax: no step of the schedule depends on what the rule says. What rules move, and what
// a loss over a vocabulary moves that is made in the same way, the emulator counts.
#include "schedules/attention.h"
#include "schedules/attention_backward.h"
#include "schedules/attention_decode.h"
#include "schedules/attention_paged.h"
#include "schedules/attention_varlen.h"
#include "schedules/linear_cross_entropy.h"
#include "tutorials/counter.h"

using namespace tw;
using namespace tw::schedules;

namespace {

/// What rules change in what the kernel moves.
void show_what_rules_move(Lesson& lesson, const Counter& count) {
    const AttentionShape shape{.batch = 1, .heads = 2, .rows = 128, .keys = 128, .depth = 64, .width = 64};
    const Target gpu = target("sm_90a");
    auto counted = [&](const char* name, const ScoreRule& rule, bool skips = false) {
        const Attention a = declare_attention(shape, rule, skips);
        const AttentionTiles tiles{.rows = 64, .keys = 64, .stage_pairs = !a.of_pairs.empty()};
        return count(name, attention_schedule(a, shape, tiles, gpu));
    };
    lesson.say(
        "A rule costs what it reads; masks by place alone spare what they leave out (counts as in tutorial 16):");
    count.heading();
    const auto plain = counted("no rule", {}), capped = counted("soft cap", soft_cap(30)),
               biased = counted("bias in boxes", additive_bias(input("bias", bf16, {1, 2, 128, 128}))),
               window = counted("window of 16, skipped", sliding_window(16), true);
    lesson.expect(capped.box_bytes == plain.box_bytes && capped.global_bytes == plain.global_bytes,
                  "a soft cap moves nothing");
    lesson.expect(biased.box_bytes == plain.box_bytes + 2 * 128 * 128 * 2, "a bias comes once");
    lesson.expect(window.box_bytes < plain.box_bytes, "keys outside of the window do not come");
}

/// Each stage a kernel of its own, an element a thread.
Schedule apart(const std::vector<Tensor>& outputs) {
    Schedule s(outputs, target("sm_90a"));
    for (const Stage& stage : s.all_stages()) {
        auto [block, element] = s.split(s.fuse(s.data_loops(stage), "all"), 64, Tail::Mask, {"block", "element"});
        s.bind(block, grid.x);
        s.bind(element, thread);
    }
    return s;
}

/// The loss of a linear layer's results: a softmax over a vocabulary behind a product, as scores are, without a product
/// behind it. Each tile of logits has its maximum and its sum of exponentials while it is in registers; rows are put
/// together of them.
void show_cross_entropy(Lesson& lesson, const Counter& count) {
    const LinearCrossEntropyShape shape{.rows = 128, .depth = 64, .vocabulary = 256};
    const Target gpu = target("sm_90a");
    const WarpgroupTiles tiles = linear_cross_entropy_tiles(shape);
    const LinearCrossEntropy loss = declare_linear_cross_entropy(shape, tiles.block_n);
    for (const Tensor& each : {loss.scores, loss.largest, loss.part, loss.lse, loss.loss}) lesson.show(each);
    const Schedule fused = linear_cross_entropy_schedule(shape, tiles, gpu);
    auto labelled = [&](const Schedule& s) {
        Bindings bindings = random_bindings(s.outputs(), 1);
        fill_integers(bindings.inputs.at("label"), 0, static_cast<int>(shape.vocabulary) - 1, 2);
        return bindings;
    };
    count.heading();
    const Schedule by_element = apart({loss.loss, loss.lse, loss.logits});
    const auto alone = count("a kernel for each", by_element, labelled(by_element)),
               together = count("sums beside logits", fused, labelled(fused));
    // Logits are written once, in two bytes, and kept for the gradients.
    lesson.expect(together.global_bytes + together.box_bytes < alone.global_bytes / 20,
                  "logits are looked at where they are made");
    const Schedule back =
        linear_cross_entropy_gradients_schedule(shape, false, linear_gradient_tilings(shape, false, gpu), gpu);
    lesson.say("Its gradients are two products with dlogits, which is made of the logits that were kept, in place:");
    const LinearCrossEntropyGradients gradients = declare_linear_cross_entropy_gradients(shape);
    for (const Tensor& each : {gradients.dlogits, gradients.dx, gradients.dw}) lesson.show(each);
    count.heading();
    count("dlogits, dx and dw", back, labelled(back));
}

}  // namespace

int main(int argc, char** argv) {
    Lesson lesson(argc, argv, "18. Your own attention");
    const Counter count(lesson);
    const int64_t heads = lesson.size(1, 16), length = lesson.size(200, 4096), depth = lesson.size(40, 128);
    const AttentionShape shape{
        .batch = 1, .heads = heads, .rows = length, .keys = length, .depth = depth, .width = depth};
    const Target gpu = target("sm_90a");
    auto schedule = [&](const Attention& a) {
        return attention_schedule(a, shape, attention_tiles(a, shape, gpu), gpu);
    };

    lesson.say(
        "A rule takes a score and its place. Soft caps keep scores between two bounds, slopes favour near keys:");
    const Tensor slopes = input("slopes", f32, {heads});
    const Attention capped = declare_attention(shape, in_turn({soft_cap(30), linear_bias(slopes)}));
    lesson.show(capped.s);
    lesson.run(schedule(capped), shape.flops(), "capped and biased");

    lesson.say("Its gradients follow the rule's derivative; scores are made again from what the forward pass saved:");
    const GradientTiles gradient = gradient_tiles(shape, gpu, soft_cap(30));
    const AttentionGradients back = declare_attention_gradients(shape, gradient.passes, soft_cap(30));
    for (const Tensor& each : {back.of_keys.s, back.of_keys.p, back.of_keys.ds}) lesson.show(each);
    lesson.run(attention_gradients_schedule(back, shape, gradient, gpu), flops_of_gradients(shape), "their gradients");

    lesson.say(
        "A bias for each row and key arrives in boxes, with the keys. If it is learned, its gradient is what the "
        "kernel "
        "of dk keeps of the scores' adjoints, summed over the batches or heads that share it:");
    const Tensor bias = input("bias", bf16, {1, heads, length, length});
    const Attention biased = declare_attention(shape, additive_bias(bias));
    lesson.run(schedule(biased), shape.flops(), "biased");
    GradientTiles of_bias = gradient_tiles(shape, gpu, additive_bias(bias));
    of_bias.passes.kept = of_bias.passes.of_pairs = true;
    const AttentionGradients with_bias = declare_attention_gradients(shape, of_bias.passes, additive_bias(bias));
    for (const Tensor& each : {with_bias.ds_kept, with_bias.gradients_of_pairs[0]}) lesson.show(each);
    lesson.run(attention_gradients_schedule(with_bias, shape, of_bias, gpu), flops_of_gradients(shape), "with d_bias");

    show_what_rules_move(lesson, count);
    lesson.say("Masks are rules, too. This one says where rows and keys meet, so whole tiles of keys are left out:");
    const Attention window = declare_attention(shape, sliding_window(lesson.size(50, 512)), true);
    lesson.show(window.s);
    const Schedule left_out = schedule(window);
    lesson.show_lines(left_out, {"for (int step"});
    lesson.run(left_out, shape.flops(), "sliding window");

    lesson.say("A rule of your own is a function; it may read tensors. All see the first keys, the rest looks back:");
    const Tensor prefix = input("prefix", i32, {1});
    const Attention own = declare_attention(shape, [&](const Expr& score, const ScorePlace& at) {
        return select(at.key <= at.row || at.key < cast(i64, prefix(at.batch)), score, -infinity);
    });
    lesson.show(own.s);
    lesson.run(schedule(own), shape.flops(), "prefix");

    lesson.say(
        "Sinks are scores that take part in the softmax and have no value, one for each head: they change what rows "
        "are divided by, and their gradient is a sum of what the backward pass has anyway:");
    const Tensor sinks = input("sinks", f32, {heads});
    const Attention with_sinks = declare_attention(shape, {}, false, {}, sinks);
    lesson.show(with_sinks.lse);
    lesson.run(schedule(with_sinks), shape.flops(), "sinks");
    const AttentionGradients of_sinks = declare_attention_gradients(shape, {}, {}, false, {}, sinks);
    lesson.show(of_sinks.d_sinks);

    lesson.say(
        "Sequences of many lengths lie one behind another, without padding (varlen). A table says which keys each tile "
        "of rows sees, whatever sequences they are of: sums are as long as it says, and so is the loop over steps:");
    const VarlenShape packed{.rows = length, .keys = length, .heads = heads, .depth = depth, .width = depth};
    const VarlenTiles of_packed = varlen_tiles(packed);
    const VarlenAttention varlen = declare_varlen_attention(packed, of_packed);
    for (const Tensor& each : {varlen.k_tile, varlen.s, varlen.m, varlen.o}) lesson.show(each);
    lesson.show_lines(varlen_schedule(varlen, packed, of_packed, gpu), {"for (int step"});
    lesson.say("The tables are made of the offsets of sequences, by varlen_tables on the host or by a kernel:");
    const VarlenTableTensors tables = declare_varlen_tables(4, length, length, true, of_packed.rows);
    for (const Tensor& each : {tables.range, tables.tiles, tables.seen}) lesson.show(each);

    lesson.say(
        "One row of a sequence, 8 heads for each head of keys: heads are the rows of a tile, and several blocks "
        "share the keys. Each part has its own maxima and sums; a second kernel weighs them:");
    const AttentionShape decode{.batch = 1,
                                .heads = 16,
                                .rows = 1,
                                .keys = lesson.size(700, 32768),
                                .depth = depth,
                                .width = depth,
                                .group = 8};
    const DecodeTiles tiles = decode_tiles(decode, gpu);
    const AttentionInParts parts = declare_attention_in_parts(decode, decode.keys / tiles.parts);
    for (const Tensor& each : {parts.o_part, parts.top, parts.total, parts.weight, parts.values}) lesson.show(each);
    lesson.run(decode_schedule(decode, tiles, gpu), decode.flops(), "decode");

    lesson.say(
        "Keys and values in pages: a table says where those of a sequence are, and lengths how many there are. Boxes "
        "begin where the table says, and a part's loop ends with the sequence:");
    const int64_t page_size = 64;
    AttentionShape of_pages = decode;
    of_pages.keys = (decode.keys + page_size - 1) / page_size * page_size;
    const PagedShape paged{.attention = of_pages, .pages = 2 * of_pages.keys / page_size, .page_size = page_size};
    const DecodeTiles page_tiles = paged_tiles(paged, gpu);
    const PagedAttention in_pages = declare_paged_attention(paged, page_tiles);
    for (const Tensor& each : {in_pages.parts.k_part, in_pages.parts.s, in_pages.parts.m}) lesson.show(each);
    lesson.show_lines(paged_schedule(in_pages, paged, page_tiles, gpu), {"for (int step", "tma_load(&shared.k"});

    lesson.say("The same steps for another softmax: cross-entropy of a linear layer over a vocabulary.");
    show_cross_entropy(lesson, count);
    return lesson.finish();
}

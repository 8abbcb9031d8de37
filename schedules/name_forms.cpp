#include "schedules/name_forms.h"

#include <fmt/format.h>

#include "schedules/families.h"

namespace tw::schedules {
namespace {

const char* const convolution_form =
    "TYPE_IMAGESxHEIGHTxWIDTHxCHANNELS_FILTERS_RxS of bf16 or f16, then in this order any of _stride2, _pad1, "
    "_dilation2, _groups32, _nchw and _tile with a tiling of that pass; the kernel, dilated, fits into the padded "
    "image, and groups divide channels and filters";

const NameForm own_forms[] = {
    {"product_",
     "MxNxK, then in this order any of _ta, _tb, _ab and _tile128x96x16t8x12s3p2, which are M, N and K of a block, "
     "M and N of a thread, 1 to 9 stages and, unless it is one, parts of K; a thread's divide the block's, of 1024 "
     "threads at most",
     "product_300x200x100_tb_tile64x32x16t8x4s3"},
    {"gemm_",
     "TYPE_MxNxK or TYPE_BATCHxMxNxK of bf16, f16, tf32, i8 or e4m3, then in this order any of _ta, _tb, _bias, an "
     "activation, _experts8, _masked or _lower, _scaled, _f32, _pad and _tile with a tiling",
     "gemm_bf16_4096x4096x4096_tb"},
    {"convolution_data_gradient_", convolution_form, "convolution_data_gradient_bf16_32x56x56x64_64_3x3_pad1"},
    {"convolution_weight_gradient_", convolution_form, "convolution_weight_gradient_bf16_32x56x56x64_64_3x3_pad1"},
    {"convolution_", convolution_form, "convolution_bf16_32x56x56x64_64_3x3_pad1"},
    {"depthwise_",
     "TYPE_IMAGESxHEIGHTxWIDTHxCHANNELS_RxS of bf16 or f16, before which data_gradient_ or weight_gradient_ may "
     "stand, then in this order any of _stride2, _pad1, _dilation2 and _tile; the kernel, dilated, fits into the "
     "padded image",
     "depthwise_bf16_32x56x56x64_7x7_pad3"},
    {"fused_",
     "NAME_AxBxC of what fused_training.h declares: residual_layernorm, layernorm_backward, cross_entropy and the "
     "like, "
     "with its extents",
     "fused_layernorm_backward_32768x768"},
    {"attention_varlen_tables_",
     "SEQUENCESxROWS, then in this order any of _keys4096, _causal or _window1024, _places, _of_keys and _tile128",
     "attention_varlen_tables_8x4096_causal"},
    {"attention_varlen_gradients_",
     "TYPE_ROWSxHEADSxDEPTH of bf16 or f16, then in this order any of _keys4096, _width64, _group4, _softcap30, "
     "_alibi, "
     "_window1024, _sinks and _tile128x64q128x64s2; depth and width are multiples of 8 up to 256, rows of tiles of 64, "
     "and groups divide "
     "heads",
     "attention_varlen_gradients_bf16_4096x16x128"},
    {"attention_varlen_",
     "TYPE_ROWSxHEADSxDEPTH of bf16 or f16, then in this order any of _keys4096, _width64, _group4, _softcap30, "
     "_alibi, "
     "_window1024, _sinks and _tile128x128s2h4; depth and width are multiples of 8 up to 256, rows of tiles of 64 up "
     "to 192, and groups "
     "divide heads",
     "attention_varlen_bf16_4096x16x128"},
    {"attention_paged_",
     "TYPE_BATCHxHEADSxKEYSxDEPTH_page64 of bf16 or f16, then in this order any of _pages1000, _width64, _group4, "
     "_softcap30, _alibi, _window1024 and _sinks; pages are multiples of 16 keys, and keys of pages",
     "attention_paged_bf16_16x32x4096x128_page64"},
    {"attention_ranged_gradients_",
     "TYPE_BATCHxHEADSxROWSxDEPTH of bf16 or f16, then what names of attention_ have but for tiles, which are "
     "_tile128x64q128x64s2: rows and steps of keys, of queries, stages, then a for dk and dv apart",
     "attention_ranged_gradients_bf16_4x16x4096x128_documents"},
    {"attention_ranged_",
     "TYPE_BATCHxHEADSxROWSxDEPTH of bf16 or f16, then what names of attention_ have but for tiles",
     "attention_ranged_bf16_4x16x4096x128_documents"},
    {"attention_key_ranges_",
     "TYPE_BATCHxHEADSxROWSxDEPTH of bf16 or f16, then what names of attention_ have but for tiles",
     "attention_key_ranges_bf16_4x16x4096x128_documents"},
    {"attention_e4m3_",
     "BATCHxHEADSxROWSxDEPTH, then in this order any of _keys4096, _width64, _group4, _causal and _tile128x128s2; "
     "depth and width are multiples of 32 up to 256",
     "attention_e4m3_4x16x4096x128"},
    {"attention_gradients_",
     "TYPE_BATCHxHEADSxROWSxDEPTH of bf16 or f16, then what names of attention_ have but for the tiles, which are "
     "_tile128x64q128x64s2: rows and steps of keys and of queries, and stages",
     "attention_gradients_bf16_4x16x4096x128_causal"},
    {"attention_",
     "TYPE_BATCHxHEADSxROWSxDEPTH of bf16 or f16, then in this order any of _keys4096, _width64, _group4, _causal, "
     "rules, _sinks and _tile128x128s2; depth and width are multiples of 8 up to 256, rows of tiles of 64 up to "
     "192, "
     "and groups divide heads",
     "attention_bf16_4x16x4096x128_causal"},
    {"linear_cross_entropy_",
     "TYPE_ROWSxDEPTHxVOCABULARY of bf16 or f16, before which gradients_ may stand; depth and vocabulary are "
     "multiples of 8",
     "linear_cross_entropy_bf16_8192x4096x32000"},
};

std::vector<NameForm> all_forms() {
    std::vector<NameForm> forms(std::begin(own_forms), std::end(own_forms));
    for (const Family& family : families()) {
        std::string extents = "A", numbers = "64";
        for (size_t d = 1; d < family.rank; ++d) {
            extents += fmt::format("x{}", static_cast<char>('A' + d));
            numbers += "x64";
        }
        const char* const types = family.f32_only ? "f32" : "f32, bf16 or f16";
        forms.push_back(
            {family.name + "_",
             fmt::format("{}_TYPE of {}{}: {}", extents, types,
                         family.pitched ? ", behind which _pitch and the elements between rows may stand" : "",
                         family.description),
             fmt::format("{}_{}_f32", family.name, numbers)});
    }
    return forms;
}

}  // namespace

const std::vector<NameForm>& name_forms() {
    static const std::vector<NameForm> forms = all_forms();
    return forms;
}

std::string form_of(const std::string& name) {
    const NameForm* longest = nullptr;
    for (const NameForm& each : name_forms())
        if (name.starts_with(each.begin) && (!longest || each.begin.size() > longest->begin.size())) longest = &each;
    return longest ? fmt::format("names that begin with {0} are {0}{1}; as {2}", longest->begin, longest->form,
                                 longest->example)
                   : "";
}

}  // namespace tw::schedules

// Convolutions among what is computed, declared as they are fastest: with copies of their operands, without taps that
// read no image, or over a raster that comes with its halo.
#pragma once
#include <string>
#include <vector>

#include "schedules/depthwise.h"
#include "schedules/halo_convolution.h"

namespace tw::schedules {

struct RedeclaredHalo {
    HaloConvolution convolution;
    HaloTiles tiles;
    bool is_from_record = false;  ///< or else by the model
    Tensor totals = {};           ///< sums over all pixels of what it makes (channel_sums), made with it; or undefined
    std::vector<Tensor> whole = {};  ///< operands beside images and filters, as they lie in memory
    bool is_fused = false;  ///< its image is made of one in memory, with it, or it has totals or another operand

    /// What its schedule takes care of, beside totals.
    std::vector<Tensor> tensors() const;
};
struct RedeclaredDepthwise {
    Depthwise convolution;
    Tensor result;              ///< what the sums become
    std::vector<Tensor> whole;  ///< operands as they lie in memory

    /// What its schedule takes care of.
    std::vector<Tensor> tensors() const;
};
/// The tiles of a record.
struct RecordedTiles {
    Tensor given, sums;  ///< sums: declared anew, or as given
    ConvolutionTiles tiles;
};

/// Sums over all pixels of what tiles of windows make.
struct SummedWindowResult {
    Tensor given, of, totals;         ///< the tensor, as given and as declared, and its sums
    std::vector<Tensor> beside = {};  ///< whose elements these read as well, at the same place
};

/// What computes the same, some convolutions declared as declare_convolution(), declare_halo_convolution() or
/// declare_depthwise() does, over the tensors that they read. Tensors that are not declared anew are those that were
/// given.
struct RedeclaredConvolutions {
    std::vector<Tensor> outputs;  ///< each says what the one given in its place does, and has its name
    std::vector<Tensor> given;    ///< the tensors that were declared anew
    std::vector<Tensor> sums;     ///< what is to be on tensor cores for each of these
    std::vector<Tensor> cut;      ///< results that are parts of products, in their order
    std::vector<RedeclaredHalo> halos;
    std::vector<RecordedTiles> recorded;
    std::vector<RedeclaredDepthwise> depthwise = {};
    std::vector<SummedWindowResult> summed = {};
    std::vector<std::string> notes = {};  ///< what is made together, for explain()
};
/// Tensors, as given, that are no more to be declared as they were.
struct Exceptions {
    std::vector<Tensor> as_given = {};  ///< are not declared anew
    std::vector<Tensor> by_model = {};  ///< have no use for their record (tuned_records.h)
    std::vector<Tensor> apart = {};     ///< convolutions whose neighbours are computed by kernels of their own
};

/// Of those that takes_warpgroups() and find_convolution() take: as the tiling of their record needs it, or else as the
/// model puts it first. Of those that find_depthwise() takes, where the target has a tensor memory accelerator: for the
/// tiles of the model. Sums over all pixels of what a convolution makes (channel_sums), be they operations of their own
/// or together (sums_together), are one stage, made with it; over a raster also what its image is made of (made_image),
/// and what one more operand is made into (made_result).
RedeclaredConvolutions redeclare_convolutions(const std::vector<Tensor>& outputs, const Exceptions& exceptions,
                                              const Target& target);

}  // namespace tw::schedules

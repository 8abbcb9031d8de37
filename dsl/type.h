// Element types and scalar values.
#pragma once
#include <concepts>
#include <cstdint>
#include <string_view>

namespace tw {

/// Element types. F16, BF16, TF32, E4M3, E5M2, I8 and U8 are storage types: tensors hold them, arithmetic is done on
/// the others after an explicit cast.
enum class Type { Bool, I8, U8, I32, U32, I64, F16, BF16, TF32, E4M3, E5M2, F32, F64 };

inline constexpr Type boolean = Type::Bool, i8 = Type::I8, u8 = Type::U8, i32 = Type::I32, u32 = Type::U32,
                      i64 = Type::I64, f16 = Type::F16, bf16 = Type::BF16, tf32 = Type::TF32, e4m3 = Type::E4M3,
                      e5m2 = Type::E5M2, f32 = Type::F32, f64 = Type::F64;

struct TypeInfo {
    Type type;
    std::string_view name;  ///< in the language: "bf16"
    int bytes;              ///< of one element in memory
    bool is_float;
    bool is_storage_only;
};

const TypeInfo& info(Type type);
inline std::string_view name_of(Type type) { return info(type).name; }
inline int bytes_of(Type type) { return info(type).bytes; }
inline bool is_float(Type type) { return info(type).is_float; }
inline bool is_integer(Type type) { return !is_float(type) && type != Type::Bool; }

/// A scalar: `real` holds every float type exactly, `integer` all integers and bool (0 or 1).
struct Value {
    Type type = Type::F32;
    double real = 0;
    int64_t integer = 0;
};

Value make_value(Type type, double real);
Value make_value(Type type, int64_t integer);
/// Of any other integer type, `make_value(i32, 99)`.
Value make_value(Type type, std::integral auto integer) { return make_value(type, static_cast<int64_t>(integer)); }

/// Rounds to nearest, ties to even, to what `type` can hold. Narrow floats as the hardware's cvt does: f16 and bf16
/// overflow to infinity, e4m3 and e5m2 saturate, tf32 rounds ties away from zero (cvt.rna).
double round_to_type(Type type, double real);
/// The bits of a float without the last 13, which tf32 lacks.
float truncate_tf32(float real);
/// The largest relative error of rounding to a float type, of numbers in its normal range: 2^-8 for bf16.
double unit_roundoff(Type type);
/// Wraps to the width of an integer type.
int64_t wrap_to_type(Type type, int64_t integer);

/// Conversion as `cast` does it: float to integer truncates toward zero (saturating, NaN to 0), like the hardware.
Value convert(Type to, const Value& value);

/// The number that the bits of another type of as many bytes are.
Value bits_as(Type to, const Value& value);

/// One element in memory, little-endian; `bytes` must hold bytes_of(type).
Value load_element(Type type, const void* bytes);
void store_element(const Value& value, void* bytes);

}  // namespace tw

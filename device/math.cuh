//: infinity
template <class T>
__device__ inline T infinity() { return (T)__int_as_float(0x7f800000); }

//: nan
template <class T>
__device__ inline T nan() { return (T)__int_as_float(0x7fffffff); }

//: fma_f32
__device__ inline float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }

//: fma_f64
__device__ inline double fma(double a, double b, double c) { return __fma_rn(a, b, c); }

//: fma common needs fma_f32 fma_f64

//: sqrt_f32
__device__ inline float sqrt(float x) { return __fsqrt_rn(x); }

//: sqrt_f64
__device__ inline double sqrt(double x) { return __dsqrt_rn(x); }

//: sqrt common needs sqrt_f32 sqrt_f64

//: rsqrt_f32 common needs sqrt_f32
__device__ inline float rsqrt(float x) { return 1.0f / sqrt(x); }

//: rsqrt_f64 common needs sqrt_f64
__device__ inline double rsqrt(double x) { return 1.0 / sqrt(x); }

//: rsqrt common needs rsqrt_f32 rsqrt_f64

//: ex2_approx approximate
/// 2^x to 2.3 ulp.
__device__ inline float ex2_approx(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

//: lg2_approx approximate
/// log2(x) to an absolute 2^-22 where it is small, else to a relative one.
__device__ inline float lg2_approx(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

//: rcp_approx approximate
/// 1 / x to 1 ulp.
__device__ inline float rcp_approx(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

//: rsqrt_approx approximate
/// 1 / sqrt(x) to 2 ulp.
__device__ inline float rsqrt_approx(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

//: tanh_approx approximate
/// tanh(x) to a relative 2^-11.
__device__ inline float tanh_approx(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

//: min_f32
/// The other operand if one is NaN; -0 is less than 0.
__device__ inline float min(float a, float b) { return fminf(a, b); }

//: min_f64
/// The other operand if one is NaN; -0 is less than 0.
__device__ inline double min(double a, double b) { return ::fmin(a, b); }

//: min_i32
/// The other operand if one is NaN; -0 is less than 0.
__device__ inline int min(int a, int b) { return a < b ? a : b; }

//: min_u32
/// The other operand if one is NaN; -0 is less than 0.
__device__ inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }

//: min_i64
/// The other operand if one is NaN; -0 is less than 0.
__device__ inline long long min(long long a, long long b) { return a < b ? a : b; }

//: min common needs min_f32 min_f64 min_i32 min_u32 min_i64

//: max_f32
/// The other operand if one is NaN; -0 is less than 0.
__device__ inline float max(float a, float b) { return fmaxf(a, b); }

//: max_f64
/// The other operand if one is NaN; -0 is less than 0.
__device__ inline double max(double a, double b) { return ::fmax(a, b); }

//: max_i32
/// The other operand if one is NaN; -0 is less than 0.
__device__ inline int max(int a, int b) { return a > b ? a : b; }

//: max_u32
/// The other operand if one is NaN; -0 is less than 0.
__device__ inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

//: max_i64
/// The other operand if one is NaN; -0 is less than 0.
__device__ inline long long max(long long a, long long b) { return a > b ? a : b; }

//: max common needs max_f32 max_f64 max_i32 max_u32 max_i64

//: abs_f32
__device__ inline float abs(float x) { return fabsf(x); }

//: abs_f64
__device__ inline double abs(double x) { return ::fabs(x); }

//: abs_i32
__device__ inline int abs(int x) { return x < 0 ? (int)-(unsigned)x : x; }

//: abs_i64
__device__ inline long long abs(long long x) { return x < 0 ? (long long)-(unsigned long long)x : x; }

//: abs common needs abs_f32 abs_f64 abs_i32 abs_i64

//: floor_f32
__device__ inline float floor(float x) { return floorf(x); }

//: floor_f64
__device__ inline double floor(double x) { return ::floor(x); }

//: floor common needs floor_f32 floor_f64

//: ceil_f32
__device__ inline float ceil(float x) { return ceilf(x); }

//: ceil_f64
__device__ inline double ceil(double x) { return ::ceil(x); }

//: ceil common needs ceil_f32 ceil_f64

//: round_f32
/// Ties to even.
__device__ inline float round(float x) { return rintf(x); }

//: round_f64
/// Ties to even.
__device__ inline double round(double x) { return ::rint(x); }

//: round common needs round_f32 round_f64

//: ex2_approx_ftz approximate
/// 2^x to 2.3 ulp; 0 instead of subnormal numbers.
__device__ inline float ex2_approx_ftz(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

//: rcp_approx_ftz approximate
/// 1 / x to 1 ulp; 0 instead of subnormal numbers.
__device__ inline float rcp_approx_ftz(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

//: exp2_f32 common needs ex2_approx_ftz
/// 0 instead of subnormal numbers: one instruction.
__device__ inline float exp2(float x) { return ex2_approx_ftz(x); }

//: library_exp2 approximate
__device__ inline double library_exp2(double x) { return ::exp2(x); }

//: exp2_f64 common needs library_exp2
__device__ inline double exp2(double x) { return library_exp2(x); }

//: exp2 common needs exp2_f32 exp2_f64

//: whole_power
/// 12582913 + floor(x / ln 2 + 126), from 12582913 to 12583166: shifted left by 23, its bits are those of the power of
/// two that e^x begins with. Of NaN the least one.
__device__ inline float whole_power(float x) {
    return __fmaf_rd(__saturatef(__fmaf_rn(x, 0.00570235215f, 0.498023719f)), 253.0f, 12582913.0f);
}

//: exp_f32 common needs whole_power ex2_approx_ftz fma_f32 bits
/// 2^whole 2^part: what the rounding of x / ln 2 loses would cost up to 2^7 ulp.
__device__ inline float exp(float x) {
    const float whole = whole_power(x);
    const float part = fma(x, 1.92596303e-8f, fma(x, 1.44269502f, 12583039.0f - whole));  // 1 / ln 2 in two parts
    return ex2_approx_ftz(part) * bits_float(float_bits(whole) << 23);
}

//: exp_nonpositive_f32 common needs ex2_approx_ftz fma_f32
/// 2^high (1 + low ln 2), where high + low = x / ln 2, of x <= 0; 0 instead of subnormal numbers.
__device__ inline float exp_nonpositive(float x) {
    const float t = x < -90.0f ? -90.0f : x;
    const float high = t * 1.44269502f;
    const float low = fma(t, 1.92596303e-8f, fma(t, 1.44269502f, -high));
    const float power = ex2_approx_ftz(high);
    return fma(power, low * 0.693147182f, power);
}

//: library_exp approximate
__device__ inline double library_exp(double x) { return ::exp(x); }

//: exp_f64 common needs library_exp
__device__ inline double exp(double x) { return library_exp(x); }

//: exp common needs exp_f32 exp_f64

//: split_log common needs bits fma_f32
/// log(x) = exponent ln 2 + rest, for normal x: rest is log(m), 0.707 <= m < 1.414, from a minimax polynomial.
struct SplitLog { float exponent, rest; };
__device__ inline SplitLog split_log(float x) {
    const int exponent = (int)(float_bits(x) - 0x3f3504f3u) >> 23;  // 0x3f3504f3 is sqrt(1/2)
    const float f = bits_float(float_bits(x) - ((unsigned)exponent << 23)) - 1.0f;
    float p = fma(f, -0.0785957128f, 0.128816351f);
    p = fma(f, p, -0.131287634f);
    p = fma(f, p, 0.141811952f);
    p = fma(f, p, -0.166245535f);
    p = fma(f, p, 0.200022861f);
    p = fma(f, p, -0.250008106f);
    p = fma(f, p, 0.333333164f);
    return {(float)exponent, fma(f * f, fma(f, p, -0.5f), f)};
}

//: log_f32 common needs split_log fma_f32 infinity nan
__device__ inline float log(float x) {
    if (!(x > 0.0f)) return x == 0.0f ? -infinity<float>() : nan<float>();
    if (x == infinity<float>()) return x;
    const bool subnormal = x < 1.17549435e-38f;
    const SplitLog split = split_log(subnormal ? x * 8388608.0f : x);
    const float exponent = subnormal ? split.exponent - 23.0f : split.exponent;
    // ln 2 in two parts, the first short.
    return fma(exponent, 0.693145752f, fma(exponent, 1.42860677e-6f, split.rest));
}

//: library_log approximate
__device__ inline double library_log(double x) { return ::log(x); }

//: log_f64 common needs library_log
__device__ inline double log(double x) { return library_log(x); }

//: log common needs log_f32 log_f64

//: log2_f32 common needs split_log fma_f32 infinity nan
__device__ inline float log2(float x) {
    if (!(x > 0.0f)) return x == 0.0f ? -infinity<float>() : nan<float>();
    if (x == infinity<float>()) return x;
    const bool subnormal = x < 1.17549435e-38f;
    const SplitLog split = split_log(subnormal ? x * 8388608.0f : x);
    const float exponent = subnormal ? split.exponent - 23.0f : split.exponent;
    return fma(split.rest, 1.44269502f, fma(split.rest, 1.92596303e-8f, exponent));  // 1 / ln 2 in two parts
}

//: library_log2 approximate
__device__ inline double library_log2(double x) { return ::log2(x); }

//: log2_f64 common needs library_log2
__device__ inline double log2(double x) { return library_log2(x); }

//: log2 common needs log2_f32 log2_f64

//: logistic2_f32 common needs ex2_approx_ftz rcp_approx_ftz
/// 1 / (1 + 2^x), to 4 ulp; 0 above 126.
__device__ inline float logistic2(float x) { return rcp_approx_ftz(1.0f + ex2_approx_ftz(x)); }

//: sigmoid_f32 common needs logistic2_f32
/// 1 / (1 + 2^(-x / ln 2)): to an absolute 2^-23, to 4 + |x| ulp where x is negative; 0 below -87.3.
__device__ inline float sigmoid(float x) { return logistic2(x * -1.44269502f); }

//: sigmoid_f64 common needs exp_f64
__device__ inline double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

//: sigmoid common needs sigmoid_f32 sigmoid_f64

//: with_sign common needs bits
/// The magnitude, which is not negative, with the sign of another number.
__device__ inline float with_sign(float magnitude, float sign) {
    return bits_float(float_bits(magnitude) | (float_bits(sign) & 0x80000000));
}

//: tanh_f32 common needs exp_f32 fma_f32 with_sign
/// Small x: a minimax polynomial; else 1 - 2 / (e^2x + 1).
__device__ inline float tanh(float x) {
    const float magnitude = x < 0.0f ? -x : x;
    if (!(magnitude < 0.625f)) return with_sign(1.0f - 2.0f / (exp(2.0f * magnitude) + 1.0f), x);
    const float z = x * x;
    float p = fma(z, -0.00571704702f, 0.0206505898f);
    p = fma(z, p, -0.0537435003f);
    p = fma(z, p, 0.133314908f);
    p = fma(z, p, -0.333332837f);
    return with_sign(fma(magnitude * z, p, magnitude), x);
}

//: library_tanh approximate
__device__ inline double library_tanh(double x) { return ::tanh(x); }

//: tanh_f64 common needs library_tanh
__device__ inline double tanh(double x) { return library_tanh(x); }

//: tanh common needs tanh_f32 tanh_f64

//: erf_parts common needs ex2_approx fma_f32 with_sign
/// Below 2: x (0.84 + w q(t)), w and t being centred parts of x^2, which keep the roundings of a sum of alternating
/// terms small.
__device__ inline float erf_inside(float x) {
    const float z = x * x;
    const float t = fma(z, 0.5f, -1.0f), w = fma(z, 0.5f, -0.5f);
    float q = fma(t, 3.433644e-6f, -1.74731085e-5f);
    q = fma(t, q, 7.85633893e-5f);
    q = fma(t, q, -0.000371703092f);
    q = fma(t, q, 0.00159233273f);
    q = fma(t, q, -0.00603278074f);
    q = fma(t, q, 0.0201444402f);
    q = fma(t, q, -0.0587345622f);
    q = fma(t, q, 0.148846403f);
    q = fma(t, q, -0.335535079f);
    return x * fma(w, q, 0.842700779f);
}
/// Else 1 - 2^p, where p approximates log2(erfc(x)).
__device__ inline float erf_outside(float x, float magnitude) {
    const float t = magnitude > 4.0f ? 4.0f : magnitude;  // from 3.92 on it rounds to 1; keeps NaN
    float p = fma(t, -3.01673263e-5f, 0.00062369532f);
    p = fma(t, p, -0.00600243872f);
    p = fma(t, p, 0.0361995511f);
    p = fma(t, p, -0.156152695f);
    p = fma(t, p, -0.91378355f);
    p = fma(t, p, -1.6295172f);
    p = fma(t, p, 0.000246078038f);
    return with_sign(1.0f - ex2_approx(p), x);
}

//: erf_f32 common needs erf_parts
__device__ inline float erf(float x) {
    const float magnitude = x < 0.0f ? -x : x;
    if (magnitude < 2.0f) return erf_inside(x);
    return erf_outside(x, magnitude);
}

//: erf_unbranched_f32 common needs erf_parts
/// The same, both parts computed: where few warps run, those of several elements overlap.
__device__ inline float erf_unbranched(float x) {
    const float magnitude = x < 0.0f ? -x : x;
    const float inside = erf_inside(x), outside = erf_outside(x, magnitude);
    return magnitude < 2.0f ? inside : outside;
}

//: normal_cdf_f32 common needs logistic2_f32 fma_f32
/// (1 + erf(x / sqrt(2))) / 2 = 1 / (1 + 2^(x q(x^2))): q is a minimax polynomial of the odds' logarithm, in what the
/// result is off by, up to 5.6; behind, it only grows.
__device__ inline float normal_cdf(float x) {
    const float u = x * x;
    float q = fma(u, -5.06716713e-9f, 3.81629235e-7f);
    q = fma(u, q, -1.14398108e-5f);
    q = fma(u, q, 0.000159579824f);
    q = fma(u, q, 9.40494647e-5f);
    q = fma(u, q, -0.104835123f);
    q = fma(u, q, -2.30220938f);
    return logistic2(x * q);
}

//: library_erf approximate
__device__ inline double library_erf(double x) { return ::erf(x); }

//: erf_f64 common needs library_erf
__device__ inline double erf(double x) { return library_erf(x); }

//: erf common needs erf_f32 erf_f64

//: divided_f32 common needs bits fma_f32 infinity
/// x / divisor, rounded as that is, but where x is less than 2^-100 or the quotient is subnormal: then as if x had no
/// bits below 2^-149. What belongs to the divisor alone compilers compute once for all x: the divisor times a power of
/// two is m, 1 <= m < 4. The quotient by m is corrected twice by what it leaves (Markstein, 1990), where a number.
__device__ inline float divided(float x, float divisor) {
    const int exponent = (int)(float_bits(divisor) >> 23 & 255);
    const int opposite = exponent > 253 ? 1 : exponent < 1 ? 253 : 254 - exponent;
    const float scale = bits_float((float_bits(divisor) & 0x80000000u) | (unsigned)opposite << 23);
    const float m = divisor * scale, reciprocal = 1.0f / m;
    const float limit = m > 0.0f && m < infinity<float>() ? infinity<float>() : 0.0f;
    const float rough = x * reciprocal;
    const float close = fma(fma(rough, m, -x), -reciprocal, rough);
    const float exact = fma(fma(close, m, -x), -reciprocal, close);
    return ((rough < 0.0f ? -rough : rough) < limit ? exact : rough) * scale;
}

//: divided common needs divided_f32

//: floor_div_i32 common
/// Rounds toward minus infinity; the least integer by -1 wraps.
__device__ inline int floor_div(int a, int b) {
    if (b == -1) return (int)-(unsigned)a;
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

//: floor_div_i64 common
/// Rounds toward minus infinity; the least integer by -1 wraps.
__device__ inline long long floor_div(long long a, long long b) {
    if (b == -1) return (long long)-(unsigned long long)a;
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

//: floor_div common needs floor_div_i32 floor_div_i64

//: floor_mod_i32 common
/// Has the sign of the divisor.
__device__ inline int floor_mod(int a, int b) {
    if (b == -1) return 0;
    return a % b != 0 && (a < 0) != (b < 0) ? a % b + b : a % b;
}

//: floor_mod_i64 common
/// Has the sign of the divisor.
__device__ inline long long floor_mod(long long a, long long b) {
    if (b == -1) return 0;
    return a % b != 0 && (a < 0) != (b < 0) ? a % b + b : a % b;
}

//: floor_mod common needs floor_mod_i32 floor_mod_i64

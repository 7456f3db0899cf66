// Vectors of one number per lane, and the few functions the transition needs.
//
// Everything is written with the compiler's own vector types, so the same source serves every
// instruction set; only reciprocals have a version of their own, because division is slow there.
#pragma once
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define WEFT_BYTES 64
#define WEFT_OUTPUTS 6  // outputs of a product kept in registers at once, times four particles
#elif defined(__AVX2__)
#define WEFT_BYTES 32
#define WEFT_OUTPUTS 3
#else
#define WEFT_BYTES 16
#if defined(__aarch64__)
#define WEFT_OUTPUTS 6
#else
#define WEFT_OUTPUTS 3
#endif
#endif

// Loops over packs must vanish early in the compiler, or their vectors live in memory.
#define WEFT_UNROLL _Pragma("GCC unroll 32")

namespace weft {
namespace {

template <class T>
struct Lanes;

template <>
struct Lanes<float> {
    typedef float V __attribute__((vector_size(WEFT_BYTES)));
    typedef std::int32_t I __attribute__((vector_size(WEFT_BYTES)));
    typedef std::uint32_t U __attribute__((vector_size(WEFT_BYTES)));
    typedef std::int32_t S __attribute__((vector_size(WEFT_BYTES)));
    static constexpr int count = WEFT_BYTES / 4;
    static constexpr int mantissa = 23, bias = 127;
    static constexpr int exp_terms = 6, log_terms = 5, log1p_terms = 6, sin_terms = 6;
    static constexpr float exp_limit = 87.0f;
    static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    static constexpr float rounder = 12582912.0f;  // 1.5 * 2^23
};

template <>
struct Lanes<double> {
    typedef double V __attribute__((vector_size(WEFT_BYTES)));
    typedef std::int64_t I __attribute__((vector_size(WEFT_BYTES)));
    typedef std::uint32_t U __attribute__((vector_size(WEFT_BYTES / 2)));
    typedef std::int32_t S __attribute__((vector_size(WEFT_BYTES / 2)));
    static constexpr int count = WEFT_BYTES / 8;
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr int exp_terms = 13, log_terms = 12, log1p_terms = 17, sin_terms = 12;
    static constexpr double exp_limit = 700.0;
    static constexpr double ln2_high = 6.93147180369123816490e-01;
    static constexpr double ln2_low = 1.90821492927058770002e-10;
    static constexpr double rounder = 6755399441055744.0;  // 1.5 * 2^52
};

template <class T>
using V = typename Lanes<T>::V;
template <class T>
using I = typename Lanes<T>::I;

template <class T>
inline V<T> all(T x) {
    return x - V<T>{};  // unlike x + 0 this is x for every x
}

// R vectors that take every step together: long chains of dependent operations overlap only if
// they are interleaved in the program, for the processor looks ahead by too little.
template <class T, int R>
struct Pack {
    V<T> v[R];

    static Pack load(const V<T>* from) {
        Pack out;
    WEFT_UNROLL
        for (int r = 0; r < R; ++r) out.v[r] = from[r];
        return out;
    }
    static Pack fill(V<T> x) {
        Pack out;
    WEFT_UNROLL
        for (int r = 0; r < R; ++r) out.v[r] = x;
        return out;
    }
    static Pack fill(T x) { return fill(all<T>(x)); }
    void store(V<T>* to) const {
    WEFT_UNROLL
        for (int r = 0; r < R; ++r) to[r] = v[r];
    }
    V<T> sum() const {
        V<T> out = v[0];
    WEFT_UNROLL
        for (int r = 1; r < R; ++r) out += v[r];
        return out;
    }
};

#define WEFT_EACH(T, R, expression)                        \
    Pack<T, R> out;                                        \
    WEFT_UNROLL for (int r = 0; r < R; ++r) out.v[r] = expression; \
    return out;

template <class T, int R>
inline Pack<T, R> operator+(const Pack<T, R>& a, const Pack<T, R>& b) {
    WEFT_EACH(T, R, a.v[r] + b.v[r])
}
template <class T, int R>
inline Pack<T, R> operator-(const Pack<T, R>& a, const Pack<T, R>& b) {
    WEFT_EACH(T, R, a.v[r] - b.v[r])
}
template <class T, int R>
inline Pack<T, R> operator*(const Pack<T, R>& a, const Pack<T, R>& b) {
    WEFT_EACH(T, R, a.v[r] * b.v[r])
}
template <class T, int R>
inline Pack<T, R> operator+(const Pack<T, R>& a, V<T> b) {
    WEFT_EACH(T, R, a.v[r] + b)
}
template <class T, int R>
inline Pack<T, R> operator-(const Pack<T, R>& a, V<T> b) {
    WEFT_EACH(T, R, a.v[r] - b)
}
template <class T, int R>
inline Pack<T, R> operator-(V<T> a, const Pack<T, R>& b) {
    WEFT_EACH(T, R, a - b.v[r])
}
template <class T, int R>
inline Pack<T, R> operator*(const Pack<T, R>& a, V<T> b) {
    WEFT_EACH(T, R, a.v[r] * b)
}

// a b + c, the step of every polynomial
template <class T, int R>
inline Pack<T, R> fused(const Pack<T, R>& a, const Pack<T, R>& b, V<T> c) {
    WEFT_EACH(T, R, a.v[r] * b.v[r] + c)
}

// Comparisons are written so that what is not a number stays so.
template <class T>
inline V<T> at_least(V<T> x, T low) {
    return x < low ? all<T>(low) : x;
}
template <class T>
inline V<T> at_most(V<T> x, T high) {
    return x > high ? all<T>(high) : x;
}
template <class T>
inline V<T> one_over(V<T> x) {
    return T(1) / x;
}
template <class T>
inline V<T> square_root(V<T> x) {
    V<T> out;
    for (int i = 0; i < Lanes<T>::count; ++i) {
        if constexpr (sizeof(T) == 4) out[i] = __builtin_sqrtf(x[i]);
        else out[i] = __builtin_sqrt(x[i]);
    }
    return out;
}

#if defined(__AVX512F__)
template <>
inline V<float> at_least<float>(V<float> x, float low) {
    return (V<float>)_mm512_maskz_max_ps(0xffff, (__m512)all<float>(low), (__m512)x);
}
template <>
inline V<float> at_most<float>(V<float> x, float high) {
    return (V<float>)_mm512_maskz_min_ps(0xffff, (__m512)all<float>(high), (__m512)x);
}
// Approximations to 14 bits and one Newton step: within two units in the last place.
template <>
inline V<float> one_over<float>(V<float> x) {
    const V<float> y = (V<float>)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
    return y + y * (1.0f - x * y);
}
template <>
inline V<float> square_root<float>(V<float> x) {
    const V<float> y = (V<float>)_mm512_maskz_rsqrt14_ps(0xffff, (__m512)x);
    const V<float> root = x * y;
    return root + 0.5f * y * (x - root * root);
}
template <>
inline V<double> square_root<double>(V<double> x) {
    return (V<double>)_mm512_maskz_sqrt_pd(0xff, (__m512d)x);
}
#elif defined(__AVX2__)
template <>
inline V<float> at_least<float>(V<float> x, float low) {
    return (V<float>)_mm256_max_ps((__m256)all<float>(low), (__m256)x);
}
template <>
inline V<float> at_most<float>(V<float> x, float high) {
    return (V<float>)_mm256_min_ps((__m256)all<float>(high), (__m256)x);
}
template <>
inline V<float> square_root<float>(V<float> x) {
    return (V<float>)_mm256_sqrt_ps((__m256)x);
}
template <>
inline V<double> square_root<double>(V<double> x) {
    return (V<double>)_mm256_sqrt_pd((__m256d)x);
}
#endif

template <class T, int R>
inline Pack<T, R> reciprocal(const Pack<T, R>& x) {
    WEFT_EACH(T, R, one_over<T>(x.v[r]))
}

// exp(x) for x ≤ the type's limit, and no less than its inverse: 2^n exp(r), |r| ≤ ln 2 / 2
template <class T, int R>
inline Pack<T, R> exponential(Pack<T, R> x) {
    using L = Lanes<T>;
    Pack<T, R> n;
    I<T> scale[R];
    WEFT_UNROLL
    for (int r = 0; r < R; ++r) x.v[r] = at_least<T>(x.v[r], -L::exp_limit);
    WEFT_UNROLL
    for (int r = 0; r < R; ++r) n.v[r] = x.v[r] * T(1.4426950408889634) + L::rounder;
    WEFT_UNROLL
    for (int r = 0; r < R; ++r)  // the sum's lowest bits are the whole number n
        scale[r] = ((I<T>)n.v[r] << L::mantissa) + (I<T>)all<T>(1);
    n = n - all<T>(L::rounder);
    WEFT_UNROLL
    for (int r = 0; r < R; ++r) x.v[r] = x.v[r] - n.v[r] * L::ln2_high;
    WEFT_UNROLL
    for (int r = 0; r < R; ++r) x.v[r] = x.v[r] - n.v[r] * L::ln2_low;
    T factorial[L::exp_terms + 1];
    factorial[0] = 1;
    for (int i = 1; i <= L::exp_terms; ++i) factorial[i] = factorial[i - 1] / i;
    Pack<T, R> sum = Pack<T, R>::fill(factorial[L::exp_terms]);
    WEFT_UNROLL
    for (int i = L::exp_terms - 1; i >= 0; --i) sum = fused(sum, x, all<T>(factorial[i]));
    WEFT_UNROLL
    for (int r = 0; r < R; ++r) sum.v[r] *= (V<T>)scale[r];
    return sum;
}

// Σ s^(2i+1) / (2i+1), times two: log((1 + s) / (1 - s)) for small s
template <int terms, class T, int R>
inline Pack<T, R> twice_atanh(const Pack<T, R>& s) {
    const Pack<T, R> square = s * s;
    Pack<T, R> sum = Pack<T, R>::fill(T(2) / (2 * terms - 1));
    WEFT_UNROLL
    for (int i = terms - 2; i >= 0; --i) sum = fused(sum, square, all<T>(T(2) / (2 * i + 1)));
    return s * sum;
}

// log(x) for positive, normal x: x = 2^e m, 2/3 ≤ m < 4/3
template <class T, int R>
inline Pack<T, R> logarithm(const Pack<T, R>& x) {
    using L = Lanes<T>;
    Pack<T, R> e, m;
    WEFT_UNROLL
    for (int r = 0; r < R; ++r) {
        const I<T> whole = (I<T>)x.v[r];
        const I<T> power = (whole - (I<T>)all<T>(T(2) / 3)) >> L::mantissa;
        m.v[r] = (V<T>)(whole - (power << L::mantissa));
        e.v[r] = __builtin_convertvector(power, V<T>);
    }
    const V<T> one = all<T>(1);
    const auto log_m = twice_atanh<L::log_terms>((m - one) * reciprocal(m + one));
    return log_m + e * all<T>(T(0.6931471805599453));
}

template <class T, int R>
inline Pack<T, R> sigmoid(Pack<T, R> x) {
    WEFT_UNROLL
    for (int r = 0; r < R; ++r) x.v[r] = at_most<T>(-x.v[r], Lanes<T>::exp_limit);
    return reciprocal(exponential(x) + all<T>(1));
}

// softplus(x), and its derivative sigmoid(x), which shares the exponential
template <class T, int R>
inline Pack<T, R> softplus(const Pack<T, R>& x, Pack<T, R>& slope) {
    Pack<T, R> u, positive;
    WEFT_UNROLL
    for (int r = 0; r < R; ++r) {
        positive.v[r] = at_least<T>(x.v[r], T(0));
        u.v[r] = x.v[r] - T(2) * positive.v[r];  // -|x|
    }
    u = exponential(u);
    const Pack<T, R> y = reciprocal(u + all<T>(1));
    WEFT_UNROLL
    for (int r = 0; r < R; ++r) slope.v[r] = x.v[r] < T(0) ? u.v[r] * y.v[r] : y.v[r];
    return positive + twice_atanh<Lanes<T>::log1p_terms>(u * reciprocal(u + all<T>(2)));
}

// Four standard normal numbers per lane and member of the pack, a pure function of four integers:
// the hash pcg4d of Jarzynski and Olano (2020) gives uniform bits, and the transform of Box and
// Muller the rest. `out` is (member, 4).
template <class T, int P>
inline void normals(const typename Lanes<T>::U* first, typename Lanes<T>::U second,
                    typename Lanes<T>::U third, typename Lanes<T>::U fourth, V<T>* out) {
    using L = Lanes<T>;
    using U = typename L::U;
    using S = typename L::S;
    U a[P], b[P], c[P], d[P];
    const auto start = [](U x) { return x * 1664525u + 1013904223u; };
    WEFT_UNROLL
    for (int p = 0; p < P; ++p) {
        a[p] = start(first[p]);
        b[p] = start(second);
        c[p] = start(third);
        d[p] = start(fourth);
    }
    for (int pass = 0; pass < 2; ++pass) {
    WEFT_UNROLL
        for (int p = 0; p < P; ++p) a[p] += b[p] * d[p];
    WEFT_UNROLL
        for (int p = 0; p < P; ++p) b[p] += c[p] * a[p];
    WEFT_UNROLL
        for (int p = 0; p < P; ++p) c[p] += a[p] * b[p];
    WEFT_UNROLL
        for (int p = 0; p < P; ++p) d[p] += b[p] * c[p];
        if (pass) break;
    WEFT_UNROLL
        for (int p = 0; p < P; ++p) {
            a[p] ^= a[p] >> 16;
            b[p] ^= b[p] >> 16;
            c[p] ^= c[p] >> 16;
            d[p] ^= d[p] >> 16;
        }
    }
    // u in (0, 1) by 23 bits; an angle in (-π/2, π/2) by 23 others: half a circle, and a sign
    Pack<T, 2 * P> u, x, sign;
    WEFT_UNROLL
    for (int p = 0; p < P; ++p)
    WEFT_UNROLL
        for (int half = 0; half < 2; ++half) {
            const U radial = half ? c[p] : a[p], angular = half ? d[p] : b[p];
            const int i = 2 * p + half;
            u.v[i] = (__builtin_convertvector((S)(radial >> 9), V<T>) + T(0.5)) * T(0x1p-23);
            x.v[i] = (__builtin_convertvector((S)(angular >> 9), V<T>) - T(0x1p22 - 0.5)) *
                     T(1.5707963267948966 * 0x1p-22);
            sign.v[i] = T(1) - __builtin_convertvector((S)((angular >> 7) & 2u), V<T>);
        }
    Pack<T, 2 * P> radius = logarithm(u) * all<T>(-2);
    WEFT_UNROLL
    for (int i = 0; i < 2 * P; ++i) radius.v[i] = square_root<T>(radius.v[i]);
    T sine[L::sin_terms], cosine[L::sin_terms];
    sine[0] = cosine[0] = 1;
    for (int k = 1; k < L::sin_terms; ++k) {
        cosine[k] = -cosine[k - 1] / ((2 * k - 1) * (2 * k));
        sine[k] = -sine[k - 1] / ((2 * k) * (2 * k + 1));
    }
    const Pack<T, 2 * P> square = x * x;
    Pack<T, 2 * P> s = Pack<T, 2 * P>::fill(sine[L::sin_terms - 1]);
    Pack<T, 2 * P> o = Pack<T, 2 * P>::fill(cosine[L::sin_terms - 1]);
    WEFT_UNROLL
    for (int k = L::sin_terms - 2; k >= 0; --k) {
        s = fused(s, square, all<T>(sine[k]));
        o = fused(o, square, all<T>(cosine[k]));
    }
    s = s * x * radius;
    o = o * sign * radius;
    WEFT_UNROLL
    for (int i = 0; i < 2 * P; ++i) {
        out[2 * i] = s.v[i];
        out[2 * i + 1] = o.v[i];
    }
}

}  // namespace
}  // namespace weft

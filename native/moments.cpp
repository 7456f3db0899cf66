// Element-wise passes over particles of a large transition, for one instruction set.
//
// Each pass does everything there is to do between two matrix products. Vectors run along the
// latent axis, two at a time; what is left of a row's end is copied into a vector of its own.
#include "moments.hpp"

#include <cstring>

#include "lanes.hpp"

namespace weft {
namespace {

constexpr int TWO = 2;
constexpr double STD_FLOOR = 1e-3;

// Some consecutive numbers: R vectors full, or one with `left` numbers in it.
template <class T, int R, bool part>
struct Span {
    using P = Pack<T, R>;
    std::int64_t left;

    P load(const T* from) const {
        P out;
        if constexpr (part) {
            out = P::fill(T(0));
            std::memcpy(&out, from, left * sizeof(T));
        } else {
            std::memcpy(&out, from, sizeof(P));
        }
        return out;
    }
    void store(const P& x, T* to) const { std::memcpy(to, &x, part ? left * sizeof(T) : sizeof(P)); }
    void add(const P& x, T* to) const { store(load(to) + x, to); }
};

// Calls `visit(span, start)` for spans that cover `size` numbers.
template <class T, class Visit>
inline void cover(std::int64_t size, const Visit& visit) {
    constexpr std::int64_t count = Lanes<T>::count;
    std::int64_t d = 0;
    for (; d + TWO * count <= size; d += TWO * count) visit(Span<T, TWO, false>{0}, d);
    for (; d + count <= size; d += count) visit(Span<T, 1, false>{0}, d);
    if (d < size) visit(Span<T, 1, true>{size - d}, d);
}

template <class T, int R>
struct State {
    Pack<T, R> variance, mean, std;

    State(const Pack<T, R>& precision, const Pack<T, R>& information) {
        variance = reciprocal(precision);
        mean = information * variance;
        WEFT_UNROLL
        for (int r = 0; r < R; ++r) std.v[r] = square_root<T>(variance.v[r]);
    }
};

template <class T>
void place(const Swarm<T>& s, std::int64_t first, std::int64_t last) {
    const std::int64_t D = s.latent, K = s.particles;
    for (std::int64_t n = first; n < last; ++n)
        cover<T>(D, [&](auto span, std::int64_t d) {
            const auto low = span.load(s.low + d), high = span.load(s.high + d);
            const State state(span.load(s.state_precision + n * D + d),
                              span.load(s.state_information + n * D + d));
            for (std::int64_t k = 0; k < K; ++k) {
                const T* point = s.points + k * s.point_particle + n * s.point_row + d;
                auto z = state.mean + state.std * span.load(point);
                for (auto& v : z.v) {
                    const auto& l = low.v[&v - z.v];
                    const auto& h = high.v[&v - z.v];
                    v = v < l ? l : v;
                    v = v > h ? h : v;
                }
                span.store(z, s.z + (n * K + k) * D + d);
            }
        });
}

template <class T>
void unplace(const Swarm<T>& s, std::int64_t first, std::int64_t last) {
    const std::int64_t D = s.latent, K = s.particles;
    for (std::int64_t n = first; n < last; ++n)
        cover<T>(D, [&](auto span, std::int64_t d) {
            using P = typename decltype(span)::P;
            const auto low = span.load(s.low + d), high = span.load(s.high + d);
            const State state(span.load(s.state_precision + n * D + d),
                              span.load(s.state_information + n * D + d));
            P d_mean = P::fill(T(0)), d_std = P::fill(T(0));
            for (std::int64_t k = 0; k < K; ++k) {
                const P e = span.load(s.points + k * s.point_particle + n * s.point_row + d);
                const P at = state.mean + state.std * e;
                P g = span.load(s.z + (n * K + k) * D + d);
                for (auto& v : g.v) {
                    const auto r = &v - g.v;
                    v = at.v[r] < low.v[r] ? V<T>{} : v;
                    v = at.v[r] > high.v[r] ? V<T>{} : v;
                }
                d_mean = d_mean + g;
                d_std = d_std + g * e;
            }
            const P d_i = d_mean * state.variance;
            const P half = d_std * state.std * state.variance * all<T>(T(0.5));
            span.store(d_i, s.d_information + n * D + d);
            span.store(P::fill(T(0)) - d_i * state.mean - half, s.d_precision + n * D + d);
        });
}

template <class T>
void rectify(const Swarm<T>& s, std::int64_t first, std::int64_t last) {
    const std::int64_t H = 2 * s.hidden, width = H + s.latent;
    for (std::int64_t i = first * s.particles; i < last * s.particles; ++i)
        cover<T>(H, [&](auto span, std::int64_t d) {
            auto x = span.load(s.inward + i * width + d) + span.load(s.inward_bias + d);
            for (auto& v : x.v) v = at_least<T>(v, T(0));
            span.store(x, s.inward + i * width + d);
        });
}

template <class T>
void unrectify(const Swarm<T>& s, std::int64_t first, std::int64_t last, T* sums) {
    const std::int64_t H = 2 * s.hidden, width = H + s.latent;
    for (std::int64_t n = first; n < last; ++n)
        cover<T>(H, [&](auto span, std::int64_t d) {
            using P = typename decltype(span)::P;
            P sum = P::fill(T(0));
            for (std::int64_t i = n * s.particles; i < (n + 1) * s.particles; ++i) {
                const P x = span.load(s.inward + i * width + d);
                P g = span.load(s.d_inward + i * width + d);
                for (auto& v : g.v) v = x.v[&v - g.v] > T(0) ? v : V<T>{};
                span.store(g, s.d_inward + i * width + d);
                sum = sum + g;
            }
            span.add(sum, sums + d);
        });
}

// One particle's numbers at a span, and with them where prior · f(z) has its mean and variance.
template <class T, int R>
struct Moved {
    using P = Pack<T, R>;
    P gate, square, growth, shrink, mean;

    P width() const { return square * shrink; }
};

// The particles of one row at one span, and the mixture they make.
template <class T, class Span>
struct Mixture {
    using P = typename Span::P;
    static constexpr int R = sizeof(P) / sizeof(V<T>);
    const Swarm<T>& s;
    const Span span;
    const std::int64_t row, d;
    Moved<T, R>* moved;  // of every particle
    P mean, variance, drift;

    Mixture(const Swarm<T>& swarm, Span at, std::int64_t n, std::int64_t dimension, T* scratch)
        : s(swarm), span(at), row(n), d(dimension) {
        const std::uintptr_t align = sizeof(V<T>);
        moved = (Moved<T, R>*)(((std::uintptr_t)scratch + align - 1) / align * align);
        move();
        match();
    }

    std::int64_t at(std::int64_t k) const { return (row * s.particles + k) * s.latent + d; }
    std::int64_t inward_at(std::int64_t k) const {
        return (row * s.particles + k) * (2 * s.hidden + s.latent) + 2 * s.hidden + d;
    }
    P linear(std::int64_t k) const {
        return span.load(s.inward + inward_at(k)) + span.load(s.inward_bias + 2 * s.hidden + d);
    }
    P candidate(std::int64_t k) const { return span.load(s.candidate + at(k)); }
    P prior_precision() const { return span.load(s.prior_precision + d); }
    P prior_information() const { return span.load(s.prior_information + d); }

    void move() {
        const P gate_bias = span.load(s.gate_bias + d), spread_bias = span.load(s.spread_bias + d);
        const P prior_p = prior_precision(), prior_i = prior_information();
        for (std::int64_t k = 0; k < s.particles; ++k) {
            const P l = linear(k);
            P slope;
            const P gate = sigmoid(span.load(s.gate + at(k)) + gate_bias);
            const P std = softplus(span.load(s.spread + at(k)) + spread_bias, slope) +
                          all<T>(STD_FLOOR);
            const P square = std * std;
            const P shrink = reciprocal(square * prior_p + all<T>(1));
            const P at = (l + gate * (candidate(k) - l) + square * prior_i) * shrink;
            moved[k] = {gate, square, std * slope, shrink, at};
        }
    }

    // Moments in centred form, so that the variance cannot come out negative.
    void match() {
        P sum = P::fill(T(0)), inner = P::fill(T(0)), outer = P::fill(T(0));
        for (std::int64_t k = 0; k < s.particles; ++k) {
            sum = sum + moved[k].mean;
            inner = inner + moved[k].width();
        }
        const V<T> each = all<T>(T(1) / s.particles);
        mean = sum * each;
        drift = P::fill(T(0));
        for (std::int64_t k = 0; k < s.particles; ++k) {
            const P off = moved[k].mean - mean;
            outer = outer + off * off;
            drift = drift + off;
        }
        variance = (inner + outer) * each;
        drift = drift * each;
    }

    void store() const {
        const P precision = reciprocal(variance);
        span.store(precision, s.precision + row * s.latent + d);
        span.store(precision * mean, s.information + row * s.latent + d);
    }

    void backward(T* sums) const {
        const V<T> one = all<T>(1), two = all<T>(2), each = all<T>(T(1) / s.particles);
        const P none = P::fill(T(0)), precision = reciprocal(variance);
        const P cot_p = span.load(s.precision + row * s.latent + d);
        const P cot_i = span.load(s.information + row * s.latent + d);
        const P d_mean = cot_i * precision * each;
        const P d_var = none - precision * precision * (cot_p + cot_i * mean) * each;
        const P prior_p = prior_precision(), prior_i = prior_information();
        P to_prior_p = none, to_prior_i = none, to_gate = none, to_linear = none;
        P to_candidate = none, to_spread = none;
        for (std::int64_t k = 0; k < s.particles; ++k) {
            const auto& [g, square, growth, q, m] = moved[k];
            const P v = square * q;
            const P d_m = d_mean + (m - mean - drift) * d_var * two;
            to_prior_p = to_prior_p - v * (d_m * m + d_var * v);
            to_prior_i = to_prior_i + d_m * v;
            const P d_f = d_m * q;
            const P d_square = d_f * (prior_i - m * prior_p) + d_var * q * q;
            const P d_spread = growth * d_square * two;
            const P d_candidate = d_f * g;
            const P d_linear = d_f - d_candidate;
            const P d_gate = d_candidate * (one - g) * (candidate(k) - linear(k));
            span.store(d_spread, s.d_spread + at(k));
            span.store(d_candidate, s.d_candidate + at(k));
            span.store(d_linear, s.d_inward + inward_at(k));
            span.store(d_gate, s.d_gate + at(k));
            to_gate = to_gate + d_gate;
            to_linear = to_linear + d_linear;
            to_spread = to_spread + d_spread;
            to_candidate = to_candidate + d_candidate;
        }
        const P* const parts[SUMS] = {&to_prior_p, &to_prior_i, &to_gate,
                                      &to_linear,  &to_spread,  &to_candidate};
        for (int i = 0; i < SUMS; ++i) span.add(*parts[i], sums + i * s.latent + d);
    }
};

template <class T>
std::int64_t scratch_size(const Swarm<T>& s) {
    return (s.particles * sizeof(Moved<T, TWO>) + sizeof(V<T>)) / sizeof(T);
}

template <class T>
void settle(const Swarm<T>& s, std::int64_t first, std::int64_t last, T* scratch) {
    for (std::int64_t n = first; n < last; ++n)
        cover<T>(s.latent, [&](auto span, std::int64_t d) {
            Mixture<T, decltype(span)>(s, span, n, d, scratch).store();
        });
}

template <class T>
void unsettle(const Swarm<T>& s, std::int64_t first, std::int64_t last, T* scratch, T* sums) {
    for (std::int64_t n = first; n < last; ++n)
        cover<T>(s.latent, [&](auto span, std::int64_t d) {
            Mixture<T, decltype(span)>(s, span, n, d, scratch).backward(sums);
        });
}

template <class T>
constexpr Passes<T> passes() {
    return {place<T>,  rectify<T>,  scratch_size<T>, settle<T>,
            unsettle<T>, unrectify<T>, unplace<T>};
}

}  // namespace

extern const MomentKernels WEFT_KERNELS;
const MomentKernels WEFT_KERNELS = {WEFT_NAME, passes<float>(), passes<double>()};

}  // namespace weft

// The scan and its gradient for one instruction set; compiled once for each.
//
// A lane holds one row (a sequence of a subset) through all of time, so rows never wait for each
// other and the mixture's moments are sums within a lane. Particles go through the network four at
// a time. Where rows are few, a row takes several lanes and its particles are dealt among them.
// Nothing is kept per particle: the gradient computes each step again from the step's message.
#include <initializer_list>

#include "lanes.hpp"
#include "scan.hpp"

namespace weft {
namespace {

constexpr int FOUR = 4;
constexpr std::int64_t FLUSH = 32;  // steps after which gradient sums move on, for precision
constexpr double STD_FLOOR = 1e-3;

// Products: arrays of vectors are (index, particle of the four).

// out[j] = bias[j] + Σ_i w[j, i] x[i], for `outputs` consecutive j
template <class T, int R, int outputs, bool rectify>
inline void product_block(const T* w, std::int64_t w_out, std::int64_t w_in, const T* bias,
                          std::int64_t inputs, const V<T>* x, V<T>* out) {
    Pack<T, R> sum[outputs];
    WEFT_UNROLL
    for (int j = 0; j < outputs; ++j) sum[j] = Pack<T, R>::fill(bias ? bias[j] : T(0));
    for (std::int64_t i = 0; i < inputs; ++i, x += R, w += w_in) {
        WEFT_UNROLL
        for (int j = 0; j < outputs; ++j) {
            const T weight = w[j * w_out];
            WEFT_UNROLL
            for (int r = 0; r < R; ++r) sum[j].v[r] += weight * x[r];
        }
    }
    WEFT_UNROLL
    for (int j = 0; j < outputs; ++j) {
        if (rectify) {
            WEFT_UNROLL
            for (int r = 0; r < R; ++r) sum[j].v[r] = at_least<T>(sum[j].v[r], T(0));
        }
        sum[j].store(out + j * R);
    }
}

template <class T, int R, bool rectify>
inline void product(const T* w, std::int64_t w_out, std::int64_t w_in, const T* bias,
                    std::int64_t outputs, std::int64_t inputs, const V<T>* x, V<T>* out) {
    const std::int64_t parts = (outputs + WEFT_OUTPUTS - 1) / WEFT_OUTPUTS;
    for (std::int64_t part = 0, j = 0; part < parts; ++part) {
        const std::int64_t size = (outputs - j + parts - part - 1) / (parts - part);
        const T* b = bias ? bias + j : nullptr;
        switch (size) {
#define WEFT_CASE(n)                                                                          \
    case n:                                                                                   \
        product_block<T, R, n, rectify>(w + j * w_out, w_out, w_in, b, inputs, x, out + j * R); \
        break;
            WEFT_CASE(1)
            WEFT_CASE(2)
            WEFT_CASE(3)
#if WEFT_OUTPUTS > 3
            WEFT_CASE(4)
            WEFT_CASE(5)
            WEFT_CASE(6)
#endif
#undef WEFT_CASE
        }
        j += size;
    }
}

// sums[j, i] += Σ_r g[j, r] x[i, r] and bias_sums[j] += Σ_r g[j, r], per lane
template <class T, int R, int outputs>
inline void outer_block(const V<T>* g, std::int64_t inputs, const V<T>* x, V<T>* sums,
                        V<T>* bias_sums) {
    Pack<T, R> held[outputs];
    WEFT_UNROLL
    for (int j = 0; j < outputs; ++j) {
        held[j] = Pack<T, R>::load(g + j * R);
        bias_sums[j] += held[j].sum();
    }
    for (std::int64_t i = 0; i < inputs; ++i) {
        WEFT_UNROLL
        for (int j = 0; j < outputs; ++j) {
            V<T> sum = sums[j * inputs + i];
            WEFT_UNROLL
            for (int r = 0; r < R; ++r) sum += held[j].v[r] * x[i * R + r];
            sums[j * inputs + i] = sum;
        }
    }
}

template <class T, int R>
inline void outer(const V<T>* g, std::int64_t outputs, std::int64_t inputs, const V<T>* x,
                  V<T>* sums, V<T>* bias_sums) {
    std::int64_t j = 0;
    for (; j + 2 <= outputs; j += 2)
        outer_block<T, R, 2>(g + j * R, inputs, x, sums + j * inputs, bias_sums + j);
    for (; j < outputs; ++j)
        outer_block<T, R, 1>(g + j * R, inputs, x, sums + j * inputs, bias_sums + j);
}

// Where each layer lies in the packed weights (of T) or their gradients (of vectors).
template <class W>
struct Layers {
    W *inward, *inward_bias, *gate, *gate_bias, *candidate, *candidate_bias, *spread, *spread_bias;

    Layers(W* base, std::int64_t latent, std::int64_t hidden) {
        inward = base;
        inward_bias = inward + (2 * hidden + latent) * latent;
        gate = inward_bias + 2 * hidden + latent;
        gate_bias = gate + latent * hidden;
        candidate = gate_bias + latent;
        candidate_bias = candidate + latent * hidden;
        spread = candidate_bias + latent;
        spread_bias = spread + latent * latent;
    }
};

// One block of rows on its way through time.
template <class T>
struct Block {
    using L = Lanes<T>;
    using U = typename L::U;
    static constexpr int count = L::count;

    const Scan<T>& scan;
    const std::int64_t D, H;
    const std::int64_t share;  // lanes per row
    const std::int64_t turns;  // rounds of four particles per lane
    const Layers<const T> net;
    std::int64_t row[count], data_row[count];  // of the lane
    bool writes[count];       // whether the lane is its row's first
    V<T> once;                // 1 in lanes that write, 0 in others
    U row_number, lane_in_row;

    // Gaussians, one vector per dimension
    V<T> *message_p, *message_i, *factor_p, *factor_i, *future_p, *future_i, *power;
    V<T> *posterior_p, *mean, *std;
    // particles, (dimension, particle of the four)
    V<T> *noise, *z, *inward, *gate, *candidate, *spread, *moved, *width, *opening, *growth, *shrink;
    V<T>* moved_all;  // (particle, dimension)
    V<T> *inner_variance, *outer_variance;  // mean of the variances, variance of the means
    V<T> weight[FOUR];
    // gradients
    V<T> *cot_p, *cot_i, *d_mean, *d_var, *next_mean, *drift, *d_point, *d_std, *d_p, *d_i;
    V<T> *d_inward, *d_gate, *d_candidate, *d_spread, *d_z;
    V<T> *d_prior_p, *d_prior_i, *sums, *totals;

    static std::int64_t lanes_per_row(const Scan<T>& s) {
        std::int64_t share = 1;
        while (2 * share * s.rows <= count && 2 * share * FOUR <= s.particles + FOUR) share *= 2;
        return share;
    }

    static std::int64_t rounds(const Scan<T>& s) {
        const std::int64_t at_once = FOUR * lanes_per_row(s);
        return (s.particles + at_once - 1) / at_once;
    }

    // Lay out the scratch memory; with none given, only measure it.
    std::int64_t lay_out(V<T>* base) {
        V<T>* next = base;
        const auto take = [&](V<T>*& place, std::int64_t size) {
            place = next;
            next += size;
        };
        for (V<T>** place : {&message_p, &message_i, &factor_p, &factor_i, &future_p, &future_i,
                             &power, &posterior_p, &mean, &std, &cot_p, &cot_i, &d_mean, &d_var,
                             &next_mean, &drift, &inner_variance, &outer_variance, &d_point, &d_std,
                             &d_p, &d_i, &d_prior_p, &d_prior_i})
            take(*place, D);
        for (V<T>** place : {&noise, &z, &gate, &candidate, &spread, &moved, &width, &opening,
                             &growth, &shrink, &d_gate, &d_candidate, &d_spread, &d_z})
            take(*place, D * FOUR);
        take(inward, (2 * H + D) * FOUR);
        take(d_inward, (2 * H + D) * FOUR);
        take(moved_all, rounds(scan) * FOUR * D);
        take(sums, weight_count(D, H));
        take(totals, weight_count(D, H));
        return next - base;
    }

    Block(const Scan<T>& s, T* scratch)
        : scan(s), D(s.latent), H(s.hidden), share(lanes_per_row(s)), turns(rounds(s)),
          net(s.weights, s.latent, s.hidden) {
        const std::uintptr_t align = sizeof(V<T>);
        lay_out((V<T>*)(((std::uintptr_t)scratch + align - 1) / align * align));
    }

    void enter(std::int64_t block) {
        for (int l = 0; l < count; ++l) {
            const std::int64_t lane = block * count + l, n = lane / share;
            writes[l] = n < scan.rows && lane % share == 0;
            row[l] = n < scan.rows ? n : scan.rows - 1;
            data_row[l] = row[l] % scan.data_rows;
            once[l] = writes[l];
            row_number[l] = (std::uint32_t)row[l];
            lane_in_row[l] = (std::uint32_t)(lane % share);
        }
    }

    // Memory to lanes and back

    void load(const T* from, V<T>* to) const {
        for (int l = 0; l < count; ++l)
            for (std::int64_t d = 0; d < D; ++d) ((T*)(to + d))[l] = from[row[l] * D + d];
    }

    // `step` leads to the same rows a step later in the scan, which are called for in advance: they
    // lie too far off for the processor to foresee.
    void load_data(const T* from, std::int64_t stride, std::int64_t step, V<T>* to) const {
        if (stride == 0) {  // the same for every row
            for (std::int64_t d = 0; d < D; ++d) to[d] = all<T>(from[d]);
            return;
        }
        for (int l = 0; l < count; ++l) {
            const T* source = from + data_row[l] * stride;
            __builtin_prefetch(source + step);
            for (std::int64_t d = 0; d < D; ++d) ((T*)(to + d))[l] = source[d];
        }
    }

    void store(const V<T>* from, T* to) const {
        for (int l = 0; l < count; ++l)
            if (writes[l])
                for (std::int64_t d = 0; d < D; ++d) to[row[l] * D + d] = ((const T*)(from + d))[l];
    }

    // Add up a row's lanes, and give each the sum.
    V<T> gather(V<T> x) const {
        if (share == 1) return x;
        V<T> out;
        for (int l = 0; l < count; l += (int)share) {
            T sum = 0;
            for (int i = 0; i < share; ++i) sum += x[l + i];
            for (int i = 0; i < share; ++i) out[l + i] = sum;
        }
        return out;
    }

    // 1 in lanes where something has been seen up to step t, 0 in others; whether any was.
    bool seen(std::int64_t t, V<T>& mask) const {
        bool any = false;
        for (int l = 0; l < count; ++l) {
            const bool yes = scan.seen[scan.at(t) * scan.data_rows + data_row[l]];
            mask[l] = yes;
            any |= yes;
        }
        return any;
    }

    // posterior = message · factor · future / prior^power, as moments; step `next` will follow
    void fuse(std::int64_t t, std::int64_t next) {
        const std::int64_t data = scan.at(t) * scan.data_rows * D;
        const std::int64_t ahead = scan.at(t) * scan.future_step;
        const std::int64_t way = next < 0 || next >= scan.steps ? 0 : scan.at(next) - scan.at(t);
        const std::int64_t data_way = way * scan.data_rows * D, ahead_way = way * scan.future_step;
        load_data(scan.factor_precision + data, D, data_way, factor_p);
        load_data(scan.factor_information + data, D, data_way, factor_i);
        load_data(scan.future_precision + ahead, scan.future_row, ahead_way, future_p);
        load_data(scan.future_information + ahead, scan.future_row, ahead_way, future_i);
        for (std::int64_t d = 0; d < D; ++d) {
            const T prior_p = scan.prior_precision[d];
            const V<T> wider = message_p[d] > future_p[d] ? message_p[d] : future_p[d];
            power[d] = wider < prior_p ? wider * (T(1) / prior_p) : all<T>(1);
            posterior_p[d] = message_p[d] - power[d] * prior_p + future_p[d] + factor_p[d];
            const V<T> information = message_i[d] - power[d] * scan.prior_information[d] +
                                     future_i[d] + factor_i[d];
            const V<T> variance = one_over<T>(posterior_p[d]);
            mean[d] = information * variance;
            std[d] = square_root<T>(variance);
        }
    }

    // Place four particles (or fewer) of round `round` and push them through the network.
    template <int R>
    __attribute__((noinline)) void push(std::int64_t t, std::int64_t round) {
        place<R>(t, round);
        for (std::int64_t d = 0; d < D; ++d)
            for (int r = 0; r < R; ++r) {
                const V<T> at = mean[d] + std[d] * noise[d * R + r];
                z[d * R + r] = at_most<T>(at_least<T>(at, scan.low[d]), scan.high[d]);
            }
        product<T, R, true>(net.inward, D, 1, net.inward_bias, 2 * H, D, z, inward);
        V<T>* linear = inward + 2 * H * R;
        product<T, R, false>(net.inward + 2 * H * D, D, 1, net.inward_bias + 2 * H, D, D, z, linear);
        product<T, R, false>(net.gate, H, 1, net.gate_bias, D, H, inward, gate);
        product<T, R, false>(net.candidate, H, 1, net.candidate_bias, D, H, inward + H * R,
                             candidate);
        product<T, R, false>(net.spread, D, 1, net.spread_bias, D, D, candidate, spread);
    }

    // Mean and variance of prior · f(z) for each particle; with `keep` what the gradient needs
    // besides. Not inlined: the gradient must find the very numbers that were found before.
    template <int R, bool keep>
    __attribute__((noinline)) void settle() {
        using P = Pack<T, R>;
        for (std::int64_t d = 0; d < D; ++d) {
            const V<T> prior_p = all<T>(scan.prior_precision[d]);
            const V<T> prior_i = all<T>(scan.prior_information[d]);
            const P l = P::load(inward + (2 * H + d) * R), c = P::load(candidate + d * R);
            const P g = sigmoid(P::load(gate + d * R));
            P slope;
            const P s = softplus(P::load(spread + d * R), slope) + all<T>(STD_FLOOR);
            const P square = s * s;
            const P q = reciprocal(fused(square, P::fill(prior_p), all<T>(1)));
            ((l + g * (c - l) + square * prior_i) * q).store(moved + d * R);
            (square * q).store(width + d * R);
            if (!keep) continue;
            g.store(opening + d * R);
            (s * slope).store(growth + d * R);
            q.store(shrink + d * R);
        }
    }

    // What a round's particles count for: 1 / K, or nothing where a lane has none left.
    template <int R>
    void weigh(std::int64_t round) {
        const T each = T(1) / scan.particles;
        const bool full = (round + 1) * share * FOUR <= scan.particles;
        for (int r = 0; r < R; ++r) {
            weight[r] = all<T>(each);
            if (full) continue;
            for (int l = 0; l < count; ++l) {
                const std::int64_t four = round * share + lane_in_row[l];
                if (four * FOUR + r >= scan.particles) weight[r][l] = 0;
            }
        }
    }

    template <int R, int P>
    void draw(std::int64_t t, U four, std::int64_t d) {
        const Noise<T>& from = scan.noise;
        const U step = U{} + ((std::uint32_t)scan.at(t) ^ (std::uint32_t)(from.seed >> 32));
        const U seed = U{} + (std::uint32_t)from.seed;
        U number[P];
        for (int p = 0; p < P; ++p)
            number[p] = four * (std::uint32_t)D + (std::uint32_t)(d + p);
        V<T> drawn[P * FOUR];
        normals<T, P>(number, row_number, step, seed, drawn);
        for (int p = 0; p < P; ++p)
            for (int r = 0; r < R; ++r) {
                const V<T>* own = drawn + p * FOUR;
                noise[(d + p) * R + r] = !from.mirrored ? own[r] : r % 2 ? -own[r / 2] : own[r / 2];
            }
    }

    // Noise of the particles of a round.
    template <int R>
    void place(std::int64_t t, std::int64_t round) {
        const U four = (std::uint32_t)(round * share) + lane_in_row;
        const Noise<T>& from = scan.noise;
        if (!from.points) {
            std::int64_t d = 0;
            for (; d + 2 <= D; d += 2) draw<R, 2>(t, four, d);
            for (; d < D; ++d) draw<R, 1>(t, four, d);
            return;
        }
        const T* points = from.points + scan.at(t) * from.step;
        const std::int64_t last = scan.particles - 1;
        if (share == 1 && from.row == 0) {  // the same for every lane
            for (int r = 0; r < R; ++r) {
                const std::int64_t k = round * FOUR + r;
                const T* point = points + (k < last ? k : last) * from.particle;
                for (std::int64_t d = 0; d < D; ++d) noise[d * R + r] = all<T>(point[d]);
            }
            return;
        }
        for (int l = 0; l < count; ++l)
            for (int r = 0; r < R; ++r) {
                const std::int64_t k = std::int64_t(four[l]) * FOUR + r;
                const T* point =
                    points + (k < last ? k : last) * from.particle + row[l] * from.row;
                for (std::int64_t d = 0; d < D; ++d) ((T*)(noise + d * R + r))[l] = point[d];
            }
    }

    // How many of a round's four places any lane needs: 1, 2 or 4.
    int places(std::int64_t round) const {
        const std::int64_t left = scan.particles - round * share * FOUR;
        return left == 1 ? 1 : left == 2 ? 2 : FOUR;
    }

    template <int R>
    void forward_round(std::int64_t t, std::int64_t round) {
        weigh<R>(round);
        push<R>(t, round);
        scan.drift ? settle<R, true>() : settle<R, false>();
        V<T>* kept = moved_all + round * FOUR * D;
        for (std::int64_t d = 0; d < D; ++d)
            for (int r = 0; r < R; ++r) {
                const V<T> m = moved[d * R + r];
                kept[r * D + d] = m;
                next_mean[d] += weight[r] * m;
                inner_variance[d] += weight[r] * width[d * R + r];
            }
    }

    template <int R>
    void centre_round(std::int64_t round) {
        const V<T>* kept = moved_all + round * FOUR * D;
        weigh<R>(round);
        for (int r = 0; r < R; ++r)
            for (std::int64_t d = 0; d < D; ++d) {
                const V<T> off = kept[r * D + d] - next_mean[d];
                outer_variance[d] += weight[r] * (off * off);
                drift[d] += weight[r] * off;
            }
    }

    void forward() {
        load(scan.start_precision, message_p);
        load(scan.start_information, message_i);
        for (std::int64_t t = 0; t < scan.steps; ++t) {
            const std::int64_t here = scan.message_at(t) * scan.rows * D;
            store(message_p, scan.message_precision + here);
            store(message_i, scan.message_information + here);
            V<T> mask;
            const bool any = seen(t, mask);
            if (any || scan.states) fuse(t, t + 1);
            if (any) {
                for (std::int64_t d = 0; d < D; ++d) next_mean[d] = inner_variance[d] = outer_variance[d] = drift[d] = V<T>{};
                for (std::int64_t i = 0; i < turns; ++i) switch (places(i)) {
                        case 1: forward_round<1>(t, i); break;
                        case 2: forward_round<2>(t, i); break;
                        default: forward_round<FOUR>(t, i);
                    }
                for (std::int64_t d = 0; d < D; ++d) next_mean[d] = gather(next_mean[d]);
                for (std::int64_t i = 0; i < turns; ++i) switch (places(i)) {
                        case 1: centre_round<1>(i); break;
                        case 2: centre_round<2>(i); break;
                        default: centre_round<FOUR>(i);
                    }
            } else if (scan.states) {
                place<1>(t, 0);
            }
            if (scan.states) show_state(t);
            for (std::int64_t d = 0; d < D; ++d) {
                const V<T> prior_p = all<T>(scan.prior_precision[d]);
                const V<T> prior_i = all<T>(scan.prior_information[d]);
                message_p[d] = prior_p;
                message_i[d] = prior_i;
                if (any) {
                    const V<T> p = one_over<T>(gather(inner_variance[d] + outer_variance[d]));
                    message_p[d] = mask != T(0) ? p : prior_p;
                    message_i[d] = mask != T(0) ? p * next_mean[d] : prior_i;
                    drift[d] = gather(drift[d]) + (next_mean[d] - mean_of(d));
                }
            }
            if (any && scan.drift) store(drift, scan.drift + scan.message_at(t + 1) * scan.rows * D);
        }
        const std::int64_t last = scan.message_at(scan.steps) * scan.rows * D;
        store(message_p, scan.message_precision + last);
        store(message_i, scan.message_information + last);
    }

    __attribute__((noinline)) V<T> mean_of(std::int64_t d) const {
        return message_i[d] * one_over<T>(message_p[d]);
    }

    // Write the one particle's posterior and state.
    void show_state(std::int64_t t) {
        const std::int64_t here = scan.at(t) * scan.rows * D;
        for (std::int64_t d = 0; d < D; ++d) {
            d_i[d] = mean[d] * posterior_p[d];
            d_p[d] = mean[d] + std[d] * noise[d];
        }
        store(posterior_p, scan.posterior_precision + here);
        store(d_i, scan.posterior_information + here);
        store(d_p, scan.states + here);
    }

    // The gradient of `push` and `settle`, given those of the next message's moments.
    template <int R>
    void backward_round(std::int64_t t, std::int64_t round, const Layers<V<T>>& into) {
        using P = Pack<T, R>;
        weigh<R>(round);
        push<R>(t, round);
        settle<R, true>();
        const P w = P::load(weight);
        for (std::int64_t d = 0; d < D; ++d) {
            const V<T> prior_p = all<T>(scan.prior_precision[d]);
            const V<T> prior_i = all<T>(scan.prior_information[d]);
            const V<T> one = all<T>(1), two = all<T>(2);
            const P g = P::load(opening + d * R), q = P::load(shrink + d * R);
            const P off = P::load(candidate + d * R) - P::load(inward + (2 * H + d) * R);
            const P m = P::load(moved + d * R), v = P::load(width + d * R);
            const P aside = (m - next_mean[d]) - drift[d];
            const P d_m = w * fused(aside, P::fill(two * d_var[d]), d_mean[d]);
            const P d_v = w * d_var[d];
            d_prior_p[d] -= (v * (d_m * m + d_v * v)).sum();
            d_prior_i[d] += (d_m * v).sum();
            const P d_f = d_m * q;
            const P d_square = d_f * (prior_i - m * prior_p) + d_v * q * q;
            (P::load(growth + d * R) * d_square * two).store(d_spread + d * R);
            (d_f * (one - g)).store(d_inward + (2 * H + d) * R);
            (d_f * g).store(d_candidate + d * R);
            (d_f * off * g * (one - g)).store(d_gate + d * R);
        }
        // through the layers, from the last to the first
        product<T, R, false>(net.spread, 1, D, nullptr, D, D, d_spread, d_z);
        for (std::int64_t i = 0; i < D * R; ++i) d_candidate[i] += d_z[i];
        product<T, R, false>(net.gate, 1, H, nullptr, H, D, d_gate, d_inward);
        product<T, R, false>(net.candidate, 1, H, nullptr, H, D, d_candidate, d_inward + H * R);
        for (std::int64_t i = 0; i < 2 * H * R; ++i)
            d_inward[i] = inward[i] > T(0) ? d_inward[i] : V<T>{};
        product<T, R, false>(net.inward, 1, D, nullptr, D, 2 * H + D, d_inward, d_z);
        outer<T, R>(d_spread, D, D, candidate, into.spread, into.spread_bias);
        outer<T, R>(d_gate, D, H, inward, into.gate, into.gate_bias);
        outer<T, R>(d_candidate, D, H, inward + H * R, into.candidate, into.candidate_bias);
        outer<T, R>(d_inward, 2 * H + D, D, z, into.inward, into.inward_bias);
        for (std::int64_t d = 0; d < D; ++d)
            for (int r = 0; r < R; ++r) {
                const V<T> e = noise[d * R + r];
                const V<T> at = mean[d] + std[d] * e;
                V<T> g = at < scan.low[d] ? V<T>{} : d_z[d * R + r];
                g = at > scan.high[d] ? V<T>{} : g;
                d_point[d] += g;
                d_std[d] += g * e;
            }
    }

    // Gradients of one step, from the cotangent of the message after it to that of the one before.
    void backward_step(std::int64_t t, const Gradients<T>& to, V<T> mask, bool any,
                       const Layers<V<T>>& into) {
        load(scan.drift + scan.message_at(t + 1) * scan.rows * D, drift);
        for (std::int64_t d = 0; d < D; ++d) {
            // message_{t+1} = (1/var, mean/var); lanes not seen pass nothing on
            const V<T> p = message_p[d];
            next_mean[d] = mean_of(d);
            d_mean[d] = mask * cot_i[d] * p;
            d_var[d] = -mask * p * p * (cot_p[d] + cot_i[d] * next_mean[d]);
            d_prior_p[d] += once * (T(1) - mask) * cot_p[d];
            d_prior_i[d] += once * (T(1) - mask) * cot_i[d];
            d_point[d] = d_std[d] = d_p[d] = d_i[d] = V<T>{};
        }
        load(scan.message_precision + scan.message_at(t) * scan.rows * D, message_p);
        load(scan.message_information + scan.message_at(t) * scan.rows * D, message_i);
        fuse(t, t - 1);
        // Only a row's own lanes may add to sums over rows.
        for (int l = 0; l < count; ++l)
            if (!writes[l - l % (int)share])
                for (std::int64_t d = 0; d < D; ++d)
                    ((T*)(d_mean + d))[l] = ((T*)(d_var + d))[l] = 0;
        if (any)
            for (std::int64_t i = 0; i < turns; ++i) switch (places(i)) {
                    case 1: backward_round<1>(t, i, into); break;
                    case 2: backward_round<2>(t, i, into); break;
                    default: backward_round<FOUR>(t, i, into);
                }
        if (to.states) {  // what the shown posterior and state are wanted for
            if (!any) place<1>(t, 0);
            const std::int64_t here = scan.at(t) * scan.rows * D;
            load(to.states + here, d_z);
            load(to.posterior_precision + here, d_p);
            load(to.posterior_information + here, d_i);
            for (std::int64_t d = 0; d < D; ++d) {
                d_point[d] += d_z[d];
                d_std[d] += d_z[d] * noise[d];
            }
        }
        for (std::int64_t d = 0; d < D; ++d) {
            const T prior_p = scan.prior_precision[d], prior_i = scan.prior_information[d];
            const V<T> variance = one_over<T>(posterior_p[d]);
            const V<T> g_mean = gather(d_point[d]), g_std = gather(d_std[d]);
            const V<T> g_i = d_i[d] + g_mean * variance;
            const V<T> g_p = d_p[d] - (g_mean * mean[d] + T(0.5) * g_std * std[d]) * variance;
            // The power is 1, or the wider message's precision in units of the prior's.
            const V<T> g_power = -(g_p * prior_p + g_i * prior_i);
            const auto tempered = power[d] < T(1);
            const auto past = message_p[d] > future_p[d];
            const V<T> through = tempered ? g_power * (T(1) / prior_p) : V<T>{};
            d_p[d] = g_p + (past ? through : V<T>{});
            d_i[d] = g_i;
            future_p[d] = g_p + (past ? V<T>{} : through);
            future_i[d] = g_i;
            factor_p[d] = g_p;
            d_prior_p[d] -= once * power[d] * (g_p + through);
            d_prior_i[d] -= once * power[d] * g_i;
        }
    }

    void backward(const Gradients<T>& to, const Layers<V<T>>& into) {
        const std::int64_t size = scan.rows * D;
        const std::int64_t last = scan.message_at(scan.steps) * size;
        load(scan.message_precision + last, message_p);
        load(scan.message_information + last, message_i);
        load(to.message_precision + last, cot_p);
        load(to.message_information + last, cot_i);
        for (std::int64_t t = scan.steps - 1; t >= 0; --t) {
            const std::int64_t reached = scan.message_at(t) * size, here = scan.at(t) * size;
            V<T> mask;
            const bool any = seen(t, mask);
            if (any || to.states) {
                backward_step(t, to, mask, any, into);
            } else {
                for (std::int64_t d = 0; d < D; ++d) {
                    d_prior_p[d] += once * cot_p[d];
                    d_prior_i[d] += once * cot_i[d];
                    d_p[d] = d_i[d] = factor_p[d] = future_p[d] = future_i[d] = V<T>{};
                }
                load(scan.message_precision + reached, message_p);
                load(scan.message_information + reached, message_i);
            }
            store(factor_p, to.factor_precision + here);
            store(d_i, to.factor_information + here);
            store(future_p, to.future_precision + here);
            store(future_i, to.future_information + here);
            load(to.message_precision + reached, cot_p);
            load(to.message_information + reached, cot_i);
            for (std::int64_t d = 0; d < D; ++d) {
                cot_p[d] += d_p[d];
                cot_i[d] += d_i[d];
            }
            if (t % FLUSH == 0) flush();
        }
        store(cot_p, to.start_precision);
        store(cot_i, to.start_information);
    }

    void flush() {
        for (std::int64_t i = 0; i < weight_count(D, H); ++i) {
            totals[i] += sums[i];
            sums[i] = V<T>{};
        }
    }
};

template <class T>
T add_lanes(V<T> x) {
    T sum = 0;
    for (int l = 0; l < Lanes<T>::count; ++l) sum += x[l];
    return sum;
}

template <class T>
std::int64_t count_blocks(const Scan<T>& scan) {
    const std::int64_t lanes = scan.rows * Block<T>::lanes_per_row(scan);
    return (lanes + Lanes<T>::count - 1) / Lanes<T>::count;
}

template <class T>
std::int64_t scratch_size(const Scan<T>& scan) {
    Block<T> block(scan, nullptr);
    return (block.lay_out(nullptr) + 1) * Lanes<T>::count;
}

template <class T>
void run_forward(const Scan<T>& scan, std::int64_t first, std::int64_t last, T* scratch) {
    Block<T> block(scan, scratch);
    for (std::int64_t b = first; b < last; ++b) {
        block.enter(b);
        block.forward();
    }
}

template <class T>
void run_backward(const Scan<T>& scan, const Gradients<T>& to, std::int64_t first,
                  std::int64_t last, T* scratch) {
    Block<T> block(scan, scratch);
    const std::int64_t weights = weight_count(scan.latent, scan.hidden);
    for (std::int64_t i = 0; i < weights; ++i) block.sums[i] = block.totals[i] = V<T>{};
    for (std::int64_t d = 0; d < scan.latent; ++d)
        block.d_prior_p[d] = block.d_prior_i[d] = V<T>{};
    const Layers<V<T>> into(block.sums, scan.latent, scan.hidden);
    for (std::int64_t b = first; b < last; ++b) {
        block.enter(b);
        block.backward(to, into);
    }
    for (std::int64_t i = 0; i < weights; ++i) to.weights[i] = add_lanes<T>(block.totals[i]);
    for (std::int64_t d = 0; d < scan.latent; ++d) {
        to.prior[d] = add_lanes<T>(block.d_prior_p[d]);
        to.prior[scan.latent + d] = add_lanes<T>(block.d_prior_i[d]);
    }
}

template <class T>
void write_normal(const Scan<T>& scan, T* out, T* scratch) {
    Block<T> block(scan, scratch);
    for (std::int64_t b = 0; b < count_blocks(scan); ++b) {
        block.enter(b);
        for (std::int64_t t = 0; t < scan.steps; ++t)
            for (std::int64_t round = 0; round < Block<T>::rounds(scan); ++round) {
                block.template place<FOUR>(t, round);
                for (int l = 0; l < Lanes<T>::count; ++l)
                    for (int r = 0; r < FOUR; ++r) {
                        const std::int64_t lane = block.lane_in_row[l];
                        const std::int64_t k = (round * block.share + lane) * FOUR + r;
                        if (k >= scan.particles || !block.writes[l - lane]) continue;
                        T* at = out + ((t * scan.particles + k) * scan.rows + block.row[l]) *
                                          scan.latent;
                        for (std::int64_t d = 0; d < scan.latent; ++d)
                            at[d] = block.noise[d * FOUR + r][l];
                    }
            }
    }
}

template <class T>
constexpr Kernel<T> kernel() {
    return {count_blocks<T>, scratch_size<T>, run_forward<T>, run_backward<T>, write_normal<T>};
}

}  // namespace

extern const Kernels WEFT_KERNELS;
const Kernels WEFT_KERNELS = {WEFT_NAME, kernel<float>(), kernel<double>()};

}  // namespace weft

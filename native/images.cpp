// Kernels of image networks, compiled once per instruction set.
#include "images.hpp"

#include "lanes.hpp"

namespace weft {
namespace {

using Int = std::int64_t;

template <class T>
inline V<T> load(const T* from) {
    V<T> out;
    __builtin_memcpy(&out, from, sizeof out);
    return out;
}
template <class T>
inline void store(T* to, V<T> x) {
    __builtin_memcpy(to, &x, sizeof x);
}
template <class T>
inline V<T> load_some(const T* from, Int count) {
    V<T> out{};
    __builtin_memcpy(&out, from, count * sizeof(T));
    return out;
}
template <class T>
inline void store_some(T* to, V<T> x, Int count) {
    __builtin_memcpy(to, &x, count * sizeof(T));
}
template <class T>
inline double total(V<T> x) {
    double sum = 0;
    for (int l = 0; l < Lanes<T>::count; ++l) sum += x[l];
    return sum;
}
inline Int smaller(Int a, Int b) { return a < b ? a : b; }
template <class T>
void fill(T* to, Int count, T x) {
    for (Int i = 0; i < count; ++i) to[i] = x;
}

// Normalisation
//
// Pixels lie one after the other, so that what belongs to channels comes round every `period`
// numbers: the least that is a whole number of both pixels and vectors, and holds several vectors.

constexpr Int SEVERAL = 8, BLOCK = 8192;

Int common(Int a, Int b) { return b ? common(b, a % b) : a; }

template <class T>
Int period(const Norm<T>& norm) {
    const Int vectors = norm.channels / common(norm.channels, Lanes<T>::count);
    return (SEVERAL + vectors - 1) / vectors * vectors * Lanes<T>::count;
}

template <class T>
Int block_size(const Norm<T>& norm) {
    const Int once = period(norm);
    return once < BLOCK ? BLOCK / once * once : once;
}

template <class T>
Int count_blocks(const Norm<T>& norm) {
    return (norm.pixels * norm.channels + block_size(norm) - 1) / block_size(norm);
}

template <class T>
Int norm_scratch(const Norm<T>& norm) {
    return 6 * period(norm);
}

template <class T>
struct Wide {
    static V<T> get(const T* from) { return load(from); }
    static void put(T* to, V<T> x) { store(to, x); }
};
template <class T>
struct Single {
    static T get(const T* from) { return *from; }
    static void put(T* to, T x) { *to = x; }
};

// Visits numbers from `i` to `end`: vectors first, then the single ones that are left over. The
// visitor is told where it is and where in the period.
template <class T, class Visit>
inline void each(Int i, Int end, Int period, const Visit& visit) {
    for (; i + period <= end; i += period)
        for (Int k = 0; k < period; k += Lanes<T>::count) visit(Wide<T>(), i + k, k);
    for (Int k = 0; i + k < end; ++k) visit(Single<T>(), i + k, k);
}

// Calls work(begin, end) for each block of a share.
template <class T, class Work>
inline void blockwise(const Norm<T>& norm, Int first, Int last, const Work& work) {
    const Int size = block_size(norm), all = norm.pixels * norm.channels;
    for (Int block = first; block < last; ++block)
        work(block * size, smaller(all, (block + 1) * size));
}

// One number per channel, repeated over a period.
template <class T, class S>
T* repeat(const Norm<T>& norm, const S* channels, T* to) {
    const Int once = period(norm);
    for (Int k = 0; k < once; k += norm.channels)
        for (Int c = 0; c < norm.channels; ++c) to[k + c] = T(channels[c]);
    return to;
}

template <class T>
void add_up(const Norm<T>& norm, const T* over_period, double* channels) {
    const Int once = period(norm);
    for (Int k = 0; k < once; k += norm.channels)
        for (Int c = 0; c < norm.channels; ++c) channels[c] += over_period[k + c];
}

// What is not a number stays so.
template <class X>
inline X rectified(X x) {
    return x < X{} ? X{} : x;
}

template <class T>
void moments(const Norm<T>& norm, Int first, Int last, double* found, T* scratch) {
    const Int once = period(norm), channels = norm.channels;
    T *sum = scratch, *squares = sum + once, *centre = squares + once;
    double *own = found + 1 + 2 * channels, *mean = own + 1, *spread = mean + channels;
    fill(found, 1 + 2 * channels, 0.0);
    blockwise(norm, first, last, [&](Int begin, Int end) {
        own[0] = double((end - begin) / channels);
        fill(mean, 2 * channels, 0.0);
        fill(sum, once, T(0));
        each<T>(begin, end, once, [&](auto as, Int i, Int k) {
            as.put(sum + k, as.get(sum + k) + as.get(norm.input + i));
        });
        add_up(norm, sum, mean);
        for (Int c = 0; c < channels; ++c) mean[c] /= own[0];
        repeat(norm, mean, centre);
        fill(sum, once, T(0));
        fill(squares, once, T(0));
        each<T>(begin, end, once, [&](auto as, Int i, Int k) {
            const auto x = as.get(norm.input + i) - as.get(centre + k);
            as.put(sum + k, as.get(sum + k) + x);
            as.put(squares + k, as.get(squares + k) + x * x);
        });
        fill(mean, channels, 0.0);
        add_up(norm, sum, mean);
        add_up(norm, squares, spread);
        for (Int c = 0; c < channels; ++c) {
            spread[c] -= mean[c] * mean[c] / own[0];
            mean[c] = centre[c] + mean[c] / own[0];
        }
        join(channels, found, own);
    });
}

template <class T>
void normalise(const Norm<T>& norm, Int first, Int last, T* scratch) {
    const Int once = period(norm);
    const T *scale = repeat(norm, norm.scale, scratch),
            *shift = repeat(norm, norm.shift, scratch + once);
    blockwise(norm, first, last, [&](Int begin, Int end) {
        each<T>(begin, end, once, [&](auto as, Int i, Int k) {
            as.put(norm.output + i,
                   rectified(as.get(norm.input + i) * as.get(scale + k) + as.get(shift + k)));
        });
    });
}

// What the ReLU lets through of a cotangent, for inputs to it as in `normalise`.
template <class X>
inline X let_through(X cotangent, X input, X scale, X shift) {
    return input * scale + shift > X{} ? cotangent : X{};
}

template <class T>
void sums(const Norm<T>& norm, Int first, Int last, double* found, T* scratch) {
    const Int once = period(norm);
    const T *scale = repeat(norm, norm.scale, scratch),
            *shift = repeat(norm, norm.shift, scratch + once),
            *centre = repeat(norm, norm.centre, scratch + 2 * once);
    T *sum = scratch + 3 * once, *products = sum + once;
    blockwise(norm, first, last, [&](Int begin, Int end) {
        fill(sum, once, T(0));
        fill(products, once, T(0));
        each<T>(begin, end, once, [&](auto as, Int i, Int k) {
            const auto x = as.get(norm.input + i);
            const auto g = let_through(as.get(norm.cotangent + i), x, as.get(scale + k),
                                       as.get(shift + k));
            as.put(sum + k, as.get(sum + k) + g);
            as.put(products + k, as.get(products + k) + g * (x - as.get(centre + k)));
        });
        add_up(norm, sum, found);
        add_up(norm, products, found + norm.channels);
    });
}

template <class T>
void normalise_gradient(const Norm<T>& norm, Int first, Int last, T* scratch) {
    const Int once = period(norm);
    const T *scale = repeat(norm, norm.scale, scratch),
            *shift = repeat(norm, norm.shift, scratch + once),
            *centre = repeat(norm, norm.centre, scratch + 2 * once),
            *gain = repeat(norm, norm.gain, scratch + 3 * once),
            *offset = repeat(norm, norm.offset, scratch + 4 * once),
            *slope = repeat(norm, norm.slope, scratch + 5 * once);
    blockwise(norm, first, last, [&](Int begin, Int end) {
        each<T>(begin, end, once, [&](auto as, Int i, Int k) {
            const auto x = as.get(norm.input + i);
            const auto g = let_through(as.get(norm.cotangent + i), x, as.get(scale + k),
                                       as.get(shift + k));
            as.put(norm.d_input + i, as.get(gain + k) * g - as.get(offset + k) -
                                         as.get(slope + k) * (x - as.get(centre + k)));
        });
    });
}

// Transposed convolution
//
// Along one axis, the output at 2m + p takes in inputs m + p - a by the weight at 1 - p + 2a, for
// a = 0, 1. Images are copied with a border of zeros, so that none of these is out of reach. What is
// convolved is computed image by image, in the gradient once more, and is never kept.

constexpr Int TAPS = 16;
constexpr bool MANY = WEFT_BYTES == 64;  // registers
constexpr int STRIPS = MANY ? 2 : 1;     // vectors of pixels at once
constexpr int TILE = MANY ? 16 : 8;      // pixels at once in the gradient
constexpr int LINES = MANY ? 4 : 2;      // lines of a kernel at once in its gradient

inline Int up_to(Int x, Int multiple) { return (x + multiple - 1) / multiple * multiple; }

template <class T>
Int strip(const Enlarge<T>& e) {  // of the input, channel by channel
    return up_to(e.width, STRIPS * Lanes<T>::count) + 2;
}
template <class T>
Int stride(const Enlarge<T>& e) {  // of the cotangent, with room for a whole number of tiles
    return 2 * up_to(e.width, TILE) + 2;
}
template <class T>
Int padded_inputs(const Enlarge<T>& e) {
    return up_to(e.inputs, Lanes<T>::count);
}

template <class T>
Int image_size(const Enlarge<T>& e) {
    return e.height * e.width * e.inputs;
}

template <class T>
Int enlarge_scratch(const Enlarge<T>& e) {
    const Int weights = e.outputs * TAPS * padded_inputs(e);
    const Int planes = e.inputs * (e.height + 2) * strip(e);
    const Int cotangents = e.outputs * (2 * e.height + 2) * stride(e);
    return norm_scratch(e.norm) + image_size(e) + weights +
           (planes > cotangents ? planes : cotangents);
}

// Where things lie in the scratch.
template <class T>
struct Space {
    T *norm, *image, *weights, *planes;

    Space(const Enlarge<T>& e, T* scratch) {
        norm = scratch;
        image = norm + norm_scratch(e.norm);
        weights = image + image_size(e);
        planes = weights + e.outputs * TAPS * padded_inputs(e);
    }
};

// The normalisation of one image.
template <class T>
Norm<T> norm_of_row(const Enlarge<T>& e, Int row, const Space<T>& space) {
    Norm<T> norm = e.norm;
    norm.pixels = e.height * e.width;
    norm.input += row * image_size(e);
    norm.output = space.image;
    return norm;
}

// Weights in the order `enlarge_lines` reads them: (p of the line, output, input, a, p, a).
template <class T>
void order_weights(const Enlarge<T>& e, T* to) {
    for (Int p = 0; p < 2; ++p)
        for (Int o = 0; o < e.outputs; ++o)
            for (Int i = 0; i < e.inputs; ++i)
                for (Int a = 0; a < 2; ++a)
                    for (Int q = 0; q < 2; ++q)
                        for (Int b = 0; b < 2; ++b)
                            *to++ = e.weight[(i * e.outputs + o) * TAPS + (1 - p + 2 * a) * 4 + 1 -
                                             q + 2 * b];
}

// `G` outputs' line 2m + p.
template <class T, int G>
void enlarge_line(const Enlarge<T>& e, const T* planes, const T* weights, Int m, Int p, Int output,
                  T* to) {
    constexpr int L = Lanes<T>::count;
    const Int pitch = strip(e), plane = (e.height + 2) * pitch, y = 2 * m + p;
    const T* own = weights + (p * e.outputs + output) * e.inputs * 8;
    for (Int j = 0; j < e.width; j += STRIPS * L) {
        V<T> sum[G][2][STRIPS];
        WEFT_UNROLL
        for (int g = 0; g < G; ++g)
            WEFT_UNROLL
            for (int s = 0; s < 2 * STRIPS; ++s)
                sum[g][s / STRIPS][s % STRIPS] = all<T>(e.bias[output + g]);
        for (Int i = 0; i < e.inputs; ++i)
            for (Int a = 0; a < 2; ++a) {
                const T* line = planes + i * plane + (m + 1 + p - a) * pitch + j;
                WEFT_UNROLL
                for (int s = 0; s < STRIPS; ++s) {
                    const V<T> left = load(line + s * L), here = load(line + s * L + 1),
                               right = load(line + s * L + 2);
                    WEFT_UNROLL
                    for (int g = 0; g < G; ++g) {
                        const T* w = own + (g * e.inputs + i) * 8 + a * 4;
                        sum[g][0][s] += here * w[0];
                        sum[g][0][s] += left * w[1];
                        sum[g][1][s] += right * w[2];
                        sum[g][1][s] += here * w[3];
                    }
                }
            }
        WEFT_UNROLL
        for (int g = 0; g < G; ++g)
            WEFT_UNROLL
            for (int s = 0; s < STRIPS; ++s) {
                T* at = to + ((output + g) * e.tall + y) * e.wide + 2 * (j + s * L);
                const V<T> even = sum[g][0][s], odd = sum[g][1][s];
                T both[2 * L];
                for (int l = 0; l < L; ++l) {
                    both[2 * l] = even[l];
                    both[2 * l + 1] = odd[l];
                }
                const Int room = smaller(2 * L, e.wide - 2 * (j + s * L));
                if (room == 2 * L) __builtin_memcpy(at, both, sizeof both);
                else if (room > 0) __builtin_memcpy(at, both, room * sizeof(T));
            }
    }
}

// Copies an image channel by channel within a border of zeros.
template <class T>
void take_image(const Enlarge<T>& e, const T* from, T* planes) {
    const Int pitch = strip(e), plane = (e.height + 2) * pitch;
    for (Int y = 0; y < e.height; ++y)
        for (Int x = 0; x < e.width; ++x, from += e.inputs) {
            T* at = planes + (y + 1) * pitch + x + 1;
            for (Int i = 0; i < e.inputs; ++i) at[i * plane] = from[i];
        }
}

template <class T>
void enlarge(const Enlarge<T>& e, Int first, Int last, T* scratch) {
    const Space<T> space(e, scratch);
    T *weights = space.weights, *planes = space.planes;
    order_weights(e, weights);
    fill(planes, e.inputs * (e.height + 2) * strip(e), T(0));
    for (Int row = first; row < last; ++row) {
        const Norm<T> norm = norm_of_row(e, row, space);
        normalise(norm, 0, count_blocks(norm), space.norm);
        take_image(e, space.image, planes);
        T* to = e.output + row * e.outputs * e.tall * e.wide;
        for (Int y = 0; y < e.tall; ++y)
            for (Int output = 0; output < e.outputs;) {
                const Int m = y / 2, p = y % 2;
                if (e.outputs - output >= 3) {
                    enlarge_line<T, 3>(e, planes, weights, m, p, output, to);
                    output += 3;
                } else {
                    enlarge_line<T, 1>(e, planes, weights, m, p, output, to);
                    output += 1;
                }
            }
    }
}

// Gradient of the input for `TILE` pixels and a vector of channels.
template <class T>
inline void input_tile(const Enlarge<T>& e, const T* cotangents, const T* weights, Int y, Int x,
                       Int channel, T* to) {
    constexpr int L = Lanes<T>::count;
    const Int pitch = stride(e), plane = (2 * e.height + 2) * pitch, inputs = padded_inputs(e);
    V<T> sum[TILE];
    WEFT_UNROLL
    for (int t = 0; t < TILE; ++t) sum[t] = V<T>{};
    for (Int o = 0; o < e.outputs; ++o)
        for (Int tap = 0; tap < TAPS; ++tap) {
            const T* d = cotangents + o * plane + (2 * y + tap / 4) * pitch + 2 * x + tap % 4;
            const V<T> w = load(weights + (o * TAPS + tap) * inputs + channel);
            WEFT_UNROLL
            for (int t = 0; t < TILE; ++t) sum[t] += w * d[2 * t];
        }
    const Int room = smaller(L, e.inputs - channel);
    T* at = to + (y * e.width + x) * e.inputs + channel;
    if (room == L && x + TILE <= e.width) {
        WEFT_UNROLL
        for (int t = 0; t < TILE; ++t) store(at + t * e.inputs, sum[t]);
    } else {
        V<T> kept[TILE];
        WEFT_UNROLL
        for (int t = 0; t < TILE; ++t) kept[t] = sum[t];
        for (Int t = 0; t < smaller(TILE, e.width - x); ++t)
            store_some(at + t * e.inputs, kept[t], room);
    }
}

// Gradient of `LINES` lines of an output's weights for a vector of channels, over one image.
template <class T, bool whole>
void weight_lines(const Enlarge<T>& e, const T* image, const T* cotangents, Int output, Int line,
                  Int channel) {
    constexpr int L = Lanes<T>::count;
    const Int pitch = stride(e), plane = (2 * e.height + 2) * pitch;
    const Int room = smaller(L, e.inputs - channel);
    V<T> sum[LINES * 4];
    WEFT_UNROLL
    for (int k = 0; k < LINES * 4; ++k) sum[k] = V<T>{};
    for (Int y = 0; y < e.height; ++y) {
        const T* x = image + y * e.width * e.inputs + channel;
        const T* d = cotangents + output * plane + (2 * y + line) * pitch;
        for (Int j = 0; j < e.width; ++j, x += e.inputs, d += 2) {
            const V<T> here = whole ? load(x) : load_some(x, room);
            WEFT_UNROLL
            for (int k = 0; k < LINES * 4; ++k) sum[k] += here * d[(k / 4) * pitch + k % 4];
        }
    }
    T* to = e.d_weight + (output * TAPS + line * 4) * e.inputs + channel;
    WEFT_UNROLL
    for (int k = 0; k < LINES * 4; ++k) {
        T* at = to + k * e.inputs;
        if (whole) store(at, load(at) + sum[k]);
        else store_some(at, load_some(at, room) + sum[k], room);
    }
}

// Copies an image's cotangent within a border of zeros, and adds it up for the bias.
template <class T>
void take_cotangent(const Enlarge<T>& e, const T* from, T* cotangents) {
    constexpr int L = Lanes<T>::count;
    const Int pitch = stride(e), plane = (2 * e.height + 2) * pitch, size = e.tall * e.wide;
    for (Int o = 0; o < e.outputs; ++o, from += size) {
        for (Int y = 0; y < e.tall; ++y)
            __builtin_memcpy(cotangents + o * plane + (y + 1) * pitch + 1, from + y * e.wide,
                             e.wide * sizeof(T));
        Pack<T, 4> sums = Pack<T, 4>::fill(T(0));
        Int i = 0;
        for (; i + 4 * L <= size; i += 4 * L)
            WEFT_UNROLL
            for (int r = 0; r < 4; ++r) sums.v[r] += load(from + i + r * L);
        double sum = total<T>(sums.sum());
        for (; i < size; ++i) sum += from[i];
        e.d_bias[o] += T(sum);
    }
}

template <class T>
void enlarge_gradient(const Enlarge<T>& e, Int first, Int last, T* scratch) {
    constexpr int L = Lanes<T>::count;
    const Int inputs = padded_inputs(e), plane = (2 * e.height + 2) * stride(e);
    const Space<T> space(e, scratch);
    T *weights = space.weights, *cotangents = space.planes;
    fill(weights, e.outputs * TAPS * inputs, T(0));
    for (Int i = 0; i < e.inputs; ++i)
        for (Int k = 0; k < e.outputs * TAPS; ++k)
            weights[k * inputs + i] = e.weight[i * e.outputs * TAPS + k];
    fill(cotangents, e.outputs * plane, T(0));
    for (Int row = first; row < last; ++row) {
        take_cotangent(e, e.cotangent + row * e.outputs * e.tall * e.wide, cotangents);
        Norm<T> norm = norm_of_row(e, row, space);
        norm.d_input += row * image_size(e);
        norm.cotangent = norm.d_input;
        const Int blocks = count_blocks(norm);
        normalise(norm, 0, blocks, space.norm);
        for (Int channel = 0; channel < e.inputs; channel += L) {
            for (Int y = 0; y < e.height; ++y)
                for (Int x = 0; x < e.width; x += TILE)
                    input_tile(e, cotangents, weights, y, x, channel, norm.d_input);
            for (Int output = 0; output < e.outputs; ++output)
                for (Int line = 0; line < 4; line += LINES)
                    if (channel + L <= e.inputs)
                        weight_lines<T, true>(e, space.image, cotangents, output, line, channel);
                    else
                        weight_lines<T, false>(e, space.image, cotangents, output, line, channel);
        }
        sums(norm, 0, blocks, e.sums, space.norm);
    }
}

// Density

constexpr int PACK = 4;

template <class T>
inline I<T> mask(const std::uint8_t* observed) {
    constexpr int L = Lanes<T>::count;
    I<T> out;
    if constexpr (L >= 4) {
        typedef std::uint8_t Bytes __attribute__((vector_size(L)));
        Bytes bytes;
        __builtin_memcpy(&bytes, observed, L);
        out = __builtin_convertvector(bytes, I<T>);
    } else {
        for (int l = 0; l < L; ++l) out[l] = observed[l];
    }
    return out != 0;
}

// Calls work(at, count, raw, value, observed) for `PACK` vectors at a time, the last of them filled
// up with what is not observed.
template <class T, class Work>
inline void entrywise(const Density<T>& d, Int row, const Work& work) {
    constexpr int L = Lanes<T>::count;
    constexpr Int step = PACK * L;
    const Int start = row * d.entries;
    Pack<T, PACK> raw, value;
    I<T> seen[PACK];
    const auto take = [&](const T* r, const T* v, const std::uint8_t* o) {
        WEFT_UNROLL
        for (int k = 0; k < PACK; ++k) {
            raw.v[k] = load(r + k * L);
            value.v[k] = load(v + k * L);
            seen[k] = mask<T>(o + k * L);
        }
    };
    Int i = 0;
    for (; i + step <= d.entries; i += step) {
        take(d.raw + start + i, d.value + start + i, d.observed + start + i);
        work(start + i, step, raw, value, seen);
    }
    const Int left = d.entries - i;
    if (!left) return;
    T some_raw[step] = {}, some_value[step] = {};
    std::uint8_t some_observed[step] = {};
    __builtin_memcpy(some_raw, d.raw + start + i, left * sizeof(T));
    __builtin_memcpy(some_value, d.value + start + i, left * sizeof(T));
    __builtin_memcpy(some_observed, d.observed + start + i, left);
    take(some_raw, some_value, some_observed);
    work(start + i, left, raw, value, seen);
}

template <class T>
void density(const Density<T>& d, Int first, Int last) {
    for (Int row = first; row < last; ++row) {
        Pack<T, PACK> sum = Pack<T, PACK>::fill(T(0));
        entrywise(d, row, [&](Int, Int, const auto& raw, const auto& value, const I<T>* seen) {
            Pack<T, PACK> slope;
            const Pack<T, PACK> score = value * raw - softplus(raw, slope);
            WEFT_UNROLL
            for (int k = 0; k < PACK; ++k) sum.v[k] += seen[k] ? score.v[k] : V<T>{};
        });
        double found = 0;
        for (int k = 0; k < PACK; ++k) found += total<T>(sum.v[k]);
        d.score[row] = T(found);
    }
}

template <class T>
void density_gradient(const Density<T>& d, Int first, Int last) {
    constexpr int L = Lanes<T>::count;
    for (Int row = first; row < last; ++row) {
        const V<T> cotangent = all<T>(d.cotangent[row]);
        entrywise(d, row, [&](Int at, Int count, const auto& raw, const auto& value,
                              const I<T>* seen) {
            Pack<T, PACK> slope = (value - sigmoid(raw)) * cotangent;
            WEFT_UNROLL
            for (int k = 0; k < PACK; ++k) slope.v[k] = seen[k] ? slope.v[k] : V<T>{};
            if (count == PACK * L) {
                WEFT_UNROLL
                for (int k = 0; k < PACK; ++k) store(d.d_raw + at + k * L, slope.v[k]);
            } else {
                T some[PACK * L];
                for (int k = 0; k < PACK; ++k) store(some + k * L, slope.v[k]);
                __builtin_memcpy(d.d_raw + at, some, count * sizeof(T));
            }
        });
    }
}

template <class T>
constexpr ImageKernel<T> kernel() {
    return {count_blocks<T>,    norm_scratch<T>, moments<T>, normalise<T>,
            sums<T>,            normalise_gradient<T>,
            enlarge_scratch<T>, enlarge<T>,      enlarge_gradient<T>,
            density<T>,         density_gradient<T>};
}

}  // namespace

extern const ImageKernels WEFT_KERNELS;
const ImageKernels WEFT_KERNELS = {WEFT_NAME, kernel<float>(), kernel<double>()};

}  // namespace weft

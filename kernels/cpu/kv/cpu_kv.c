/* The memory of KV pages. Blocks of one size are cut from chunks in large pages of the system
 * (small chunks of a small cache aside), so that attention reads many small blocks as if they were
 * one stream: memory is translated, and fetched ahead, across them. Scoring frees and takes as
 * many pages with every group of items; what the system would have to map and clear again is kept
 * for the next ones.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/kv/cpu_kv.h"

#include "base/os.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/kv_lines.h"
#include "kernels/paged/kv_pages.h"
#include "tensor/tensor.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* ---- CPU blocks ---- */

enum {
    /* Kept at most: small pages are the ones that cost more to map than to fill. */
    KEPT_BYTES = 1 << 28,
    /* A chunk is taken once SMALL_BYTES of blocks exist; what is not handed out is not touched. */
    CHUNK_BYTES = 1 << 24,
    SMALL_BYTES = 1 << 19,
    LARGE_PAGE = 1 << 21,
    HEAD = 64 /* before every chunk and block, so that these are aligned */
};

typedef struct block_head {
    dq_cpu_chunk *chunk;
    struct block_head *next; /* free ones of the chunk */
} block_head;

/* A chunk with free blocks is in the list of its bin; a full one is known to its blocks alone. */
struct dq_cpu_chunk {
    dq_cpu_chunk *next, *before;
    dq_cpu_bin *bin; /* NULL: none was left, and the chunk has one block */
    void *memory;    /* that it lies in */
    block_head *free;
    int64_t capacity, cut, live; /* blocks: that fit, handed out once or more, in use */
};

_Static_assert(sizeof(dq_cpu_chunk) <= HEAD && sizeof(block_head) <= HEAD, "heads");

static size_t chunk_bytes(const dq_cpu_chunk *c, size_t block)
{
    return HEAD + (size_t)c->capacity * (HEAD + block);
}

/* Where blocks of that size are, or could be; NULL: nowhere. */
static dq_cpu_bin *bin_of(dq_cpu *cpu, size_t bytes)
{
    dq_cpu_bin *empty = NULL;
    for (int i = 0; i < DQ_CPU_BINS; i++) {
        dq_cpu_bin *bin = &cpu->bin[i];
        if (bin->chunks && bin->bytes == bytes) return bin;
        if (!bin->chunks && !empty) empty = bin;
    }
    if (empty) *empty = (dq_cpu_bin){.bytes = bytes};
    return empty;
}

static void open_chunk(dq_cpu_chunk *c)
{
    c->before = NULL;
    c->next = c->bin->open;
    if (c->next) c->next->before = c;
    c->bin->open = c;
}

static void close_chunk(dq_cpu_chunk *c)
{
    if (c->next) c->next->before = c->before;
    if (c->before)
        c->before->next = c->next;
    else
        c->bin->open = c->next;
}

/* Of at least a large page: at the beginning of one. */
static dq_cpu_chunk *chunk_memory(size_t bytes, void **memory, dq_err *err)
{
    const bool large = bytes >= LARGE_PAGE;
    const size_t more = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    *memory = dq_block_raw(1, large ? more + LARGE_PAGE : bytes, err);
    if (!*memory || !large) return *memory;
    char *at = *memory;
    at += (LARGE_PAGE - (uintptr_t)at % LARGE_PAGE) % LARGE_PAGE;
    dq_os_memory_large(at, more);
    return (dq_cpu_chunk *)(void *)at;
}

/* Sanitizers see what goes beyond memory of its own. */
#if defined(__SANITIZE_ADDRESS__)
enum { CHUNKS = false };
#else
enum { CHUNKS = true };
#endif

static int64_t chunk_capacity(const dq_cpu_bin *bin, size_t bytes)
{
    const size_t held = bin ? (size_t)bin->capacity * (HEAD + bytes) : 0;
    const int64_t most = (int64_t)((CHUNK_BYTES - HEAD) / (HEAD + bytes));
    if (!CHUNKS || !bin || bin->capacity == 0 || most == 0) return 1;
    return held < SMALL_BYTES ? bin->capacity : most; /* as many again */
}

static dq_cpu_chunk *chunk_new(dq_backend *b, dq_cpu_bin *bin, size_t bytes)
{
    dq_cpu_chunk shape = {.bin = bin, .capacity = chunk_capacity(bin, bytes)};
    size_t size = chunk_bytes(&shape, bytes);
    dq_err many = {0};
    dq_cpu_chunk *c = chunk_memory(size, &shape.memory, shape.capacity > 1 ? &many : &b->err);
    if (many.code != DQ_OK) { /* there may be memory for a block still */
        shape.capacity = 1;
        c = chunk_memory(size = chunk_bytes(&shape, bytes), &shape.memory, &b->err);
    }
    if (!c) return NULL;
    *c = shape;
    if (!bin) return c;
    bin->chunks++;
    bin->capacity += c->capacity;
    dq_cpu_of(b)->kept_bytes += size;
    open_chunk(c);
    return c;
}

static void chunk_free(dq_cpu *cpu, dq_cpu_chunk *c)
{
    dq_cpu_bin *bin = c->bin;
    if (bin) {
        close_chunk(c);
        bin->chunks--;
        bin->capacity -= c->capacity;
        cpu->kept_bytes -= chunk_bytes(c, bin->bytes);
    }
    dq_block_free(c->memory);
}

void *dq_cpu_block_new(dq_backend *b, int64_t bytes)
{
    dq_cpu *cpu = dq_cpu_of(b);
    const size_t n = (size_t)(bytes + 63) / 64 * 64;
    dq_cpu_bin *bin = bin_of(cpu, n);
    dq_cpu_chunk *c = bin ? bin->open : NULL;
    if (!c) c = chunk_new(b, bin, n);
    if (!c) return NULL;
    block_head *h = c->free;
    if (h)
        c->free = h->next;
    else
        h = (block_head *)(void *)((char *)c + HEAD + (size_t)c->cut++ * (HEAD + n));
    h->chunk = c;
    if (bin && c->live == 0) cpu->kept_bytes -= chunk_bytes(c, n);
    c->live++;
    if (bin && c->live == c->capacity) close_chunk(c);
    return memset((char *)h + HEAD, 0, n);
}

void dq_cpu_block_free(dq_backend *b, void *p)
{
    dq_cpu *cpu = dq_cpu_of(b);
    if (!p) return;
    block_head *h = (block_head *)(void *)((char *)p - HEAD);
    dq_cpu_chunk *c = h->chunk;
    if (!c->bin) {
        chunk_free(cpu, c);
        return;
    }
    if (c->live == c->capacity) open_chunk(c);
    h->next = c->free;
    c->free = h;
    if (--c->live > 0) return;
    cpu->kept_bytes += chunk_bytes(c, c->bin->bytes);
    if (cpu->kept_bytes > KEPT_BYTES) chunk_free(cpu, c);
}

static bool blocks_new(dq_backend *b, void **p, int64_t n, int64_t bytes)
{
    for (int64_t i = 0; i < n; i++) {
        p[i] = dq_cpu_block_new(b, bytes);
        if (p[i]) continue;
        while (i > 0) {
            dq_cpu_block_free(b, p[--i]);
            p[i] = NULL;
        }
        return false;
    }
    return true;
}

void dq_cpu_blocks_end(dq_backend *b)
{
    dq_cpu *cpu = dq_cpu_of(b);
    for (int i = 0; i < DQ_CPU_BINS; i++) {
        for (dq_cpu_chunk *c = cpu->bin[i].open, *next; c; c = next) {
            next = c->next;
            if (c->live == 0) chunk_free(cpu, c);
        }
    }
}

/* ---- CPU KV codes ----
 * Codes of the KV cache: made, moved, read back. The rule of scales and codes is that of tensor.h;
 * kv.h says which scales stay in f32. */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t dq_cpu_kv_scratch_floats(const dq_kv *kv)
{
    /* values or keys as f32, as codes, scales (per-channel: two pages and a set), and halves */
    const int64_t pages = kv->by_page ? 5 : kv->has_codes ? 3 : 0;
    return (pages + (kv->dense != DQ_F32)) * DQ_PAGE_TOKENS * kv->v_cols;
}

static void widen(const dq_simd *simd, const dq_kv *kv, float *out, const void *plain,
                  int64_t first, int64_t n)
{
    simd->widen(out, (const uint8_t *)plain + first * kv->dense_bytes, kv->dense, n);
}

/* The whole head: the page itself, or the end of scratch. */
static const float *plain_page(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side,
                               int h, float *scratch)
{
    const void *plain = dq_kv_plain_of(kv, p, side, h);
    if (kv->dense == DQ_F32) return plain;
    float *out = scratch + dq_cpu_kv_scratch_floats(kv) - DQ_PAGE_TOKENS * kv->v_cols;
    widen(simd, kv, out, plain, 0, kv->form[side].plain_floats);
    return out;
}

/* ---- packing */

static void put_plane(uint8_t *out, const uint8_t *u, int64_t n, int width, int shift)
{
    const int parts = 8 / width;
    const int64_t m = n / parts;
    const unsigned mask = (1u << width) - 1;
    for (int64_t i = 0; i < m; i++) {
        unsigned byte = 0;
        for (int k = 0; k < parts; k++)
            byte |= ((unsigned)u[k * m + i] >> shift & mask) << (k * width);
        out[i] = (uint8_t)byte;
    }
}

INLINE void put_planes(uint8_t *line, const uint8_t *u, const int bits, int64_t n)
{
    const int low = kv_low(bits);
    if (low == 8)
        memcpy(line, u, (size_t)n);
    else
        put_plane(line, u, n, low, 0);
    if (bits > low) put_plane(line + n * low / 8, u, n, bits - low, low);
}

/* The inverse of kv_unpack. */
static void pack(uint8_t *line, const int8_t *q, int bits, int64_t n)
{
    uint8_t u[DQ_KV_LINE];
    for (int64_t i = 0; i < n; i++) u[i] = (uint8_t)(q[i] + (1 << (bits - 1)));
    WITH_BITS(bits, put_planes(line, u, BITS, n))
}

/* Lines of all keys, [v_cols][DQ_PAGE_TOKENS], or values first..end, [DQ_PAGE_TOKENS][v_cols]. */
INLINE void code_lines(const dq_kv *kv, int8_t *q, uint8_t *codes, int bits, int side,
                       int64_t first, int64_t end, const bool packs)
{
    const int64_t width = side == DQ_K ? DQ_PAGE_TOKENS : kv->v_cols;
    const int64_t stop = side == DQ_K ? kv->v_cols * width : end * width;
    for (int64_t i = side == DQ_K ? 0 : first * width, n; i < stop; i += n) {
        n = least(width - i % width, DQ_KV_LINE);
        if (packs)
            pack(codes + i * bits / 8, q + i, bits, n);
        else
            kv_unpack(q + i, codes + i * bits / 8, bits, n);
    }
}

static void unpack_head(const dq_kv *kv, int8_t *q, uint8_t *codes, int bits, int side,
                        int64_t first, int64_t end)
{
    code_lines(kv, q, codes, bits, side, first, end, false);
}

static void pack_head(const dq_kv *kv, uint8_t *codes, int8_t *q, int bits, int side, int64_t first,
                      int64_t end)
{
    code_lines(kv, q, codes, bits, side, first, end, true);
}

/* Index of the scale of a token and run of channels among those of one head. */
static int64_t scale_at(const dq_kv *kv, int side, int64_t token, int64_t g)
{
    return side == DQ_K ? g * DQ_PAGE_TOKENS + token : token * kv->form[side].n_scales + g;
}

static float get_scale(const dq_kv_arrays *arrays, int64_t i)
{
    if (arrays->wide) return ((const float *)arrays->scale)[i];
    return dq_f32_from_f16(((const uint16_t *)arrays->scale)[i]);
}

static void put_scale(dq_kv_arrays *arrays, int64_t i, float s)
{
    if (arrays->wide) {
        ((float *)arrays->scale)[i] = s;
    } else {
        ((uint16_t *)arrays->scale)[i] = dq_f16_from_f32(s);
    }
}

/* ---- CPU KV sets ----
 * Codes of the KV cache with a low (kv.h): what a set of tokens has for each channel is made,
 * moved and read; runs of channels of one token are made. */

/* How the values of one channel become codes. */
typedef struct set_channel {
    float step, low;
    bool overflow; /* f16 does not hold both */
} set_channel;

/* Whether all values are within half a step of their codes; no step: all equal the low. */
static bool covers(set_channel c, float low, float least, float largest, int bits, bool dithers)
{
    const float room = dithers ? 0.0f : 0.5f; /* dithering moves half a step either way */
    if (c.step == 0.0f) return low == least;
    return least - low >= -room * c.step &&
           largest - low <= ((float)((1 << bits) - 1) + room) * c.step;
}

/* As stored; where values or their range are not finite both are NaN, which reaches all readers. */
static set_channel channel_of(const dq_simd *simd, const float *x, int64_t n, int bits,
                              bool dithers)
{
    float least = x[0], largest = x[0];
    const set_channel bad = {NAN, NAN, false};
    if (!isfinite(simd->absmax(x, n))) return bad;
#pragma omp simd reduction(min : least) reduction(max : largest)
    for (int64_t i = 0; i < n; i++) {
        least = x[i] < least ? x[i] : least;
        largest = x[i] > largest ? x[i] : largest;
    }
    set_channel c = {.step = (largest - least) / (float)((1 << bits) - (dithers ? 2 : 1))};
    if (!isfinite(c.step)) return bad;
    const float half = dq_quant_stored_scale(c.step, DQ_F16);
    const bool holds = c.step == 0.0f || (half >= 0x1p-14f && half < INFINITY);
    if (holds) c.step = half;
    c.low = dithers ? least - c.step / 2 : least;
    const float low = dq_f32_from_f16(dq_f16_from_f32(c.low));
    const bool low_holds = covers(c, low, least, largest, bits, dithers);
    if (low_holds) c.low = low;
    c.overflow = !holds || !low_holds;
    return c;
}

/* u[n], d: what is added before rounding. */
static void encode_channel(float *u, const float *x, const float *d, int64_t n, int bits,
                           set_channel c)
{
    const float top = (float)((1 << bits) - 1), magic = 12582912.0f; /* rounds below 2^22 */
    if (!(c.step > 0.0f)) {                                          /* all alike, or NaN */
        memset(u, 0, (size_t)n * sizeof *u);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float v = (x[i] - c.low) / c.step + d[i];
        v = v > 0.0f ? v : 0.0f;
        v = v < top ? v : top;
        u[i] = v + magic - magic;
    }
}

static const float none[DQ_PAGE_TOKENS] = {0};

/* Zeros below 4 bits; own[DQ_PAGE_TOKENS] is for slots that are not in the order of positions. */
static const float *dither_of(const dq_kv *kv, const dq_kv_page *p, float *own)
{
    if (!dq_kv_dithers(&kv->spec) || dq_kv_bits_of(kv, p, DQ_V, 0) < 4) return none;
    const int64_t last = p->coded > p->due ? p->coded : p->due;
    if (p->pos[p->n_sinks] % DQ_PAGE_TOKENS == p->n_sinks &&
        p->pos[last - 1] - p->pos[p->n_sinks] == last - 1 - p->n_sinks)
        return kv->dither;
    for (int64_t i = 0; i < DQ_PAGE_TOKENS; i++)
        own[i] = i < last ? kv->dither[p->pos[i] % DQ_PAGE_TOKENS] : 0.0f;
    return own;
}

/* One set of one head, slots first .. end-1; rows: a line of DQ_PAGE_TOKENS by channel. */
static bool encode_set(const dq_simd *simd, const dq_kv *kv, const dq_kv_job *job, int side, int h,
                       int8_t *q, const float *rows, const float *d, int64_t first, int64_t end)
{
    dq_kv_arrays *arrays = &job->page->arrays[side];
    const int bits = dq_kv_bits_of(kv, job->page, side, h), half = 1 << (bits - 1);
    const int set = dq_kv_sets(job->page, first + 1) - 1;
    const bool dithers = side == DQ_V && dq_kv_dithers(&kv->spec) && bits >= 4;
    const int64_t dim = kv->map->head_dim, at = dq_kv_set_at(kv, job->group, side, set, h);
    for (int64_t c = 0; c < dim; c++) {
        float u[DQ_PAGE_TOKENS];
        const float *x = rows + c * DQ_PAGE_TOKENS + first;
        const set_channel k = channel_of(simd, x, end - first, bits, dithers);
        if (k.overflow && !arrays->wide) return false;
        put_scale(arrays, at + c, k.step);
        put_scale(arrays, at + dim + c, k.low);
        encode_channel(u, x, d + first, end - first, bits, k);
        for (int64_t i = first; i < end; i++)
            q[side == DQ_K ? c * DQ_PAGE_TOKENS + i : i * kv->v_cols + c] =
                (int8_t)((int)u[i - first] - half);
    }
    return true;
}

/* n values as u - 2^(bits-1), step and low as stored; true where f16 does not hold both. */
static bool encode_run(const dq_simd *simd, int8_t *q, float *step, float *low, const float *x,
                       int64_t n, int bits)
{
    const set_channel k = channel_of(simd, x, n, bits, false);
    for (int64_t i = 0; i < n; i += DQ_PAGE_TOKENS) {
        float u[DQ_PAGE_TOKENS];
        const int64_t m = least(n - i, DQ_PAGE_TOKENS);
        encode_channel(u, x + i, none, m, bits, k);
        for (int64_t c = 0; c < m; c++) q[i + c] = (int8_t)((int)u[c] - (1 << (bits - 1)));
    }
    *step = k.step;
    *low = k.low;
    return k.overflow;
}

/* Keys q[v_cols][DQ_PAGE_TOKENS], values q[DQ_PAGE_TOKENS][v_cols], less 2^(bits-1); other slots
 * stay. False where a step or low stays f32 (kv.h) and the side is not wide. rows: of one page. */
static bool encode_head_sets(const dq_simd *simd, const dq_kv *kv, const dq_kv_job *job, int side,
                             int h, int8_t *q, const float *plain, float *rows)
{
    const dq_kv_page *p = job->page;
    float own[DQ_PAGE_TOKENS];
    const float *d = side == DQ_V ? dither_of(kv, p, own) : none;
    if (side == DQ_V) {
        simd->transpose(rows, DQ_PAGE_TOKENS, plain, kv->v_cols, p->due, kv->map->head_dim);
        for (int64_t i = p->coded; i < p->due; i++) /* what stands in the padding is no value */
            memset(q + i * kv->v_cols, -(1 << (dq_kv_bits_of(kv, p, side, h) - 1)),
                   (size_t)kv->v_cols);
    }
    for (int64_t i = p->coded, end; i < p->due; i = end) {
        end = dq_kv_set_end(p, i, p->due);
        if (!encode_set(simd, kv, job, side, h, q, side == DQ_V ? rows : plain, d, i, end))
            return false;
    }
    return true;
}

/* Steps [v_cols] and lows [v_cols] of a head's first n sets in turn, filled up with zeros. */
static void read_numbers(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int group,
                         int side, int h, int n, float *out)
{
    const dq_kv_arrays *arrays = &p->arrays[side];
    const int64_t dim = kv->map->head_dim;
    for (int i = 0; i < 2 * n; i++, out += kv->v_cols) {
        const int64_t at = dq_kv_set_at(kv, group, side, i / 2, h) + i % 2 * dim;
        if (arrays->wide)
            memcpy(out, (const float *)arrays->scale + at, (size_t)dim * sizeof *out);
        else
            simd->widen(out, (const uint16_t *)arrays->scale + at, DQ_F16, dim);
        memset(out + dim, 0, (size_t)(kv->v_cols - dim) * sizeof *out);
    }
}

static void move_sets(const dq_kv *kv, dq_kv_page *to, int set, const dq_kv_page *from,
                      int from_set, int group, int side, int h)
{
    const int64_t at = dq_kv_set_at(kv, group, side, set, h);
    const int64_t was = dq_kv_set_at(kv, group, side, from_set, h);
    for (int64_t i = 0; i < kv->form[side].set_scales; i++)
        put_scale(&to->arrays[side], at + i, get_scale(&from->arrays[side], was + i));
}

/* ---- encoding */

/* As stored; NaN where a value is not finite, which reaches all readers. *overflow: beyond f16. */
static float scale_of(const dq_simd *simd, const float *x, int64_t n, int bits, bool *overflow)
{
    const float peak = simd->absmax(x, n);
    if (!isfinite(peak)) return NAN;
    const float scale = peak / (float)dq_quant_max_code(bits);
    const float half = dq_quant_stored_scale(scale, DQ_F16);
    if (scale == 0.0f || (half >= 0x1p-14f && half < INFINITY)) return half;
    *overflow = true;
    return scale;
}

static void encode_token(const dq_simd *simd, const dq_kv *kv, const dq_kv_page_form *form,
                         int bits, int8_t *q, float *scale, const float *x, bool *overflow)
{
    const int64_t d = kv->map->head_dim, runs = dq_kv_runs(form);
    for (int64_t g = 0; g < runs; g++) {
        const int64_t begin = g * form->group, n = least(form->group, d - begin);
        if (form->has_lows) {
            *overflow |=
                encode_run(simd, q + begin, scale + g, scale + runs + g, x + begin, n, bits);
            continue;
        }
        scale[g] = scale_of(simd, x + begin, n, bits, overflow);
        if (isnan(scale[g])) {
            memset(q + begin, 0, (size_t)n);
        } else {
            dq_quant_encode(q + begin, x + begin, n, bits, scale[g], DQ_ABSMAX);
        }
    }
    memset(q + d, 0, (size_t)(kv->v_cols - d));
}

/* Codes q[DQ_PAGE_TOKENS][v_cols], scales [DQ_PAGE_TOKENS][n_scales]; true: they can be stored. */
static bool encode_head(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side, int h,
                        int8_t *q, float *scale, float *rows)
{
    const dq_kv_page_form *form = &kv->form[side];
    const int64_t d = kv->map->head_dim, n = p->due - p->coded;
    const int bits = dq_kv_bits_of(kv, p, side, h);
    const float *plain = plain_page(simd, kv, p, side, h, rows);
    bool overflow = false;
    if (side == DQ_K) simd->transpose(rows, d, plain + p->coded, DQ_PAGE_TOKENS, d, n);
    for (int64_t i = 0; i < n; i++) {
        const float *x = side == DQ_K ? rows + i * d : plain + (p->coded + i) * kv->v_cols;
        const int64_t slot = p->coded + i;
        encode_token(simd, kv, form, bits, q + slot * kv->v_cols, scale + slot * form->n_scales, x,
                     &overflow);
    }
    return !overflow || p->arrays[side].wide;
}

static void store_head(const dq_kv *kv, dq_kv_page *p, int side, int h, int8_t *q,
                       const float *scale, int8_t *lines)
{
    const int64_t n_scales = kv->form[side].n_scales, head = h * n_scales * DQ_PAGE_TOKENS;
    for (int64_t i = p->coded; i < p->due; i++) {
        for (int64_t g = 0; g < n_scales; g++)
            put_scale(&p->arrays[side], head + scale_at(kv, side, i, g), scale[i * n_scales + g]);
    }
    uint8_t *codes = dq_kv_codes_of(kv, p, side, h);
    const int bits = dq_kv_bits_of(kv, p, side, h);
    if (side == DQ_V) {
        pack_head(kv, codes, q, bits, side, p->coded, p->due);
        return;
    }
    unpack_head(kv, lines, codes, bits, side, 0, DQ_PAGE_TOKENS);
    for (int64_t i = p->coded; i < p->due; i++) {
        for (int64_t c = 0; c < kv->v_cols; c++)
            lines[c * DQ_PAGE_TOKENS + i] = q[i * kv->v_cols + c];
    }
    pack_head(kv, codes, lines, bits, side, 0, DQ_PAGE_TOKENS);
}

/* Per-channel codes of one head; true when their scales can be stored. */
static bool encode_sets(const dq_simd *simd, const dq_kv *kv, const dq_kv_job *job, int side, int h,
                        int8_t *q, float *rows)
{
    const dq_kv_page *p = job->page;
    uint8_t *codes = dq_kv_codes_of(kv, p, side, h);
    const int bits = dq_kv_bits_of(kv, p, side, h);
    const int64_t first = side == DQ_K ? 0 : p->coded, end = side == DQ_K ? DQ_PAGE_TOKENS : p->due;
    if (side == DQ_K) unpack_head(kv, q, codes, bits, side, first, end);
    const float *plain = plain_page(simd, kv, p, side, h, rows);
    if (!encode_head_sets(simd, kv, job, side, h, q, plain, rows)) return false;
    pack_head(kv, codes, q, bits, side, first, end);
    return true;
}

/* ---- reading */

/* Slots first..end of a page, from where they are held unquantized. */
static void read_plain(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side, int h,
                       int64_t first, int64_t end, float *out)
{
    const int64_t lines = side == DQ_K ? kv->map->head_dim : 1;
    const int64_t one = side == DQ_K ? 1 : kv->v_cols;
    const void *plain = dq_kv_plain_of(kv, p, side, h);
    for (int64_t c = 0; c < lines; c++) {
        const int64_t at = c * DQ_PAGE_TOKENS + first * one;
        widen(simd, kv, out + at, plain, at, (end - first) * one);
    }
}

static void read_sinks(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side, int h,
                       float *out)
{
    const int64_t d = kv->map->head_dim;
    const void *sinks = dq_kv_sinks_of(kv, p, side, h);
    for (int64_t i = 0; i < p->n_sinks; i++) {
        if (side == DQ_V) widen(simd, kv, out + i * kv->v_cols, sinks, i * d, d);
        for (int64_t c = 0; side == DQ_K && c < d; c += DQ_KV_LINE) {
            float run[DQ_KV_LINE];
            const int64_t n = least(d - c, DQ_KV_LINE);
            widen(simd, kv, run, sinks, i * d + c, n);
            for (int64_t k = 0; k < n; k++) out[(c + k) * DQ_PAGE_TOKENS + i] = run[k];
        }
    }
}

static const float *read_scales(const dq_simd *simd, const dq_kv *kv, const dq_kv_arrays *arrays,
                                int side, int h, float *scratch)
{
    const int64_t n = kv->form[side].n_scales * DQ_PAGE_TOKENS, at = h * n;
    if (arrays->wide) return (const float *)arrays->scale + at;
    simd->widen(scratch, (const uint16_t *)arrays->scale + at, DQ_F16, n);
    return scratch;
}

/* What lows add to n tokens of values, from their own numbers. */
static void add_middles(const dq_kv *kv, float *values, const float *numbers, int bits, int64_t n)
{
    const dq_kv_page_form *form = &kv->form[DQ_V];
    const int64_t runs = dq_kv_runs(form), d = kv->map->head_dim;
    const float half = (float)(1 << (bits - 1));
    for (int64_t t = 0; t < n; t++, numbers += form->n_scales, values += kv->v_cols) {
        for (int64_t g = 0; g < runs; g++) {
            const float middle = half * numbers[g] + numbers[runs + g];
            const int64_t begin = g * form->group, end = least(begin + form->group, d);
#pragma omp simd
            for (int64_t c = begin; c < end; c++) values[c] += middle;
        }
    }
}

static bool reads_plain(const dq_kv_page *p, int side, int64_t slots)
{
    const dq_kv_arrays *arrays = &p->arrays[side];
    return !arrays->codes || (arrays->plain && slots <= p->n_sinks);
}

/* Per-channel codes as f32: all that a head's set has, and of others their own slots. */
static void read_sets(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int side, int head,
                      int64_t slots, float *scratch)
{
    const int64_t size = DQ_PAGE_TOKENS * kv->v_cols, d = kv->map->head_dim;
    const int h = kv->slot[head], bits = dq_kv_bits_of(kv, p, side, h);
    const uint8_t *codes = dq_kv_codes_of(kv, p, side, h);
    float own[DQ_PAGE_TOKENS], *step = scratch + size, *other = scratch + 4 * size;
    const float *dither = dither_of(kv, p, own);
    read_numbers(simd, kv, p, kv->map->group[head], side, h, dq_kv_sets(p, slots), step);
    for (int64_t i = p->n_sinks, end; i < slots; i = end, step += 2 * kv->v_cols) {
        const float *low = step + kv->v_cols;
        const bool whole = i == p->n_sinks;
        end = dq_kv_set_end(p, i, slots);
        if (side == DQ_V)
            simd->read_page_values(scratch, codes, bits, i, end, kv->v_cols, step, low, dither);
        else
            simd->read_page_keys(whole ? scratch : other, codes, bits, d, step, low);
        for (int64_t c = 0; side == DQ_K && !whole && c < d; c++)
            memcpy(scratch + c * DQ_PAGE_TOKENS + i, other + c * DQ_PAGE_TOKENS + i,
                   (size_t)(end - i) * sizeof *other);
    }
}

const float *dq_cpu_kv_read(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list,
                            int64_t page, int side, int head, int64_t coded_end, float *scratch)
{
    const dq_kv_page *p = list->page[page];
    const int64_t slots = dq_kv_slots(coded_end, page);
    const dq_kv_page_form *form = &kv->form[side];
    const dq_kv_arrays *arrays = &p->arrays[side];
    const int h = kv->slot[head];
    if (reads_plain(p, side, slots)) return plain_page(simd, kv, p, side, h, scratch);
    const float *scale = NULL;
    if (!form->set_scales)
        scale = read_scales(simd, kv, arrays, side, h, scratch + DQ_PAGE_TOKENS * kv->v_cols);
    const uint8_t *codes = dq_kv_codes_of(kv, p, side, h);
    const int bits = dq_kv_bits_of(kv, p, side, h);
    if (form->set_scales) {
        read_sets(simd, kv, p, side, head, slots, scratch);
    } else if (side == DQ_K) {
        simd->read_keys(scratch, codes, form->bits, kv->map->head_dim, form->group, scale);
    } else {
        simd->read_values(scratch, codes, bits, slots, kv->v_cols, form->group, scale,
                          form->n_scales);
        if (form->has_lows) add_middles(kv, scratch, scale, bits, slots);
    }
    if (arrays->sinks) read_sinks(simd, kv, p, side, h, scratch);
    if (arrays->plain && slots < DQ_PAGE_TOKENS)
        read_plain(simd, kv, p, side, h, slots, DQ_PAGE_TOKENS, scratch);
    return scratch;
}

INLINE void turn(float *restrict out, const float *restrict scale, int64_t n, int64_t first,
                 int64_t end)
{
    for (int64_t g = 0; g < n; g++) {
#pragma omp simd
        for (int64_t i = first; i < end; i++) out[g * DQ_PAGE_TOKENS + i] = scale[i * n + g];
    }
}

/* Slots outside the view may hold any scale, even NaN: they become zero. */
static void turn_scales(float *out, const float *scale, int64_t n_scales, int64_t first,
                        int64_t end)
{
    if (first > 0 || end < DQ_PAGE_TOKENS)
        memset(out, 0, (size_t)(n_scales * DQ_PAGE_TOKENS) * sizeof *out);
    switch (n_scales) {
    case 1: turn(out, scale, 1, first, end); break;
    case 2: turn(out, scale, 2, first, end); break;
    case 4: turn(out, scale, 4, first, end); break;
    default: turn(out, scale, n_scales, first, end); break;
    }
}

/* Of values, [n_scales][DQ_PAGE_TOKENS]; other[n_scales * DQ_PAGE_TOKENS] is scratch. */
static const float *turned_scales(float *out, const dq_simd *simd, const dq_kv *kv,
                                  const dq_kv_arrays *arrays, int h, int64_t first, int64_t end,
                                  float *other)
{
    const int64_t n = kv->form[DQ_V].n_scales;
    const uint16_t *half = (const uint16_t *)arrays->scale + h * n * DQ_PAGE_TOKENS;
    const bool whole = first == 0 && end == DQ_PAGE_TOKENS;
    if (whole && !arrays->wide && simd->turn_scales && simd->turn_scales(out, half, n)) return out;
    turn_scales(out, read_scales(simd, kv, arrays, DQ_V, h, other), n, first, end);
    return out;
}

/* What is looked at soon; NULL: none. What leads to the page after it is fetched ahead. */
static const uint8_t *next_codes(const dq_kv *kv, const dq_kv_list *list, int64_t page, int side,
                                 int h)
{
    if (page >= list->n_pages) return NULL;
    const dq_kv_page *p = list->page[page];
    const dq_kv_page_form *form = &kv->form[side]; /* one of them is none */
    const int64_t n =
        (form->n_scales * DQ_PAGE_TOKENS + form->set_scales) * (p->arrays[side].wide ? 4 : 2);
    if (page + 1 < list->n_pages) {
        DQ_KV_FETCH(list->page[page + 1]);
        DQ_KV_FETCH(&list->page[page + 1]->arrays[DQ_V].sinks);
    }
    if (!p->arrays[side].codes) return NULL;
    for (int64_t i = 0; i < n; i += 64)
        DQ_KV_FETCH((const uint8_t *)p->arrays[side].scale + h * n + i);
    if (side == DQ_V && dq_kv_dithers(&kv->spec)) { /* what dither is looked up by */
        DQ_KV_FETCH(p->pos);
        DQ_KV_FETCH(p->pos + DQ_PAGE_TOKENS - 1);
    }
    return dq_kv_codes_of(kv, p, side, h);
}

/* Steps and middles of the sets that are read: low - (-half) step is the middle. */
static void view_sets(dq_cpu_kv_view *v, const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p,
                      int side, int head, float *scratch)
{
    const float half = (float)(1 << (v->bits - 1));
    const int n = dq_kv_sets(p, v->end);
    float *out = scratch + DQ_PAGE_TOKENS;
    read_numbers(simd, kv, p, kv->map->group[head], side, kv->slot[head], n, out);
    if (side == DQ_V) v->dither = dither_of(kv, p, scratch);
    v->sets = out;
    v->begins = p->begins;
    for (int i = 0; i < n; i++, out += 2 * kv->v_cols)
        simd->diff(out + kv->v_cols, out + kv->v_cols, out, kv->v_cols, 1.0f, -half);
}

dq_cpu_kv_view dq_cpu_kv_view_page(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list,
                                   int64_t page, int side, int head, int64_t coded_end,
                                   float *scratch)
{
    const dq_kv_page *p = list->page[page];
    const dq_kv_arrays *arrays = &p->arrays[side];
    const int64_t slots = dq_kv_slots(coded_end, page), size = DQ_PAGE_TOKENS * kv->v_cols;
    const int h = kv->slot[head];
    dq_cpu_kv_view v = {0}; /* the one that is returned, so that it is written in its place */
    if (reads_plain(p, side, slots)) {
        v.plain = plain_page(simd, kv, p, side, h, scratch);
        return v;
    }
    v.codes = dq_kv_codes_of(kv, p, side, h);
    v.first = p->n_sinks;
    v.end = slots > p->n_sinks ? slots : p->n_sinks;
    v.bits = dq_kv_bits_of(kv, p, side, h);
    v.form = &kv->form[side];
    if (v.form->set_scales)
        view_sets(&v, simd, kv, p, side, head, scratch + size);
    else if (side == DQ_V)
        v.scale =
            turned_scales(scratch + 2 * size, simd, kv, arrays, h, v.first, v.end, scratch + size);
    else
        v.scale = read_scales(simd, kv, arrays, side, h, scratch + size);
    if (v.form->has_lows) {
        float *scale = scratch + 2 * size;
        const int64_t runs = dq_kv_runs(v.form);
        const float half = (float)(1 << (v.bits - 1));
        float *low = scale + runs * DQ_PAGE_TOKENS;
        for (int64_t g = 0; g < runs; g++, scale += DQ_PAGE_TOKENS, low += DQ_PAGE_TOKENS) {
#pragma omp simd
            for (int64_t t = v.first; t < v.end; t++) low[t] = half * scale[t] + low[t];
        }
        v.middle = scale;
    }
    /* after what is read here: there is room for few misses */
    v.next = next_codes(kv, list, page + 1, side, h);
    const bool tail = arrays->plain && slots < DQ_PAGE_TOKENS;
    if (!arrays->sinks && !tail) return v;
    memset(scratch, 0, (size_t)size * sizeof *scratch);
    if (arrays->sinks) read_sinks(simd, kv, p, side, h, scratch);
    if (tail) read_plain(simd, kv, p, side, h, slots, DQ_PAGE_TOKENS, scratch);
    v.plain = scratch;
    return v;
}

const void *dq_cpu_kv_half_page(const dq_kv *kv, const dq_kv_list *list, int64_t page, int side,
                                int head, int64_t coded_end)
{
    const dq_kv_page *p = list->page[page];
    if (kv->dense == DQ_F32 || !reads_plain(p, side, dq_kv_slots(coded_end, page))) return NULL;
    return dq_kv_plain_of(kv, p, side, kv->slot[head]);
}

void dq_cpu_kv_token_codes(const dq_kv *kv, const dq_kv_list *list, int64_t i, int head, int side,
                           int8_t *q, float *scale)
{
    const dq_kv_page *p = list->page[i / DQ_PAGE_TOKENS];
    const int64_t slot = i % DQ_PAGE_TOKENS, n_scales = kv->form[side].n_scales, cols = kv->v_cols;
    const int h = kv->slot[head], bits = dq_kv_bits_of(kv, p, side, h);
    const uint8_t *codes = dq_kv_codes_of(kv, p, side, h);
    for (int64_t c = 0; side == DQ_K && c < cols; c++) {
        int8_t line[DQ_PAGE_TOKENS];
        kv_unpack(line, codes + c * DQ_PAGE_TOKENS * bits / 8, bits, DQ_PAGE_TOKENS);
        q[c] = line[slot];
    }
    for (int64_t c = 0; side == DQ_V && c < cols; c += DQ_KV_LINE) {
        const int64_t n = least(cols - c, DQ_KV_LINE);
        kv_unpack(q + c, codes + (slot * cols + c) * bits / 8, bits, n);
    }
    const int set = dq_kv_sets(p, slot + 1) - 1;
    for (int64_t g = 0; g < kv->form[side].set_scales; g++)
        scale[g] =
            get_scale(&p->arrays[side], dq_kv_set_at(kv, kv->map->group[head], side, set, h) + g);
    for (int64_t g = 0; g < n_scales; g++) {
        scale[g] = get_scale(&p->arrays[side],
                             h * n_scales * DQ_PAGE_TOKENS + scale_at(kv, side, slot, g));
    }
}

/* ---- moving */

/* n elements of kv->dense, each so many after the one before. */
static void copy_elements(const dq_kv *kv, void *to, int64_t to_step, const void *from,
                          int64_t from_step, int64_t n)
{
    const bool half = kv->dense_bytes == 2;
    const uint16_t *x = from;
    uint16_t *y = to;
    for (int64_t i = 0; half && i < n; i++) y[i * to_step] = x[i * from_step];
    for (int64_t i = 0; !half && i < n; i++)
        ((float *)to)[i * to_step] = ((const float *)from)[i * from_step];
}

static void move_plain(const dq_kv *kv, dq_kv_page *to, int64_t slot, const dq_kv_page *from,
                       int64_t i, int side, int h)
{
    const int64_t d = kv->map->head_dim, sink = d * kv->dense_bytes;
    const int64_t channel = side == DQ_K ? DQ_PAGE_TOKENS : 1,
                  token = (side == DQ_K ? 1 : kv->v_cols) * kv->dense_bytes;
    const uint8_t *x = NULL;
    int64_t step = channel;
    if (from->arrays[side].plain) {
        x = (const uint8_t *)dq_kv_plain_of(kv, from, side, h) + i * token;
    } else if (i < from->n_sinks) {
        x = (const uint8_t *)dq_kv_sinks_of(kv, from, side, h) + i * sink;
        step = 1;
    }
    if (!x) return; /* held as codes only */
    if (to->arrays[side].plain)
        copy_elements(kv, (uint8_t *)dq_kv_plain_of(kv, to, side, h) + slot * token, channel, x,
                      step, d);
    if (slot < to->n_sinks && to->arrays[side].sinks)
        copy_elements(kv, (uint8_t *)dq_kv_sinks_of(kv, to, side, h) + slot * sink, 1, x, step, d);
}

static void move_head(const dq_kv *kv, dq_kv_page *to, int group, const dq_kv_list *list,
                      const int32_t *kept, int64_t n, int side, int h, float *scratch)
{
    const int64_t page = DQ_PAGE_TOKENS * kv->v_cols;
    const int bits = dq_kv_bits_of(kv, to, side, h);
    int8_t *x = (int8_t *)scratch, *y = x + page;
    const dq_kv_page *unpacked = NULL;
    if (to->arrays[side].codes) memset(y, 0, (size_t)page);
    for (int64_t i = 0; i < n; i++) {
        const dq_kv_page *from = list->page[kept[i] / DQ_PAGE_TOKENS];
        const int64_t at = kept[i] % DQ_PAGE_TOKENS;
        move_plain(kv, to, i, from, at, side, h);
        if (!to->arrays[side].codes || i < to->n_sinks || i >= to->coded) continue;
        if (from != unpacked)
            unpack_head(kv, x, dq_kv_codes_of(kv, from, side, h), bits, side, 0, DQ_PAGE_TOKENS);
        unpacked = from;
        const int64_t channel = side == DQ_K ? DQ_PAGE_TOKENS : 1,
                      token = side == DQ_K ? 1 : kv->v_cols;
        const int64_t head = (int64_t)h * kv->form[side].n_scales * DQ_PAGE_TOKENS;
        for (int64_t c = 0; c < kv->v_cols; c++)
            y[i * token + c * channel] = x[at * token + c * channel];
        for (int64_t g = 0; g < kv->form[side].n_scales; g++) {
            put_scale(&to->arrays[side], head + scale_at(kv, side, i, g),
                      get_scale(&from->arrays[side], head + scale_at(kv, side, at, g)));
        }
        if (to->begins >> i & 1)
            move_sets(kv, to, dq_kv_sets(to, i), from, dq_kv_sets(from, at + 1) - 1, group, side,
                      h);
    }
    if (to->arrays[side].codes)
        pack_head(kv, dq_kv_codes_of(kv, to, side, h), y, bits, side, 0, DQ_PAGE_TOKENS);
}

static bool reserve(dq_backend *b, const dq_kv *kv)
{
    return dq_cpu_reserve(b, (size_t)dq_cpu_kv_scratch_floats(kv) * sizeof(float));
}

/* As a query at t reads it; threads' scratch is reserved. NULL: b->err is set. */
static const dq_kv_list *list_at(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                                 int32_t t, int64_t *coded_end)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq) || !reserve(b, kv)) return NULL;
    const dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    return dq_kv_read_as_at(b, kv, list, t, coded_end) ? list : NULL;
}

/* ---- CPU KV rows ----
 * What the tokens of a list are, as rows: keys where RoPE found them, and values. Pages are read
 * by all threads, each into rows of its own. */

typedef struct reading {
    dq_backend *b;
    const dq_kv *kv;
    const dq_kv_list *list;
    int group;
    int64_t coded_end;
} reading;

static float *thread_scratch(dq_backend *b)
{
    return dq_cpu_of(b)->block[omp_get_thread_num()];
}

static void read_keys_of(const reading *r, dq_mat x, int64_t page)
{
    const int64_t dim = r->kv->map->head_dim;
    const dq_simd *simd = dq_cpu_of(r->b)->simd;
    float *row = x.p + page * DQ_PAGE_TOKENS * x.cols;
    for (int head = 0, at = 0; head < r->kv->map->n_kv; head++) {
        if (r->kv->map->group[head] != r->group) continue;
        const float *k = dq_cpu_kv_read(simd, r->kv, r->list, page, DQ_K, head, r->coded_end,
                                        thread_scratch(r->b));
        simd->transpose(row + at++ * dim, x.cols, k, DQ_PAGE_TOKENS, dim,
                        dq_kv_slots(r->list->count, page));
    }
}

static int64_t pages_of(const dq_kv_list *list)
{
    return (list->count + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
}

/* x[count][cols]: keys of the group's heads before `rope`, but for the square of its amplitude;
 * cols may be padded, threads' scratch is reserved. */
static void read_bare_keys(dq_backend *b, dq_mat x, const dq_kv *kv, const dq_kv_list *list,
                           int group, int64_t coded_end, const dq_rope *rope)
{
    const reading r = {b, kv, list, group, coded_end};
#pragma omp parallel for schedule(static) num_threads(b->threads) if (x.rows > DQ_PAGE_TOKENS)
    for (int64_t p = 0; p < pages_of(list); p++) read_keys_of(&r, x, p);
    /* RoPE by the negative position is its inverse, but for the square of the amplitude. */
    const int64_t dim = r.kv->map->head_dim;
    dq_mat table = {.rows = x.rows, .cols = dim};
    int32_t *pos = dq_block_new((size_t)x.rows, sizeof *pos, &r.b->err);
    table.p = dq_block_new((size_t)(x.rows * dim), sizeof *table.p, &r.b->err);
    if (pos && table.p) {
        for (int64_t i = 0; i < x.rows; i++) pos[i] = -dq_kv_pos(r.list, i);
        if (r.kv->spec.rotate_k) dq_cpu_hadamard(r.b, x, (int)dim);
        dq_cpu_rope_table(r.b, table, pos, rope);
        dq_cpu_rope(r.b, x, table, rope->order);
    }
    dq_block_free(pos);
    dq_block_free(table.p);
}

/* Values of a page to the second half of rows, and keys to the first. */
static void put_page(const reading *r, float *row, dq_mat keys, double unit, int64_t page)
{
    const int64_t dim = r->kv->map->head_dim, n = dq_kv_slots(r->list->count, page);
    const int64_t first = page * DQ_PAGE_TOKENS, cols = keys.cols;
    for (int64_t i = first; i < first + n; i++) {
        for (int64_t c = 0; c < cols; c++)
            row[i * 2 * cols + c] = (float)((double)keys.p[i * cols + c] * unit);
    }
    for (int head = 0, at = 0; head < r->kv->map->n_kv; head++) {
        if (r->kv->map->group[head] != r->group) continue;
        const float *v = dq_cpu_kv_read(dq_cpu_of(r->b)->simd, r->kv, r->list, page, DQ_V, head,
                                        r->coded_end, thread_scratch(r->b));
        for (int64_t i = 0; i < n; i++) {
            float *to = row + (first + i) * 2 * cols + cols + at * dim;
            memcpy(to, v + i * r->kv->v_cols, (size_t)dim * sizeof *to);
            if (r->kv->spec.rotate_v) dq_cpu_hadamard_run(to, (int)dim);
        }
        at++;
    }
}

void dq_cpu_kv_rows(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group, int32_t t,
                    const dq_rope *rope, float *row)
{
    int64_t coded_end;
    const dq_kv_list *list = list_at(b, kv, seq, layer, group, t, &coded_end);
    if (!list) return;
    const reading r = {b, kv, list, group, coded_end};
    const double a = (double)rope->amplitude;
    dq_mat keys = {.rows = list->count, .cols = (int64_t)kv->heads[group] * kv->map->head_dim};
    keys.p = dq_block_new((size_t)(keys.rows * keys.cols), sizeof *keys.p, &b->err);
    if (keys.p) {
        read_bare_keys(b, keys, kv, list, group, r.coded_end, rope);
#pragma omp parallel for schedule(static) num_threads(b->threads) if (keys.rows > DQ_PAGE_TOKENS)
        for (int64_t p = 0; p < pages_of(list); p++) put_page(&r, row, keys, 1.0 / (a * a), p);
    }
    dq_block_free(keys.p);
}

/* ---- Pages ----
 * What the CPU backend does with the memory of the KV cache's pages. */

static void block_copy(dq_backend *b, void *dst, const void *src, int64_t bytes)
{
    (void)b;
    memcpy(dst, src, (size_t)bytes);
}

/* Slots 0 .. n-1 of the sinks of all heads from the unquantized part, or back. */
static void move_sinks(const dq_kv *kv, dq_kv_page *p, int group, int side, int64_t n, bool back)
{
    const int64_t d = kv->map->head_dim;
    const int64_t channel = side == DQ_K ? DQ_PAGE_TOKENS : 1,
                  token = side == DQ_K ? 1 : kv->v_cols;
    for (int h = 0; h < kv->heads[group]; h++) {
        uint8_t *plain = dq_kv_plain_of(kv, p, side, h), *sinks = dq_kv_sinks_of(kv, p, side, h);
        for (int64_t i = 0; i < n; i++) {
            void *at = plain + i * token * kv->dense_bytes, *sink = sinks + i * d * kv->dense_bytes;
            if (back) copy_elements(kv, at, channel, sink, 1, d);
            if (!back) copy_elements(kv, sink, 1, at, channel, d);
        }
    }
}

/* Blocks are zeros when they are new, so no operation has to make them. */
static void reopen(dq_backend *b, const dq_kv *kv, dq_kv_page *p, int group, int side, int64_t n)
{
    (void)b;
    move_sinks(kv, p, group, side, n, true);
}

/* Rounds n elements to kv->dense; the largest magnitude of what is finite and would not stay so,
 * 0: all does. */
static float narrow(const dq_kv *kv, uint16_t *to, const float *from, int64_t n)
{
    const bool f16 = kv->dense == DQ_F16;
    float beyond = 0;
    for (int64_t i = 0; i < n; i++) {
        to[i] = f16 ? dq_f16_from_f32(from[i]) : dq_bf16_from_f32(from[i]);
        if ((to[i] & 0x7fffu) == (f16 ? 0x7c00u : 0x7f80u) && isfinite(from[i]))
            beyond = fmaxf(beyond, fabsf(from[i]));
    }
    return beyond;
}

/* n rows of one head into slots `at` .. of a page of two-byte elements. */
static float write_half(const dq_kv *kv, const dq_kv_page *p, int slot, int64_t at, const float *k,
                        const float *v, int64_t stride, int64_t n)
{
    enum { RUN = 64 };
    const int64_t d = kv->map->head_dim;
    uint16_t *keys = dq_kv_plain_of(kv, p, DQ_K, slot), run[RUN];
    uint16_t *values = (uint16_t *)dq_kv_plain_of(kv, p, DQ_V, slot) + at * kv->v_cols;
    float beyond = 0;
    for (int64_t i = 0; i < n; i++) {
        beyond = fmaxf(beyond, narrow(kv, values + i * kv->v_cols, v + i * stride, d));
        for (int64_t c = 0; c < d; c += RUN) {
            const int64_t m = d - c < RUN ? d - c : RUN;
            beyond = fmaxf(beyond, narrow(kv, run, k + i * stride + c, m));
            copy_elements(kv, keys + c * DQ_PAGE_TOKENS + at + i, DQ_PAGE_TOKENS, run, 1, m);
        }
    }
    return beyond;
}

static void write_full(const dq_simd *simd, const dq_kv *kv, const dq_kv_page *p, int slot,
                       int64_t at, const float *k, const float *v, int64_t stride, int64_t n)
{
    const int64_t d = kv->map->head_dim;
    float *values = (float *)dq_kv_plain_of(kv, p, DQ_V, slot) + at * kv->v_cols;
    simd->transpose((float *)dq_kv_plain_of(kv, p, DQ_K, slot) + at, DQ_PAGE_TOKENS, k, stride, n,
                    d);
    for (int64_t i = 0; i < n; i++)
        memcpy(values + i * kv->v_cols, v + i * stride, (size_t)d * sizeof(float));
}

static float write_tokens(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list, int group,
                          const float *k, const float *v, int64_t n)
{
    const dq_head_order *map = kv->map;
    const int64_t d = map->head_dim, stride = map->n_kv * d;
    float beyond = 0;
    for (int64_t done = 0; done < n;) {
        const int64_t to = list->count - n + done, at = to % DQ_PAGE_TOKENS;
        const int64_t take = DQ_PAGE_TOKENS - at < n - done ? DQ_PAGE_TOKENS - at : n - done;
        const dq_kv_page *p = list->page[to / DQ_PAGE_TOKENS];
        for (int j = 0; j < map->n_kv; j++) {
            if (map->group[j] != group) continue;
            const float *from_k = k + done * stride + j * d, *from_v = v + done * stride + j * d;
            if (kv->dense == DQ_F32)
                write_full(simd, kv, p, kv->slot[j], at, from_k, from_v, stride, take);
            else
                beyond =
                    fmaxf(beyond, write_half(kv, p, kv->slot[j], at, from_k, from_v, stride, take));
        }
        done += take;
    }
    return beyond;
}

static bool write_batch(dq_backend *b, const dq_kv *kv, int layer, const dq_batch *batch, dq_mat k,
                        dq_mat v)
{
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const int groups = kv->map->n_groups, tasks = batch->n_seq * groups;
    float beyond = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)                              \
    reduction(max                                                                                  \
              : beyond) if (batch->n_rows > 32)
    for (int task = 0; task < tasks; task++) {
        const int i = task / groups, g = task % groups;
        const int64_t first = batch->cu_rows[i], n = batch->cu_rows[i + 1] - first;
        beyond = fmaxf(beyond, write_tokens(simd, kv, dq_kv_list_of(kv, batch->seq[i], layer, g), g,
                                            k.p + first * k.cols, v.p + first * v.cols, n));
    }
    if (beyond > 0) dq_kv_refuse_range(b, kv->dense, layer, beyond);
    return beyond == 0;
}

static bool encode(dq_backend *b, const dq_kv *kv, const dq_kv_job *jobs, int64_t n)
{
    if (!reserve(b, kv)) return false;
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads) if (n > 1)
    for (int64_t i = 0; i < n; i++) {
        const dq_simd *simd = dq_cpu_of(b)->simd;
        const dq_kv_job *job = &jobs[i];
        float *scratch = dq_cpu_of(b)->block[omp_get_thread_num()];
        dq_kv_page *p = job->page;
        const int64_t page = DQ_PAGE_TOKENS * kv->v_cols;
        int8_t *q = (int8_t *)(scratch + 2 * page), *lines = q + page;
        for (int s = DQ_K; s <= DQ_V; s++) {
            if (job->side >= 0 && job->side != s) continue;
            bool *overflow = &p->arrays[s].overflow;
            *overflow = false;
            if (!p->arrays[s].codes) continue;
            if (p->coded == p->n_sinks) move_sinks(kv, p, job->group, s, p->n_sinks, false);
            const bool sets = kv->form[s].set_scales != 0;
            for (int h = 0; sets && h < kv->heads[job->group] && !*overflow; h++)
                *overflow = !encode_sets(simd, kv, job, s, h, q, scratch);
            for (int h = 0; !sets && h < kv->heads[job->group]; h++) {
                if (!encode_head(simd, kv, p, s, h, q, scratch + page, scratch)) {
                    *overflow = true;
                    break;
                }
                store_head(kv, p, s, h, q, scratch + page, lines);
            }
        }
    }
    return true;
}

static bool fill(dq_backend *b, const dq_kv *kv, const dq_kv_new_rows *rows, const dq_kv_job *jobs,
                 int64_t n)
{
    const bool writes = rows && !rows->written;
    return (!writes || write_batch(b, kv, rows->layer, rows->batch, rows->k, rows->v)) &&
           (n == 0 || encode(b, kv, jobs, n));
}

static void widen_pages(dq_backend *b, float *to, const void *f16, int64_t n)
{
    (void)b;
    dq_tensor_to_f32(to, f16, DQ_F16, n);
}

static bool move(dq_backend *b, const dq_kv *kv, dq_kv_page *to, int group, const dq_kv_list *from,
                 const int32_t *kept, int64_t n)
{
    if (!reserve(b, kv)) return false;
    for (int side = DQ_K; side <= DQ_V; side++) {
        for (int h = 0; h < kv->heads[group]; h++)
            move_head(kv, to, group, from, kept, n, side, h, dq_cpu_of(b)->block[0]);
    }
    return true;
}

static const dq_kv_device device = {
    .blocks_new = blocks_new,
    .block_free = dq_cpu_block_free,
    .block_copy = block_copy,
    .reopen = reopen,
    .fill = fill,
    .widen = widen_pages,
    .move = move,
};

dq_kv *dq_cpu_kv_new(dq_backend *b, const dq_head_order *map, int n_layers, const dq_kv_spec *spec)
{
    return dq_kv_pages_new(b, map, n_layers, spec, &device);
}

void dq_cpu_kv_free(dq_backend *b, dq_kv *kv)
{
    dq_kv_pages_free(b, kv);
    dq_cpu_blocks_end(b); /* another cache has pages of another size */
}

void dq_cpu_kv_key_norms(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                         int32_t t, double *sum)
{
    const dq_head_order *map = kv->map;
    int64_t coded_end;
    const dq_kv_list *list = list_at(b, kv, seq, layer, group, t, &coded_end);
    if (!list) return;
    for (int64_t i = 0; i < list->count; i++) sum[i] = 0;
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < list->count; p++) {
        for (int j = 0; j < map->n_kv; j++) {
            if (map->group[j] != group) continue;
            const float *k = dq_cpu_kv_read(dq_cpu_of(b)->simd, kv, list, p, DQ_K, j, coded_end,
                                            dq_cpu_of(b)->block[0]);
            for (int64_t i = 0; i < dq_kv_slots(list->count, p); i++) {
                for (int64_t c = 0; c < map->head_dim; c++)
                    sum[p * DQ_PAGE_TOKENS + i] +=
                        (double)k[c * DQ_PAGE_TOKENS + i] * (double)k[c * DQ_PAGE_TOKENS + i];
            }
        }
    }
}

/* ---- CPU key cosines ----
 * How much the keys of a list point where all of them point. Two walks over the pages of a head:
 * the sum of directions, then each key's cosine with it. */

typedef struct head_keys {
    dq_backend *b;
    const dq_kv *kv;
    const dq_kv_list *list;
    int head;
    int64_t coded_end, dim;
} head_keys;

/* [dim][DQ_PAGE_TOKENS], good until the next call. */
static const float *page_keys(const head_keys *h, int64_t page)
{
    return dq_cpu_kv_read(dq_cpu_of(h->b)->simd, h->kv, h->list, page, DQ_K, h->head, h->coded_end,
                          dq_cpu_of(h->b)->block[0]);
}

/* dot[i] = k_i . with, norm[i] = |k_i| of a page's n keys; a NULL `with` gives no products. */
static void measure_page(double *dot, double *norm, const float *k, const double *with, int64_t n,
                         int64_t dim)
{
    for (int64_t i = 0; i < n; i++) dot[i] = norm[i] = 0;
    for (int64_t c = 0; c < dim; c++) {
        for (int64_t i = 0; i < n; i++) {
            const double x = (double)k[c * DQ_PAGE_TOKENS + i];
            norm[i] += x * x;
            dot[i] += x * (with ? with[c] : 0.0);
        }
    }
    for (int64_t i = 0; i < n; i++) norm[i] = sqrt(norm[i]);
}

static void add_directions(double *sum, const head_keys *h)
{
    double dot[DQ_PAGE_TOKENS], norm[DQ_PAGE_TOKENS];
    memset(sum, 0, (size_t)h->dim * sizeof *sum);
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < h->list->count; p++) {
        const int64_t n = dq_kv_slots(h->list->count, p);
        const float *k = page_keys(h, p);
        measure_page(dot, norm, k, NULL, n, h->dim);
        for (int64_t c = 0; c < h->dim; c++) {
            for (int64_t i = 0; i < n; i++)
                if (norm[i] > 0) sum[c] += (double)k[c * DQ_PAGE_TOKENS + i] / norm[i];
        }
    }
}

static void add_cosines(double *cosine, const double *sum, const head_keys *h)
{
    double dot[DQ_PAGE_TOKENS], norm[DQ_PAGE_TOKENS], length = 0;
    for (int64_t c = 0; c < h->dim; c++) length += sum[c] * sum[c];
    length = sqrt(length);
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < h->list->count; p++) {
        const int64_t n = dq_kv_slots(h->list->count, p);
        measure_page(dot, norm, page_keys(h, p), sum, n, h->dim);
        for (int64_t i = 0; i < n; i++)
            if (norm[i] > 0 && length > 0)
                cosine[p * DQ_PAGE_TOKENS + i] += dot[i] / (norm[i] * length);
    }
}

void dq_cpu_kv_key_cosines(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                           int32_t t, double *cosine)
{
    const dq_head_order *map = kv->map;
    head_keys h = {.b = b, .kv = kv, .dim = map->head_dim};
    h.list = list_at(b, kv, seq, layer, group, t, &h.coded_end);
    double *sum = h.list ? dq_block_new((size_t)map->head_dim, sizeof *sum, &b->err) : NULL;
    if (!sum) return;
    for (int64_t i = 0; i < h.list->count; i++) cosine[i] = 0;
    for (h.head = 0; h.head < map->n_kv; h.head++) {
        if (map->group[h.head] != group) continue;
        add_directions(sum, &h);
        add_cosines(cosine, sum, &h);
    }
    dq_block_free(sum);
}

/* ---- Leverage ----
 * How much of what the keys of a list span is a key's own. Keys go back to where RoPE found them,
 * the mean is taken off, and with their Gram matrix G = U'U a key's number is the length of x
 * U^-1, squared. Products are f32 by pages, sums over pages and the factor f64; each number is
 * made by one thread in one order. */

typedef struct leverages {
    dq_backend *b;
    const dq_kv *kv;
    const dq_kv_list *list;
    const dq_rope *rope;
    int64_t n, cols,
        ld; /* tokens; the group's key heads side by side, padded with zeros to a multiple of 16 */
    dq_mat x;     /* [n][ld] */
    double *gram; /* [cols][ld], upper triangle = U'U */
    float *right; /* [cols][ld], U^-1 */
} leverages;

static int64_t tile_of(const leverages *l, int64_t first)
{
    return l->cols - first < DQ_TILE_N ? l->cols - first : DQ_TILE_N;
}

/* Columns first .. of the rows above and on the diagonal. */
static void gram_tile(const leverages *l, int64_t first)
{
    const dq_simd *simd = dq_cpu_of(l->b)->simd;
    const int64_t n = tile_of(l, first), rows = first + n;
    float *turned = thread_scratch(l->b), *product = turned + l->cols * DQ_PAGE_TOKENS;
    for (int64_t p = 0; p < pages_of(l->list); p++) {
        const float *x = l->x.p + p * DQ_PAGE_TOKENS * l->ld;
        const int64_t k = dq_kv_slots(l->n, p);
        simd->transpose(turned, DQ_PAGE_TOKENS, x, l->ld, k, rows);
        simd->gemm(product, DQ_TILE_N, turned, DQ_PAGE_TOKENS, x + first, l->ld, rows, n, k, false);
        for (int64_t i = 0; i < rows; i++) {
            double *to = l->gram + i * l->ld + first;
            for (int64_t c = 0; c < n; c++) to[c] += (double)product[i * DQ_TILE_N + c];
        }
    }
}

static void measure(const leverages *l, double *work, double *leverage)
{
#pragma omp parallel for schedule(dynamic, 1) num_threads(l->b->threads) if (l->cols > DQ_TILE_N)
    for (int64_t c = 0; c < l->cols; c += DQ_TILE_N) gram_tile(l, c);
    if (!dq_key_factor(l->right, work, l->gram, l->cols, l->ld)) {
        dq_fail(&l->b->err, DQ_DAMAGED, "keys of the KV cache are not finite");
        return;
    }
#pragma omp parallel for schedule(static) num_threads(l->b->threads) if (l->n > DQ_PAGE_TOKENS)
    for (int64_t p = 0; p < pages_of(l->list); p++) {
        const dq_simd *simd = dq_cpu_of(l->b)->simd;
        const int64_t first = p * DQ_PAGE_TOKENS, rows = dq_kv_slots(l->n, p);
        float *y = thread_scratch(l->b);
        for (int64_t i = 0; i < rows; i++) leverage[first + i] = 0;
        for (int64_t k = 0; k < l->cols; k += DQ_TILE_N) {
            const int64_t n = tile_of(l, k);
            simd->gemm(y, DQ_TILE_N, l->x.p + first * l->ld, l->ld, l->right + k, l->ld, rows, n,
                       k + n, false);
            for (int64_t i = 0; i < rows; i++)
                leverage[first + i] += simd->sum_squares(y + i * DQ_TILE_N, n);
        }
    }
}

void dq_cpu_kv_key_leverages(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                             int32_t t, const dq_rope *rope, double *leverage)
{
    int64_t coded_end;
    const dq_kv_list *list = list_at(b, kv, seq, layer, group, t, &coded_end);
    if (!list) return;
    leverages l = {.b = b,
                   .kv = kv,
                   .list = list,
                   .rope = rope,
                   .cols = (int64_t)kv->heads[group] * kv->map->head_dim};
    l.n = l.list->count;
    l.ld = (l.cols + 15) / 16 * 16;
    const int64_t read = dq_cpu_kv_scratch_floats(kv);
    const int64_t tiles = 2 * (l.cols + DQ_TILE_N) * DQ_PAGE_TOKENS;
    const size_t square = (size_t)(l.cols * l.ld);
    if (l.n == 0 || !dq_cpu_reserve(b, (size_t)(read > tiles ? read : tiles) * sizeof(float)))
        return;
    l.x = (dq_mat){dq_block_new((size_t)(l.n * l.ld), sizeof(float), &b->err), l.n, l.ld};
    l.gram = dq_block_new(square, sizeof *l.gram, &b->err);
    l.right = dq_block_new(square, sizeof *l.right, &b->err);
    double *work = dq_block_new(2 * square, sizeof *work, &b->err);
    if (b->err.code == DQ_OK) {
        read_bare_keys(b, l.x, kv, list, group, coded_end, rope);
        if (b->err.code == DQ_OK) {
            const double a = (double)l.rope->amplitude, unit = 1.0 / (a * a);
            memset(work, 0, (size_t)l.cols * sizeof *work);
            for (int64_t i = 0; i < l.n; i++) {
                for (int64_t c = 0; c < l.cols; c++) work[c] += (double)l.x.p[i * l.ld + c];
            }
            for (int64_t c = 0; c < l.cols; c++) work[c] /= (double)l.n;
            for (int64_t i = 0; i < l.n; i++) {
                float *x = l.x.p + i * l.ld;
                for (int64_t c = 0; c < l.cols; c++)
                    x[c] = (float)(((double)x[c] - work[c]) * unit);
            }
            measure(&l, work, leverage);
        }
    }
    dq_block_free(work);
    dq_block_free(l.right);
    dq_block_free(l.gram);
    dq_block_free(l.x.p);
}

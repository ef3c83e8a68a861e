/*
 * fake_cuda.c -- an LD_PRELOAD stand-in for the CUDA runtime (libcudart) and
 * for the few CUDA driver entry points that PyTorch's allocator asks for.
 *
 * Nothing is ever executed on a device.  "Device memory" is address-space
 * bookkeeping only: ranges are handed out of a reserved, inaccessible arena and
 * the bytes are counted against a limit.  That is all that PyTorch's caching
 * allocator needs in order to run for real.
 *
 * All declarations here are written by hand for this file; no vendor or PyTorch
 * header is used.  Enumerators are spelled as plain ints, handles as void *.
 *
 * Environment
 *   FAKE_VRAM_BYTES      device memory (default 8 GiB)
 *   FAKE_FOREIGN_BYTES   bytes held by "others" from the start (default 0):
 *                        they lower the free figure of cudaMemGetInfo and what
 *                        can still be had
 *   FAKE_DEVICES         number of devices (default 1)
 *   FAKE_ADDR_POLICY     firstfit (default): lowest free range that fits
 *                        monotonic: addresses are never used twice
 *                        topdown:   highest free range that fits, upper end
 *   FAKE_GRANULE         size and alignment unit of the physical memory and of
 *                        cudaMalloc addresses (default 2 MiB)
 *   FAKE_CUDA_TRACE      1: print each call that matters to stderr
 *
 * Controls for a driver script (ctypes.CDLL(None)): see the fake_cuda_* functions
 * at the end.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define API __attribute__((visibility("default")))
typedef unsigned long long u64;

enum { OK = 0, E_INVALID = 1, E_OOM = 2, E_NOT_READY = 600, E_UNSUPPORTED = 801 };
#define MAXDEV 16
#define MIB (1ull << 20)

/* ---------------------------------------------------------------- range sets */
typedef struct { u64 lo, hi; } extent;
typedef struct { extent *v; size_t n, cap; int policy; u64 bump; } arena;
enum { FIRSTFIT, MONOTONIC, TOPDOWN };

static void arena_insert_at(arena *a, size_t i, extent e) {
    if (a->n == a->cap) {
        a->cap = a->cap ? 2 * a->cap : 64;
        a->v = realloc(a->v, a->cap * sizeof(extent));
    }
    memmove(a->v + i + 1, a->v + i, (a->n - i) * sizeof(extent));
    a->v[i] = e;
    a->n++;
}
static void arena_erase_at(arena *a, size_t i) {
    memmove(a->v + i, a->v + i + 1, (a->n - i - 1) * sizeof(extent));
    a->n--;
}
static u64 arena_take(arena *a, u64 size) {
    if (a->policy == TOPDOWN) {
        for (size_t i = a->n; i-- > 0;)
            if (a->v[i].hi - a->v[i].lo >= size) {
                a->v[i].hi -= size;
                u64 at = a->v[i].hi;
                if (a->v[i].lo == a->v[i].hi) arena_erase_at(a, i);
                return at;
            }
        return 0;
    }
    for (size_t i = 0; i < a->n; i++)
        if (a->v[i].hi - a->v[i].lo >= size) {
            u64 at = a->v[i].lo;
            a->v[i].lo += size;
            if (a->v[i].lo == a->v[i].hi) arena_erase_at(a, i);
            return at;
        }
    return 0;
}
static void arena_give(arena *a, u64 lo, u64 size) {
    if (a->policy == MONOTONIC) return;
    u64 hi = lo + size;
    size_t i = 0;
    while (i < a->n && a->v[i].lo < lo) i++;
    int left = i > 0 && a->v[i - 1].hi == lo;
    int right = i < a->n && a->v[i].lo == hi;
    if (left && right) {
        a->v[i - 1].hi = a->v[i].hi;
        arena_erase_at(a, i);
    } else if (left) {
        a->v[i - 1].hi = hi;
    } else if (right) {
        a->v[i].lo = lo;
    } else {
        extent e = {lo, hi};
        arena_insert_at(a, i, e);
    }
}

/* ------------------------------------------------------- a small hash of ints */
typedef struct { u64 key, a, b, c; int used; } slot; /* used: 0 never, 1 live, 2 tombstone */
typedef struct { slot *v; size_t cap, live, fill; } table;
static size_t hash_of(u64 k, size_t cap) { return (size_t)((k * 0x9E3779B97F4A7C15ull) >> 20) & (cap - 1); }
static slot *table_find(table *t, u64 k) {
    if (!t->cap) return NULL;
    for (size_t i = hash_of(k, t->cap);; i = (i + 1) & (t->cap - 1)) {
        if (!t->v[i].used) return NULL;
        if (t->v[i].used == 1 && t->v[i].key == k) return &t->v[i];
    }
}
static slot *table_put(table *t, u64 k, u64 a, u64 b, u64 c);
static void table_grow(table *t) {
    table n = {calloc(t->cap && t->live * 4 < t->cap ? t->cap : (t->cap ? t->cap * 2 : 1024), sizeof(slot)), 0, 0, 0};
    n.cap = t->cap && t->live * 4 < t->cap ? t->cap : (t->cap ? t->cap * 2 : 1024);
    for (size_t i = 0; i < t->cap; i++)
        if (t->v[i].used == 1) table_put(&n, t->v[i].key, t->v[i].a, t->v[i].b, t->v[i].c);
    free(t->v);
    *t = n;
}
static slot *table_put(table *t, u64 k, u64 a, u64 b, u64 c) {
    if ((t->fill + 1) * 2 > t->cap) table_grow(t);
    size_t i = hash_of(k, t->cap);
    while (t->v[i].used) i = (i + 1) & (t->cap - 1);
    slot s = {k, a, b, c, 1};
    t->v[i] = s;
    t->live++;
    t->fill++;
    return &t->v[i];
}
static void table_del(table *t, slot *s) { s->used = 2; t->live--; }

/* ------------------------------------------------------------------- the state */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int ready, ndev, trace, events_held;
    u64 vram, foreign, granule;
    u64 used[MAXDEV], peak[MAXDEV];
    u64 n_malloc, n_va, n_phys, n_stream, n_event, n_graph;
    u64 events_done;       /* every event whose ticket is <= this has completed */
    u64 fail_next;         /* so many of the next physical allocations are refused */
    arena mem, va;
    table mallocs;         /* addr -> size, ordinal, device */
    table reserves;        /* addr -> size, ordinal */
    table phys;            /* handle -> size, refs, device */
    table maps;            /* addr -> size, handle */
} S;
static __thread int cur_dev, last_err;

enum { L_MALLOC = 1, L_MALLOC_FAIL, L_FREE, L_RESERVE, L_UNRESERVE, L_CREATE, L_CREATE_FAIL, L_MAP, L_UNMAP,
       L_RELEASE, L_DEVSYNC, L_STREAMSYNC, L_EVENTSYNC, L_MEMINFO, L_EVENTRECORD, L_ASYNC_ALLOC, L_ASYNC_FREE };
typedef struct { u64 op, ord, addr, size; } logrec;
static logrec *logv;
static size_t logn, logcap;
static int logging = 1;
static void lg(u64 op, u64 ord, u64 addr, u64 size) {
    if (S.trace) fprintf(stderr, "[fake] op=%llu ord=%llu addr=%llx size=%llu used=%llu\n", op, ord, addr, size, S.used[0]);
    if (!logging) return;
    if (logn == logcap) {
        logcap = logcap ? 2 * logcap : 4096;
        logv = realloc(logv, logcap * sizeof(logrec));
    }
    logrec r = {op, ord, addr, size};
    logv[logn++] = r;
}

static u64 env_u64(const char *k, u64 d) { const char *s = getenv(k); return s && *s ? strtoull(s, NULL, 0) : d; }
static void reserve_arena(arena *a, u64 lo, u64 size) {
    /* hold the numbers in this process so that no host pointer can equal them */
    mmap((void *)lo, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | 0x100000 /* FIXED_NOREPLACE */, -1, 0);
    extent e = {lo, lo + size};
    arena_insert_at(a, 0, e);
}
static void boot(void) {
    if (S.ready) return;
    S.vram = env_u64("FAKE_VRAM_BYTES", 8ull << 30);
    S.foreign = env_u64("FAKE_FOREIGN_BYTES", 0);
    S.granule = env_u64("FAKE_GRANULE", 2 * MIB);
    S.ndev = (int)env_u64("FAKE_DEVICES", 1);
    if (S.ndev > MAXDEV) S.ndev = MAXDEV;
    S.trace = (int)env_u64("FAKE_CUDA_TRACE", 0);
    const char *p = getenv("FAKE_ADDR_POLICY");
    int pol = p && !strcmp(p, "monotonic") ? MONOTONIC : p && !strcmp(p, "topdown") ? TOPDOWN : FIRSTFIT;
    S.mem.policy = pol;
    S.va.policy = pol;
    reserve_arena(&S.mem, 0x100000000000ull, 8ull << 40);
    reserve_arena(&S.va, 0x200000000000ull, 32ull << 40);
    S.ready = 1;
}
#define ENTER() do { pthread_mutex_lock(&mu); boot(); } while (0)
#define LEAVE() pthread_mutex_unlock(&mu)
static int fail(int e) { if (e) last_err = e; return e; }
static u64 up(u64 x, u64 g) { return (x + g - 1) / g * g; }
static int take_phys(int dev, u64 size) { /* with the lock held: 1 when there is room */
    if (S.fail_next) { S.fail_next--; return 0; }
    if (size > S.vram || S.used[dev] + S.foreign + size > S.vram) return 0;
    S.used[dev] += size;
    if (S.used[dev] > S.peak[dev]) S.peak[dev] = S.used[dev];
    return 1;
}

/* -------------------------------------------------------- runtime: devices */
API int cudaGetDeviceCount(int *n) { ENTER(); *n = S.ndev; LEAVE(); return OK; }
API int cudaGetDevice(int *d) { *d = cur_dev; return OK; }
API int cudaSetDevice(int d) { ENTER(); int bad = d < 0 || d >= S.ndev; LEAVE(); if (bad) return fail(101); cur_dev = d; return OK; }
API int cudaDeviceSynchronize(void) { ENTER(); S.events_done = S.n_event; lg(L_DEVSYNC, 0, 0, 0); LEAVE(); return OK; }
API int cudaDriverGetVersion(int *v) { *v = 13000; return OK; }
API int cudaRuntimeGetVersion(int *v) { *v = 13000; return OK; }
API int cudaGetLastError(void) { int e = last_err; last_err = 0; return e; }
API int cudaPeekAtLastError(void) { return last_err; }
API const char *cudaGetErrorName(int e) { return e == 0 ? "cudaSuccess" : e == E_OOM ? "cudaErrorMemoryAllocation" : e == E_NOT_READY ? "cudaErrorNotReady" : "fakeCudaError"; }
API const char *cudaGetErrorString(int e) { return e == 0 ? "no error" : e == E_OOM ? "out of memory" : e == E_NOT_READY ? "device not ready" : "error of the fake CUDA runtime"; }

/* Byte offsets of the device-properties fields that PyTorch reads.  The CUDA 13
 * record is 1008 bytes; CUDA 12's has 1032 and other places for the later fields. */
static void put_i(char *p, size_t at, int v) { memcpy(p + at, &v, sizeof v); }
static void put_z(char *p, size_t at, u64 v) { memcpy(p + at, &v, sizeof v); }
static void common_props(char *p) {
    strcpy(p, "Fake CUDA device");
    memcpy(p + 256, "fake-cuda-device", 16);
    put_z(p, 288, S.vram);
    put_z(p, 296, 49152);     /* shared memory per block */
    put_i(p, 304, 65536);     /* registers per block */
    put_i(p, 308, 32);        /* warp */
    put_i(p, 320, 1024);      /* threads per block */
    put_i(p, 324, 1024); put_i(p, 328, 1024); put_i(p, 332, 64);
    put_i(p, 336, 0x7fffffff); put_i(p, 340, 65535); put_i(p, 344, 65535);
    put_i(p, 360, 9); put_i(p, 364, 0); /* compute capability 9.0 */
}
API int cudaGetDeviceProperties(void *out, int dev) { /* CUDA 13 record */
    ENTER();
    char *p = out;
    memset(p, 0, 1008);
    common_props(p);
    put_i(p, 384, 132);       /* multiprocessors */
    put_i(p, 568, 1); put_i(p, 572, dev); put_i(p, 576, 0);
    put_i(p, 588, 1);         /* unified addressing */
    put_i(p, 592, 5120);      /* bus width */
    put_i(p, 596, 50 << 20);  /* L2 */
    put_i(p, 604, 2048);      /* threads per multiprocessor */
    put_z(p, 624, 233472); put_i(p, 632, 65536); put_z(p, 672, 232448);
    LEAVE();
    return OK;
}
API int cudaGetDeviceProperties_v2(void *out, int dev) { /* CUDA 12 record */
    (void)dev;
    ENTER();
    char *p = out;
    memset(p, 0, 1032);
    common_props(p);
    put_i(p, 388, 132);
    put_i(p, 624, 2048);
    LEAVE();
    return OK;
}
API int cudaDeviceGetAttribute(int *v, int attr, int dev) {
    (void)dev;
    switch (attr) {
    case 1: *v = 1024; break;        /* threads per block */
    case 10: *v = 32; break;         /* warp */
    case 16: *v = 132; break;        /* multiprocessors */
    case 39: *v = 2048; break;       /* threads per multiprocessor */
    case 75: *v = 9; break;
    case 76: *v = 0; break;
    case 97: *v = 232448; break;
    default: *v = 0;
    }
    return OK;
}
API int cudaDeviceGetPCIBusId(char *s, int n, int dev) { snprintf(s, (size_t)n, "0000:01:%02x.0", dev); return OK; }
API int cudaDeviceCanAccessPeer(int *can, int a, int b) { (void)a; (void)b; *can = 0; return OK; }
API int cudaDeviceEnablePeerAccess(int d, unsigned f) { (void)d; (void)f; return fail(E_UNSUPPORTED); }
API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { if (least) *least = 0; if (greatest) *greatest = -5; return OK; }
API int cudaThreadExchangeStreamCaptureMode(int *mode) { static __thread int m = 0; int t = *mode; *mode = m; m = t; return OK; }

/* --------------------------------------------------------- runtime: memory */
static int do_malloc(void **out, u64 size, u64 okop, u64 failop) {
    ENTER();
    u64 phys = up(size, S.granule);
    if (!take_phys(cur_dev, phys)) { lg(failop, 0, 0, size); LEAVE(); *out = NULL; return fail(E_OOM); }
    u64 at = arena_take(&S.mem, phys);
    if (!at) { S.used[cur_dev] -= phys; lg(failop, 0, 0, size); LEAVE(); *out = NULL; return fail(E_OOM); }
    u64 ord = S.n_malloc++;
    table_put(&S.mallocs, at, phys, ord, (u64)cur_dev);
    lg(okop, ord, at, size);
    LEAVE();
    *out = (void *)at;
    return OK;
}
static int do_free(void *p, u64 op) {
    if (!p) return OK;
    ENTER();
    slot *s = table_find(&S.mallocs, (u64)p);
    if (!s) { LEAVE(); return fail(E_INVALID); }
    lg(op, s->b, s->key, s->a);
    S.used[s->c] -= s->a;
    arena_give(&S.mem, s->key, s->a);
    table_del(&S.mallocs, s);
    LEAVE();
    return OK;
}
API int cudaMalloc(void **p, size_t n) { return do_malloc(p, n, L_MALLOC, L_MALLOC_FAIL); }
API int cudaFree(void *p) { return do_free(p, L_FREE); }
API int cudaMallocAsync(void **p, size_t n, void *st) { (void)st; return do_malloc(p, n, L_ASYNC_ALLOC, L_MALLOC_FAIL); }
API int cudaFreeAsync(void *p, void *st) { (void)st; return do_free(p, L_ASYNC_FREE); }
API int cudaMemGetInfo(size_t *fr, size_t *tot) {
    ENTER();
    u64 u = S.used[cur_dev] + S.foreign;
    *tot = S.vram;
    *fr = u > S.vram ? 0 : S.vram - u;
    lg(L_MEMINFO, 0, *fr, *tot);
    LEAVE();
    return OK;
}
API int cudaHostAlloc(void **p, size_t n, unsigned f) { (void)f; *p = malloc(n ? n : 1); return *p ? OK : fail(E_OOM); }
API int cudaFreeHost(void *p) { free(p); return OK; }
API int cudaHostRegister(void *p, size_t n, unsigned f) { (void)p; (void)n; (void)f; return OK; }
API int cudaHostUnregister(void *p) { (void)p; return OK; }
API int cudaMemcpy(void *d, const void *s, size_t n, int k) { (void)d; (void)s; (void)n; (void)k; return OK; }
API int cudaMemcpyAsync(void *d, const void *s, size_t n, int k, void *st) { (void)d; (void)s; (void)n; (void)k; (void)st; return OK; }
API int cudaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, void *st) { (void)d; (void)dd; (void)s; (void)sd; (void)n; (void)st; return OK; }
API int cudaMemset(void *d, int v, size_t n) { (void)d; (void)v; (void)n; return OK; }
API int cudaMemsetAsync(void *d, int v, size_t n, void *st) { (void)d; (void)v; (void)n; (void)st; return OK; }
API int cudaPointerGetAttributes(void *attr, const void *p) { /* {int type; int device; void *dev; void *host; ...} */
    u64 a = (u64)p;
    int dev = a >= 0x100000000000ull && a < 0x400000000000ull;
    memset(attr, 0, 24);
    put_i(attr, 0, dev ? 2 : 0);
    put_i(attr, 4, dev ? 0 : -2);
    put_z(attr, 8, dev ? a : 0);
    put_z(attr, 16, dev ? 0 : a);
    return OK;
}
/* the async pool of the cudaMallocAsync backend: nothing is cached */
API int cudaDeviceGetDefaultMemPool(void **pool, int dev) { *pool = (void *)(u64)(0x5000 + dev); return OK; }
API int cudaMemPoolSetAttribute(void *p, int a, void *v) { (void)p; (void)a; (void)v; return OK; }
API int cudaMemPoolGetAttribute(void *p, int a, void *v) { (void)p; ENTER(); *(u64 *)v = a >= 5 ? S.used[0] : 0; LEAVE(); return OK; }
API int cudaMemPoolSetAccess(void *p, const void *d, size_t n) { (void)p; (void)d; (void)n; return OK; }
API int cudaMemPoolTrimTo(void *p, size_t n) { (void)p; (void)n; return OK; }
API int cudaDeviceGetGraphMemAttribute(int d, int a, void *v) { (void)d; (void)a; *(u64 *)v = 0; return OK; }
API int cudaDeviceSetGraphMemAttribute(int d, int a, void *v) { (void)d; (void)a; (void)v; return OK; }

/* -------------------------------------------------- runtime: streams, events */
static void *new_stream(void) { ENTER(); u64 h = 0x510000000000ull + 0x1000 * (++S.n_stream); LEAVE(); return (void *)h; }
API int cudaStreamCreate(void **s) { *s = new_stream(); return OK; }
API int cudaStreamCreateWithFlags(void **s, unsigned f) { (void)f; *s = new_stream(); return OK; }
API int cudaStreamCreateWithPriority(void **s, unsigned f, int p) { (void)f; (void)p; *s = new_stream(); return OK; }
API int cudaStreamDestroy(void *s) { (void)s; return OK; }
API int cudaStreamGetPriority(void *s, int *p) { (void)s; *p = 0; return OK; }
API int cudaStreamQuery(void *s) { (void)s; return OK; }
API int cudaStreamSynchronize(void *s) { (void)s; ENTER(); S.events_done = S.n_event; lg(L_STREAMSYNC, 0, (u64)s, 0); LEAVE(); return OK; }
API int cudaStreamWaitEvent(void *s, void *e, unsigned f) { (void)s; (void)e; (void)f; return OK; }
API int cudaStreamIsCapturing(void *s, int *st) { (void)s; *st = 0; return OK; }
API int cudaStreamGetCaptureInfo(void *s, int *st, u64 *id, void **g, const void **deps, const void **edges, size_t *n) {
    (void)s; (void)g; (void)deps; (void)edges; (void)n;
    *st = 0;
    if (id) *id = 0;
    return OK;
}
API int cudaStreamGetCaptureInfo_v2(void *s, int *st, u64 *id, void **g, const void **deps, size_t *n) {
    (void)s; (void)g; (void)deps; (void)n;
    *st = 0;
    if (id) *id = 0;
    return OK;
}
typedef struct { u64 ticket; } fake_event;
static int new_event(void **e) { fake_event *x = calloc(1, sizeof *x); *e = x; return OK; }
API int cudaEventCreate(void **e) { return new_event(e); }
API int cudaEventCreateWithFlags(void **e, unsigned f) { (void)f; return new_event(e); }
API int cudaEventDestroy(void *e) { free(e); return OK; }
API int cudaEventRecord(void *e, void *s) {
    ENTER();
    ((fake_event *)e)->ticket = ++S.n_event;
    if (!S.events_held) S.events_done = S.n_event;
    lg(L_EVENTRECORD, S.n_event, (u64)s, 0);
    LEAVE();
    return OK;
}
API int cudaEventRecordWithFlags(void *e, void *s, unsigned f) { (void)f; return cudaEventRecord(e, s); }
API int cudaEventQuery(void *e) { ENTER(); int done = ((fake_event *)e)->ticket <= S.events_done; LEAVE(); return done ? OK : fail(E_NOT_READY); }
API int cudaEventSynchronize(void *e) {
    ENTER();
    u64 t = ((fake_event *)e)->ticket;
    if (t > S.events_done) S.events_done = t; /* streams are taken to run in the order of recording */
    lg(L_EVENTSYNC, t, 0, 0);
    LEAVE();
    return OK;
}
API int cudaEventElapsedTime(float *ms, void *a, void *b) { (void)a; (void)b; *ms = 0.0f; return OK; }

/* --------------------------------------- runtime: code modules, never launched */
static void *fat[1];
API void **__cudaRegisterFatBinary(void *p) { (void)p; return fat; }
API void __cudaRegisterFatBinaryEnd(void **h) { (void)h; }
API void __cudaUnregisterFatBinary(void **h) { (void)h; }
API void __cudaRegisterFunction(void **h, const char *f, char *n, const char *dn, int t, void *a, void *b, void *c, void *d, int *e) {
    (void)h; (void)f; (void)n; (void)dn; (void)t; (void)a; (void)b; (void)c; (void)d; (void)e;
}
API void __cudaRegisterVar(void **h, char *v, char *a, const char *n, int x, size_t s, int c, int g) {
    (void)h; (void)v; (void)a; (void)n; (void)x; (void)s; (void)c; (void)g;
}
API int cudaLaunchKernel(const void *f, ...) { (void)f; return fail(98); }
API int cudaLaunchKernelExC(const void *c, const void *f, void **a) { (void)c; (void)f; (void)a; return fail(98); }
API int cudaFuncGetAttributes(void *a, const void *f) { (void)f; memset(a, 0, 64); return OK; }
API int cudaFuncSetAttribute(const void *f, int a, int v) { (void)f; (void)a; (void)v; return OK; }

/* --------------------------------------------------------- driver entry points */
API int cuDeviceGet(int *d, int ord) { *d = ord; return OK; }
API int cuDeviceGetAttribute(int *v, int attr, int dev) {
    (void)dev;
    /* virtual memory management: yes; fabric handles, multicast, RDMA: no */
    *v = attr == 102 /* VMM */ || attr == 103 /* posix fd handles */;
    return OK;
}
API int cuMemGetAllocationGranularity(size_t *g, const void *prop, int which) { (void)prop; (void)which; ENTER(); *g = S.granule; LEAVE(); return OK; }
API int cuMemAddressReserve(u64 *out, size_t size, size_t align, u64 hint, u64 flags) {
    (void)align; (void)hint; (void)flags;
    ENTER();
    u64 n = up(size, S.granule), at = arena_take(&S.va, n);
    if (!at) { LEAVE(); return E_OOM; }
    u64 ord = S.n_va++;
    table_put(&S.reserves, at, n, ord, 0);
    lg(L_RESERVE, ord, at, size);
    LEAVE();
    *out = at;
    return OK;
}
API int cuMemAddressFree(u64 at, size_t size) {
    ENTER();
    slot *s = table_find(&S.reserves, at);
    if (!s) { LEAVE(); return E_INVALID; }
    lg(L_UNRESERVE, s->b, at, size);
    arena_give(&S.va, at, s->a);
    table_del(&S.reserves, s);
    LEAVE();
    return OK;
}
API int cuMemCreate(u64 *h, size_t size, const void *prop, u64 flags) {
    (void)prop; (void)flags;
    ENTER();
    if (size % S.granule) { LEAVE(); return E_INVALID; }
    if (!take_phys(cur_dev, size)) { lg(L_CREATE_FAIL, 0, 0, size); LEAVE(); return E_OOM; }
    u64 id = ++S.n_phys;
    table_put(&S.phys, id, size, 1, (u64)cur_dev);
    lg(L_CREATE, id, 0, size);
    LEAVE();
    *h = id;
    return OK;
}
static void unref(u64 id) {
    slot *s = table_find(&S.phys, id);
    if (s && --s->b == 0) { S.used[s->c] -= s->a; table_del(&S.phys, s); }
}
API int cuMemRelease(u64 h) {
    ENTER();
    slot *s = table_find(&S.phys, h);
    if (!s) { LEAVE(); return E_INVALID; }
    lg(L_RELEASE, h, 0, s->a);
    unref(h);
    LEAVE();
    return OK;
}
API int cuMemMap(u64 at, size_t size, size_t off, u64 h, u64 flags) {
    (void)off; (void)flags;
    ENTER();
    slot *s = table_find(&S.phys, h);
    if (!s || s->a != size || table_find(&S.maps, at)) { LEAVE(); return E_INVALID; }
    s->b++;
    table_put(&S.maps, at, size, h, 0);
    lg(L_MAP, h, at, size);
    LEAVE();
    return OK;
}
API int cuMemUnmap(u64 at, size_t size) { /* the range must be whole mappings */
    ENTER();
    for (u64 p = at; p < at + size;) {
        slot *m = table_find(&S.maps, p);
        if (!m) { LEAVE(); return E_INVALID; }
        u64 n = m->a;
        lg(L_UNMAP, m->b, p, n);
        unref(m->b);
        table_del(&S.maps, m);
        p += n;
    }
    LEAVE();
    return OK;
}
API int cuMemSetAccess(u64 at, size_t size, const void *desc, size_t n) { (void)at; (void)size; (void)desc; (void)n; return OK; }
API int cuGetErrorString(int e, const char **s) { *s = e == E_OOM ? "out of memory" : e ? "error of the fake CUDA driver" : "no error"; return OK; }
API int cuInit(unsigned f) { (void)f; return OK; }
API int cuCtxGetCurrent(void **c) { *c = (void *)0x4000; return OK; }
API int cuCtxSetCurrent(void *c) { (void)c; return OK; }
API int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { (void)d; *flags = 0; *active = 1; return OK; }
API int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = (void *)0x4000; return OK; }

/* names that must resolve, and whose calls nothing here makes */
#define NOT_HERE(f) API int f(void) { return E_UNSUPPORTED; }
NOT_HERE(cuFuncGetAttribute) NOT_HERE(cuFuncSetAttribute) NOT_HERE(cuFuncSetCacheConfig)
NOT_HERE(cuLaunchCooperativeKernel) NOT_HERE(cuLaunchKernel) NOT_HERE(cuLaunchKernelEx)
NOT_HERE(cuLinkAddData) NOT_HERE(cuLinkAddData_v2) NOT_HERE(cuLinkComplete) NOT_HERE(cuLinkCreate) NOT_HERE(cuLinkCreate_v2)
NOT_HERE(cuModuleGetFunction) NOT_HERE(cuModuleLoad) NOT_HERE(cuModuleLoadData) NOT_HERE(cuModuleLoadDataEx) NOT_HERE(cuModuleUnload)
NOT_HERE(cuOccupancyMaxActiveBlocksPerMultiprocessor) NOT_HERE(cuPointerGetAttribute) NOT_HERE(cuTensorMapEncodeTiled)
NOT_HERE(cuMemExportToShareableHandle) NOT_HERE(cuMemImportFromShareableHandle) NOT_HERE(cuMemRetainAllocationHandle)
NOT_HERE(cuMemGetAllocationPropertiesFromHandle) NOT_HERE(cuMemGetAddressRange) NOT_HERE(cuMemGetAddressRange_v2)
NOT_HERE(cuMemsetD32Async) NOT_HERE(cuStreamWriteValue32) NOT_HERE(cuStreamWriteValue32_v2)
NOT_HERE(cuMulticastAddDevice) NOT_HERE(cuMulticastBindMem) NOT_HERE(cuMulticastCreate) NOT_HERE(cuMulticastUnbind)
NOT_HERE(fake_cuda_unsupported)

static const struct { const char *name; void *fn; } entry[] = {
    {"cuInit", cuInit},
    {"cuDeviceGet", cuDeviceGet},
    {"cuDeviceGetAttribute", cuDeviceGetAttribute},
    {"cuMemGetAllocationGranularity", cuMemGetAllocationGranularity},
    {"cuMemAddressReserve", cuMemAddressReserve},
    {"cuMemAddressFree", cuMemAddressFree},
    {"cuMemCreate", cuMemCreate},
    {"cuMemRelease", cuMemRelease},
    {"cuMemMap", cuMemMap},
    {"cuMemUnmap", cuMemUnmap},
    {"cuMemSetAccess", cuMemSetAccess},
    {"cuGetErrorString", cuGetErrorString},
    {"cuCtxGetCurrent", cuCtxGetCurrent},
    {"cuCtxSetCurrent", cuCtxSetCurrent},
};
API int cudaGetDriverEntryPointByVersion(const char *sym, void **fn, unsigned ver, u64 flags, int *status) {
    (void)ver; (void)flags;
    *fn = fake_cuda_unsupported;
    for (size_t i = 0; i < sizeof entry / sizeof *entry; i++)
        if (!strcmp(sym, entry[i].name)) *fn = entry[i].fn;
    if (status) *status = 0;
    return OK;
}
API int cudaGetDriverEntryPoint(const char *sym, void **fn, u64 flags, int *status) { return cudaGetDriverEntryPointByVersion(sym, fn, 13000, flags, status); }

/* ------------------------------------------------------------------- controls */
API u64 fake_cuda_version(void) { return 1; }
API void fake_cuda_set_vram(u64 b) { ENTER(); S.vram = b; LEAVE(); }
API void fake_cuda_set_foreign(u64 b) { ENTER(); S.foreign = b; LEAVE(); }
API void fake_cuda_set_policy(int p) { ENTER(); S.mem.policy = S.va.policy = p; LEAVE(); }
API u64 fake_cuda_used(int dev) { ENTER(); u64 u = S.used[dev]; LEAVE(); return u; }
API u64 fake_cuda_peak(int dev) { ENTER(); u64 u = S.peak[dev]; LEAVE(); return u; }
API u64 fake_cuda_live_mallocs(void) { ENTER(); u64 u = S.mallocs.live; LEAVE(); return u; }
API void fake_cuda_fail_next(u64 n) { ENTER(); S.fail_next = n; LEAVE(); }
/* 1: events stay "not ready" until fake_cuda_events_complete or a synchronise */
API void fake_cuda_events_hold(int on) { ENTER(); S.events_held = on; if (!on) S.events_done = S.n_event; LEAVE(); }
API void fake_cuda_events_complete(void) { ENTER(); S.events_done = S.n_event; LEAVE(); }
API void fake_cuda_log_on(int on) { ENTER(); logging = on; LEAVE(); }
API size_t fake_cuda_log_drain(u64 *out, size_t max) { /* 4 words a record; returns how many */
    ENTER();
    size_t n = logn < max ? logn : max;
    memcpy(out, logv, n * sizeof(logrec));
    memmove(logv, logv + n, (logn - n) * sizeof(logrec));
    logn -= n;
    LEAVE();
    return n;
}

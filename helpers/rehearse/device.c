/*
 * device.c -- a CUDA device that is not there: the runtime (libcudart names), the
 * driver entry points and NVML, preloaded under an unchanged PyTorch.
 *
 * Every kernel launch succeeds and does nothing. Memory is a range of addresses and
 * a byte limit; the host can touch it, so copies and memsets move bytes. Streams,
 * events and stream capture keep state. What PyTorch's own host code then asks of its
 * own allocator is what it asks on a GPU with these properties.
 *
 * All declarations are written by hand; no vendor or PyTorch header is used.
 * libraries.c, included at the end, answers for cuBLAS, cuDNN and nvrtc.
 *
 * Environment
 *   FAKE_VRAM_BYTES      device memory (default 8 GiB)
 *   FAKE_FOREIGN_BYTES   bytes held by others from the start (default 0)
 *   FAKE_DEVICES         number of devices (default 1)
 *   FAKE_ADDR_POLICY     firstfit (default): lowest free range that fits; monotonic:
 *                        never used twice; topdown: highest range, its upper end
 *   FAKE_RANGE_POLICY    the same for reserved ranges of addresses (default: as above)
 *   FAKE_GRANULE         unit of physical memory and of addresses (default 2 MiB)
 *   FAKE_LOG             0: keep no log of driver calls (fake_cuda_log_drain)
 *   FAKE_NAME, FAKE_CC, FAKE_SMS, FAKE_SM_THREADS, FAKE_SM_BLOCKS, FAKE_SM_SMEM, FAKE_L2
 *                        properties: name, capability times ten, multiprocessors,
 *                        threads, blocks and shared bytes of one, L2 bytes (an H100's)
 *   FAKE_OCCUPANCY       what the occupancy queries answer (default 2)
 *   FAKE_COPY_MAX        copies to the device above this move nothing (default 1 MiB)
 *   FAKE_EVENT_LAG       an event is complete this many launches after its record, or
 *                        after a synchronise (default 0: at once)
 *   FAKE_PEAKS           folder for holders: what each process holds and held at most of each device, and all together; and
 *                        PID.missing: functions that were asked for and are not answered; and
 *                        PID.forked: a process that was forked off one that used the device did so, too
 *   FAKE_CUDNN_VERSION   default 92400
 *   FAKE_CUDNN_WS        workspace bytes that every cuDNN plan asks for (default 0)
 *
 * Controls for a program (ctypes.CDLL(None)): the fake_* functions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef unsigned long long u64;

enum { OK = 0, E_INVALID = 1, E_OOM = 2, E_FORKED = 3, E_NOT_READY = 600, E_UNSUPPORTED = 801 };
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
    int ready, ndev, events_held, cc, sms, smthreads, smsmem, smblocks, occ, cudnn;
    u64 vram, foreign, granule, l2, copymax, lag, ws;
    const char *name;
    u64 used[MAXDEV];
    u64 n_malloc, n_va, n_phys, n_stream, n_event, n_graph;
    u64 events_done;       /* every event whose ticket is <= this has completed */
    u64 fail_next;         /* so many of the next physical allocations are refused */
    arena mem, va;
    table mallocs;         /* addr -> size, ordinal, device */
    table managed;         /* addr -> size: the host's memory, which a driver moves to and fro */
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
static int logging = -1;
static void lg(u64 op, u64 ord, u64 addr, u64 size) {
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
static int policy_of(const char *name, int or) {
    const char *p = getenv(name);
    return !p || !*p ? or : !strcmp(p, "monotonic") ? MONOTONIC : !strcmp(p, "topdown") ? TOPDOWN : FIRSTFIT;
}
/* What each process of a program holds of each device, in a file that outlives them all. The lock of a process on its byte of the
 * file goes with it, however it ends: what it held counts no longer. */
#define MOST_HOLDERS 512
typedef struct { u64 pid, parent, born, last, used[MAXDEV], peak[MAXDEV]; } holder;
typedef struct { u64 count, together[MAXDEV]; holder each[MOST_HOLDERS]; } holders;
static holders *all_holders;
static holder *own_holder;
static int holders_file = -1, forked;
static u64 born;
static u64 nanoseconds(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec; }
static void begin(void) { born = nanoseconds(); }
__attribute__((constructor)) static void loaded(void) { begin(); pthread_atfork(NULL, NULL, begin); }
static int lock_of(u64 at, int command) { /* whether the lock could be had */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
    return fcntl(holders_file, command, &lock) == 0 && lock.l_type == F_UNLCK;
}
static void join_holders(void) {
    static holders alone;
    const char *folder = getenv("FAKE_PEAKS");
    char path[4096];
    int named = folder && *folder && snprintf(path, sizeof path, "%s/holders", folder) < (int)sizeof path;
    if (holders_file < 0 && named) holders_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (!all_holders && holders_file >= 0 && !ftruncate(holders_file, sizeof alone)) {
        void *at = mmap(NULL, sizeof alone, PROT_READ | PROT_WRITE, MAP_SHARED, holders_file, 0);
        if (at != MAP_FAILED) all_holders = at;
    }
    if (!all_holders) all_holders = &alone;
    u64 at = __atomic_fetch_add(&all_holders->count, 1, __ATOMIC_RELAXED);
    if (at >= MOST_HOLDERS) at = MOST_HOLDERS - 1;
    own_holder = &all_holders->each[at];
    own_holder->pid = (u64)getpid();
    own_holder->parent = (u64)getppid();
    own_holder->born = born;
    lock_of(at, F_SETLK);
}
static u64 held_together(int dev, int alive) {
    u64 sum = 0, own = (u64)(own_holder - all_holders->each);
    for (u64 at = 0; at < all_holders->count && at < MOST_HOLDERS; at++) {
        u64 used = all_holders->each[at].used[dev];
        if (used && at != own && alive && lock_of(at, F_GETLK)) used = 0;
        sum += used;
    }
    return sum;
}
static void hold(int dev, u64 size) { /* with the lock held; less, too: the sum wraps */
    S.used[dev] += size;
    if (forked) return;
    if (!own_holder) join_holders();
    u64 used = own_holder->used[dev] = S.used[dev], *most = &all_holders->together[dev], before = *most;
    if (used > own_holder->peak[dev]) own_holder->peak[dev] = used;
    own_holder->last = nanoseconds();
    if (held_together(dev, 0) <= before) return;
    u64 together = held_together(dev, 1);
    while (together > before && !__atomic_compare_exchange_n(most, &before, together, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
static void in_child(void);
static void boot(void) {
    if (S.ready) return;
    pthread_atfork(NULL, NULL, in_child);
    S.vram = env_u64("FAKE_VRAM_BYTES", 8ull << 30);
    S.foreign = env_u64("FAKE_FOREIGN_BYTES", 0);
    S.granule = env_u64("FAKE_GRANULE", 2 * MIB);
    S.ndev = (int)env_u64("FAKE_DEVICES", 1);
    if (S.ndev > MAXDEV) S.ndev = MAXDEV;
    if (logging < 0) logging = (int)env_u64("FAKE_LOG", 1);
    S.cc = (int)env_u64("FAKE_CC", 90);
    S.sms = (int)env_u64("FAKE_SMS", 132);
    S.smthreads = (int)env_u64("FAKE_SM_THREADS", 2048);
    S.smsmem = (int)env_u64("FAKE_SM_SMEM", 233472);
    S.smblocks = (int)env_u64("FAKE_SM_BLOCKS", 32);
    S.l2 = env_u64("FAKE_L2", 50 * MIB);
    S.occ = (int)env_u64("FAKE_OCCUPANCY", 2);
    S.copymax = env_u64("FAKE_COPY_MAX", MIB);
    S.lag = env_u64("FAKE_EVENT_LAG", 0);
    S.cudnn = (int)env_u64("FAKE_CUDNN_VERSION", 92400);
    S.ws = env_u64("FAKE_CUDNN_WS", 0);
    S.name = getenv("FAKE_NAME");
    if (!S.name || !*S.name) S.name = "Fake CUDA device";
    if (!own_holder) join_holders();
    S.mem.policy = policy_of("FAKE_ADDR_POLICY", FIRSTFIT);
    S.va.policy = policy_of("FAKE_RANGE_POLICY", S.mem.policy);
    reserve_arena(&S.mem, 0x100000000000ull, 8ull << 40);
    reserve_arena(&S.va, 0x200000000000ull, 32ull << 40);
    S.ready = 1;
}
#define ENTER() do { pthread_mutex_lock(&mu); boot(); } while (0)
#define LEAVE() pthread_mutex_unlock(&mu)
#define READY() do { ENTER(); LEAVE(); } while (0) /* settings are read at the first call, not before */
static int fail(int e) { if (e) last_err = e; return e; }
static u64 up(u64 x, u64 g) { return (x + g - 1) / g * g; }
static int take_phys(int dev, u64 size) { /* with the lock held: 1 when there is room */
    if (S.fail_next) { S.fail_next--; return 0; }
    if (size > S.vram || S.used[dev] + S.foreign + size > S.vram) return 0;
    hold(dev, size);
    return 1;
}

/* ------------------------------------------------------------------------ counts */
enum { N_LAUNCH, N_BLAS, N_LT, N_DNN, N_H2D, N_D2H, N_D2D, N_SKIPPED, N_MEMSET, N_SYNC, N_FFT, N_COLLECTIVE, N_MANAGED, N_FFT_BYTES, N_DNN_BYTES, N_KINDS };
static u64 counts[N_KINDS];
static u64 now(void) { return counts[N_LAUNCH] + counts[N_BLAS] + counts[N_LT] + counts[N_DNN]; } /* "time" */
static void in_child(void) { /* a context is its process's own: the driver refuses it to a child (cudaErrorInitializationError) */
    for (int at = 0; at < MAXDEV; at++) forked = forked || (own_holder && own_holder->peak[at]) || now();
    own_holder = NULL;
    memset(counts, 0, sizeof counts);
}
/* one line in FOLDER/PID.KIND, which outlives the process */
static void keep_line(const char *kind, const char *line) {
    const char *folder = getenv("FAKE_PEAKS");
    char path[4096];
    if (!folder || !*folder || snprintf(path, sizeof path, "%s/%d.%s", folder, (int)getpid(), kind) >= (int)sizeof path) return;
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file >= 0) { dprintf(file, "%s\n", line); close(file); }
}
API void fake_forked(void) { if (forked < 2) keep_line("forked", "used the device"); forked = 2; }
static int refused(void) { if (forked) fake_forked(); return forked ? fail(E_FORKED) : OK; }
static void note(int kind) { if (forked) fake_forked(); else __atomic_add_fetch(&counts[kind], 1, __ATOMIC_RELAXED); }
API u64 fake_count(int kind) { return kind >= 0 && kind < N_KINDS ? counts[kind] : 0; }
/* vendor functions that a library of stand-ins was asked for, each once: their names go into PID.missing, which outlives the process */
API void fake_missing(const char *name) { ENTER(); keep_line("missing", name); LEAVE(); }

/* -------------------------------------------------------- runtime: devices */
API int cudaGetDeviceCount(int *n) { ENTER(); *n = S.ndev; LEAVE(); return OK; }
API int cudaGetDevice(int *d) { *d = cur_dev; return OK; }
API int cudaSetDevice(int d) { ENTER(); int bad = d < 0 || d >= S.ndev; LEAVE(); if (bad) return fail(101); cur_dev = d; return OK; }
API int cudaDriverGetVersion(int *v) { *v = 13000; return OK; }
API int cudaRuntimeGetVersion(int *v) { *v = 13000; return OK; }
API int cudaGetLastError(void) { int e = last_err; last_err = 0; return e; }
API int cudaPeekAtLastError(void) { return last_err; }
static const struct { int code; const char *name, *text; } errors[] = {
    {OK, "cudaSuccess", "no error"}, {E_INVALID, "cudaErrorInvalidValue", "invalid argument"},
    {E_OOM, "cudaErrorMemoryAllocation", "out of memory"}, {E_FORKED, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {E_NOT_READY, "cudaErrorNotReady", "device not ready"}, {E_UNSUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {-1, "fakeCudaError", "error of the fake CUDA runtime"},
};
static size_t error_at(int e) { size_t i = 0; while (errors[i].code != e && errors[i].code != -1) i++; return i; }
API const char *cudaGetErrorName(int e) { return errors[error_at(e)].name; }
API const char *cudaGetErrorString(int e) { return errors[error_at(e)].text; }

static void put_i(char *p, size_t at, int v) { memcpy(p + at, &v, sizeof v); }
static void put_z(char *p, size_t at, u64 v) { memcpy(p + at, &v, sizeof v); }
static int properties(char *p, size_t size, int release, int dev) {
    READY();
    memset(p, 0, size);
    snprintf(p, 256, "%s", S.name);
    snprintf(p + 256, 16, "fake-device-%d", dev);
#define P(name, at12, at13, bytes, attribute, value) { \
        long at = release == 12 ? at12 : at13; u64 v = (u64)(value); \
        if (at >= 0) memcpy(p + at, &v, bytes); }
#include "properties.def"
#undef P
    return OK;
}
API int cudaGetDeviceProperties(void *out, int dev) { return properties(out, 1008, 13, dev); }
API int cudaGetDeviceProperties_v2(void *out, int dev) { return properties(out, 1032, 12, dev); }
API int cudaDeviceGetAttribute(int *v, int attr, int dev) {
    READY();
    *v = 0;
#define P(name, at12, at13, bytes, attribute, value) if (attribute && attr == attribute) *v = (int)(value);
#include "properties.def"
#undef P
    return OK;
}
API int cuDeviceGetAttribute(int *v, int attr, int dev) { /* the driver's numbers are the runtime's, and these two beside them */
    if (attr == 102 || attr == 103) { *v = 1; return OK; } /* virtual memory management, posix handles; fabric, multicast: no */
    return cudaDeviceGetAttribute(v, attr, dev);
}
static int binary_of(int cc) { /* the newest code in a wheel that such a device can run: CUB chooses by it */
    static const int built[] = {120, 100, 90, 86, 80, 75, 70, 60, 50};
    for (size_t i = 0; i < sizeof built / sizeof *built; i++) if (built[i] <= cc) return built[i];
    return cc;
}
API int cudaFuncGetAttributes(void *a, const void *f) {
    (void)f;
    memset(a, 0, 64);
    put_i(a, 24, 1024);    /* threads per block */
    put_i(a, 28, 32);      /* registers */
    put_i(a, 32, binary_of(S.cc)); /* ptx version */
    put_i(a, 36, binary_of(S.cc)); /* binary version */
    put_i(a, 44, S.smsmem - 1024);
    return OK;
}
API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int bs, size_t sm, unsigned fl) { (void)f; (void)bs; (void)sm; (void)fl; *n = S.occ; return OK; }
API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int bs, size_t sm) { (void)f; (void)bs; (void)sm; *n = S.occ; return OK; }
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int bs, size_t sm) { (void)f; (void)bs; (void)sm; *n = S.occ; return OK; }

API int cudaDeviceGetPCIBusId(char *s, int n, int dev) { snprintf(s, (size_t)n, "0000:01:%02x.0", dev); return OK; }
API int cudaDeviceCanAccessPeer(int *can, int a, int b) { (void)a; (void)b; *can = 0; return OK; }
API int cudaDeviceEnablePeerAccess(int d, unsigned f) { (void)d; (void)f; return fail(E_UNSUPPORTED); }
API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { if (least) *least = 0; if (greatest) *greatest = -5; return OK; }
API int cudaThreadExchangeStreamCaptureMode(int *mode) { static __thread int m = 0; int t = *mode; *mode = m; m = t; return OK; }

/* --------------------------------------------------------- runtime: memory */
static int is_dev(const void *p) { u64 a = (u64)p; return a >= 0x100000000000ull && a < 0x400000000000ull; }
static void back(u64 at, u64 n) { /* small pages: a touched byte is to cost 4 KiB, not 2 MiB */
    mprotect((void *)at, n, PROT_READ | PROT_WRITE);
    madvise((void *)at, n, MADV_NOHUGEPAGE);
}
static void unback(u64 at, u64 n) {
    mmap((void *)at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
static int do_malloc(void **out, u64 size, u64 okop) {
    if (refused()) return E_FORKED;
    ENTER();
    u64 phys = up(size, S.granule), at = 0;
    if (take_phys(cur_dev, phys) && !(at = arena_take(&S.mem, phys))) hold(cur_dev, -phys);
    *out = (void *)at;
    if (!at) { lg(L_MALLOC_FAIL, 0, 0, size); LEAVE(); return fail(E_OOM); }
    u64 ord = S.n_malloc++;
    table_put(&S.mallocs, at, phys, ord, (u64)cur_dev);
    lg(okop, ord, at, size);
    back(at, phys);
    LEAVE();
    return OK;
}
static int do_free(void *p, u64 op) {
    if (!p) return OK;
    ENTER();
    slot *s = table_find(&S.mallocs, (u64)p), *m = s ? NULL : table_find(&S.managed, (u64)p);
    if (m) { munmap(p, m->a); table_del(&S.managed, m); LEAVE(); return OK; }
    if (!s) { LEAVE(); return fail(E_INVALID); }
    lg(op, s->b, s->key, s->a);
    unback(s->key, s->a);
    hold((int)s->c, -s->a);
    arena_give(&S.mem, s->key, s->a);
    table_del(&S.mallocs, s);
    LEAVE();
    return OK;
}
API int cudaMalloc(void **p, size_t n) { return do_malloc(p, n, L_MALLOC); }
API int cudaFree(void *p) { return do_free(p, L_FREE); }
API int cudaMallocManaged(void **p, size_t n, unsigned f) {
    (void)f;
    u64 size = up(n ? n : 1, 4096);
    *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*p == MAP_FAILED) { *p = NULL; return fail(E_OOM); }
    ENTER();
    table_put(&S.managed, (u64)*p, size, 0, 0);
    counts[N_MANAGED] += size;
    LEAVE();
    return OK;
}
API int cuMemAllocManaged(void **p, size_t n, unsigned f) { return cudaMallocManaged(p, n, f); }
API int cudaMemPrefetchAsync(void) { return OK; }
API int cudaMemPrefetchAsync_v2(void) { return OK; }
API int cudaMemAdvise(void) { return OK; }
API int cudaMemAdvise_v2(void) { return OK; }
API int cudaMallocAsync(void **p, size_t n, void *st) { (void)st; return do_malloc(p, n, L_ASYNC_ALLOC); }
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
/* Pinned memory is the host's own; programs ask of an address whether it is pinned. */
static struct pin { struct pin *next; char *at; size_t n; } *pins;
static int pin(void *p, size_t n) {
    struct pin *one = malloc(sizeof *one);
    if (!p || !one) { free(one); return fail(E_OOM); }
    ENTER();
    *one = (struct pin){pins, p, n};
    pins = one;
    LEAVE();
    return OK;
}
static void unpin(const void *p) {
    ENTER();
    for (struct pin **at = &pins, *one; (one = *at); at = &one->next)
        if (one->at == (const char *)p) { *at = one->next; free(one); break; }
    LEAVE();
}
static int is_pinned(const void *p) {
    int found = 0;
    ENTER();
    for (struct pin *one = pins; one && !found; one = one->next) found = (const char *)p >= one->at && (const char *)p < one->at + one->n;
    LEAVE();
    return found;
}
API int cudaHostAlloc(void **p, size_t n, unsigned f) { (void)f; *p = malloc(n ? n : 1); return pin(*p, n ? n : 1); }
API int cudaFreeHost(void *p) { unpin(p); free(p); return OK; }
API int cudaMallocHost(void **p, size_t n) { return cudaHostAlloc(p, n, 0); }
API int cudaHostGetDevicePointer(void **d, void *h, unsigned f) { (void)f; *d = h; return OK; }
API int cudaHostRegister(void *p, size_t n, unsigned f) { (void)f; return pin(p, n); }
API int cudaHostUnregister(void *p) { unpin(p); return OK; }
API int cudaPointerGetAttributes(void *attr, const void *p) { /* {int type; int device; void *dev; void *host; ...} */
    int dev = is_dev(p), pinned = !dev && is_pinned(p);
    memset(attr, 0, 24);
    put_i(attr, 0, dev ? 2 : pinned);
    put_i(attr, 4, dev || pinned ? cur_dev : -2);
    put_z(attr, 8, dev || pinned ? (u64)p : 0);
    put_z(attr, 16, dev ? 0 : (u64)p);
    return OK;
}
/* Who reads the device back? The reader hears the operators (at::_ops) it came through, innermost first, and the bytes; what it answers
 * stands in place of a count that came from a kernel; -1: what lies there is what is read. */
static long long (*reader)(const char *ops, u64 bytes);
API void fake_on_read(long long (*f)(const char *, u64)) { reader = f; }
static long long read_back(u64 bytes) {
    static __thread int within;
    if (!reader || within) return -1;
    void *at[64];
    char ops[256] = "";
    size_t used = 0, last = 0;
    int n = backtrace(at, 64);
    /* The loader walks all symbols of a library for each address, which is some 10 ms for torch's: what was found is kept. */
    static __thread struct { void *at; const char *name; } *known;
    if (!known) known = calloc(1 << 12, sizeof *known);
    for (int i = 0; i < n && known; i++) { /* at::_ops::NAME::call, mangled: a length before the name */
        Dl_info d;
        typeof(known) one = &known[((u64)at[i] >> 2 ^ (u64)at[i] >> 14) & 0xfff];
        if (one->at != at[i]) {
            one->name = dladdr(at[i], &d) && d.dli_sname && !strncmp(d.dli_sname, "_ZN2at4_ops", 11) ? d.dli_sname : 0;
            one->at = at[i];
        }
        if (!one->name) continue;
        char *s;
        size_t w = strtoul(one->name + 11, &s, 10);
        if (!w || used + w + 2 > sizeof ops || (used && w == used - last && !memcmp(ops + last, s, w))) continue;
        if (used) ops[used++] = ' ';
        last = used;
        memcpy(ops + used, s, w);
        ops[used += w] = 0;
    }
    within = 1;
    long long answer = reader(ops, bytes);
    within = 0;
    return answer;
}
static int copy(void *d, const void *s, size_t n) {
    if (!n) return OK;
    if (refused()) return E_FORKED;
    READY();
    int dd = is_dev(d), ds = is_dev(s);
    if (dd && n > S.copymax) { note(N_SKIPPED); return OK; }
    note(ds ? (dd ? N_D2D : N_D2H) : N_H2D);
    long long answer = ds && !dd ? read_back(n) : -1;
    memmove(d, s, n);
    if (answer >= 0) { memset(d, 0, n); memcpy(d, &answer, n < sizeof answer ? n : sizeof answer); }
    return OK;
}
static void zero(void *d, size_t n) { /* whole pages become zero by being dropped */
    u64 lo = up((u64)d, 4096), hi = ((u64)d + n) & ~4095ull;
    if (n < 16384) { memset(d, 0, n); return; }
    memset(d, 0, lo - (u64)d);
    madvise((void *)lo, hi - lo, MADV_DONTNEED);
    memset((void *)hi, 0, (u64)d + n - hi);
}
API void fake_zero(void *d, u64 n) { if (is_dev(d)) zero(d, n); }
static int fill(void *d, int v, size_t n) {
    if (refused()) return E_FORKED;
    note(N_MEMSET);
    READY();
    if (n <= S.copymax) memset(d, v, n);
    else if (!(v & 255)) zero(d, n);
    return OK;
}
API int cudaMemcpy(void *d, const void *s, size_t n, int k) { (void)k; return copy(d, s, n); }
API int cudaMemcpyAsync(void *d, const void *s, size_t n, int k, void *st) { (void)k; (void)st; return copy(d, s, n); }
API int cudaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, void *st) { (void)dd; (void)sd; (void)st; return copy(d, s, n); }
API int cudaMemset(void *d, int v, size_t n) { return fill(d, v, n); }
API int cudaMemsetAsync(void *d, int v, size_t n, void *st) { (void)st; return fill(d, v, n); }
API int cudaMemcpyToSymbol(const void *y, const void *s, size_t n, size_t o, int k) { (void)y; (void)s; (void)n; (void)o; (void)k; return OK; }
API int cudaGetSymbolAddress(void **p, const void *y) { (void)y; static char scratch[65536]; *p = scratch; return OK; }
API int cuPointerGetAttribute(void *v, int attr, u64 p) { (void)p; if (attr == 2) { *(int *)v = is_dev((void *)p) ? 2 : 1; return OK; } *(u64 *)v = attr == 1 ? 0x4000 : 0; return OK; }
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

typedef struct { u64 at, ticket, cap; } event;
static u64 synced;            /* when all was last waited for */
static table capturing;       /* stream -> id of the capture it is part of */
static u64 cap_id, cap_live;
static u64 cap_of(void *s) {
    if (!cap_live) return 0;
    ENTER();
    slot *x = table_find(&capturing, (u64)s + 1);
    u64 id = x ? x->a : 0;
    LEAVE();
    return id;
}
static int all_done(u64 op, void *s) { note(N_SYNC); ENTER(); S.events_done = S.n_event; synced = now(); lg(op, 0, (u64)s, 0); LEAVE(); return OK; }
API int cudaDeviceSynchronize(void) { return all_done(L_DEVSYNC, NULL); }
API int cudaStreamSynchronize(void *s) { return all_done(L_STREAMSYNC, s); }
API int cudaStreamQuery(void *s) { (void)s; return !S.lag || now() == synced ? OK : fail(E_NOT_READY); }
API int cudaEventCreate(void **e) { *e = calloc(1, sizeof(event)); return OK; }
API int cudaEventCreateWithFlags(void **e, unsigned f) { (void)f; return cudaEventCreate(e); }
API int cudaEventDestroy(void *e) { free(e); return OK; }
API int cudaEventRecord(void *e, void *s) {
    event *x = e;
    x->at = now();
    x->cap = cap_of(s);
    ENTER();
    x->ticket = ++S.n_event;
    if (!S.events_held && !S.lag) S.events_done = S.n_event;
    lg(L_EVENTRECORD, S.n_event, (u64)s, 0);
    LEAVE();
    return OK;
}
API int cudaEventRecordWithFlags(void *e, void *s, unsigned f) { (void)f; return cudaEventRecord(e, s); }
API int cudaEventQuery(void *e) {
    event *x = e;
    ENTER();
    int done = x->ticket <= S.events_done || (!S.events_held && now() >= x->at + S.lag);
    LEAVE();
    return done ? OK : fail(E_NOT_READY);
}
API int cudaEventSynchronize(void *e) {
    note(N_SYNC);
    ENTER();
    u64 t = ((event *)e)->ticket;
    if (t > S.events_done) S.events_done = t; /* streams are taken to run in the order of recording */
    lg(L_EVENTSYNC, t, 0, 0);
    LEAVE();
    return OK;
}
/* Each launch takes 1 ms: Triton's autotuner repeats a kernel until 125 ms are over, which is some 60 times and not 60,000. */
API int cudaEventElapsedTime(float *ms, void *a, void *b) { *ms = (float)(((event *)b)->at - ((event *)a)->at); return OK; }
API int cudaStreamWaitEvent(void *s, void *e, unsigned f) {
    (void)f;
    u64 id = ((event *)e)->cap;
    if (id && cap_live) { ENTER(); if (!table_find(&capturing, (u64)s + 1)) table_put(&capturing, (u64)s + 1, id, 0, 0); LEAVE(); }
    return OK;
}
API int cudaStreamBeginCapture(void *s, int mode) {
    (void)mode;
    ENTER();
    table_put(&capturing, (u64)s + 1, ++cap_id, 0, 0);
    cap_live++;
    LEAVE();
    return OK;
}
API int cudaStreamBeginCaptureToGraph(void *s, void *g, const void *d, const void *ed, size_t n, int mode) { (void)g; (void)d; (void)ed; (void)n; return cudaStreamBeginCapture(s, mode); }
API int cudaStreamEndCapture(void *s, void **g) {
    u64 id = cap_of(s);
    if (!id) { *g = NULL; return fail(E_INVALID); }
    ENTER();
    for (size_t i = 0; i < capturing.cap; i++)
        if (capturing.v[i].used == 1 && capturing.v[i].a == id) table_del(&capturing, &capturing.v[i]);
    cap_live--;
    LEAVE();
    *g = (void *)(0x600000000000ull + id);
    return OK;
}
API int cudaStreamIsCapturing(void *s, int *st) { *st = cap_of(s) ? 1 : 0; return OK; }
API int cudaStreamGetCaptureInfo(void *s, int *st, u64 *id, void **g, const void **deps, const void **edges, size_t *n) {
    u64 c = cap_of(s);
    *st = c ? 1 : 0;
    if (id) *id = c;
    if (g) *g = (void *)(c ? 0x600000000000ull + c : 0);
    if (deps) *deps = NULL;
    if (edges) *edges = NULL;
    if (n) *n = 0;
    return OK;
}
API int cudaStreamGetCaptureInfo_v2(void *s, int *st, u64 *id, void **g, const void **deps, size_t *n) { return cudaStreamGetCaptureInfo(s, st, id, g, deps, NULL, n); }
API int cudaStreamUpdateCaptureDependencies(void *s, void *d, const void *e, size_t n, unsigned f) { (void)s; (void)d; (void)e; (void)n; (void)f; return OK; }
API int cudaGraphGetNodes(void *g, void *nodes, size_t *n) { (void)g; if (!nodes) *n = 1; return OK; }
API int cudaGraphNodeGetDependencies(void *a, void *b, void *c, size_t *n) { (void)a; (void)b; (void)c; *n = 0; return OK; }
API int cudaGraphInstantiateWithFlags(void **x, void *g, u64 f) { (void)f; *x = (void *)((u64)g + 0x1000000); return OK; }
API int cudaGraphInstantiate(void **x, void *g, u64 f) { return cudaGraphInstantiateWithFlags(x, g, f); }
API int cudaGraphLaunch(void *x, void *s) { (void)s; (void)x; note(N_LAUNCH); return OK; }
API int cudaGraphDestroy(void *g) { (void)g; return OK; }
API int cudaGraphExecDestroy(void *g) { (void)g; return OK; }
API int cudaGraphRetainUserObject(void *g, void *o, unsigned n, unsigned f) { (void)g; (void)o; (void)n; (void)f; return OK; }
API int cudaUserObjectCreate(void **o, void *p, void (*d)(void *), unsigned n, unsigned f) { (void)p; (void)d; (void)n; (void)f; *o = (void *)0x700000000000ull; return OK; }
API int cudaUserObjectRelease(void *o, unsigned n) { (void)o; (void)n; return OK; }
API int cudaLaunchHostFunc(void *s, void (*f)(void *), void *a) { (void)s; f(a); return OK; }
API int cudaStreamAddCallback(void *s, void (*f)(void *, int, void *), void *a, unsigned fl) { (void)fl; f(s, 0, a); return OK; }
API int cudaProfilerStart(void) { return OK; }
API int cudaProfilerStop(void) { return OK; }
API int cudaDeviceReset(void) { return OK; }

/* ------------------------------------------------------------ runtime: code modules */
static void *fat[1];
API void **__cudaRegisterFatBinary(void *p) { (void)p; return fat; }
API void __cudaRegisterFatBinaryEnd(void **h) { (void)h; }
API void __cudaUnregisterFatBinary(void **h) { (void)h; }
API void __cudaRegisterVar(void **h, char *v, char *a, const char *n, int x, size_t s, int c, int g) {
    (void)h; (void)v; (void)a; (void)n; (void)x; (void)s; (void)c; (void)g;
}
API int cudaFuncSetAttribute(const void *f, int a, int v) { (void)f; (void)a; (void)v; return OK; }

/* --------------------------------------------------------- driver entry points */
API int cuDeviceGet(int *d, int ord) { *d = ord; return OK; }
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
    if (refused()) return E_FORKED;
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
    if (s && --s->b == 0) { hold((int)s->c, -s->a); table_del(&S.phys, s); }
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
    back(at, size);
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
    unback(at, size);
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
NOT_HERE(cuLinkAddData) NOT_HERE(cuLinkAddData_v2) NOT_HERE(cuLinkComplete) NOT_HERE(cuLinkCreate) NOT_HERE(cuLinkCreate_v2)
NOT_HERE(cuMemExportToShareableHandle) NOT_HERE(cuMemImportFromShareableHandle) NOT_HERE(cuMemRetainAllocationHandle)
NOT_HERE(cuMemGetAllocationPropertiesFromHandle) NOT_HERE(cuMemGetAddressRange) NOT_HERE(cuMemGetAddressRange_v2)
NOT_HERE(cuMemsetD32Async) NOT_HERE(cuStreamWriteValue32) NOT_HERE(cuStreamWriteValue32_v2)
NOT_HERE(cuMulticastAddDevice) NOT_HERE(cuMulticastBindMem) NOT_HERE(cuMulticastCreate) NOT_HERE(cuMulticastUnbind)
NOT_HERE(fake_cuda_unsupported)

/* ---------------------------------------------------------------- kernel launches */
API void __cudaRegisterFunction(void **h, const char *f, char *n, const char *dn, int t, void *a, void *b, void *c, void *d, int *e) {
    (void)h; (void)f; (void)n; (void)dn; (void)t; (void)a; (void)b; (void)c; (void)d; (void)e;
}
static int launch(void) { note(N_LAUNCH); return refused(); }
/* three-word sizes arrive by value: 12 bytes each, in two registers */
typedef struct { unsigned x, y, z; } dim;
static __thread struct { dim g, b; size_t sm; void *st; } call;
API unsigned __cudaPushCallConfiguration(dim g, dim b, size_t sm, void *st) { call.g = g; call.b = b; call.sm = sm; call.st = st; return OK; }
API int __cudaPopCallConfiguration(dim *g, dim *b, size_t *sm, void *st) { *g = call.g; *b = call.b; *sm = call.sm; *(void **)st = call.st; return OK; }
API int __cudaGetKernel(void **k, const void *f) { *k = (void *)f; return OK; }
API int __cudaLaunchKernel(void *k, dim g, dim b, void **a, size_t sm, void *st) { (void)g; (void)b; (void)a; (void)sm; (void)st; (void)k; return launch(); }
API int cudaLaunchKernel(const void *f, dim g, dim b, void **a, size_t sm, void *st) { (void)g; (void)b; (void)a; (void)sm; (void)st; (void)f; return launch(); }
API int cudaLaunchKernelExC(const void *c, const void *f, void **a) { (void)c; (void)a; (void)f; return launch(); }
API int cudaLaunchCooperativeKernel(const void *f, dim g, dim b, void **a, size_t sm, void *st) { (void)g; (void)b; (void)a; (void)sm; (void)st; (void)f; return launch(); }
API int cudaKernelSetAttributeForDevice(void *k, int a, int v, int d) { (void)k; (void)a; (void)v; (void)d; return OK; }
API int cudaLibraryLoadData(void **l, const void *c, void *jo, void *jv, unsigned n, void *lo, void *lv, unsigned m) { (void)c; (void)jo; (void)jv; (void)n; (void)lo; (void)lv; (void)m; *l = (void *)0x7100; return OK; }
API int cudaLibraryGetKernel(void **k, void *l, const char *n) { (void)l; (void)n; *k = (void *)0x7200; return OK; }
API int cudaLibraryUnload(void *l) { (void)l; return OK; }
API int cuLaunchKernel(void *f) { (void)f; return launch(); }
API int cuLaunchKernelEx(void *c, void *f) { (void)c; (void)f; return launch(); }
API int cuLaunchCooperativeKernel(void *f) { (void)f; return launch(); }
API int cuModuleLoad(void **m, const char *p) { (void)p; *m = (void *)0x7300; return OK; }
API int cuModuleLoadData(void **m, const void *p) { (void)p; *m = (void *)0x7300; return OK; }
API int cuModuleLoadDataEx(void **m, const void *p, unsigned n, void *o, void *v) { (void)p; (void)n; (void)o; (void)v; *m = (void *)0x7300; return OK; }
API int cuModuleGetFunction(void **f, void *m, const char *n) { (void)m; (void)n; *f = (void *)0x7400; return OK; }
API int cuModuleUnload(void *m) { (void)m; return OK; }
API int cuFuncGetAttribute(int *v, int a, void *f) { (void)f; *v = a == 0 ? 1024 : a == 4 ? 32 : 0; return OK; }
API int cuFuncSetAttribute(void *f, int a, int v) { (void)f; (void)a; (void)v; return OK; }
API int cuFuncSetCacheConfig(void *f, int c) { (void)f; (void)c; return OK; }
API int cuTensorMapEncodeTiled(void *m) { memset(m, 0, 128); return OK; }
API int cuDeviceGetCount(int *n) { return cudaGetDeviceCount(n); }
API int cuDeviceGetName(char *s, int n, int d) { (void)d; READY(); snprintf(s, (size_t)n, "%s", S.name); return OK; }
API int cuDriverGetVersion(int *v) { *v = 13000; return OK; }
API int cuCtxGetDevice(int *d) { *d = cur_dev; return OK; }
API int cuDevicePrimaryCtxRelease(int d) { (void)d; return OK; }
API int cuCtxPushCurrent(void *c) { (void)c; return OK; }
API int cuCtxPopCurrent(void **c) { if (c) *c = (void *)0x4000; return OK; }
API int cuStreamGetCtx(void *s, void **c) { (void)s; *c = (void *)0x4000; return OK; }

API int cudaGetDriverEntryPointByVersion(const char *sym, void **fn, unsigned ver, u64 flags, int *status) {
    (void)ver; (void)flags;
    *fn = dlsym(RTLD_DEFAULT, sym);
    if (!*fn) *fn = fake_cuda_unsupported;
    if (status) *status = 0;
    return OK;
}
API int cudaGetDriverEntryPoint(const char *sym, void **fn, u64 flags, int *status) { return cudaGetDriverEntryPointByVersion(sym, fn, 13000, flags, status); }
API int cuGetProcAddress_v2(const char *sym, void **fn, int ver, u64 flags, int *status) { return cudaGetDriverEntryPointByVersion(sym, fn, (unsigned)ver, flags, status); }
API int cuGetProcAddress(const char *sym, void **fn, int ver, u64 flags) { return cuGetProcAddress_v2(sym, fn, ver, flags, NULL); }

/* ------------------------------------------------------------------------- NVML */
/* torch asks for it by dlopen(libnvidia-ml.so.1): an empty library of that name that needs this one. Measured: expandable
 * segments of torch 2.14.1 call a null pointer where it is missing. */
API int nvmlInit_v2(void) { return OK; }
API int nvmlInit(void) { return OK; }
API int nvmlInitWithFlags(unsigned f) { (void)f; return OK; }
API int nvmlShutdown(void) { return OK; }
API int nvmlDeviceGetCount_v2(unsigned *n) { READY(); *n = (unsigned)S.ndev; return OK; }
static int nvml_at(void **dev, unsigned i) { *dev = (void *)(0x6000ull + i); return OK; }
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **dev) { unsigned i = 0; if (sscanf(id, "%*x:%*x:%x", &i) != 1) i = 0; return nvml_at(dev, i); }
API int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **dev) { return nvml_at(dev, i); }
API int nvmlDeviceGetHandleByUUID(const char *id, void **dev) { (void)id; return nvml_at(dev, 0); }
API int nvmlDeviceGetName(void *dev, char *s, unsigned n) { (void)dev; READY(); snprintf(s, n, "%s", S.name); return OK; }
API int nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "580.00"); return OK; }
API int nvmlDeviceGetMemoryInfo(void *dev, u64 *total_free_used) {
    ENTER();
    u64 d = (u64)dev - 0x6000, used = (d < MAXDEV ? S.used[d] : 0) + S.foreign;
    u64 is[] = {S.vram, used > S.vram ? 0 : S.vram - used, used};
    memcpy(total_free_used, is, sizeof is);
    LEAVE();
    return OK;
}
API int nvmlDeviceGetUtilizationRates(void *dev, unsigned *gpu_memory) { (void)dev; gpu_memory[0] = gpu_memory[1] = 0; return OK; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *dev, unsigned link, int *type) { (void)dev; (void)link; *type = 255; return 3; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *dev, unsigned link, void *pci) { (void)dev; (void)link; (void)pci; return 3; }
API int nvmlDeviceGetComputeRunningProcesses(void *dev, unsigned *n, void *v) { (void)dev; (void)v; *n = 0; return OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13000; return OK; }
/* torch 2.13.0 takes only success here. State 0 (byte 28 of the record, all its versions) means: no fabric. */
API int nvmlDeviceGetGpuFabricInfoV(void *dev, char *info) { (void)dev; info[28] = 0; return OK; }

/* ------------------------------------------------------------------- controls */
API u64 fake_cuda_version(void) { return 1; }
API void fake_cuda_set_foreign(u64 b) { ENTER(); S.foreign = b; LEAVE(); }
API u64 fake_cuda_used(int dev) { ENTER(); u64 u = S.used[dev]; LEAVE(); return u; }
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

#include "libraries.c"

/*
 * libraries.c -- what cuBLAS, cuDNN and nvrtc answer on the device of device.c, which
 * includes this file. Nothing is computed. Plans, algorithms and workspaces are one
 * choice each: what the real libraries would choose is not known here.
 */
/* -------------------------------------------------------------------- run-time compiler */
API int nvrtcVersion(int *a, int *b) { *a = 13; *b = 0; return OK; }
API int nvrtcCreateProgram(void **p, const char *s) { (void)s; *p = malloc(16); return OK; }
API int nvrtcDestroyProgram(void **p) { if (p) { free(*p); *p = NULL; } return OK; }
API int nvrtcAddNameExpression(void *p, const char *n) { (void)p; (void)n; return OK; }
API int nvrtcCompileProgram(void *p, int n, void *o) { (void)p; (void)n; (void)o; return OK; }
static int one(size_t *n) { *n = 1; return OK; }
API int nvrtcGetCUBINSize(void *p, size_t *n) { (void)p; return one(n); }
API int nvrtcGetPTXSize(void *p, size_t *n) { (void)p; return one(n); }
API int nvrtcGetProgramLogSize(void *p, size_t *n) { (void)p; return one(n); }
API int nvrtcGetCUBIN(void *p, char *o) { (void)p; *o = 0; return OK; }
API int nvrtcGetPTX(void *p, char *o) { (void)p; *o = 0; return OK; }
API int nvrtcGetProgramLog(void *p, char *o) { (void)p; *o = 0; return OK; }
API int nvrtcGetLoweredName(void *p, const char *n, const char **o) { (void)p; *o = n; return OK; }
API const char *nvrtcGetErrorString(int e) { return e ? "nvrtc error" : "ok"; }

/* ------------------------------------------------------------------ matrix products */
static int handle(void **h, size_t n) { *h = calloc(1, n); return OK; }
API int cublasCreate_v2(void **h) { return handle(h, 64); }
API int cublasDestroy_v2(void *h) { free(h); return OK; }
API int cublasGetPointerMode_v2(void *h, int *m) { *m = *(int *)h; return OK; }
API int cublasSetPointerMode_v2(void *h, int m) { *(int *)h = m; return OK; }
API int cublasGetMathMode(void *h, int *m) { *m = ((int *)h)[1]; return OK; }
API int cublasSetMathMode(void *h, int m) { ((int *)h)[1] = m; return OK; }
API int cublasGetVersion_v2(void *h, int *v) { (void)h; *v = 130101; return OK; }
API const char *cublasGetStatusString(int e) { return e ? "cublas error" : "ok"; }
#define BLAS(f) API int f(void) { note(N_BLAS); return OK; }
BLAS(cublasSgemm_v2) BLAS(cublasDgemm_v2) BLAS(cublasCgemm_v2) BLAS(cublasZgemm_v2) BLAS(cublasSgemmEx) BLAS(cublasGemmEx)
BLAS(cublasSgemmStridedBatched) BLAS(cublasDgemmStridedBatched) BLAS(cublasCgemmStridedBatched)
BLAS(cublasZgemmStridedBatched) BLAS(cublasGemmStridedBatchedEx)
BLAS(cublasSgemv_v2) BLAS(cublasDgemv_v2) BLAS(cublasCgemv_v2) BLAS(cublasZgemv_v2)
BLAS(cublasSdot_v2) BLAS(cublasDdot_v2) BLAS(cublasDotEx)
API size_t cublasLtGetVersion(void) { return 130101; }
API int cublasLtCreate(void **h) { return handle(h, 64); }
API int cublasLtMatmulDescCreate(void **d, int c, int s) { (void)c; (void)s; return handle(d, 256); }
API int cublasLtMatmulDescDestroy(void *d) { free(d); return OK; }
API int cublasLtMatmulPreferenceCreate(void **d) { return handle(d, 256); }
API int cublasLtMatmulPreferenceDestroy(void *d) { free(d); return OK; }
API int cublasLtMatrixLayoutCreate(void **d, int t, u64 r, u64 c, long long ld) { (void)t; (void)r; (void)c; (void)ld; return handle(d, 256); }
API int cublasLtMatrixLayoutDestroy(void *d) { free(d); return OK; }
static void heuristic(char *r) { memset(r, 0, 96); float w = 1.0f; memcpy(r + 76, &w, sizeof w); } /* 64 B algorithm, size_t workspace, int state, float waves, 4 ints */
API int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *dd, void *pref, int want, char *res, int *got) {
    (void)h; (void)d; (void)a; (void)b; (void)c; (void)dd; (void)pref;
    *got = want > 0 ? 1 : 0;
    if (*got) heuristic(res);
    return OK;
}
API int cublasLtMatmulAlgoCheck(void *h, void *d, void *a, void *b, void *c, void *dd, void *algo, char *res) {
    (void)h; (void)d; (void)a; (void)b; (void)c; (void)dd; (void)algo;
    heuristic(res);
    return OK;
}
API int cublasLtMatmulAlgoInit(void *h, int c, int s, int a, int b, int cc, int d, int id, void *algo) {
    (void)h; (void)c; (void)s; (void)a; (void)b; (void)cc; (void)d; (void)id;
    memset(algo, 0, 64);
    return OK;
}
API int cublasLtMatmulAlgoConfigGetAttribute(void *al, int at, void *buf, size_t n, size_t *got) { (void)al; (void)at; if (buf) memset(buf, 0, n); if (got) *got = n; return OK; }
API int cublasLtMatmul(void) { note(N_LT); return OK; }

/* -------------------------------------------------------------------- convolutions etc. */
API int cudnnCreate(void **h) { READY(); return handle(h, 64); }
API int cudnnDestroy(void *h) { free(h); return OK; }
API size_t cudnnGetVersion(void) { READY(); return (size_t)S.cudnn; }
API size_t cudnnGetCudartVersion(void) { return 13000; }
API const char *cudnnGetErrorString(int e) { return e ? "fake cuDNN error" : "CUDNN_STATUS_SUCCESS"; }
API void cudnnGetLastErrorString(char *s, size_t n) { if (n) *s = 0; }
API int cudnnGetProperty(int k, int *v) { *v = k == 0 ? S.cudnn / 10000 : k == 1 ? S.cudnn / 100 % 100 : S.cudnn % 100; return OK; }
API int cudnnGetStream(void *h, void **s) { (void)h; *s = NULL; return OK; }
#define DESC(f) API int cudnnCreate##f(void **d) { return handle(d, 512); } API int cudnnDestroy##f(void *d) { free(d); return OK; }
DESC(ActivationDescriptor) DESC(CTCLossDescriptor) DESC(ConvolutionDescriptor) DESC(DropoutDescriptor) DESC(FilterDescriptor)
DESC(PoolingDescriptor) DESC(RNNDataDescriptor) DESC(RNNDescriptor) DESC(SpatialTransformerDescriptor) DESC(TensorDescriptor)
static int work(size_t *n) { *n = (size_t)S.ws; return OK; }
API int cudnnDropoutGetStatesSize(void *h, size_t *n) { (void)h; *n = (size_t)S.sms * 2048 * 16; return OK; } /* the true figure is not known */
API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *h, int m, int o, void *x, void *z, void *y, void *b, void *a, size_t *n) {
    (void)h; (void)m; (void)o; (void)x; (void)z; (void)y; (void)b; (void)a; *n = 0; return OK; }
API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *h, int m, int o, void *x, void *y, void *dy, void *dz, void *dx, void *db, void *a, size_t *n) {
    (void)h; (void)m; (void)o; (void)x; (void)y; (void)dy; (void)dz; (void)dx; (void)db; (void)a; *n = 0; return OK; }
API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *h, int m, int o, void *a, void *x, size_t *n) { (void)h; (void)m; (void)o; (void)a; (void)x; *n = 0; return OK; }
API int cudnnGetConvolutionForwardWorkspaceSize(void *h, void *x, void *w, void *c, void *y, int a, size_t *n) { (void)h; (void)x; (void)w; (void)c; (void)y; (void)a; return work(n); }
API int cudnnGetConvolutionBackwardDataWorkspaceSize(void *h, void *x, void *w, void *c, void *y, int a, size_t *n) { (void)h; (void)x; (void)w; (void)c; (void)y; (void)a; return work(n); }
API int cudnnGetConvolutionBackwardFilterWorkspaceSize(void *h, void *x, void *w, void *c, void *y, int a, size_t *n) { (void)h; (void)x; (void)w; (void)c; (void)y; (void)a; return work(n); }
static int perf(int want, int *got, char *r) { /* 48 B: int algorithm, int status, float time, size_t memory, int deterministic, int math, 3 ints */
    *got = want > 0;
    if (*got) { memset(r, 0, 48); put_i(r, 0, 1); put_z(r, 16, S.ws); put_i(r, 24, 1); }
    return OK;
}
API int cudnnGetConvolutionForwardAlgorithm_v7(void *h, void *x, void *w, void *c, void *y, int n, int *g, char *r) { (void)h; (void)x; (void)w; (void)c; (void)y; return perf(n, g, r); }
API int cudnnGetConvolutionBackwardDataAlgorithm_v7(void *h, void *x, void *w, void *c, void *y, int n, int *g, char *r) { (void)h; (void)x; (void)w; (void)c; (void)y; return perf(n, g, r); }
API int cudnnGetConvolutionBackwardFilterAlgorithm_v7(void *h, void *x, void *w, void *c, void *y, int n, int *g, char *r) { (void)h; (void)x; (void)w; (void)c; (void)y; return perf(n, g, r); }
API int cudnnFindConvolutionForwardAlgorithmEx(void *h, void *x, void *xp, void *w, void *wp, void *c, void *y, void *yp, int n, int *g, char *r) { (void)h; (void)x; (void)xp; (void)w; (void)wp; (void)c; (void)y; (void)yp; return perf(n, g, r); }
API int cudnnFindConvolutionBackwardDataAlgorithmEx(void *h, void *x, void *xp, void *w, void *wp, void *c, void *y, void *yp, int n, int *g, char *r) { (void)h; (void)x; (void)xp; (void)w; (void)wp; (void)c; (void)y; (void)yp; return perf(n, g, r); }
API int cudnnFindConvolutionBackwardFilterAlgorithmEx(void *h, void *x, void *xp, void *w, void *wp, void *c, void *y, void *yp, int n, int *g, char *r) { (void)h; (void)x; (void)xp; (void)w; (void)wp; (void)c; (void)y; (void)yp; return perf(n, g, r); }

/* the graph interface: each search finds one plan. A part of a graph knows how much memory the tensors of its convolution
   take: most plans copy those into another layout. Numbers of parts and attributes: cudnn_graph_v9.h */
static int elem_size(int t) { return t == 1 ? 8 : t == 2 || t == 9 ? 2 : t == 3 ? 1 : 4; }
typedef struct { int type, data_type; u64 bytes; } part;
enum { CONFIG = 3, SEARCH = 4, PLAN = 5, FORWARD = 10, BACKWARD_DATA = 12, GRAPH = 15, IS_PART = 15, DATA_TYPE = 901, DIMENSIONS = 902 };
API int cudnnBackendCreateDescriptor(int type, void **d) { handle(d, sizeof(part)); ((part *)*d)->type = type; return OK; }
API int cudnnBackendDestroyDescriptor(void *d) { free(d); return OK; }
API int cudnnBackendInitialize(void *d) { (void)d; return OK; }
API int cudnnBackendFinalize(void *d) { (void)d; return OK; }
API int cudnnBackendSetAttribute(void *d, int name, int type, long long n, const void *v) {
    part *p = d;
    int convolves = p->type >= FORWARD && p->type <= BACKWARD_DATA;
    int collects = convolves || p->type == GRAPH || p->type == SEARCH || p->type == CONFIG || p->type == PLAN;
    if (name == DATA_TYPE) p->data_type = *(const int *)v;
    if (name == DIMENSIONS) {
        p->bytes = (u64)elem_size(p->data_type);
        for (long long i = 0; i < n; i++) p->bytes *= ((const u64 *)v)[i];
    }
    for (long long i = 0; type == IS_PART && collects && i < n; i++) p->bytes += ((part *const *)v)[i]->bytes;
    return OK;
}
API int cudnnBackendGetAttribute(void *d, int name, int type, long long want, long long *got, void *v) {
    (void)type;
    long long n = 0;
    switch (name) {
    case 202: n = 1; if (v && want > 0) (*(part **)v)->bytes = ((part *)d)->bytes; break; /* results of a search */
    case 300: n = 1; break;                                                 /* the engine of a configuration */
    case 303: case 402: n = 1; if (v && want > 0) put_z(v, 0, S.ws); break; /* workspace */
    case 304: n = 1; if (v && want > 0) put_i(v, 0, 0); break;              /* shared memory */
    case 1301: n = 1; if (v && want > 0) put_z(v, 0, 0); break;             /* number of the engine */
    case 405: n = 3; if (v && want > 2) memcpy(v, "{}", 3); break;
    }
    if (got) *got = n;
    return OK;
}
API int cudnnBackendExecute(void *h, void *plan, void *pack) {
    (void)h; (void)pack;
    u64 bytes = ((part *)plan)->bytes;
    if (bytes > counts[N_DNN_BYTES]) counts[N_DNN_BYTES] = bytes;
    note(N_DNN);
    return OK;
}
#define DNN(f) API int f(void) { note(N_DNN); return OK; }
DNN(cudnnConvolutionForward) DNN(cudnnConvolutionBackwardData) DNN(cudnnConvolutionBackwardFilter)
DNN(cudnnConvolutionBiasActivationForward) DNN(cudnnBatchNormalizationForwardTrainingEx)
DNN(cudnnBatchNormalizationForwardInference) DNN(cudnnBatchNormalizationBackwardEx)

/* recurrent nets: the weights' places are computed so that PyTorch can lay them out */
typedef struct { int set, cell, bias, dirs, type, in, hid, proj, layers; } rnn;
API int cudnnSetRNNDescriptor_v8(void *d, int algo, int cell, int bias, int dir, int input, int type, int prec, int math, int in, int hid, int proj, int layers, void *drop, unsigned aux) {
    (void)algo; (void)input; (void)prec; (void)math; (void)drop; (void)aux;
    rnn r = {1, cell, bias, dir ? 2 : 1, type, in, hid, proj ? proj : hid, layers};
    memcpy(d, &r, sizeof r);
    return OK;
}
static int gates(const rnn *r) { return r->cell == 2 ? 4 : r->cell == 3 ? 3 : 1; }
/* sizes in elements: matrix of gate g (input gates first, then recurrent, then the projection) in a pseudo layer */
static u64 rnn_mat(const rnn *r, int pl, int g, int *rows, int *cols) {
    int n = gates(r), layer = pl / r->dirs;
    *rows = g < 2 * n ? r->hid : r->proj;
    *cols = g < n ? (layer == 0 ? r->in : r->proj * r->dirs) : g < 2 * n ? r->proj : r->hid;
    return (u64)*rows * (u64)*cols;
}
static int rnn_mats(const rnn *r) { return 2 * gates(r) + (r->proj != r->hid); }
static int has_bias(const rnn *r, int g) { int n = gates(r); return g < 2 * n && (r->bias == 2 || (r->bias == 1 && g < n) || (r->bias == 3 && g >= n)); }
static u64 rnn_place(const rnn *r, int pl, int g, int bias) { /* all matrices, then all biases; the end with pl past the last */
    u64 at = 0;
    int a, b, last = r->layers * r->dirs;
    for (int p = 0; p < last; p++)
        for (int i = 0; i < rnn_mats(r); i++) {
            if (!bias && p == pl && i == g) return at;
            at += rnn_mat(r, p, i, &a, &b);
        }
    for (int p = 0; p < last; p++)
        for (int i = 0; i < rnn_mats(r); i++) {
            if (bias && p == pl && i == g) return at;
            if (has_bias(r, i)) at += (u64)r->hid;
        }
    return at;
}
API int cudnnGetRNNWeightSpaceSize(void *h, void *d, size_t *n) { (void)h; rnn *r = d; *n = rnn_place(r, -1, 0, 1) * (size_t)elem_size(r->type); return OK; }
typedef struct { int type, n, dim[3]; } rnn_tensor;
API int cudnnGetRNNWeightParams(void *h, void *d, int pl, size_t size, char *w, int g, rnn_tensor *md, void **ma, rnn_tensor *bd, void **ba) {
    (void)h; (void)size;
    rnn *r = d;
    int rows, cols, es = elem_size(r->type);
    if (ma) *ma = NULL;
    if (ba) *ba = NULL;
    if (md) memset(md, 0, sizeof *md);
    if (bd) memset(bd, 0, sizeof *bd);
    if (g >= rnn_mats(r) || pl >= r->layers * r->dirs) return OK;
    rnn_mat(r, pl, g, &rows, &cols);
    rnn_tensor m = {r->type, 3, {1, rows, cols}}, b = {r->type, 3, {1, r->hid, 1}};
    if (md) *md = m;
    if (ma) *ma = w + rnn_place(r, pl, g, 0) * (u64)es;
    if (has_bias(r, g)) {
        if (bd) *bd = b;
        if (ba) *ba = w + rnn_place(r, pl, g, 1) * (u64)es;
    }
    return OK;
}
API int cudnnGetTensorNdDescriptor(rnn_tensor *d, int want, int *type, int *n, int *dim, int *stride) {
    *type = d->type;
    *n = d->n;
    for (int i = 0, s = 1; i < d->n && i < want; i++) dim[i] = d->dim[i], (void)s;
    for (int i = d->n - 1, s = 1; i >= 0; i--) { if (i < want) stride[i] = s; s *= d->dim[i] ? d->dim[i] : 1; }
    return OK;
}
API int cudnnGetRNNTempSpaceSizes(void *h, void *d, int mode, void *x, size_t *ws, size_t *reserve) { /* the true figures are not known */
    (void)h; (void)d; (void)mode; (void)x;
    if (ws) *ws = (size_t)S.ws;
    if (reserve) *reserve = 0;
    return OK;
}
DNN(cudnnRNNForward) DNN(cudnnRNNBackwardData_v8) DNN(cudnnRNNBackwardWeights_v8)

/* ------------------------------------------------------------------------------ collectives */
/* What is small (FAKE_COPY_MAX) moves between ranks for real, by files in the folder of FAKE_PEAKS: programs send each other their objects and
 * lengths. Of what is large, and of reductions, every rank is taken to hold what this one holds. */
typedef struct { int ranks, rank; u64 id, splits, *sent, *heard; } comm;
static int message(char *path, size_t size, const comm *c, int from, int to, u64 nth) {
    const char *folder = getenv("FAKE_PEAKS");
    int made = folder && *folder ? snprintf(path, size, "%s/nccl-%llx-%d-%d-%llu", folder, c->id, from, to, nth) : -1;
    return made > 0 && made < (int)size - 8;
}
static void tell_rank(comm *c, int to, const void *what, size_t n) {
    char path[4096], part[4096 + 8];
    if (n > S.copymax || to < 0 || to >= c->ranks || !message(path, sizeof path, c, c->rank, to, c->sent[to]++)) return;
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "wb");
    if (!file) return;
    fwrite(what, 1, n, file);
    if (!fclose(file)) rename(part, path);
}
static void hear_rank(comm *c, int from, void *what, size_t n) { /* waits as NCCL would, five minutes at most */
    char path[4096];
    if (n > S.copymax || from < 0 || from >= c->ranks || !message(path, sizeof path, c, from, c->rank, c->heard[from]++)) return;
    for (int i = 0; i < 600000; i++) {
        FILE *file = fopen(path, "rb");
        if (!file) { usleep(500); continue; }
        size_t got = fread(what, 1, n, file);
        (void)got;
        fclose(file);
        unlink(path);
        return;
    }
}
static __thread struct { comm *c; int from; void *to; size_t n; } waiting[256];
static __thread int n_waiting, grouped;
API int ncclGetVersion(int *v) { *v = 22705; return OK; }
API const char *ncclGetErrorString(int e) { return e ? "error of a rehearsal's NCCL" : "no error"; }
API const char *ncclGetLastError(void *c) { (void)c; return ""; }
API int ncclGetUniqueId(char *id) {
    static u64 nth;
    u64 own = (u64)getpid() << 32 | ++nth;
    memset(id, 0, 128);
    memcpy(id, &own, sizeof own);
    return OK;
}
static int join(void **c, int ranks, int rank, u64 id) {
    comm *x = calloc(1, sizeof *x);
    READY();
    *x = (comm){ranks, rank, id, 0, calloc((size_t)ranks, sizeof(u64)), calloc((size_t)ranks, sizeof(u64))};
    *c = x;
    return OK;
}
typedef struct { u64 own; char rest[120]; } unique_id;
API int ncclCommInitRank(void **c, int ranks, unique_id id, int rank) { return join(c, ranks, rank, id.own); }
API int ncclCommInitRankConfig(void **c, int ranks, unique_id id, int rank, void *how) { (void)how; return join(c, ranks, rank, id.own); }
API int ncclCommInitRankScalable(void **c, int ranks, int rank, int n, const u64 *ids, void *how) { (void)n; (void)how; return join(c, ranks, rank, *ids); }
API int ncclCommInitAll(void **c, int n, const int *devices) { (void)devices; for (int i = 0; i < n; i++) join(c + i, n, i, (u64)getpid() << 32); return OK; }
API int ncclCommSplit(comm *c, int color, int key, void **made, void *how) { /* who is of one colour is heard from all */
    (void)how;
    int mine[2] = {color, key}, ranks = 0, rank = 0;
    *made = NULL;
    for (int i = 0; i < c->ranks; i++) if (i != c->rank) tell_rank(c, i, mine, sizeof mine);
    for (int i = 0; i < c->ranks; i++) {
        int theirs[2] = {color, key};
        if (i != c->rank) hear_rank(c, i, theirs, sizeof theirs);
        ranks += theirs[0] == color;
        rank += theirs[0] == color && (theirs[1] < key || (theirs[1] == key && i < c->rank));
    }
    u64 id = (c->id ^ ++c->splits << 20) + ((u64)(unsigned)color << 40);
    return color < 0 ? OK : join(made, ranks, rank, id);
}
API int ncclCommDestroy(comm *c) { free(c->sent); free(c->heard); free(c); return OK; }
API int ncclCommAbort(comm *c) { return ncclCommDestroy(c); }
API int ncclCommFinalize(void *c) { (void)c; return OK; }
API int ncclCommGetAsyncError(void *c, int *e) { (void)c; *e = OK; return OK; }
API int ncclCommCount(comm *c, int *n) { *n = c->ranks; return OK; }
API int ncclCommUserRank(comm *c, int *n) { *n = c->rank; return OK; }
API int ncclCommCuDevice(void *c, int *d) { (void)c; *d = cur_dev; return OK; }
API int ncclCommRegister(void *c, void *p, size_t n, void **h) { (void)c; (void)n; *h = p; return OK; }
API int ncclCommDeregister(void *c, void *h) { (void)c; (void)h; return OK; }
API int ncclMemAlloc(void **p, size_t n) { return cudaMalloc(p, n) ? 1 : OK; }
API int ncclMemFree(void *p) { return cudaFree(p) ? 1 : OK; }
API int ncclGroupStart(void) { grouped++; return OK; }
API int ncclGroupEnd(void) {
    if (--grouped > 0) return OK;
    for (int i = 0; i < n_waiting; i++) hear_rank(waiting[i].c, waiting[i].from, waiting[i].to, waiting[i].n);
    n_waiting = grouped = 0;
    return OK;
}
API int ncclRedOpCreatePreMulSum(int *op) { *op = 5; return OK; }
API int ncclRedOpDestroy(int op) { (void)op; return OK; }
static size_t nccl_bytes(size_t n, int type) { static const char size[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; return n * (type >= 0 && type < 12 ? (size_t)size[type] : 1); }
static int moved(void *to, const void *from, size_t n) { note(N_LAUNCH); note(N_COLLECTIVE); return to == from ? OK : copy(to, from, n); }
API int ncclAllReduce(const void *s, void *r, size_t n, int t) { return moved(r, s, nccl_bytes(n, t)); }
API int ncclReduce(const void *s, void *r, size_t n, int t) { return r ? moved(r, s, nccl_bytes(n, t)) : OK; }
static void await(comm *c, int from, void *to, size_t n) { /* of a group, what is received comes last */
    if (grouped < 1 || n_waiting == 256) { hear_rank(c, from, to, n); return; }
    waiting[n_waiting].c = c;
    waiting[n_waiting].from = from;
    waiting[n_waiting].to = to;
    waiting[n_waiting++].n = n;
}
API int ncclBroadcast(const void *s, void *r, size_t n, int t, int root, comm *c) {
    size_t size = nccl_bytes(n, t);
    if (c->rank != root) { await(c, root, r, size); return moved(NULL, NULL, 0); }
    for (int i = 0; i < c->ranks; i++) if (i != root) tell_rank(c, i, s, size);
    return moved(r, s, size);
}
API int ncclBcast(void *b, size_t n, int t, int root, comm *c) { return ncclBroadcast(b, b, n, t, root, c); }
API int ncclAllGather(const char *s, char *r, size_t n, int t, comm *c) {
    size_t size = nccl_bytes(n, t);
    for (int i = 0; i < c->ranks; i++) moved(r + (size_t)i * size, s, size);
    for (int i = 0; i < c->ranks; i++) if (i != c->rank) tell_rank(c, i, s, size);
    for (int i = 0; i < c->ranks; i++) if (i != c->rank) await(c, i, r + (size_t)i * size, size);
    return OK;
}
API int ncclReduceScatter(const char *s, char *r, size_t n, int t, int op, comm *c) { (void)op; return moved(r, s + (size_t)c->rank * nccl_bytes(n, t), nccl_bytes(n, t)); }
API int ncclAlltoAll(const char *s, char *r, size_t n, int t, comm *c) { return moved(r, s, (size_t)c->ranks * nccl_bytes(n, t)); }
API int ncclSend(const void *b, size_t n, int t, int peer, comm *c) { tell_rank(c, peer, b, nccl_bytes(n, t)); return moved(NULL, NULL, 0); }
API int ncclRecv(void *b, size_t n, int t, int peer, comm *c) { await(c, peer, b, nccl_bytes(n, t)); return moved(NULL, NULL, 0); }

/* ------------------------------------------------------------------------------ transforms */
/* Work areas hold 1 to 8 times the elements of the transform (cuFFT documentation, Fourier Transform Setup): FAKE_FFT_WS of them. */
API int cufftXtMakePlanMany(int plan, int rank, long long *n, long long *ie, long long is, long long id, int it, long long *oe, long long os, long long od, int ot, long long batch, size_t *ws, int type) {
    (void)plan; (void)ie; (void)is; (void)id; (void)it; (void)oe; (void)os; (void)od; (void)ot;
    u64 elements = (u64)batch;
    for (int i = 0; i < rank; i++) elements *= (u64)n[i];
    u64 size = type == 5 ? 16 : type == 6 ? 4 : 8; /* complex double; complex half; complex float */
    note(N_FFT);
    *ws = (size_t)(elements * size * env_u64("FAKE_FFT_WS", 1));
    if (*ws > counts[N_FFT_BYTES]) counts[N_FFT_BYTES] = *ws;
    return OK;
}

/* A stand-in for libnvidia-ml.so.1 with two cards: FAKE_NVML names its faults, -DOLD leaves out what drivers before 525 lack. */
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
typedef unsigned long long u64;
static int mode(const char *word) { const char *m = getenv("FAKE_NVML"); return m && strstr(m, word) != NULL; }
const char *nvmlErrorString(int code) {
  return code == 3 ? "Not Supported" : code == 4 ? "Insufficient Permissions" : code == 18 ? "Driver/library version mismatch"
       : "Unknown Error"; }
int nvmlInit_v2(void) { if (mode("hang")) sleep(60); if (mode("crash")) abort(); return mode("mismatch") ? 18 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = mode("none") ? 0 : 2; return 0; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { snprintf(out, n, "580.95.05"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13000; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) {
  if (mode("lost") && i) return 15;
  *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetUUID(void *h, char *out, unsigned n) { snprintf(out, n, "GPU-%ld", (long)h); return 0; }
int nvmlDeviceGetName(void *h, char *out, unsigned n) { snprintf(out, n, "Card %ld", (long)h); return 0; }
struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *h, struct pci *p) {
  snprintf(p->bus_id, 32, "00000000:%02lX:00.0", 0xA0 + (long)h); return 0; }
struct window { u64 total, free, used; };
int nvmlDeviceGetBAR1MemoryInfo(void *h, struct window *w) { w->total = 256; w->free = 6; w->used = 250; return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *h, unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *h, unsigned *n) { *n = 4; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *h, unsigned *n) { *n = 8; return (long)h == 2 ? 3 : 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *h, unsigned *n) { *n = 16; return 0; }
#ifndef OLD
struct memory { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory *m) {
  if ((long)h == 2 && mode("refuse")) return 4;
  if (m->version != (sizeof *m | 2 << 24)) return 25;
  m->total = 1000; m->reserved = 7; m->free = 3; m->used = 990; return 0; }
struct process { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, struct process *p) {
  unsigned many = mode("many") ? 100 : 2;
  if (*count < many) { *count = many; return 7; }
  for (unsigned i = 0; i < many; i++) { memset(&p[i], 0, sizeof p[i]); p[i].pid = 500 + i; p[i].used = i == 1 ? ~0ULL : 64; }
  *count = many; return 0; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *count, struct process *p) { return (long)h == 2 ? 3 : (*count = 0, 0); }
#endif

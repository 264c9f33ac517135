/* mock_worker: a very cheap OpenAI-compatible HTTP/1.1 upstream (epoll, 1 thread per worker).
 *   mock_worker -p PORT [-w WORKERS] [-a ADDR]
 * POST .../chat/completions      -> ~600 byte JSON, or SSE when the body has "stream": true
 * POST .../images/...            -> {"data":[{"b64_json": ...}]}   (default 1 MiB of base64)
 * GET  /health /v1/models /get_server_info /server_info /get_model_info ... -> small answers
 * The prompt text carries the controls, so that they survive any proxy:
 *   [[chunks=100 delay_us=10000 ttft_us=0 bytes=1048576]]
 * Every SSE chunk carries "t=<19 digit CLOCK_MONOTONIC ns> i=<6 digits>" as its content: the client
 * on the same machine computes the one-way lag of each chunk through the proxy.
 * Each chunk is sent with its own send(), with TCP_NODELAY. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define KEEP (256 * 1024) /* body bytes kept for scanning */
#define MAXFD 65536
enum { ST_HEAD, ST_BODY, ST_CHUNKED, ST_WAIT, ST_STREAM, ST_FLUSH };

typedef struct conn {
  int fd, state, want_out, close_after, is_get;
  char *in; size_t in_len, in_cap;
  char *body; size_t body_len, body_cap;      /* kept part of the body */
  long long need;                             /* body bytes still to come */
  int ck_state; long long ck_left;            /* chunked request decoder */
  char path[256];
  char *out; size_t out_len, out_off, out_cap;
  const char *big; size_t big_len, big_off; size_t tail_at;
  long chunks, sent, delay_ns, bytes; int usage, stream;
  uint64_t due; int heap_idx, burst_idx;
} conn;

static conn *conns[MAXFD];
static conn **heap; static int heap_n, heap_cap;
static conn **burst; static int burst_n, burst_cap;
static int ep;
static char *bigbuf; static size_t bigcap;

static uint64_t now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec; }

static void hswap(int a, int b) { conn *t = heap[a]; heap[a] = heap[b]; heap[b] = t; heap[a]->heap_idx = a; heap[b]->heap_idx = b; }
static void hup(int i) { while (i && heap[i]->due < heap[(i - 1) / 2]->due) { hswap(i, (i - 1) / 2); i = (i - 1) / 2; } }
static void hdown(int i) { for (;;) { int l = 2 * i + 1, m = i; if (l < heap_n && heap[l]->due < heap[m]->due) m = l; if (l + 1 < heap_n && heap[l + 1]->due < heap[m]->due) m = l + 1; if (m == i) return; hswap(i, m); i = m; } }
static void hpush(conn *c) { if (heap_n == heap_cap) heap = realloc(heap, sizeof *heap * (heap_cap = heap_cap ? heap_cap * 2 : 256)); heap[heap_n] = c; c->heap_idx = heap_n++; hup(c->heap_idx); }
static void hdel(conn *c) { int i = c->heap_idx; if (i < 0) return; heap_n--; if (i != heap_n) { heap[i] = heap[heap_n]; heap[i]->heap_idx = i; hup(i); hdown(i); } c->heap_idx = -1; }
static void bpush(conn *c) { if (burst_n == burst_cap) burst = realloc(burst, sizeof *burst * (burst_cap = burst_cap ? burst_cap * 2 : 256)); burst[burst_n] = c; c->burst_idx = burst_n++; }
static void bdel(conn *c) { int i = c->burst_idx; if (i < 0) return; burst_n--; if (i != burst_n) { burst[i] = burst[burst_n]; burst[i]->burst_idx = i; } c->burst_idx = -1; }

static void cfree(conn *c) {
  hdel(c); bdel(c); conns[c->fd] = NULL; close(c->fd); free(c->in); free(c->body); free(c->out); free(c);
}
static void oput(conn *c, const char *p, size_t n) {
  if (c->out_off == c->out_len) c->out_off = c->out_len = 0;
  if (c->out_len + n > c->out_cap) { c->out_cap = (c->out_len + n) * 2 + 1024; c->out = realloc(c->out, c->out_cap); }
  memcpy(c->out + c->out_len, p, n); c->out_len += n;
}
static void want(conn *c, int out) {
  if (c->want_out == out) return;
  struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e); c->want_out = out;
}
/* 1 = drained, 0 = pending, -1 = dead (freed) */
static int flush(conn *c) {
  for (;;) {
    size_t lim = c->big && c->big_off < c->big_len ? c->tail_at : c->out_len;
    if (c->out_off < lim) {
      ssize_t n = send(c->fd, c->out + c->out_off, lim - c->out_off, MSG_NOSIGNAL | (c->big && c->big_off < c->big_len ? MSG_MORE : 0));
      if (n < 0) { if (errno == EAGAIN) { want(c, 1); return 0; } cfree(c); return -1; }
      c->out_off += n; continue;
    }
    if (c->big && c->big_off < c->big_len) {
      ssize_t n = send(c->fd, c->big + c->big_off, c->big_len - c->big_off, MSG_NOSIGNAL);
      if (n < 0) { if (errno == EAGAIN) { want(c, 1); return 0; } cfree(c); return -1; }
      c->big_off += n; continue;
    }
    c->big = NULL; c->out_off = c->out_len = 0; want(c, 0); return 1;
  }
}

static const char CHAT[] =
  "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"mock\","
  "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox jumps over the lazy dog while a patient "
  "router forwards every byte of this answer from a worker to the caller. It adds nothing, it drops nothing, it keeps the order, and it "
  "tells nobody. This sentence only pads the body to a realistic size for a short chat answer.\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
  "\"usage\":{\"prompt_tokens\":42,\"completion_tokens\":64,\"total_tokens\":106},\"system_fingerprint\":\"fp_mock\"}";

static void simple(conn *c, const char *ct, const char *b, size_t n) {
  char h[256]; int k = snprintf(h, sizeof h, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", ct, n);
  oput(c, h, k); oput(c, b, n);
}
#define JSON(s) simple(c, "application/json", s, sizeof(s) - 1)

static void put_chunk(conn *c) {
  static const char pre[] = "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{";
  char b[512], f[640]; long i = c->sent;
  int n = snprintf(b, sizeof b, "%s%s\"content\":\"t=%019llu i=%06ld \"},\"logprobs\":null,\"finish_reason\":null}]}\n\n", pre, i ? "" : "\"role\":\"assistant\",", (unsigned long long)now_ns(), i);
  int k = snprintf(f, sizeof f, "%x\r\n%s\r\n", n, b);
  oput(c, f, k); c->sent++;
}
static void put_end(conn *c) {
  char b[1024], f[1200]; int n;
  n = snprintf(b, sizeof b, "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n");
  if (c->usage) n += snprintf(b + n, sizeof b - n, "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\",\"choices\":[],\"usage\":{\"prompt_tokens\":42,\"completion_tokens\":%ld,\"total_tokens\":%ld}}\n\n", c->sent, c->sent + 42);
  n += snprintf(b + n, sizeof b - n, "data: [DONE]\n\n");
  int k = snprintf(f, sizeof f, "%x\r\n%s\r\n0\r\n\r\n", n, b);
  oput(c, f, k);
}
static long ctl(const char *s, const char *k, long d) {
  const char *e = strstr(s, "]]"), *p = strstr(s, k);
  return p && (!e || p < e) ? atol(p + strlen(k)) : d;
}
static int process(conn *c);

static int finish(conn *c) { /* response queued whole: flush, then next request. -1 if freed */
  c->state = ST_FLUSH;
  int r = flush(c);
  if (r <= 0) return r;
  if (c->close_after) { cfree(c); return -1; }
  c->state = ST_HEAD;
  return 1;
}
static int answer(conn *c) {
  if (strstr(c->path, "images")) {
    size_t n = c->bytes; if (n > bigcap) n = bigcap;
    static const char a[] = "{\"created\":1700000000,\"data\":[{\"b64_json\":\"", z[] = "\"}]}";
    char h[256]; int k = snprintf(h, sizeof h, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", n + sizeof a - 1 + sizeof z - 1);
    oput(c, h, k); oput(c, a, sizeof a - 1); c->tail_at = c->out_len; oput(c, z, sizeof z - 1);
    c->big = bigbuf; c->big_len = n; c->big_off = 0;
    return finish(c);
  }
  if (c->stream) {
    static const char h[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
    oput(c, h, sizeof h - 1); c->state = ST_STREAM; c->sent = 0;
    put_chunk(c);
    int r = flush(c); if (r < 0) return -1;
    if (c->delay_ns) { c->due = now_ns() + c->delay_ns; hpush(c); } else bpush(c);
    return 0;
  }
  simple(c, "application/json", CHAT, sizeof CHAT - 1);
  return finish(c);
}
static int request_done(conn *c) {
  if (c->is_get) {
    if (strstr(c->path, "models")) JSON("{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"bench\",\"root\":\"mock\",\"max_model_len\":32768}]}");
    else if (strstr(c->path, "info")) JSON("{\"model_id\":\"mock\",\"model_path\":\"mock\",\"served_model_name\":\"mock\",\"tokenizer_path\":\"mock\",\"is_generation\":true,\"version\":\"0.5.5\",\"tp_size\":1,\"dp_size\":1,\"max_running_requests\":4096,\"max_total_num_tokens\":1000000,\"max_total_tokens\":1000000,\"weight_version\":\"default\"}");
    else if (strstr(c->path, "version")) JSON("{\"version\":\"0.5.5\"}");
    else if (strstr(c->path, "metrics")) simple(c, "text/plain", "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", 57);
    else JSON("{\"status\":\"ok\"}");
    return finish(c);
  }
  if (c->body_cap < c->body_len + 1) c->body = realloc(c->body, c->body_cap = c->body_len + 1);
  c->body[c->body_len] = 0;
  char *s = strstr(c->body, "[[");
  c->chunks = 100; c->delay_ns = 0; c->bytes = 1 << 20; long ttft = 0;
  if (s) { c->chunks = ctl(s, "chunks=", 100); c->delay_ns = ctl(s, "delay_us=", 0) * 1000; ttft = ctl(s, "ttft_us=", 0); c->bytes = ctl(s, "bytes=", 1 << 20); }
  c->stream = c->usage = 0;
  for (char *p = c->body; (p = strstr(p, "\"stream\"")); p += 8) { char *q = p + 8; while (*q == ' ' || *q == ':') q++; if (!strncmp(q, "true", 4)) { c->stream = 1; break; } }
  if (c->stream) { char *p = strstr(c->body, "\"include_usage\""); if (p) { p += 15; while (*p == ' ' || *p == ':') p++; c->usage = !strncmp(p, "true", 4); } }
  if (ttft) { c->state = ST_WAIT; c->due = now_ns() + ttft * 1000ull; hpush(c); return 0; }
  return answer(c);
}
static void keep(conn *c, const char *p, size_t n) {
  if (c->body_len + n > KEEP) n = KEEP - c->body_len;
  if (c->body_len + n + 1 > c->body_cap) c->body = realloc(c->body, c->body_cap = (c->body_len + n) * 2 + 1024);
  memcpy(c->body + c->body_len, p, n); c->body_len += n;
}
static void eat(conn *c, size_t n) { c->in_len -= n; memmove(c->in, c->in + n, c->in_len); }

/* returns -1 if freed */
static int process(conn *c) {
  for (;;) {
    if (c->state == ST_HEAD) {
      if (!c->in_len) return 0;
      char *e = memmem(c->in, c->in_len, "\r\n\r\n", 4);
      if (!e) return 0;
      *e = 0; size_t hl = e - c->in + 4;
      c->is_get = !strncmp(c->in, "GET ", 4) || !strncmp(c->in, "HEAD", 4);
      char *sp = strchr(c->in, ' '), *sp2 = sp ? strchr(sp + 1, ' ') : NULL;
      size_t pl = sp2 ? sp2 - sp - 1 : 0; if (pl > 255) pl = 255;
      if (sp2) memcpy(c->path, sp + 1, pl);
      c->path[pl] = 0;
      long long cl = 0; int chunked = 0; c->close_after = sp2 && !strncmp(sp2 + 1, "HTTP/1.0", 8);
      for (char *l = strstr(c->in, "\r\n"); l; l = strstr(l, "\r\n")) {
        l += 2;
        if (!strncasecmp(l, "content-length:", 15)) cl = atoll(l + 15);
        else if (!strncasecmp(l, "transfer-encoding:", 18) && strcasestr(l, "chunked")) { char *nl = strstr(l, "\r\n"); char *ch = strcasestr(l, "chunked"); if (!nl || ch < nl) chunked = 1; }
        else if (!strncasecmp(l, "connection:", 11)) { if (!strncasecmp(l + 12, "close", 5)) c->close_after = 1; if (!strncasecmp(l + 12, "keep-alive", 10)) c->close_after = 0; }
        else if (!strncasecmp(l, "expect:", 7)) send(c->fd, "HTTP/1.1 100 Continue\r\n\r\n", 25, MSG_NOSIGNAL);
      }
      eat(c, hl); c->body_len = 0; c->need = cl;
      if (chunked) { c->state = ST_CHUNKED; c->ck_state = 0; c->ck_left = 0; } else c->state = ST_BODY;
    }
    if (c->state == ST_BODY) {
      size_t n = c->in_len; if ((long long)n > c->need) n = c->need;
      if (n) { keep(c, c->in, n); c->need -= n; eat(c, n); }
      if (c->need) return 0;
      int r = request_done(c); if (r <= 0) return r; continue;
    }
    if (c->state == ST_CHUNKED) {
      size_t i = 0; int done = 0;
      while (i < c->in_len && !done) {
        char ch = c->in[i];
        switch (c->ck_state) {
          case 0: if (ch == '\n') c->ck_state = c->ck_left ? 1 : 3; else if (ch != '\r' && ch != ';') { int d = ch <= '9' ? ch - '0' : (ch | 32) - 'a' + 10; c->ck_left = c->ck_left * 16 + d; } i++; break;
          case 1: { size_t n = c->in_len - i; if ((long long)n > c->ck_left) n = c->ck_left; keep(c, c->in + i, n); i += n; c->ck_left -= n; if (!c->ck_left) c->ck_state = 2; break; }
          case 2: if (ch == '\n') { c->ck_state = 0; c->ck_left = 0; } i++; break;
          case 3: if (ch == '\n') done = 1; i++; break; /* no trailers expected */
        }
      }
      eat(c, i);
      if (!done) return 0;
      int r = request_done(c); if (r <= 0) return r; continue;
    }
    return 0; /* responding: leave pipelined input in the buffer */
  }
}
static void stream_step(conn *c) { /* one chunk or the end */
  if (c->sent < c->chunks) {
    put_chunk(c);
    if (flush(c) < 0) return;
    if (c->delay_ns) { c->due += c->delay_ns; hpush(c); }
  } else {
    bdel(c); put_end(c);
    if (finish(c) == 1) process(c);
  }
}
int main(int ac, char **av) {
  int port = 28000, workers = 1, o; const char *addr = "127.0.0.1";
  while ((o = getopt(ac, av, "p:w:a:")) != -1) { if (o == 'p') port = atoi(optarg); else if (o == 'w') workers = atoi(optarg); else if (o == 'a') addr = optarg; else return 2; }
  signal(SIGPIPE, SIG_IGN);
  struct rlimit rl = {60000, 60000}; setrlimit(RLIMIT_NOFILE, &rl);
  bigcap = 8 << 20; bigbuf = malloc(bigcap);
  for (size_t i = 0; i < bigcap; i++) bigbuf[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[(i * 2654435761u >> 7) & 63];
  for (int i = 1; i < workers; i++) if (!fork()) { prctl(PR_SET_PDEATHSIG, SIGTERM); break; }
  int ls = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one); setsockopt(ls, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
  struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)}; inet_pton(AF_INET, addr, &sa.sin_addr);
  if (bind(ls, (void *)&sa, sizeof sa) || listen(ls, 4096)) { perror("bind"); return 1; }
  ep = epoll_create1(0); struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}; epoll_ctl(ep, EPOLL_CTL_ADD, ls, &e);
  struct epoll_event ev[512];
  for (;;) {
    struct timespec ts, *tp = NULL;
    if (burst_n) { ts.tv_sec = ts.tv_nsec = 0; tp = &ts; int writable = 0; for (int i = 0; i < burst_n; i++) if (!burst[i]->want_out) { writable = 1; break; } if (!writable) tp = NULL; }
    if (heap_n && (!tp || tp->tv_nsec || tp->tv_sec)) { uint64_t n = now_ns(), d = heap[0]->due > n ? heap[0]->due - n : 0; ts.tv_sec = d / 1000000000ull; ts.tv_nsec = d % 1000000000ull; tp = &ts; }
    int n = epoll_pwait2(ep, ev, 512, tp, NULL);
    for (int i = 0; i < n; i++) {
      conn *c = ev[i].data.ptr;
      if (!c) {
        for (;;) {
          int fd = accept4(ls, NULL, NULL, SOCK_NONBLOCK); if (fd < 0) break;
          if (fd >= MAXFD) { close(fd); continue; }
          setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
          c = calloc(1, sizeof *c); c->fd = fd; c->heap_idx = c->burst_idx = -1; conns[fd] = c;
          struct epoll_event e2 = {.events = EPOLLIN, .data.ptr = c}; epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e2);
        }
        continue;
      }
      if (ev[i].events & EPOLLOUT) { int r = flush(c); if (r < 0) continue; if (r == 1 && c->state == ST_FLUSH) { if (c->close_after) { cfree(c); continue; } c->state = ST_HEAD; if (process(c) < 0) continue; } }
      if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        if (c->in_len + 65536 > c->in_cap) c->in = realloc(c->in, c->in_cap = c->in_len + 65536 * 2);
        ssize_t k = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len - 1, 0);
        if (k == 0 || (k < 0 && errno != EAGAIN)) { cfree(c); continue; }
        if (k > 0) { c->in_len += k; process(c); }
      }
    }
    uint64_t t = now_ns();
    while (heap_n && heap[0]->due <= t) { conn *c = heap[0]; hdel(c); if (c->state == ST_WAIT) { if (answer(c) == 1) process(c); } else stream_step(c); }
    for (int i = burst_n - 1; i >= 0; i--) if (i < burst_n && !burst[i]->want_out) stream_step(burst[i]);
  }
}

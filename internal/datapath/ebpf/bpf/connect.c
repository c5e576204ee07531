// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later

// connect.c gives a TCP socket its endpoint when it connects. Every doubt ends in "leave": the socket keeps the Service's
// address, and nf_tables translates its packets.
//
//	connect4, connect6          Service -> endpoint, noted in socks, counted in endpoints
//	getpeername4, getpeername6  endpoint -> Service, for the program that asks for its peer
//	sock_release                forgets the socket
//	refused, silent             eject the endpoint of a socket that fails to connect
//
// "layout" in ebpf.go is the version of the maps. Every change of a map changes it.

#include "kernel.h"

// An address and port in network order. IPv4 addresses are mapped into IPv6.
struct addr {
	__be32 ip[4];
	__be16 port;
	__u16 zero;
};

struct slot_key {
	struct addr front;
	__u32 slot;
};

// A slot is one entry of a front's list.
struct slot {
	struct addr to;
	__u16 weight; // at least 1; only algorithms with connection counts read it
	__u16 zero;
};

// An endpoint is one address of all lists. Its address is its key, so a change of a list moves no count.
struct endpoint {
	__u32 open; // open sockets, whichever front sent them
	__u32 silences; // SYNs that had no answer in time, in a row
	__u64 silent; // the time of the first of these; all times are of the kernel's monotonic clock
	__u64 since; // the start of the last ejection, or its end if it has ended; 0: there was none
	__u64 until; // the next time at which a socket tries an ejected endpoint; 0: it is not ejected
	__u32 ejections; // in a row
	__u8 reason; // of the last ejection
	__u8 trying; // a socket tries the ejected endpoint
	__u16 zero;
};

// The reasons of an ejection.
#define REFUSED 1
#define SILENT 2

// A note is what the programs remember of a translated socket.
struct note {
	struct addr front;
	struct addr endpoint;
	__u64 at; // the time of the choice
};

// A front is the address of a Service that connect time may translate.
struct front {
	__u32 slots; // the length of the list
	__u32 flags;
	__u32 turn; // the next turn of round robin
	__u32 pause; // the first ejection of an endpoint, in seconds
	__u32 spare; // slots that may be passed by because their endpoints are ejected; 0: none is ejected
	__u32 zero;
	__u64 chosen; // sockets that got an endpoint since the front was written
};

// The flags of a front.
#define ROUND_ROBIN 1
#define PODS 2 // pods may be translated, too; otherwise only the node's own sockets
#define LEAST_CONN 4
#define SHORTEST_DELAY 8
#define NEVER_QUEUE 16
#define COUNTS (LEAST_CONN | SHORTEST_DELAY | NEVER_QUEUE) // the list has one slot for each endpoint

// Algorithms with connection counts compare all slots of a short list, and a sample of a long one.
#define SHORT_LIST 32
#define SAMPLE 8
#define OTHERS 16 // slots that a socket tries to find another endpoint than an ejected one

// What the programs know about the node.
struct node {
	__u64 netns; // the cookie of the node's network namespace
	__u64 until; // the time at which the programs stop choosing unless an agent renews it, on the kernel's monotonic clock
	__u64 pods; // the ID of the cgroup above all pods; 0: none
	__u32 pods_level;
	__u32 layout; // the version of all maps; it keeps its place
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct addr);
	__type(value, struct front);
} fronts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 524288);
	__type(key, struct slot_key);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct addr);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

// socks has the translated sockets by their cookies.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, __u64);
	__type(value, struct note);
} socks SEC(".maps");

// trusted has endpoints that answered the agent although they were ejected, and the time until which nothing ejects
// them. A network policy or a broken client is the likely reason.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct addr);
	__type(value, __u64);
} trusted SEC(".maps");

// ejections counts all ejections. The agent reads the endpoints if the number has changed.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} ejections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node);
} settings SEC(".maps");


// listens reports whether the network namespace has a TCP listener on a port of 127.0.0.1.
static __always_inline bool listens(struct bpf_sock_addr *ctx, __u16 port)
{
	struct bpf_sock_tuple to = {};
	to.ipv4.daddr = bpf_htonl(0x7f000001);
	to.ipv4.dport = bpf_htons(port);
	struct bpf_sock *sk = bpf_sk_lookup_tcp(ctx, &to, sizeof(to.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

// plain reports whether the socket is a program's, and is bound to no address, port, device or routing mark. The route
// of a bound socket may change with its destination, and a bound port may already have a connection to the endpoint. The
// kernel's own sockets (NFS, MPTCP) keep the address they are given.
static __always_inline bool plain(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk; // the verifier wants one load
	if (!sk || sk->mark || sk->bound_dev_if || sk->src_port || sk->src_ip4)
		return false;
	if (sk->family == AF_INET6 && (sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3]))
		return false;
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	return tcp && !BPF_CORE_READ_BITFIELD(&tcp->inet_conn.icsk_inet.sk, sk_kern_sock);
}

// client reports whether the socket is the node's own, or a pod's if pods may be translated. Other network namespaces
// of the node are strangers. Without an agent nobody is a client, because the endpoints may be old. A pod with the listener of a mesh's sidecar needs the Service's address.
static __always_inline bool client(struct bpf_sock_addr *ctx, const struct front *f, __u64 now)
{
	__u32 zero = 0;
	struct node *s = bpf_map_lookup_elem(&settings, &zero);
	if (!s || now > s->until)
		return false;
	if (bpf_get_netns_cookie(ctx) == s->netns)
		return true;
	return f->flags & PODS && s->pods && bpf_get_current_ancestor_cgroup_id(s->pods_level) == s->pods &&
	       !listens(ctx, 15001) && !listens(ctx, 4140); // Istio, Linkerd
}

// A choice is a slot and its endpoint's counts. Without a slot the socket is left.
struct choice {
	struct slot *slot;
	struct endpoint *counts;
};

// at returns a slot of a list. A reader that meets a change finds nothing in it.
static __always_inline struct choice at(const struct addr *front, __u32 slot)
{
	struct slot_key key = { .front = *front, .slot = slot };
	struct choice c = { .slot = bpf_map_lookup_elem(&slots, &key) };
	if (c.slot)
		c.counts = bpf_map_lookup_elem(&endpoints, &c.slot->to);
	if (!c.counts)
		c.slot = NULL;
	return c;
}

#include "eject.h"

// least chooses the endpoint with the fewest open sockets in relation to its weight. Equal endpoints take turns.
static __always_inline struct choice least(const struct addr *front, const struct front *f, __u32 turn, __u64 now)
{
	struct choice best = {}, passed = {};
	__u64 best_load = 0, best_weight = 1;
	__u32 n = f->slots, plus = f->flags & LEAST_CONN ? 0 : 1;
	bool all = n <= SHORT_LIST;
	for (__u32 i = 0; i < SHORT_LIST; i++) {
		if (i >= (all ? n : SAMPLE))
			break;
		struct choice c = at(front, (all ? turn + i : bpf_get_prandom_u32()) % n);
		if (!c.slot)
			return c;
		if (f->spare && c.counts->until > now) {
			passed = c;
			continue;
		}
		__u64 load = c.counts->open + plus, weight = c.slot->weight;
		if (f->flags & NEVER_QUEUE && load == plus)
			return c;
		if (!best.slot || load * best_weight < best_load * weight) {
			best = c;
			best_load = load;
			best_weight = weight;
		}
	}
	if (passed.slot && passed.counts && (!best.slot || usable(&passed.slot->to, passed.counts, now)))
		return passed;
	return best;
}

// pick chooses an endpoint. If the endpoint is ejected, it chooses at random among the others.
static __always_inline struct choice pick(const struct addr *front, struct front *f, __u64 now)
{
	if (!f->slots)
		return (struct choice){};
	__u32 n = f->flags & (ROUND_ROBIN | COUNTS) ? __sync_fetch_and_add(&f->turn, 1) : bpf_get_prandom_u32();
	struct choice c = f->flags & COUNTS ? least(front, f, n, now) : at(front, n % f->slots);
	if (!c.slot || !c.counts || !f->spare || usable(&c.slot->to, c.counts, now))
		return c;
	for (int i = 0; i < OTHERS; i++) {
		struct choice other = at(front, bpf_get_prandom_u32() % f->slots);
		if (!other.slot || !other.counts)
			return other;
		if (!other.counts->until)
			return other;
	}
	return c;
}

// closed counts a socket less at its endpoint, and returns the endpoint.
static __always_inline struct endpoint *closed(const struct addr *at)
{
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, at);
	if (e)
		__sync_fetch_and_sub(&e->open, 1);
	return e;
}

// remember notes a socket. A socket that connects again after a failure already has a note.
static __always_inline bool remember(__u64 cookie, const struct note *n)
{
	if (!bpf_map_update_elem(&socks, &cookie, n, BPF_NOEXIST))
		return true;
	struct note *last = bpf_map_lookup_elem(&socks, &cookie);
	if (!last) // the map is full
		return false;
	struct addr was = last->endpoint;
	if (bpf_map_update_elem(&socks, &cookie, n, BPF_EXIST))
		return false;
	closed(&was);
	return true;
}

// translate returns the endpoint for the socket; NULL: leave it.
static __always_inline struct addr *translate(struct bpf_sock_addr *ctx, const struct addr *to)
{
	struct front *f = bpf_map_lookup_elem(&fronts, to);
	__u64 now = bpf_ktime_get_coarse_ns();
	if (!f || !plain(ctx) || !client(ctx, f, now))
		return NULL;
	struct choice c = pick(to, f, now);
	if (!c.slot || !c.counts)
		return NULL;
	struct note n = { .front = *to, .endpoint = c.slot->to, .at = now };
	if (!remember(bpf_get_socket_cookie(ctx), &n))
		return NULL; // without a note the program could not learn its peer
	__sync_fetch_and_add(&c.counts->open, 1);
	__sync_fetch_and_add(&f->chosen, 1);
	return &c.slot->to;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	struct addr to = { .ip = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 }, .port = ctx->user_port };
	if (ctx->protocol != IPPROTO_TCP)
		return 1;
	struct addr *e = translate(ctx, &to);
	if (e) {
		ctx->user_ip4 = e->ip[3];
		ctx->user_port = e->port;
	}
	return 1;
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct addr to = { .ip = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] }, .port = ctx->user_port };
	if (ctx->protocol != IPPROTO_TCP)
		return 1;
	struct addr *e = translate(ctx, &to);
	if (e) {
		ctx->user_ip6[0] = e->ip[0];
		ctx->user_ip6[1] = e->ip[1];
		ctx->user_ip6[2] = e->ip[2];
		ctx->user_ip6[3] = e->ip[3];
		ctx->user_port = e->port;
	}
	return 1;
}

// A socket that connected again without the programs has another peer than in its note.
SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct note *n = bpf_map_lookup_elem(&socks, &cookie);
	if (n && ctx->user_ip4 == n->endpoint.ip[3] && ctx->user_port == n->endpoint.port) {
		ctx->user_ip4 = n->front.ip[3];
		ctx->user_port = n->front.port;
	}
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct note *n = bpf_map_lookup_elem(&socks, &cookie);
	if (n && ctx->user_ip6[0] == n->endpoint.ip[0] && ctx->user_ip6[1] == n->endpoint.ip[1] &&
	    ctx->user_ip6[2] == n->endpoint.ip[2] && ctx->user_ip6[3] == n->endpoint.ip[3] && ctx->user_port == n->endpoint.port) {
		ctx->user_ip6[0] = n->front.ip[0];
		ctx->user_ip6[1] = n->front.ip[1];
		ctx->user_ip6[2] = n->front.ip[2];
		ctx->user_ip6[3] = n->front.ip[3];
		ctx->user_port = n->front.port;
	}
	return 1;
}

SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct note *n = bpf_map_lookup_elem(&socks, &cookie);
	if (!n)
		return 1;
	struct note was = *n;
	if (bpf_map_delete_elem(&socks, &cookie))
		return 1;
	struct endpoint *e = closed(&was.endpoint);
	if (e && ctx->state == TCP_SYN_SENT)
		gave_up(e, was.at);
	else if (e && e->silences && was.at > e->silent && ctx->state != TCP_CLOSE)
		e->silences = 0; // the endpoint answers others: a network policy may deny the client
	return 1;
}

SEC("tp_btf/tcp_receive_reset")
int refused(__u64 *args)
{
	return failed((struct sock *)args[0], REFUSED);
}

SEC("tp_btf/tcp_retransmit_skb")
int silent(__u64 *args)
{
	return failed((struct sock *)args[0], SILENT);
}

// The helpers that read kernel structures want a GPL-compatible program.
char _license[] SEC("license") = "GPL";

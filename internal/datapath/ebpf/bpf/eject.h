// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later

// eject.h decides which endpoints get no sockets for a while, because sockets failed to connect to them. connect.c has
// the maps.

#define MAX_PAUSE 300 // seconds
#define MAX_DOUBLINGS 8
#define SILENCES 2 // in a row eject an endpoint, within a minute
#define SILENCE_WINDOW (60 * NSEC_PER_SEC)
#define TRIAL (1500 * 1000000ull) // a SYN without an answer comes again after one second
#define LOOK_AT 64
#define FORGET (600 * NSEC_PER_SEC) // ejections after a longer time are not in a row

// distrusted reports whether failed sockets may eject an endpoint.
static __always_inline bool distrusted(const struct addr *at, __u64 now)
{
	__u64 *until = bpf_map_lookup_elem(&trusted, at);
	return !until || now > *until;
}

// usable reports whether a socket may choose an endpoint. After the pause of an ejected endpoint one socket tries it. If no
// answer is late or negative during the trial, the ejection has ended. Otherwise another socket tries it, or it is
// ejected again. An answer to the agent ends the ejection, too.
static __always_inline bool usable(const struct addr *at, struct endpoint *e, __u64 now)
{
	__u64 until = e->until;
	if (!until)
		return true;
	if (!distrusted(at, now) || (now >= until && e->trying && !e->silences)) {
		if (__sync_val_compare_and_swap(&e->until, until, 0) == until) {
			e->since = now;
			e->trying = 0;
		}
		return true;
	}
	if (now < until || __sync_val_compare_and_swap(&e->until, until, now + TRIAL) != until)
		return false;
	e->trying = 1;
	return true;
}

// spares reports whether a list can spare one more endpoint. Of a long list it looks at the first slots.
static __always_inline bool spares(const struct addr *front, const struct front *f)
{
	__u32 out = 0;
	for (__u32 i = 0; i < LOOK_AT; i++) {
		if (i >= f->slots)
			break;
		struct choice c = at(front, i);
		if (!c.slot || !c.counts)
			return false;
		if (c.counts->until)
			out++;
	}
	return out < f->spare;
}

// gave_up notes that a client did not wait for an answer. This is no silence, except of an endpoint on trial.
static __always_inline void gave_up(struct endpoint *e, __u64 at)
{
	if (!e->trying || e->silences || at <= e->since)
		return;
	e->silent = bpf_ktime_get_ns();
	e->silences = 1;
}

// failed ejects the endpoint of a socket that is connecting. Only sockets that chose the endpoint after its last ejection
// say something new.
static __always_inline int failed(struct sock *sk, __u8 reason)
{
	if (sk->__sk_common.skc_state != TCP_SYN_SENT)
		return 0;
	__u64 cookie = bpf_get_socket_cookie(sk), now = bpf_ktime_get_ns();
	struct note *n = bpf_map_lookup_elem(&socks, &cookie);
	if (!n)
		return 0;
	struct front *f = bpf_map_lookup_elem(&fronts, &n->front);
	struct endpoint *e = bpf_map_lookup_elem(&endpoints, &n->endpoint);
	if (!f || !f->spare || !e || n->at <= e->since || !distrusted(&n->endpoint, now))
		return 0;
	if (reason == SILENT) {
		if (!e->silences || now - e->silent > SILENCE_WINDOW) {
			e->silences = 0;
			e->silent = now;
		}
		if (__sync_fetch_and_add(&e->silences, 1) + 1 < SILENCES)
			return 0;
	}
	if (!e->until && !spares(&n->front, f))
		return 0;
	__u64 since = e->since;
	if (__sync_val_compare_and_swap(&e->since, since, now) != since)
		return 0; // by another socket at the same time
	__u32 times = now - since > FORGET ? 0 : e->ejections;
	__u64 pause = (__u64)f->pause << (times < MAX_DOUBLINGS ? times : MAX_DOUBLINGS);
	e->reason = reason;
	e->silences = 0;
	e->trying = 0;
	e->ejections = times + 1;
	e->until = now + (pause < MAX_PAUSE ? pause : MAX_PAUSE) * NSEC_PER_SEC;
	__u32 zero = 0;
	__u64 *all = bpf_map_lookup_elem(&ejections, &zero);
	if (all)
		__sync_fetch_and_add(all, 1);
	return 0;
}

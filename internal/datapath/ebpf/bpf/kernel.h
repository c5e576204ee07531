// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later

// kernel.h declares the few kernel structures that the programs read. libbpf's relocations find the real offsets.

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

#define AF_INET6 10
#define IPPROTO_TCP 6
#define TCP_SYN_SENT 2
#define TCP_CLOSE 7
#define NSEC_PER_SEC 1000000000ull

struct sock_common {
	unsigned char skc_state;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	__u8 sk_kern_sock : 1;
} __attribute__((preserve_access_index));

struct inet_sock {
	struct sock sk;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	struct inet_sock icsk_inet;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
} __attribute__((preserve_access_index));
